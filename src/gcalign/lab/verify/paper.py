"""What the paper's tables and sentences say of each other; one case for each method or sentence."""

from __future__ import annotations

from functools import partial

from gcalign.lab import paper
from gcalign.lab.verify.claims import Case, Draw, Kind, claim

ROUNDING = 0.01  # the mean of three numbers rounded to 0.01, itself rounded so
_MATCH = "{total.matches:.0f} of 9 match within rounding, the worst is {worst.mismatch:.3f} points off"
_ERASE = "; {total.is_erase:.0f} of 9 (all but BYOL) are the large-erase row itself"


def _average(draw: Draw, column: str, table: paper.Rows) -> Case:
    """A column (Ex) of tab:new_combine and the three rows it is said to average."""
    ex = paper.NEW_COMBINE[column][0][draw.case]
    rows = [means[draw.case] for name, (means, _) in table.items() if name != "Standard"]
    mean = sum(rows) / 3
    names: dict[str, float | str] = {"method": paper.TITLES[draw.case]}
    names |= dict(zip(("erase", "crop", "brightness"), rows, strict=True))
    mismatch = abs(ex - mean)
    counts = {"mismatch": mismatch, "matches": float(mismatch <= ROUNDING), "is_erase": float(ex == rows[0])}
    return Case(ex, mean, {**names, **counts}, scale=1.0)


_TABLES: tuple[tuple[str, str, paper.Rows, str, Kind | None], ...] = (
    ("CIFAR-10", "cifar10", paper.CIFAR10, "", None),
    ("CIFAR-100", "cifar100", paper.CIFAR100, _ERASE, "slip"),
    ("CIFAR-10C", "cifar10c", paper.CIFAR10C, "", "substance"),
)
for _name, _label, _table, _more, _kind in _TABLES:
    claim(
        f"tab:new_combine {_label}(Ex)",
        f"{_name} (Ex) is the average of the three settings (app:corruptset)",
        sides=("the column (Ex)", "=", f"mean of erase, crop and brightness (tab:{_label})"),
        tell=_MATCH + _more,
        unit="methods",
        cases=len(paper.METHODS),
        kind=_kind,
        tolerance=ROUNDING,
    )(partial(_average, column=f"{_name} (Ex)", table=_table))


@claim(
    "svhn-backbone",
    "The SVHN encoder is a ResNet-50",
    sides=("layers in the text", "=", "layers in the caption"),
    tell="text (sec:exp): “For experiments with SVHN … and ImageNet100 … we use the ResNet-50 encoder”, "
    "app:hpdetails likewise; caption of tab:new_combine: “SVHN (ResNet18)”",
    unit="sentences",
    cases=1,
    kind="misprint",
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
    kind="misprint",
)
def pacs_classes(draw: Draw) -> Case:
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    return Case(5, len(classes), {"text": 5, "data_set": len(classes)})
