"""How a claim is judged by result files: small functions, each from records to a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gcalign.lab.experiments import paper
from gcalign.lab.experiments.paper import METHODS, NAMES, Column
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.statistics import (
    LEVEL,
    Difference,
    averaged,
    by_seed,
    difference,
    interval,
    mean,
    minus,
)
from gcalign.lab.experiments.tables import points

Word = Literal["held", "failed", "not shown", "not measured"]
NEGLIGIBLE = 0.01  # of accuracy: "without loss" is an interval above −1 point
SIMILAR = 0.10  # of run time: "very similar" is an interval within ± 10 %


@dataclass(frozen=True)
class Verdict:
    """`not shown`: the interval includes what would be the opposite, or there is one seed and so no interval."""

    word: Word
    ours: str
    n: int | None = None  # repetitions; None where there are none, nor need be
    of: str = "seeds"


class NotMeasured(Exception):  # noqa: N818  # an answer, not an error
    """No record says anything of it; the message is the command that would make some."""


@dataclass(frozen=True)
class Results:
    """The records of one scale, by experiment."""

    scale: str
    records: Mapping[str, Sequence[Record]]

    def of(self, *experiments: str) -> Sequence[Record]:
        """Those of the first experiment that has any."""
        for name in experiments:
            if self.records.get(name):
                return self.records[name]
        raise NotMeasured(f"gcalign reproduce {experiments[0]} scale={self.scale}")

    def missing(self, experiment: str) -> NotMeasured:
        """For what this scale has no runs of."""
        return NotMeasured(f"gcalign reproduce {experiment} scale=paper")


Judge = Callable[[Results], Verdict]


def signed(d: Difference, told: str, sign: int = 1) -> Verdict:
    """Held or failed only where the interval excludes zero."""
    right, wrong = (d.better, d.worse) if sign > 0 else (d.worse, d.better)
    return Verdict("held" if right else "failed" if wrong else "not shown", told, d.n)


def within(d: Difference, told: str, low: float, high: float = math.inf) -> Verdict:
    """Held where the whole interval lies between the bounds, failed where it lies outside."""
    inside, outside = low < d.low and d.high <= high, d.high < low or d.low > high
    return Verdict("held" if inside else "failed" if outside else "not shown", told, d.n)


def gain(k: int, a: str, b: str, sign: int = 1) -> Judge:
    """a − b in column k of tab:new_combine."""

    def judge(results: Results) -> Verdict:
        records = results.of("table1")
        column = paper.standing_in(paper.NEW_COMBINE, records)[k]
        d = difference(column.ours(records, a), column.ours(records, b))
        if d is None:
            raise results.missing("table1")
        return signed(d, f"{points(d)} points", sign)

    return judge


def larger_gains(results: Results) -> Verdict:
    """Whether GCA adds more to RINCE than to INCE, over the standard columns measured."""
    records = results.of("table1")
    columns = [
        c for c in paper.standing_in(paper.NEW_COMBINE, records) if c.group == "Standard" and c.measured(records)
    ]
    parts = []
    for c in columns:
        gains = {a: minus(c.ours(records, a), c.ours(records, b)) for a, b in paper.PAIRS}
        parts.append(minus(gains["gca-rince"], gains["gca-ince"]))
    d = interval(averaged(parts).values())
    if d is None:
        raise results.missing("table1")
    return signed(d, f"{points(d)} points more for RINCE, {', '.join(c.name for c in columns)}")


def best(columns: Sequence[Column], *experiments: str, method: str = "gca-uot") -> Judge:
    """Whether a method leads the columns in which the paper's table has it leading."""

    def judge(results: Results) -> Verdict:
        records = results.of(*experiments)
        claimed = [c for c in paper.standing_in(columns, records) if method in c.best() and c.ours(records, method)]
        if not claimed:
            raise results.missing(experiments[0])
        leads, clear, beaten = [], [], []
        together = 1 - (1 - LEVEL) / (len(claimed) * (len(METHODS) - 1))  # Bonferroni: one loss in many is no loss yet
        for c in claimed:
            mine = c.ours(records, method)
            others = {m: other for m in METHODS if m != method and (other := c.ours(records, m))}
            losses = [NAMES[m] for m, x in others.items() if (d := difference(mine, x, together)) and d.worse]
            leads += [c.name] if all(mean(mine) > mean(other) for other in others.values()) else []
            clear += [c.name] if all((d := difference(mine, x)) and d.better for x in others.values()) else []
            beaten += [f"{c.name} by {', '.join(losses)}"] if losses else []
        told = f"highest mean in {len(leads)} of {len(claimed)} columns ({_listed(leads)})"
        told += f"; better than every other method in {len(clear)}"
        told += f"; beaten, at 95 % for all comparisons together, in {'; '.join(beaten)}" if beaten else ""
        word: Word = "failed" if beaten else "held" if len(clear) == len(claimed) else "not shown"
        return Verdict(word, told, len(claimed[0].ours(records, method)))

    return judge


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def quality(measure: str, on: str, a: str, b: str) -> Judge:
    """Whether a's alignment or uniformity (lower is better) is below b's, over the settings measured."""

    def judge(results: Results) -> Verdict:
        d, n = _mean_over("setting", results, "fig-align-uniform", measure, a, b, on=on)
        return signed(d, f"{points(d, 1, 3)}, mean of {n} settings", -1)

    return judge


def same_eps(measure: str | None, a: str, b: str) -> Judge:
    """a − b with the same ε for both, over the values measured; `None` is accuracy, the others are better lower."""

    def judge(results: Results) -> Verdict:
        what = measure or paper.accuracy(results.of("fig-same-eps"))
        d, n = _mean_over("eps", results, "fig-same-eps", what, a, b, **({"on": "clean"} if measure else {}))
        told = points(d, 1, 3) if measure else f"{points(d)} points"
        return signed(d, f"{told}, mean of {n} values of ε", -1 if measure else 1)

    return judge


def _mean_over(
    label: str, results: Results, experiment: str, measure: str, a: str, b: str, **at: str
) -> tuple[Difference, int]:
    """a − b of each seed, averaged over the values of a label, and how many there are."""
    records = results.of(experiment)
    places = sorted({r.labels[label] for r in records if label in r.labels})
    one, two = ([by_seed(records, measure, method=m, **{label: x}, **at) for x in places] for m in (a, b))
    pairs = [both for x, y in zip(one, two, strict=True) if (both := minus(x, y))]
    d = interval(averaged(pairs).values())
    if d is None:
        raise results.missing(experiment)
    return d, len(pairs)


def under_noise(a: str, b: str) -> Judge:
    """a − b at the largest share of mismatched pairs."""

    def judge(results: Results) -> Verdict:
        records = results.of("fig-noise")
        noise = max(float(r.labels["noise"]) for r in records)

        def compared(measure: str) -> Difference | None:
            one, two = (by_seed(records, measure, method=m, noise=noise) for m in (a, b))
            return difference(one, two)

        d, other = compared(paper.accuracy(records)), compared("knn")
        if d is None:
            raise results.missing("fig-noise")
        beside = f" (nearest neighbours: {points(other)})" if other else ""
        return signed(d, f"{points(d)} points{beside} with {100 * noise:.0f} % of the pairs mismatched")

    return judge


def domains(measure: str, judged: Callable[[Difference, str], Verdict]) -> Judge:
    """The most weight on the domain against none, a target of pairs alone; weight across domains is told with it."""

    def judge(results: Results) -> Verdict:
        records = results.of("fig-ptgt")
        weights = {(float(r.labels["alpha"]), float(r.labels["beta"])) for r in records if r.measure == measure}
        found = {w: by_seed(records, measure, alpha=w[0], beta=w[1]) for w in weights}
        ends = sorted(weights, key=lambda w: (w[0] - w[1], w))
        none, most = found.get((0.0, 0.0), {}), found[ends[-1]] if ends else {}
        d = difference(most, none)
        if d is None:
            raise results.missing("fig-ptgt")
        low, high = (f"{100 * mean(values):.1f} %" for values in (none, most))
        told = f"{low} with pairs alone, {high} at α = {ends[-1][0]:g}: {points(d)} points"
        across = [f"{100 * mean(found[w]):.1f} % at β = {w[1]:g}" for w in ends if w[0] < w[1]]
        return judged(d, "; ".join([told, *across]))

    return judge


def no_loss(d: Difference, told: str) -> Verdict:
    return within(d, told, -NEGLIGIBLE)


def seconds(a: str, b: str, judged: Callable[[Difference, str], Verdict]) -> Judge:
    """How much longer an epoch of a takes than one of b, in %."""

    def judge(results: Results) -> Verdict:
        records = results.of("fig-time")
        one, two = (by_seed(records, "seconds-per-epoch", method=m, iterations=None) for m in (a, b))
        d = interval(one[s] / two[s] - 1 for s in one if s in two)
        if d is None:
            raise results.missing("fig-time")
        verdict = judged(d, f"{NAMES[a]} takes {points(d, digits=1)} % more time per epoch than {NAMES[b]}")
        return replace(verdict, of="rounds")

    return judge


def shorter(d: Difference, told: str) -> Verdict:
    return signed(d, told, -1)


def similar(d: Difference, told: str) -> Verdict:
    return within(d, told, -SIMILAR, SIMILAR)


def few_iterations(results: Results) -> Verdict:
    """Accuracy with the most iterations against that with at most ten."""
    records = [r for r in results.of("fig-sensitivity", "fig-time") if r.labels.get("iterations") is not None]
    measure = paper.accuracy(records)
    counts = sorted({int(r.labels["iterations"]) for r in records if r.measure == measure})
    few = [n for n in counts if n < 10]
    if not few or counts[-1] < 10:
        raise results.missing("fig-sensitivity")
    one, two = (by_seed(records, measure, iterations=n) for n in (few[-1], counts[-1]))
    d = difference(one, two)
    if d is None:
        raise results.missing("fig-sensitivity")
    return no_loss(d, f"accuracy with {few[-1]} iterations less that with {counts[-1]}: {points(d)} points")


def flops(method: str, told: Callable[[float], str], holds: Callable[[float], bool]) -> Judge:
    """MFLOP of a loss over that of INCE; counts have no spread."""

    def judge(results: Results) -> Verdict:
        records = results.of("flops")
        mine, base = (by_seed(records, "mflops", method=m, part="total") for m in (method, "ince"))
        if not mine or not base:
            raise results.missing("flops")
        x, y = next(iter(mine.values())), next(iter(base.values()))
        ours = f"{x:.2f} against {y:.2f} MFLOP: {told(x / y - 1)}"
        return Verdict("held" if holds(x / y - 1) else "failed", ours)

    return judge


def above_the_line(results: Results) -> Verdict:
    """How many settings (q, λ) of GCA-RINCE beat INCE, and how many lose to it."""
    records = results.of("fig-q-lambda")
    measure = paper.accuracy(records)
    line = by_seed(records, measure, method="ince")
    settings = sorted({(float(r.labels["q"]), float(r.labels["lam"])) for r in records if "q" in r.labels})
    found = {
        (q, lam): difference(by_seed(records, measure, method="gca-rince", q=q, lam=lam), line) for q, lam in settings
    }
    known = {at: d for at, d in found.items() if d is not None}
    if not known:
        raise results.missing("fig-q-lambda")
    better, worse = sum(d.better for d in known.values()), sum(d.worse for d in known.values())
    word: Word = "held" if 2 * better > len(known) else "failed" if 2 * worse > len(known) else "not shown"
    told = f"of {len(known)} settings {better} are better than INCE, {worse} worse, the rest within the interval"
    ends = sorted(known, key=lambda at: known[at].mean)
    told += "; from {} to {}".format(
        *(f"{points(known[q, lam])} points (q = {q:g}, λ = {lam:g})" for q, lam in (ends[0], ends[-1]))
    )
    return Verdict(word, told, min(d.n for d in known.values()))
