"""The paper against its own tables: what its sentences say of the numbers that it prints. No run of ours enters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gcalign.lab import paper
from gcalign.lab.experiments.engine.claims import EmpiricalClaim, Judgement, Results, Word
from gcalign.lab.experiments.engine.statistics import Estimate, signed
from gcalign.lab.experiments.paper import PRINTED
from gcalign.lab.experiments.paper.columns import CIFAR10, CIFAR10C, CIFAR100, NEW_COMBINE, Column
from gcalign.lab.paper import METHODS, NAMES, PAIRS


@dataclass(frozen=True)
class Printed:
    """tab:new_combine as it is printed, and the standard rows of the appendix tables that it repeats."""

    columns: Sequence[Column]
    deltas: Mapping[str, Sequence[float]]  # the rows Δ
    underlined: Sequence[frozenset[str]]  # the methods, for each column
    standard: Mapping[str, Column]  # by the name of the column in tab:new_combine

    def differences(self) -> list[tuple[str, Column, float, Estimate]]:
        """Each Δ: its method, its column, as printed, and as the rows give it."""
        return [(a, c, self.deltas[a][k], c.delta(a, b)) for a, b in PAIRS for k, c in enumerate(self.columns)]


PAPER = Printed(
    NEW_COMBINE,
    paper.DELTAS,
    (paper.UNDERLINED,) * len(NEW_COMBINE),
    {"CIFAR-10": CIFAR10[0], "CIFAR-100": CIFAR100[0], "CIFAR-10C": CIFAR10C[0]},
)
Rule = Callable[[Printed], Judgement]


def all_but_one(t: Printed) -> Judgement:
    leads = [c for c in t.columns if c.best() == ("gca-uot",)]
    clear = [c for c in t.columns if all(c.delta("gca-uot", m).better for m in METHODS if m != "gca-uot")]
    n = len(t.columns)
    text = f"highest mean in {len(leads)} of {n}; its interval over every other method excludes zero in {len(clear)}"
    return Judgement("held" if len(leads) == n - 1 else "failed", f"{text} of {n}")


def except_svhn(t: Printed) -> Judgement:
    deltas = {a: printed for a, c, printed, _ in t.differences() if c.name == "SVHN"}
    text = ", ".join(f"{NAMES[a]} {signed(x)}" for a, x in deltas.items())
    return Judgement("failed" if all(x > 0 for x in deltas.values()) else "held", f"Δ on SVHN: {text}")


def larger_for_rince(t: Printed) -> Judgement:
    standard = [k for k, c in enumerate(t.columns) if c.group == "Standard"]
    more = [t.columns[k].name for k in standard if t.deltas["gca-rince"][k] > t.deltas["gca-ince"][k]]
    text = f"larger in {len(more)} of {len(standard)} standard columns ({', '.join(more)})"
    return Judgement("held" if len(more) == len(standard) else "failed", text)


def rows_delta(t: Printed) -> Judgement:
    wrong = [
        f"{NAMES[a]}, {c.name}: printed {signed(printed)}, the rows give {signed(d.mean)}"
        for a, c, printed, d in t.differences()
        if abs(d.mean - printed) > 1e-6
    ]
    return Judgement("failed" if wrong else "held", "; ".join(wrong) or f"all {len(t.differences())} are")


def deltas_exclude_zero(t: Printed) -> Judgement:
    """Held where most are gains beyond doubt, failed where no more of them are than are losses beyond doubt."""
    deltas = t.differences()
    gains, losses = sum(d.better for *_, d in deltas), sum(d.worse for *_, d in deltas)
    word: Word = "held" if 2 * gains > len(deltas) else "failed" if losses and gains <= losses else "not shown"
    text = f"{sum(printed > 0 for _, _, printed, _ in deltas)} of {len(deltas)} are gains; {gains + losses} have "
    text += "a 95 % interval (Welch, 5 seeds each) that excludes zero"
    return Judgement(word, f"{text}: {gains} gains and {losses} losses")


def underlined(t: Printed) -> Judgement:
    """Whether in each column the second-place method is underlined, and no other; a tie has two."""
    second = []
    for c in t.columns:
        place = max((x for x in c.mean if x < max(c.mean)), default=max(c.mean))
        second.append(frozenset(m for m, x in zip(METHODS, c.mean, strict=True) if x == place))
    right = sum(printed == numbers for printed, numbers in zip(t.underlined, second, strict=True))
    n = len(t.columns)
    text = f"right in {right} of {n}; underlined: {_counts(t.underlined)}; second by the numbers: {_counts(second)}"
    return Judgement("held" if right == n else "failed", text)


def _counts(places: Sequence[frozenset[str]]) -> str:
    each = {NAMES[m]: sum(m in place for place in places) for m in METHODS}
    return ", ".join(f"{name} in {count}" for name, count in each.items() if count)


def standard(t: Printed) -> Judgement:
    wrong = []
    for main in (c for c in t.columns if c.name in t.standard):
        for m in METHODS:
            one, two = main.figure(m), t.standard[main.name].figure(m)
            if one != two:
                there = f"{two.mean:.2f} ± {two.std:.2f}"
                wrong.append(f"{NAMES[m]}, {main.name} {one.mean:.2f} ± {one.std:.2f}, appendix {there}")
    text = f"{len(wrong)} differ, e.g. {wrong[0]}" if wrong else "all are"
    return Judgement("failed" if wrong else "held", text)


def _claim(label: str, where: str, says: str, figures: str, rule: Rule) -> EmpiricalClaim:
    def judge(results: Results) -> Judgement:
        return rule(PAPER)

    return EmpiricalClaim(PRINTED, label, says, judge, where, figures)


_TABLE, _TEXT = "tab:new_combine", "Results on Standard Augmentations"
CLAIMS = (
    _claim("7 of 8", _TABLE, "GCA-UOT has the bold number in all but one column", "7 of 8", all_but_one),
    _claim("SVHN", _TEXT, "+GCA gains “in almost all settings except for SVHN”", "no figure", except_svhn),
    _claim("larger", _TEXT, "“bigger gains observed when adding GCA to RINCE”", "no figure", larger_for_rince),
    _claim("rows Δ", _TABLE, "Δ is the GCA row less the row above it", "16 differences", rows_delta),
    _claim("spread of Δ", _TEXT, "+GCA versions show “performance gains”", "16 differences", deltas_exclude_zero),
    _claim("underlined", f"caption of {_TABLE}", "“the second-place model is underlined”", "8 columns", underlined),
    _claim("standard", "app:corruptset", f"Standard rows are the columns of {_TABLE}", "27 figures", standard),
)
