"""How a claim is judged by result files: small functions, each from records to a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gcalign.lab.experiments import paper
from gcalign.lab.experiments.paper import METHODS, NAMES, Column
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.statistics import LEVEL, Comparison, Seeded, averaged, by_seed, contrast, holm, mean
from gcalign.lab.experiments.tables import points

Word = Literal["held", "failed", "not shown", "true by construction", "not measured"]
ALPHA = 1 - LEVEL
NEGLIGIBLE = 0.01  # of accuracy: "without loss" is an interval above −1 point


@dataclass(frozen=True)
class Verdict:
    """What one claim comes to by itself; `p` goes into its family's correction, None where nothing was tested."""

    word: Word
    ours: str
    n: int | None = None  # repetitions; None where there are none, nor need be
    of: str = "seeds"
    p: float | None = None  # the least α at which the pooled interval decides, one way or the other
    first: Word | None = None  # by the paired interval alone, which was the rule when the runs were made


class NotMeasured(Exception):  # noqa: N818  # an answer, not an error
    """Nothing says enough of it: the command that would, and perhaps how much there is so far."""


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
Rule = Callable[[Comparison, str], Verdict]


def both(c: Comparison, unit: float = 100, digits: int = 2, of: str = " points") -> str:
    """The contrast with its pooled interval, then that of its own seeds; one seed has neither."""
    told = f"{points(c.pooled.interval(), unit, digits)}{of}"
    if not c.paired.df:
        return told
    alone = points(c.paired.interval(), unit, digits)
    return f"{told}; paired {alone[alone.index('[') :]}"


def signed(c: Comparison, told: str, sign: int = 1) -> Verdict:
    """Held or failed only where the interval excludes zero."""
    return _decided("held" if sign * c.pooled.mean > 0 else "failed", c, (0.0,), told)


def within(c: Comparison, told: str, low: float, high: float = math.inf) -> Verdict:
    """Held where the whole interval lies between the bounds, failed where it lies outside."""
    inside = low < c.pooled.mean <= high
    return _decided("held" if inside else "failed", c, [x for x in (low, high) if math.isfinite(x)], told)


def _decided(word: Word, c: Comparison, bounds: Sequence[float], told: str) -> Verdict:
    """The word, if the interval excludes the bounds: inside them both, outside the nearer one, whose p is larger."""
    pooled, paired = (max(e.p(bound) for bound in bounds) for e in (c.pooled, c.paired))
    by: list[Word] = [word if p <= ALPHA else "not shown" for p in (pooled, paired)]
    return Verdict(by[0], told, c.pooled.n, p=pooled, first=by[1])


def gain(k: int, a: str, b: str, sign: int = 1) -> Judge:
    """a − b in column k of tab:new_combine."""

    def judge(results: Results) -> Verdict:
        records = results.of("table1")
        column = paper.standing_in(paper.NEW_COMBINE, records)[k]
        c = contrast(_column(column, records), {a: 1, b: -1})
        if c is None:
            raise results.missing("table1")
        return signed(c, both(c), sign)

    return judge


def _column(column: Column, records: Sequence[Record]) -> dict[str, Seeded]:
    return {m: values for m in METHODS if (values := column.ours(records, m))}


def larger_gains(results: Results) -> Verdict:
    """Whether GCA adds more to RINCE than to INCE, over the standard columns measured."""
    records = results.of("table1")
    columns = [
        c for c in paper.standing_in(paper.NEW_COMBINE, records) if c.group == "Standard" and c.measured(records)
    ]
    means = {m: averaged([c.ours(records, m) for c in columns]) for m in METHODS}
    table = {m: values for m, values in means.items() if values}
    c = contrast(table, {"gca-rince": 1, "rince": -1, "gca-ince": -1, "ince": 1})
    if c is None:
        raise results.missing("table1")
    return signed(c, f"{both(c, of=' points more for RINCE')}, {', '.join(c.name for c in columns)}")


def best(columns: Sequence[Column], *experiments: str, method: str = "gca-uot") -> Judge:
    """Whether a method leads the columns in which the paper's table has it leading."""

    def judge(results: Results) -> Verdict:
        records = results.of(*experiments)
        claimed = [c for c in paper.standing_in(columns, records) if method in c.best() and c.ours(records, method)]
        if not claimed:
            raise results.missing(experiments[0])
        leads, clear, rivals = [], [], []
        for column in claimed:
            table = _column(column, records)
            found = {m: c for m in table if m != method and (c := contrast(table, {method: 1, m: -1}))}
            leads += [column.name] if all(mean(table[method]) > mean(table[m]) for m in found) else []
            # each at 95 %: all of them must be passed, so there is nothing to correct
            wins = [c.pooled.mean > 0 and c.pooled.p() <= ALPHA for c in found.values()]
            clear += [column.name] if wins and all(wins) else []
            rivals += [(column.name, m, c) for m, c in found.items()]
        # one loss in many comparisons is no loss yet
        adjusted = holm([c.pooled.p() for *_, c in rivals])
        beaten = [
            f"{name} by {NAMES[m]}"
            for (name, m, c), p in zip(rivals, adjusted, strict=True)
            if c.pooled.mean < 0 and p <= ALPHA
        ]
        told = f"highest mean in {len(leads)} of {len(claimed)} columns ({_listed(leads)})"
        told += f"; better than every other method in {len(clear)}"
        told += f"; beaten (Holm over all comparisons) in {', '.join(beaten)}" if beaten else ""
        word: Word = "failed" if beaten else "held" if len(clear) == len(claimed) else "not shown"
        return Verdict(word, told, len(claimed[0].ours(records, method)))

    return judge


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def quality(measure: str, on: str, a: str, b: str) -> Judge:
    """Whether a's alignment or uniformity (lower is better) is below b's, over the settings measured."""

    def judge(results: Results) -> Verdict:
        c, n = _mean_over("setting", results, "fig-align-uniform", measure, a, b, on=on)
        return signed(c, f"{both(c, 1, 3, '')}, mean of {n} settings", -1)

    return judge


def same_eps(measure: str | None, a: str, b: str) -> Judge:
    """a − b with the same ε for both, over the values measured; `None` is accuracy, the others are better lower."""

    def judge(results: Results) -> Verdict:
        what = measure or paper.accuracy(results.of("fig-same-eps"))
        c, n = _mean_over("eps", results, "fig-same-eps", what, a, b, **({"on": "clean"} if measure else {}))
        told = both(c, 1, 3, "") if measure else both(c)
        return signed(c, f"{told}, mean of {n} values of ε", -1 if measure else 1)

    return judge


def _mean_over(
    label: str, results: Results, experiment: str, measure: str, a: str, b: str, **at: str
) -> tuple[Comparison, int]:
    """a − b of each seed, averaged over the values of a label that both have, and how many there are."""
    records = results.of(experiment)

    def values(m: str, x: Any) -> Seeded:
        return by_seed(records, measure, method=m, **{label: x}, **at)

    places = sorted({r.labels[label] for r in records if label in r.labels})
    places = [x for x in places if values(a, x) and values(b, x)]
    table = {m: averaged([values(m, x) for x in places]) for m in METHODS} if places else {}
    c = contrast({m: by for m, by in table.items() if by}, {a: 1, b: -1})
    if c is None:
        raise results.missing(experiment)
    return c, len(places)


def under_noise(a: str, b: str) -> Judge:
    """a − b at the largest share of mismatched pairs."""

    def judge(results: Results) -> Verdict:
        records = results.of("fig-noise")
        noise = max(float(r.labels["noise"]) for r in records)

        def compared(measure: str) -> Comparison | None:
            found = {m: by_seed(records, measure, method=m, noise=noise) for m in METHODS}
            return contrast({m: by for m, by in found.items() if by}, {a: 1, b: -1})

        c, other = compared(paper.accuracy(records)), compared("knn")
        if c is None:
            raise results.missing("fig-noise")
        beside = f" (nearest neighbours: {points(other.pooled.interval())})" if other else ""
        return signed(c, f"{both(c)}{beside} with {100 * noise:.0f} % of the pairs mismatched")

    return judge


def domains(measure: str, judged: Rule) -> Judge:
    """The most weight on the domain against none, a target of pairs alone; weight across domains is told with it."""

    def judge(results: Results) -> Verdict:
        records = results.of("fig-ptgt")
        weights = {(float(r.labels["alpha"]), float(r.labels["beta"])) for r in records if r.measure == measure}
        found = {w: by_seed(records, measure, alpha=w[0], beta=w[1]) for w in weights}
        ends = sorted(weights, key=lambda w: (w[0] - w[1], w))
        none = (0.0, 0.0)
        c = contrast(found, {ends[-1]: 1, none: -1}) if none in found and ends[-1] != none else None
        if c is None:
            raise results.missing("fig-ptgt")
        low, high = (f"{100 * mean(found[w]):.1f} %" for w in (none, ends[-1]))
        told = f"{low} with pairs alone, {high} at α = {ends[-1][0]:g}: {both(c)}"
        across = [f"{100 * mean(found[w]):.1f} % at β = {w[1]:g}" for w in ends if w[0] < w[1]]
        return judged(c, "; ".join([told, *across]))

    return judge


def no_loss(c: Comparison, told: str) -> Verdict:
    return within(c, told, -NEGLIGIBLE)


def few_iterations(results: Results) -> Verdict:
    """Accuracy with the most iterations against that with at most ten."""
    records = [r for r in results.of("fig-sensitivity", "fig-time") if r.labels.get("iterations") is not None]
    measure = paper.accuracy(records)
    counts = sorted({int(r.labels["iterations"]) for r in records if r.measure == measure})
    few = [n for n in counts if n < 10]
    if not few or counts[-1] < 10:
        raise results.missing("fig-sensitivity")
    table = {n: by_seed(records, measure, iterations=n) for n in counts}
    c = contrast(table, {few[-1]: 1, counts[-1]: -1})
    if c is None:
        raise results.missing("fig-sensitivity")
    return no_loss(c, f"accuracy with {few[-1]} iterations less that with {counts[-1]}: {both(c)}")


def above_the_line(results: Results) -> Verdict:
    """How many settings (q, λ) of GCA-RINCE beat INCE, and how many lose to it, by Holm over the settings."""
    records = results.of("fig-q-lambda")
    measure = paper.accuracy(records)
    settings = sorted({(float(r.labels["q"]), float(r.labels["lam"])) for r in records if "q" in r.labels})
    table: dict[Any, Seeded] = {
        (q, lam): by_seed(records, measure, method="gca-rince", q=q, lam=lam) for q, lam in settings
    }
    table["ince"] = by_seed(records, measure, method="ince")
    known = {at: c.pooled for at in settings if (c := contrast(table, {at: 1, "ince": -1}))}
    if not known:
        raise results.missing("fig-q-lambda")
    adjusted = dict(zip(known, holm([e.p() for e in known.values()]), strict=True))
    better, worse = (sum(s * known[at].mean > 0 and adjusted[at] <= ALPHA for at in known) for s in (1, -1))
    word: Word = "held" if 2 * better > len(known) else "failed" if 2 * worse > len(known) else "not shown"
    told = f"of {len(known)} settings {better} are better than INCE, {worse} worse (Holm), the rest not shown"
    ends = sorted(known, key=lambda at: known[at].mean)
    told += "; from {} to {}".format(
        *(f"{points(known[q, lam].interval())} points (q = {q:g}, λ = {lam:g})" for q, lam in (ends[0], ends[-1]))
    )
    return Verdict(word, told, min(e.n for e in known.values()))
