"""What may be said of a few seeds: mean, spread, and paired differences with a 95 % interval (Student t)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcalign.lab.experiments.records import Record

Seeded = Mapping[int | None, float]  # a value for each seed; None for what has no seed
LEVEL = 0.95


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
    """t with P(|T| ≤ t) = level for Student's T with `df` degrees of freedom, by bisection."""
    if not df > 0:
        raise ValueError(f"df={df} must be > 0; an interval needs two values or more")
    low, high = 0.0, 1.0
    while _beyond(high, df) > 1 - level:
        high *= 2
    for _ in range(64):  # more halvings than a double has bits
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, df) > 1 - level else (low, middle)
    return high


def _beyond(t: float, df: float) -> float:
    """P(|T| > t) = I_x(df/2, 1/2) with x = df/(df + t²)."""
    x = df / (df + t * t)
    a, b = df / 2, 0.5
    if x < (a + 1) / (a + b + 2):
        return _incomplete_beta(x, a, b)
    return 1 - _incomplete_beta(1 - x, b, a)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) by its continued fraction (modified Lentz), which is quick for x < (a + 1)/(a + b + 2)."""
    if x <= 0:
        return 0.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 500):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        before = fraction
        for term in (even, odd):
            d = 1 / (1 + term * d)
            c = 1 + term / c
            fraction *= c * d
        if abs(fraction - before) < 1e-15 * fraction:
            break
    return math.exp(log_front) / a * fraction
