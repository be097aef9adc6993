"""Columns of the paper's tables: what is printed there, and where the same is among our records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gcalign.lab import paper
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.statistics import Difference, Seeded, Spread, averaged, by_seed, welch
from gcalign.lab.paper import METHODS

EXTREME = ("C1", "C2", "C3")  # large erase, strong crop, brightness
SETTINGS = ("standard", *EXTREME)
PROBES = ("linear", "linear-fast")  # the measure of accuracy is the first of these that was taken
ACCURACY = "accuracy"  # stands for it
STAND_IN = "scenes"  # the data set of scale tiny


def accuracy(records: Iterable[Record]) -> str:
    """The measure that is the accuracy of these records: that of their scale's probe."""
    taken = {record.measure for record in records}
    return next((probe for probe in PROBES if probe in taken), PROBES[0])


@dataclass(frozen=True)
class Column:
    """A column of one of the paper's tables: test accuracy in % for `METHODS`, and which of our records it is."""

    name: str
    data: str
    measure: str
    settings: tuple[str, ...]  # averaged
    group: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def figure(self, method: str) -> Spread:
        """The paper's."""
        k = METHODS.index(method)
        return Spread(self.mean[k], self.std[k], paper.SEEDS)

    def delta(self, a: str, b: str) -> Difference:
        """a − b as far as the paper's table tells: unpaired."""
        return welch(self.figure(a), self.figure(b))

    def best(self) -> tuple[str, ...]:
        """The paper's highest, all of them at a tie."""
        return tuple(m for m, x in zip(METHODS, self.mean, strict=True) if x == max(self.mean))

    def ours(self, records: Sequence[Record], method: str) -> Seeded:
        """Between 0 and 1, by seed."""
        measure = accuracy(records) if self.measure == ACCURACY else self.measure
        parts = [by_seed(records, measure, method=method, data=self.data, setting=s, noise=None) for s in self.settings]
        return averaged(parts)

    def table(self, records: Sequence[Record]) -> dict[str, Seeded]:
        """Ours, for the methods that have any."""
        return {m: values for m in METHODS if (values := self.ours(records, m))}


def standing_in(columns: Sequence[Column], records: Iterable[Record]) -> tuple[Column, ...]:
    """The columns, those of the first one's data set moved to `scenes` where records are of that instead."""
    first, seen = columns[0].data, {record.labels.get("data") for record in records}
    if first in seen or STAND_IN not in seen:
        return tuple(columns)
    return tuple(
        replace(c, data=STAND_IN, name=c.name.replace("CIFAR-10", STAND_IN)) if c.data == first else c for c in columns
    )


def _combined(name: str) -> Column:
    """Of tab:new_combine; the name says which images and views it is of."""
    of, extreme, _ = name.partition(" (Ex)")
    corrupted = of == "CIFAR-10C"
    data, measure = ("cifar10", "cifar10c") if corrupted else (of.replace("-", "").lower(), ACCURACY)
    group = "Noisy" if extreme or corrupted else "Standard"
    return Column(name, data, measure, EXTREME if extreme else ("standard",), group, *paper.NEW_COMBINE[name])


def _conditions(data: str, measure: str, table: paper.Rows) -> tuple[Column, ...]:
    rows = zip(SETTINGS, table.items(), strict=True)
    return tuple(Column(name, data, measure, (setting,), "", *figures) for setting, (name, figures) in rows)


NEW_COMBINE = tuple(map(_combined, paper.NEW_COMBINE))
CIFAR10 = _conditions("cifar10", ACCURACY, paper.CIFAR10)
CIFAR100 = _conditions("cifar100", ACCURACY, paper.CIFAR100)
CIFAR10C = _conditions("cifar10", "cifar10c", paper.CIFAR10C)
