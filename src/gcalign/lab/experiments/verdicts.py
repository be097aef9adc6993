"""A claim, the results that it is judged by, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.sheets import points
from gcalign.lab.experiments.statistics import LEVEL, Comparison, Seeded, contrast

Word = Literal["held", "failed", "not shown", "not judgeable", "true by construction", "not measured"]
ALPHA = 1 - LEVEL
NEGLIGIBLE = 0.01  # of accuracy: "without loss" is an interval above −1 point
Row = TypeVar("Row")


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
    family: int = 1  # comparisons that are judged together: their intervals are simultaneous

    def of(self, *experiments: str) -> Sequence[Record]:
        """Those of the first experiment that has any."""
        for name in experiments:
            if self.records.get(name):
                return self.records[name]
        raise NotMeasured(f"gcalign reproduce {experiments[0]} scale={self.scale}")

    def missing(self, experiment: str) -> NotMeasured:
        """For what this scale has no runs of."""
        return NotMeasured(f"gcalign reproduce {experiment} scale=paper")

    def contrast(self, experiment: str, table: Mapping[Row, Seeded], weights: Mapping[Row, float]) -> Comparison:
        """Σ weight · value over the rows that have values."""
        found = contrast({row: by for row, by in table.items() if by}, weights)
        if found is None:
            raise self.missing(experiment)
        return found.among(self.family)


@dataclass(frozen=True)
class EmpiricalClaim:
    """Where a claim stands, what it says, and the function that judges it by result files."""

    section: str  # a family: tests of one section are corrected together
    label: str
    where: str  # in the paper, or in our plan
    says: str
    paper_value: str
    judge: Callable[[Results], Verdict]
    exploratory: bool = False  # how it is judged, or measured, was decided with results in view

    def verdict(self, results: Results) -> Verdict:
        try:
            return self.judge(results)
        except NotMeasured as missing:
            command, *so_far = missing.args
            return Verdict("not measured", " ".join([f"`{command}`", *(f"({how})" for how in so_far)]))


def both(c: Comparison, unit: float = 100, digits: int = 2, of: str = " points", *, first: str = "pooled") -> str:
    """The contrast with the interval that decides, then with the other one; one seed has neither."""
    other = "paired" if first == "pooled" else "pooled"
    one, two = (points(getattr(c, which).interval(), unit, digits) for which in (first, other))
    return f"{one}{of}" + (f"; {other} {bracket(two)}" if "[" in two else "")


def bracket(told: str) -> str:
    """The interval alone of a contrast that was told."""
    return told[told.index("[") :]


def signed(c: Comparison, told: str, sign: int = 1) -> Verdict:
    """Held or failed only where the interval excludes zero."""
    return _decided("held" if sign * c.pooled.mean > 0 else "failed", c, (0.0,), told)


def within(c: Comparison, told: str, low: float, high: float) -> Verdict:
    """Held where the whole interval lies between the bounds, failed where it lies outside."""
    return _decided("held" if low < c.pooled.mean <= high else "failed", c, (low, high), told)


def _decided(word: Word, c: Comparison, bounds: Sequence[float], told: str) -> Verdict:
    """The word, if the interval excludes the bounds: inside them both, outside the nearer one, whose p is larger."""
    pooled, paired = (max(e.p(bound) for bound in bounds) for e in (c.pooled, c.paired))
    by: list[Word] = [word if p <= ALPHA else "not shown" for p in (pooled, paired)]
    return Verdict(by[0], told, c.pooled.n, p=pooled, first=by[1])
