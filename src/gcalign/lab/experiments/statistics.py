"""What may be said of a few seeds: mean, spread, differences with 95 % intervals, and Holm's correction."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    """A mean difference and its interval, 95 % unless said otherwise; one seed has none, so nothing is said."""

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


def by_seed(records: Iterable[Record], measure: str, **labels: Any) -> dict[int | None, float]:
    """The values of a measure under these labels; a label of None is one that the record must not have."""
    found: dict[int | None, float] = {}
    for record in records:
        if record.measure != measure or record.value is None:
            continue
        if any(record.labels.get(key) != wanted for key, wanted in labels.items()):
            continue
        if record.seed in found:
            raise ValueError(
                f"{record.experiment} has two values of {measure} for {record.labels}, seed {record.seed}; "
                "one result file holds each once: delete a line"
            )
        found[record.seed] = record.value
    return found


def averaged(parts: Sequence[Seeded]) -> dict[int | None, float]:
    """The mean of several values, seed by seed, for the seeds that have them all."""
    common = [seed for seed in parts[0] if all(seed in part for part in parts)] if parts else []
    return {seed: statistics.fmean(part[seed] for part in parts) for seed in common}


def minus(a: Seeded, b: Seeded) -> dict[int | None, float]:
    """a − b, seed by seed, for the seeds that both have."""
    return {seed: a[seed] - b[seed] for seed in a if seed in b}


def mean(values: Seeded) -> float:
    return statistics.fmean(values.values())


def spread(values: Iterable[float]) -> Spread:
    values = list(values)
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), std, len(values))


def difference(a: Seeded, b: Seeded, level: float = LEVEL) -> Difference | None:
    """a − b, paired by seed; None where no seed has both."""
    return interval(minus(a, b).values(), level)


def interval(values: Iterable[float], level: float = LEVEL) -> Difference | None:
    """The mean of differences with its interval: unbounded for one, None for none."""
    values = list(values)
    if not values:
        return None
    found = spread(values)
    if found.std is None:
        return Difference(found.mean, -math.inf, math.inf, 1)
    half = t_quantile(found.n - 1, level) * found.std / math.sqrt(found.n)
    return Difference(found.mean, found.mean - half, found.mean + half, found.n)


def welch(a: Spread, b: Spread) -> Difference:
    """a − b of unpaired groups of which only mean and deviation are known, as in the paper's tables."""
    if a.std is None or b.std is None:
        raise ValueError(f"groups of {a.n} and {b.n} must both have a deviation; give at least two seeds each")
    one, two = a.std**2 / a.n, b.std**2 / b.n
    df = (one + two) ** 2 / (one**2 / (a.n - 1) + two**2 / (b.n - 1))
    half = t_quantile(df) * math.sqrt(one + two)
    return Difference(a.mean - b.mean, a.mean - b.mean - half, a.mean - b.mean + half, min(a.n, b.n))


def t_quantile(df: float, level: float = LEVEL) -> float:
    """t with P(|T| ≤ t) = level for Student's T with `df` degrees of freedom."""
    if not df > 0:
        raise ValueError(f"df={df} must be > 0; an interval needs two values or more")
    from scipy import stats  # half a second, which `gcalign --help` does not wait for

    return float(stats.t.ppf((1 + level) / 2, df))


@dataclass(frozen=True)
class Estimate:
    """A contrast, its standard error and the degrees of freedom of that; one seed has none, so nothing is said."""

    mean: float
    error: float
    df: int
    n: int

    def interval(self, level: float = LEVEL) -> Difference:
        half = t_quantile(self.df, level) * self.error if self.df else math.inf
        return Difference(self.mean, self.mean - half, self.mean + half, self.n)

    def p(self, bound: float = 0.0) -> float:
        """Of the two-sided test against `bound`: the least α whose interval excludes it."""
        from scipy import stats

        if not self.df:
            return 1.0
        gap = abs(self.mean - bound)
        return float(2 * stats.t.sf(gap / self.error, self.df)) if self.error else float(gap == 0)


@dataclass(frozen=True)
class Comparison:
    """One contrast with two standard errors: of its own seeds, and of the whole table it stands in."""

    paired: Estimate
    pooled: Estimate


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
    found, n = spread(values), len(seeds)
    paired = Estimate(found.mean, (found.std or 0.0) / math.sqrt(n), n - 1, n)
    rows = [[by[s] for s in seeds] for by in table.values() if all(s in by for s in seeds)]
    of_seeds = [statistics.fmean(column) for column in zip(*rows, strict=True)]
    everything = statistics.fmean(of_seeds)
    residuals = [x - statistics.fmean(row) - m + everything for row in rows for x, m in zip(row, of_seeds, strict=True)]
    df = (len(rows) - 1) * (n - 1)
    variance = math.fsum(r * r for r in residuals) / df if df else 0.0
    error = math.sqrt(variance * math.fsum(w * w for w in weights.values()) / n)
    return Comparison(paired, Estimate(found.mean, error, df, n))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: all those below α together are wrong with probability at most α."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, k in enumerate(sorted(range(len(ps)), key=lambda k: ps[k])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[k]))
        adjusted[k] = largest
    return adjusted
