"""E4, first part: where else could alignment win? Four settings, exploratory.

Only noisy labels stand out: by nearest neighbours, GCA-UOT is 3.3 and 3.8 points above INCE with the two seeds. Nothing
else (a long tail of classes, batches of 32, four views) is above 1.4 with both.

The plan: INCE, GCA-INCE, GCA-UOT × seeds 60 and 61, exploratory, with the settings that the search of E2 chose, 5000
CIFAR-10 images:

* long tail: classes of falling size, the first 100 times the last (`data.tail=100`), probed with balanced labels
* batches of 32, lr 1e-3
* four views of half as many images for half as many epochs, so that as many images pass the encoder
* targets by label, 40 % of the labels wrong (`target.noise=0.4`)

The most promising is repeated with eight fresh seeds and one primary comparison, written before those runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, grid
from gcalign.lab.experiments.engine.records import check_any, having, seeds, values
from gcalign.lab.experiments.engine.statistics import Estimate, signed
from gcalign.lab.experiments.engine.tables import NOTHING, Sheet, listed, settings
from gcalign.lab.experiments.studies import extreme
from gcalign.lab.paper import METHODS, NAMES

if TYPE_CHECKING:
    import pandas as pd

COMPARED = ("ince", "gca-ince", "gca-uot")
TAIL, WRONG_LABELS = ("data.tail=100",), ("target.name=labels", "target.noise=0.4")


def _variants(few: tuple[str, ...], views: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """Words for batches of 32, and for four views of half as many images for half as long."""
    few, views = ("batch_size=32", *few), ("pairs.views=4", *views)
    return {"long tail": TAIL, "batches of 32": few, "four views": views, "noisy labels": WRONG_LABELS}


SETTINGS = {
    "tiny": {**extreme.SETTINGS["tiny"], "variants": _variants((), ("batch_size=32",))},
    "small": {
        **extreme.SETTINGS["small"],
        "seeds": (60, 61),
        "variants": _variants(("optimizer.lr=1e-3",), ("batch_size=64", "epochs=3")),
    },
    "paper": {
        **extreme.SETTINGS["paper"],
        "seeds": (60, 61),
        "variants": _variants(("optimizer.lr=0.0375",), ("batch_size=256", "optimizer.lr=0.3", "epochs=250")),
    },
}


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """Where else alignment could win: long tail, small batches, four views, noisy labels; two seeds, exploratory
    (ours)."""
    variants = [({"setting": name}, words) for name, words in scale.variants.items()]
    return grid(scale, chosen, (scale.probe, "knn"), COMPARED, variants)


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Each setting by each protocol: means, and the difference to InfoNCE of every seed. Two seeds have no interval."""
    measured = having(records[records["value"].notna()], "setting")
    methods = [m for m in METHODS if m in values(records, "method")]
    others = [m for m in methods if m != "ince"]
    rows = []
    for setting in values(measured, "setting"):
        for measure in measured["measure"].unique():
            here = having(measured, setting=setting, measure=measure)
            # in the order of the file
            by = {m: having(here, method=m).set_index("seed")["value"] for m in methods}
            means = [f"{100 * Estimate.of(x).mean:.2f}" if len(x) else NOTHING for x in by.values()]
            gaps = [[100 * (x - by["ince"][s]) for s, x in by[m].items() if s in by["ince"]] for m in others]
            rows.append([f"{setting}, {measure}", *means, *(", ".join(map(signed, gap)) or NOTHING for gap in gaps)])
    check_any(rows, "scouts", "accuracy by setting")
    header = ["Setting", *(NAMES[m] for m in methods), *(f"{NAMES[m]} − INCE" for m in others)]
    notes = [
        f"Scouts at scale {listed(records['scale'])}, exploratory: test accuracy in %, mean over seeds "
        f"{listed(seeds(records))}; differences seed by seed. They say where "
        "to look, not what is so.",
        "Long tail: 100 times more images of the first class than of the last, probed with balanced labels. Four "
        "views: of half as many images, so that as many pass the encoder. Noisy labels: targets by label, 40 % wrong.",
        *settings(records),
    ]
    return Sheet("scouts", header, rows, notes).write(folder)


EXPERIMENTS = (Experiment("scouts", draw, jobs, searched=COMPARED, changes=SETTINGS, place=21),)
