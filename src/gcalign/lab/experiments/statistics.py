"""What may be said of a few seeds: mean, spread, differences with 95 % intervals, and Holm's correction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gcalign.lab.experiments.records import Record

Seeded = Mapping[int | None, float]  # a value for each seed; None for what has no seed
LEVEL = 0.95
K = TypeVar("K")


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n − 1) over seeds; one seed has no deviation."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """A mean difference and its 95 % interval; one seed has none, so nothing is said."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def better(self) -> bool:
        return self.low > 0

    @property
    def worse(self) -> bool:
        return self.high < 0


@dataclass(frozen=True)
class Estimate:
    """A contrast, its standard error and the degrees of freedom of that; one seed has none, so nothing is said."""

    mean: float
    error: float
    df: float
    n: int
    family: int = 1  # comparisons of which it is one

    def among(self, family: int) -> Estimate:
        """The same as one of so many comparisons, whose 95 % intervals hold together (Bonferroni)."""
        return replace(self, family=self.family * family)

    @staticmethod
    def of(values: Iterable[float]) -> Estimate:
        """The mean of one value for each seed."""
        found = spread(values)
        return Estimate(found.mean, (found.std or 0.0) / math.sqrt(found.n), found.n - 1, found.n)

    def interval(self) -> Difference:
        from scipy import stats  # half a second, which `gcalign --help` does not wait for

        outside = (1 - LEVEL) / self.family
        half = float(stats.t.isf(outside / 2, self.df)) * self.error if self.df else math.inf
        return Difference(self.mean, self.mean - half, self.mean + half, self.n)

    def p(self, bound: float = 0.0) -> float:
        """Of the two-sided test against `bound`, by itself: the correction over a family comes later."""
        from scipy import stats

        if not self.df:
            return 1.0
        gap = abs(self.mean - bound)
        return float(2 * stats.t.sf(gap / self.error, self.df)) if self.error else float(gap == 0)


class BySeed(dict[int | None, float]):
    """The values of one measure in one setting, by seed."""

    def add(self, record: Record, unit: float = 1.0) -> None:
        """The value of a record; a seed has one."""
        assert record.value is not None
        if record.seed in self:
            raise ValueError(
                f"{record.experiment} has {record.measure} of {record.labels} with seed {record.seed} twice; one "
                "result file holds each once, and one drawing shows one data set: delete a line, or draw them apart"
            )
        self[record.seed] = unit * record.value

    @property
    def mean(self) -> float:
        return mean(self)

    @property
    def std(self) -> float:
        """Over seeds; 0 for a single one, which has none."""
        return spread(self.values()).std or 0.0

    @property
    def half_interval(self) -> float:
        """Half of the mean's 95 % interval; 0 for a single seed, which has none."""
        return Estimate.of(self.values()).interval().high - self.mean if len(self) > 1 else 0.0


def by_seed(records: Iterable[Record], measure: str, **labels: Any) -> BySeed:
    """The values of a measure under these labels; a label of None is one that the record must not have."""
    found = BySeed()
    for record in records:
        fits = all(record.labels.get(key) == wanted for key, wanted in labels.items())
        if fits and record.measure == measure and record.value is not None:
            found.add(record)
    return found


def cells(records: Iterable[Record], measure: str, *labels: str, unit: float = 1.0) -> dict[Any, BySeed]:
    """The measure by a label, or by several, sorted; records without one are left out. `unit` multiplies."""
    found: dict[tuple[Any, ...], BySeed] = {}
    for record in records:
        if record.measure == measure and record.value is not None and all(name in record.labels for name in labels):
            found.setdefault(tuple(record.labels[name] for name in labels), BySeed()).add(record, unit)
    ordered = sorted(found, key=lambda key: [(str(type(x)), x) for x in key])
    return {key if len(labels) > 1 else key[0]: found[key] for key in ordered}


def averaged(parts: Sequence[Seeded]) -> BySeed:
    """The mean of several values, seed by seed, for the seeds that have them all."""
    common = [seed for seed in parts[0] if all(seed in part for part in parts)] if parts else []
    return BySeed({seed: statistics.fmean(part[seed] for part in parts) for seed in common})


def minus(a: Seeded, b: Seeded) -> BySeed:
    """a − b, seed by seed, for the seeds that both have."""
    return BySeed({seed: a[seed] - b[seed] for seed in a if seed in b})


def gains(a: Mapping[K, Seeded], b: Mapping[K, Seeded]) -> dict[K, BySeed]:
    """a − b wherever both have seeds in common."""
    return {at: gain for at, values in a.items() if at in b and (gain := minus(values, b[at]))}


def mean(values: Seeded) -> float:
    return statistics.fmean(values.values())


def spread(values: Iterable[float]) -> Spread:
    values = list(values)
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), std, len(values))


def difference(a: Seeded, b: Seeded) -> Difference | None:
    """a − b, paired by seed; None where no seed has both."""
    values = minus(a, b).values()
    return Estimate.of(values).interval() if values else None


def welch(a: Spread, b: Spread) -> Difference:
    """a − b of unpaired groups of which only mean and deviation are known, as in the paper's tables."""
    assert a.std is not None
    assert b.std is not None
    one, two = a.std**2 / a.n, b.std**2 / b.n
    df = (one + two) ** 2 / (one**2 / (a.n - 1) + two**2 / (b.n - 1))
    return Estimate(a.mean - b.mean, math.sqrt(one + two), df, min(a.n, b.n)).interval()


@dataclass(frozen=True)
class Comparison:
    """One contrast with two standard errors: of its own seeds, and of the whole table it stands in."""

    paired: Estimate
    pooled: Estimate

    def among(self, family: int) -> Comparison:
        return Comparison(self.paired.among(family), self.pooled.among(family))


def contrast(table: Mapping[K, Seeded], weights: Mapping[K, float]) -> Comparison | None:
    """Σ weight · value over the rows of a table [row][seed]; None where no seed has all the rows asked for.

    `paired` takes the spread of the contrast itself over seeds: n − 1 degrees of freedom. `pooled` takes the residual
    of rows and seeds as additive effects over every row that has these seeds: (rows − 1)(n − 1) degrees. It assumes
    that all rows are equally noisy; with two rows both are the same.
    """
    seeds = [s for s in next(iter(table.values()), {}) if all(s in table.get(row, {}) for row in weights)]
    if not seeds or any(row not in table for row in weights):
        return None
    values = [math.fsum(w * table[row][s] for row, w in weights.items()) for s in seeds]
    paired, n = Estimate.of(values), len(seeds)
    rows = [[by[s] for s in seeds] for by in table.values() if all(s in by for s in seeds)]
    of_seeds = [statistics.fmean(column) for column in zip(*rows, strict=True)]
    everything = statistics.fmean(of_seeds)
    residuals = [x - statistics.fmean(row) - m + everything for row in rows for x, m in zip(row, of_seeds, strict=True)]
    df = (len(rows) - 1) * (n - 1)
    variance = math.fsum(r * r for r in residuals) / df if df else 0.0
    error = math.sqrt(variance * math.fsum(w * w for w in weights.values()) / n)
    return Comparison(paired, Estimate(paired.mean, error, df, n))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: all those below α together are wrong with probability at most α."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, k in enumerate(sorted(range(len(ps)), key=lambda k: ps[k])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[k]))
        adjusted[k] = largest
    return adjusted
