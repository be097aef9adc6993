"""What the paper's tables and sentences say of each other; one case for each method or sentence."""

from __future__ import annotations

from dataclasses import dataclass

from gcalign.lab.verify.claims import Case, Draw, claim

METHODS = ("INCE", "GCA-INCE", "RINCE", "GCA-RINCE", "SimCLR", "BYOL", "IOT", "IOT-uni", "GCA-UOT")
ROUNDING = 0.01  # the mean of three numbers rounded to 0.01, itself rounded so


@dataclass(frozen=True)
class Table:
    """A column (Ex) of tab:new_combine and the three rows it is said to average, over `METHODS`."""

    ex: tuple[float, ...]
    erase: tuple[float, ...]
    crop: tuple[float, ...]
    brightness: tuple[float, ...]

    def case(self, k: int) -> Case:
        ex, rows = self.ex[k], (self.erase[k], self.crop[k], self.brightness[k])
        mean = sum(rows) / 3
        names: dict[str, float | str] = {"method": METHODS[k], "erase": rows[0], "crop": rows[1], "brightness": rows[2]}
        mismatch = abs(ex - mean)
        counts = {"mismatch": mismatch, "matches": float(mismatch <= ROUNDING), "is_erase": float(ex == rows[0])}
        return Case(ex, mean, {**names, **counts}, scale=1.0)


CIFAR10 = Table(  # tab:cifar10
    ex=(82.03, 82.18, 82.60, 82.76, 81.87, 81.55, 80.59, 80.79, 83.18),
    erase=(88.40, 88.16, 88.80, 89.21, 88.44, 88.77, 87.02, 87.83, 89.84),
    crop=(72.45, 72.79, 73.02, 73.10, 71.84, 70.78, 70.44, 70.78, 73.35),
    brightness=(85.24, 85.60, 85.97, 85.98, 85.32, 85.10, 84.31, 83.77, 86.36),
)
CIFAR100 = Table(  # tab:cifar100, also labelled tab:cifar1004c
    ex=(62.54, 62.65, 63.55, 63.14, 62.94, 62.11, 62.69, 62.56, 63.62),
    erase=(62.54, 62.65, 63.55, 63.14, 62.94, 62.70, 62.69, 62.56, 63.62),
    crop=(45.67, 46.31, 46.47, 46.50, 46.05, 43.11, 45.36, 45.29, 46.60),
    brightness=(59.87, 59.68, 60.38, 60.56, 60.46, 55.74, 57.52, 57.42, 61.02),
)
CIFAR10C = Table(  # tab:cifar10c
    ex=(83.28, 82.72, 83.64, 83.69, 83.25, 70.09, 81.57, 81.82, 83.64),
    erase=(82.67, 82.19, 83.11, 83.44, 82.49, 82.53, 82.30, 82.30, 83.09),
    crop=(43.55, 41.12, 42.51, 44.96, 42.74, 43.86, 42.36, 42.43, 45.20),
    brightness=(84.00, 84.08, 84.24, 84.54, 83.86, 83.87, 82.33, 80.86, 84.88),
)

_MATCH = "{total.matches:.0f} of 9 match within rounding, the worst is {worst.mismatch:.3f} points off"


@claim(
    "tab:new_combine cifar10(Ex)",
    "CIFAR-10 (Ex) is the average of the three settings (app:corruptset)",
    sides=("the column (Ex)", "=", "mean of erase, crop and brightness (tab:cifar10)"),
    tell=_MATCH,
    unit="methods",
    cases=len(METHODS),
    tolerance=ROUNDING,
)
def cifar10(draw: Draw) -> Case:
    return CIFAR10.case(draw.case)


@claim(
    "tab:new_combine cifar100(Ex)",
    "CIFAR-100 (Ex) is the average of the three settings (app:corruptset)",
    sides=("the column (Ex)", "=", "mean of erase, crop and brightness (tab:cifar100)"),
    tell=_MATCH + "; {total.is_erase:.0f} of 9 (all but BYOL) are the large-erase row itself",
    unit="methods",
    cases=len(METHODS),
    tolerance=ROUNDING,
)
def cifar100(draw: Draw) -> Case:
    return CIFAR100.case(draw.case)


@claim(
    "tab:new_combine cifar10c(Ex)",
    "CIFAR-10C (Ex) is the average of the three settings (app:corruptset)",
    sides=("the column (Ex)", "=", "mean of erase, crop and brightness (tab:cifar10c)"),
    tell=_MATCH,
    unit="methods",
    cases=len(METHODS),
    tolerance=ROUNDING,
)
def cifar10c(draw: Draw) -> Case:
    return CIFAR10C.case(draw.case)


@claim(
    "svhn-backbone",
    "The SVHN encoder is a ResNet-50",
    sides=("layers in the text", "=", "layers in the caption"),
    tell="text (sec:exp): “For experiments with SVHN … and ImageNet100 … we use the ResNet-50 encoder”, "
    "app:hpdetails likewise; caption of tab:new_combine: “SVHN (ResNet18)”",
    unit="sentences",
    cases=1,
)
def svhn_backbone(draw: Draw) -> Case:
    return Case(50, 18, {"text": 50, "caption": 18})


@claim(
    "pacs-classes",
    "PACS has five classes",
    sides=("classes in the text", "=", "classes in the data set"),
    tell="appendix:dgsetting: “class labels were divided into five categories”; PACS has seven: dog, elephant, "
    "giraffe, guitar, horse, house, person",
    unit="sentences",
    cases=1,
)
def pacs_classes(draw: Draw) -> Case:
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    return Case(5, len(classes), {"text": 5, "data_set": len(classes)})
