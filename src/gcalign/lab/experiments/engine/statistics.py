"""What may be said of a few seeds: estimates with intervals, contrasts of tables, and corrections for many of them.

A table has a row for each setting and a column for each seed, as `records.by_seed` makes it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference, its standard error and the degrees of freedom of that; one seed has none."""

    mean: float
    error: float
    df: float
    n: int

    @staticmethod
    def of(values: Iterable[float]) -> Estimate:
        """The mean of one value for each seed; NaN is what was not measured."""
        known = [float(x) for x in values if not math.isnan(x)]
        std = statistics.stdev(known) if len(known) > 1 else 0.0
        return Estimate(statistics.fmean(known), std / math.sqrt(len(known)), len(known) - 1, len(known))

    @staticmethod
    def printed(mean: float, std: float, n: int) -> Estimate:
        """From a mean and a standard deviation over n seeds, as a table of a paper has them."""
        return Estimate(mean, std / math.sqrt(n), n - 1, n)

    @property
    def std(self) -> float:
        """Over seeds; 0 for a single one, which has none."""
        return self.error * math.sqrt(self.n)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """By Student's t; without bounds where one seed says nothing."""
        from scipy import stats  # half a second, which `gcalign --help` does not wait for

        half = float(stats.t.ppf((1 + level) / 2, self.df)) * self.error if self.df else math.inf
        return self.mean - half, self.mean + half

    @property
    def half(self) -> float:
        """Half of the interval; 0 for a single seed, which has none."""
        return self.interval()[1] - self.mean if self.df else 0.0

    @property
    def better(self) -> bool:
        return self.interval()[0] > 0

    @property
    def worse(self) -> bool:
        return self.interval()[1] < 0

    def p(self, bound: float = 0.0) -> float:
        """Of the two-sided test against `bound`, by itself: the correction over a family comes later."""
        from scipy import stats

        if not self.df:
            return 1.0
        gap = abs(self.mean - bound)
        return float(2 * stats.t.sf(gap / self.error, self.df)) if self.error else float(gap == 0)


def estimates(table: pd.DataFrame) -> dict[Any, Estimate]:
    """The mean over seeds of each row that has any."""
    return {row: Estimate.of(by) for row, by in table.iterrows() if by.notna().any()}


def mean_of(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The mean of several tables, seed by seed, where all of them have a value."""
    total = tables[0]
    for table in tables[1:]:
        total = total + table
    return total / len(tables)


def welch(a: Estimate, b: Estimate) -> Estimate:
    """a − b of unpaired groups of which only mean and deviation are known, as in the paper's tables."""
    one, two = a.error**2, b.error**2
    df = (one + two) ** 2 / (one**2 / a.df + two**2 / b.df)
    return Estimate(a.mean - b.mean, math.sqrt(one + two), df, min(a.n, b.n))


def contrast(table: pd.DataFrame, weights: Mapping[Any, float], *, pooled: bool = False) -> Estimate | None:
    """Σ weight · value over the rows of a table; None where no seed has all the rows asked for.

    The error is that of the contrast itself over seeds: n − 1 degrees of freedom. If `pooled`, it is the residual of
    rows and seeds as additive effects over every row that has these seeds: (rows − 1)(n − 1) degrees. That assumes
    that all rows are equally noisy; with two rows both are the same.
    """
    if any(at not in table.index for at in weights):
        return None
    asked = table.loc[list(weights)].dropna(axis="columns")
    n = asked.shape[1]
    if not n:
        return None
    paired = Estimate.of([math.fsum(w * x for w, x in zip(weights.values(), asked[s], strict=True)) for s in asked])
    if not pooled:
        return paired
    block = table[asked.columns].dropna().to_numpy(float)
    residual = block - block.mean(1, keepdims=True) - block.mean(0) + block.mean()
    df = (len(block) - 1) * (n - 1)
    variance = float((residual**2).sum()) / df if df else 0.0
    error = math.sqrt(variance * math.fsum(w * w for w in weights.values()) / n)
    return Estimate(paired.mean, error, df, n)


# --- many at a time ------------------------------------------------------------------------------------------------


def differences(table: pd.DataFrame, base: Any, rows: Iterable[Any], *, pooled: bool = False) -> dict[Any, Estimate]:
    """Each of the rows less `base`, of those that have a seed in common with it."""
    gaps = {at: contrast(table, {at: 1, base: -1}, pooled=pooled) for at in rows if at != base}
    return {at: e for at, e in gaps.items() if e is not None}


def adjusted(known: Mapping[Any, Estimate]) -> dict[Any, float]:
    """Holm's p of each, against zero."""
    return dict(zip(known, holm([e.p() for e in known.values()]), strict=True))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: all those below α together are wrong with probability at most α."""
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, k in enumerate(sorted(range(len(ps)), key=lambda k: ps[k])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[k]))
        adjusted[k] = largest
    return adjusted


def simultaneous(m: int, level: float = LEVEL) -> float:
    """The level of each of m intervals that are right together with probability `level` (Bonferroni)."""
    return 1 - (1 - level) / max(m, 1)


# --- as text --------------------------------------------------------------------------------------------------------


def signed(x: float, digits: int = 2) -> str:
    """+1.01 or −0.5, with a minus sign that is no hyphen."""
    return f"{x:+.{digits}f}".replace("-", "−")


def points(e: Estimate, level: float = LEVEL, unit: float = 100, digits: int = 2) -> str:
    """+1.01 [+0.52, +1.50], in percentage points unless another unit is given; one seed has no interval."""
    if not e.df:
        return signed(unit * e.mean, digits)
    low, high = e.interval(level)
    return f"{signed(unit * e.mean, digits)} [{signed(unit * low, digits)}, {signed(unit * high, digits)}]"
