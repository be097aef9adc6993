"""The paper's numbers, and where the same are among our records: a column is both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.statistics import Difference, Seeded, Spread, averaged, by_seed, welch
from gcalign.lab.verify import paper as printed
from gcalign.lab.verify.costs import PRINTED

NAMES = {name.lower(): name for name in printed.METHODS}  # gca-ince -> GCA-INCE, in the paper's order
METHODS = tuple(NAMES)
PAIRS = (("gca-ince", "ince"), ("gca-rince", "rince"))  # the rows Δ of tab:new_combine
SEEDS = 5  # of every mean in the paper's tables
EXTREME = ("C1", "C2", "C3")
CONDITIONS = {"Standard": "standard", "Erase (C1)": "C1", "Crop (C2)": "C2", "Brightness (C3)": "C3"}
PROBES = ("linear", "linear-fast")  # the measure of accuracy is the first of these that was taken
ACCURACY = "accuracy"  # stands for it
STAND_IN = "scenes"  # the data set of scale tiny

DELTAS = {  # the rows Δ of tab:new_combine as they are printed
    "gca-ince": (1.01, 0.46, 0.22, 0.03, 0.15, 0.11, 1.11, -0.56),
    "gca-rince": (0.20, 0.32, 0.31, 1.53, 0.16, -0.47, 0.01, 0.05),
}
# of the text, which does not tell what was counted; `gcalign verify --only 'flops published'` finds it out
MFLOPS = {name.lower(): figure for name, figure in PRINTED.items()}
DOMAIN_ACCURACY = (72.11, 95.16)  # fig:Ptgt, least to most weight on the domain


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
        return Spread(self.mean[k], self.std[k], SEEDS)

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

    def measured(self, records: Sequence[Record]) -> bool:
        return any(self.ours(records, method) for method in METHODS)


def standing_in(columns: Sequence[Column], records: Iterable[Record]) -> tuple[Column, ...]:
    """The columns, those of the first one's data set moved to `scenes` where records are of that instead."""
    first, seen = columns[0].data, {record.labels.get("data") for record in records}
    if first in seen or STAND_IN not in seen:
        return tuple(columns)
    return tuple(
        replace(c, data=STAND_IN, name=c.name.replace("CIFAR-10", STAND_IN)) if c.data == first else c for c in columns
    )


def _conditions(
    data: str, measure: str, rows: printed.Table, standard: tuple[float, ...], *std: tuple[float, ...]
) -> tuple[Column, ...]:
    means = (standard, rows.erase, rows.crop, rows.brightness)
    told = zip(CONDITIONS.items(), means, std, strict=True)
    return tuple(Column(name, data, measure, (setting,), "", mean, dev) for (name, setting), mean, dev in told)


_STANDARD, _NOISY = "Standard", "Noisy"

NEW_COMBINE = (  # tab:new_combine
    Column(
        *("CIFAR-10", "cifar10", ACCURACY, ("standard",), _STANDARD),
        mean=(92.01, 93.02, 93.27, 93.47, 92.07, 90.56, 92.09, 91.49, 93.50),
        std=(0.40, 0.19, 0.20, 0.30, 0.90, 0.59, 0.22, 0.11, 0.31),
    ),
    Column(
        *("CIFAR-100", "cifar100", ACCURACY, ("standard",), _STANDARD),
        mean=(71.09, 71.55, 71.63, 71.95, 70.85, 69.75, 68.37, 68.62, 72.16),
        std=(0.31, 0.12, 0.36, 0.48, 0.50, 0.37, 0.42, 0.35, 0.38),
    ),
    Column(
        *("SVHN", "svhn", ACCURACY, ("standard",), _STANDARD),
        mean=(92.42, 92.64, 93.26, 93.57, 92.13, 89.50, 92.25, 92.33, 93.82),
        std=(0.24, 0.26, 0.15, 0.26, 0.34, 0.46, 0.19, 0.11, 0.17),
    ),
    Column(
        *("ImageNet-100", "imagenet100", ACCURACY, ("standard",), _STANDARD),
        mean=(73.01, 73.04, 71.91, 73.44, 72.20, 69.75, 72.27, 72.88, 74.09),
        std=(0.61, 0.76, 0.43, 0.55, 0.78, 0.83, 0.53, 0.71, 0.40),
    ),
    Column(
        *("CIFAR-10 (Ex)", "cifar10", ACCURACY, EXTREME, _NOISY),
        mean=printed.CIFAR10.ex,
        std=(0.32, 0.69, 0.63, 0.49, 0.53, 0.50, 0.64, 0.24, 0.44),
    ),
    Column(
        *("CIFAR-100 (Ex)", "cifar100", ACCURACY, EXTREME, _NOISY),
        mean=printed.CIFAR100.ex,
        std=(0.20, 0.17, 0.14, 0.41, 0.13, 0.25, 0.34, 0.22, 0.27),
    ),
    Column(
        *("CIFAR-10C", "cifar10", "cifar10c", ("standard",), _NOISY),
        mean=(81.52, 82.63, 82.86, 82.87, 81.74, 82.43, 82.01, 81.19, 82.90),
        std=(1.04, 0.28, 0.21, 0.11, 1.54, 0.06, 0.80, 1.12, 0.50),
    ),
    Column(
        *("CIFAR-10C (Ex)", "cifar10", "cifar10c", EXTREME, _NOISY),
        mean=printed.CIFAR10C.ex,
        std=(0.25, 0.27, 0.26, 0.16, 0.18, 0.34, 0.83, 0.51, 0.19),
    ),
)
# standard, then erase, crop and brightness; the standard rows differ here and there from tab:new_combine
CIFAR10 = _conditions(  # tab:cifar10
    *("cifar10", ACCURACY, printed.CIFAR10),
    (92.01, 93.02, 93.27, 93.47, 92.16, 90.56, 92.10, 91.49, 93.50),
    (0.40, 0.19, 0.20, 0.32, 0.16, 0.59, 0.22, 0.11, 0.31),
    (0.17, 0.89, 1.01, 0.59, 0.24, 0.58, 0.43, 0.30, 0.58),
    (0.40, 0.62, 0.39, 0.31, 1.02, 0.62, 0.64, 0.21, 0.41),
    (0.41, 0.57, 0.50, 0.58, 0.32, 0.29, 0.84, 0.21, 0.34),
)
CIFAR100 = _conditions(  # tab:cifar100
    *("cifar100", ACCURACY, printed.CIFAR100),
    (71.09, 71.55, 71.63, 71.95, 70.85, 69.75, 68.37, 68.62, 72.16),
    (0.31, 0.12, 0.36, 0.48, 0.50, 0.37, 0.42, 0.35, 0.38),
    (0.20, 0.17, 0.14, 0.41, 0.13, 0.31, 0.34, 0.22, 0.27),
    (0.31, 0.22, 0.20, 0.35, 0.34, 0.41, 0.19, 0.12, 0.34),
    (0.36, 0.33, 0.25, 0.25, 0.19, 0.63, 0.32, 0.18, 0.55),
)
CIFAR10C = _conditions(  # tab:cifar10c
    *("cifar10", "cifar10c", printed.CIFAR10C),
    (81.52, 82.63, 82.86, 82.87, 81.74, 82.43, 82.01, 81.18, 82.90),
    (1.04, 0.28, 0.21, 0.11, 1.54, 0.06, 0.80, 1.12, 0.49),
    (0.31, 0.35, 0.36, 0.55, 0.24, 0.34, 0.69, 0.48, 0.62),
    (0.90, 3.28, 1.48, 1.46, 1.27, 0.91, 0.87, 1.03, 1.20),
    (0.47, 0.26, 0.36, 0.26, 0.46, 0.19, 0.31, 0.72, 0.44),
)
