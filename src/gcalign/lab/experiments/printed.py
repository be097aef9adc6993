"""What the paper's sentences say of its own tables; no run of ours enters."""

from __future__ import annotations

from gcalign.lab.experiments import paper
from gcalign.lab.experiments.judges import Results, Verdict
from gcalign.lab.experiments.paper import METHODS, NAMES, NEW_COMBINE, PAIRS, Column
from gcalign.lab.experiments.statistics import Difference

UNDERLINED = {"gca-ince", "gca-rince"}  # in every column of tab:new_combine


def _signed(x: float) -> str:
    return f"{x:+.2f}".replace("-", "−")


def _deltas() -> list[tuple[str, Column, float, Difference]]:
    """Each Δ: its method, its column, as printed, and as the rows give it."""
    return [(a, c, paper.DELTAS[a][k], c.delta(a, b)) for a, b in PAIRS for k, c in enumerate(NEW_COMBINE)]


def seven_of_eight(_: Results) -> Verdict:
    leads = [c for c in NEW_COMBINE if c.best() == ("gca-uot",)]
    clear = [c for c in NEW_COMBINE if all(c.delta("gca-uot", m).better for m in METHODS if m != "gca-uot")]
    told = f"highest mean in {len(leads)} of 8; its interval over every other method excludes zero in {len(clear)} of 8"
    return Verdict("held" if len(leads) == 7 else "failed", told)


def except_svhn(_: Results) -> Verdict:
    found = {a: printed for a, c, printed, _ in _deltas() if c.name == "SVHN"}
    told = ", ".join(f"{NAMES[a]} {_signed(x)}" for a, x in found.items())
    return Verdict("failed" if all(x > 0 for x in found.values()) else "held", f"Δ on SVHN: {told}")


def larger_for_rince(_: Results) -> Verdict:
    standard = [k for k, c in enumerate(NEW_COMBINE) if c.group == "Standard"]
    more = [NEW_COMBINE[k].name for k in standard if paper.DELTAS["gca-rince"][k] > paper.DELTAS["gca-ince"][k]]
    told = f"larger in {len(more)} of {len(standard)} standard columns ({', '.join(more)})"
    return Verdict("held" if len(more) == len(standard) else "failed", told)


def rows_delta(_: Results) -> Verdict:
    wrong = [
        f"{NAMES[a]}, {c.name}: printed {_signed(printed)}, the rows give {_signed(d.mean)}"
        for a, c, printed, d in _deltas()
        if abs(d.mean - printed) > 1e-6
    ]
    return Verdict("failed" if wrong else "held", "; ".join(wrong) or "all 16 are")


def deltas_exclude_zero(_: Results) -> Verdict:
    clear = [f"{NAMES[a]}, {c.name} {_signed(d.mean)}" for a, c, _, d in _deltas() if d.better or d.worse]
    gains = sum(printed > 0 for _, _, printed, _ in _deltas())
    told = f"{gains} of 16 are gains; {len(clear)} have a 95 % interval (Welch, 5 seeds each) that excludes zero"
    return Verdict("held" if len(clear) == 16 else "not shown", f"{told}: {'; '.join(clear)}")


def underlined(_: Results) -> Verdict:
    second = [next(m for m, x in zip(METHODS, c.mean, strict=True) if x == sorted(c.mean)[-2]) for c in NEW_COMBINE]
    right = sum({m} == UNDERLINED for m in second)
    counts = ", ".join(f"{NAMES[m]} in {second.count(m)}" for m in METHODS if m in second)
    told = f"right in {right} of 8: GCA-INCE and GCA-RINCE are underlined throughout; second by the numbers: {counts}"
    return Verdict("held" if right == 8 else "failed", told)


def standard(_: Results) -> Verdict:
    tables = {"CIFAR-10": paper.CIFAR10, "CIFAR-100": paper.CIFAR100, "CIFAR-10C": paper.CIFAR10C}
    wrong = []
    for main in (c for c in NEW_COMBINE if c.name in tables):
        for m in METHODS:
            one, two = main.figure(m), tables[main.name][0].figure(m)
            if one != two:
                there = f"{two.mean:.2f} ± {two.std:.2f}"
                wrong.append(f"{NAMES[m]}, {main.name}: {one.mean:.2f} ± {one.std:.2f}, in the appendix {there}")
    return Verdict("failed" if wrong else "held", "; ".join(wrong) or "all are")
