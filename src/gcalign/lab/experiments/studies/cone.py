"""E7: why does InfoNCE fail with mismatched pairs? Do its embeddings fall into a cone, and is centring the cure?

Yes, by nearest neighbours: with 60 % of the pairs mismatched, centring lifts INCE by 5.9 [4.9, 6.8] points, and GCA-UOT
is 0.7 [0.0, 1.4] below centred INCE (simultaneous intervals, eight seeds, one training set). The three losses that are
blind to a common shift end with an effective rank of 9 to 10 and 36 to 37 % accuracy, all others are at 40 to 42 %. Not
explained: by a linear probe, GCA-UOT is still 1.7 [0.5, 2.9] above centred INCE, and RINCE is at 40 % though it stays
in the cone. With clean pairs, the three judged methods are within 0.5 points of each other by nearest neighbours.

E1 showed that GCA-UOT is above INCE with mismatched pairs, but not why. Unplanned trials suggested that the embeddings
of INCE fall into a narrow cone. The gradient of a KL loss with respect to the scores is P − T; along a common shift of
all scores, it is the mass of P minus that of T. A loss that fixes this mass does not stop the shift (`gcalign verify
--only shift`). If this is the reason, centring must repair INCE, and relaxation has little to add.

## Plan

* data: as E1, with 5000 training images and 10 epochs; other pairs are mismatched at every step
* compared: nine × 60, 0, 30 % of the pairs mismatched × seeds 80 to 87; 60 % first, for all seeds. Blind to a common
  shift: INCE, GCA-UOT with its total mass fixed, and GCA-UOT as published but for its robust term. With a scale of
  scores: RINCE, SigLIP, GCA-UOT, GCA-UOT with λ near 0. Without the common direction: INCE centred, total mass centred
* settings: INCE, RINCE and GCA-UOT as the search of E1 chose (`search-mismatch.jsonl`: ε = 0.12; ε = 0.05 and q = 0.3;
  ε = 0.1 and λ = 0.2). Nothing else is searched. A variant has the setting of its method, so that it differs in one
  thing. λ near 0 is 0.001. The two with a fixed mass have no robust term (`w_robust=0`), which has a scale of its own;
  it is less than 1 % of the gradient. SigLIP has the usual scale 10 and bias −10, both fixed
* primary: at 60 %, a family of three, by Holm: INCE centred − INCE (kNN); GCA-UOT − INCE centred (kNN); GCA-UOT − INCE
  centred (linear)
* held: an interval above zero after Holm's correction; failed: below zero
* the reason is supported if the first is held and the second is not. If both are held, centring explains part of the
  gain. If the first is not held, the cone is not the reason
* secondary: the other methods and shares; the mean cosine of different images and the effective rank, of the
  projections in batches of training, epochs 1, 3, 6, 9 and 10: plotted, not judged
* limits: "not shown" for the second is not equality. INCE centred has the ε of INCE, and SigLIP has no searched
  setting: both may be better than they are here
* cost: 216 runs, 3.6 core-hours, of which the primary needs 1.2

## Changes

All before any result was looked at:

* One thread instead of two, which was faster; an unfinished run was deleted.
* 5000 images instead of 10,000 and 10 epochs instead of 15, and all seeds at 60 % before the other shares, to save
  time. Three runs of the first size were deleted.

While the sweep was running: accuracies and cosines of seeds 80 and 81 at 60 % were looked at, for E11. Seeds, settings
and rules stay as they are. After 16 runs, the order changed: the three methods of the primary come first. After the
primary, to save time: 30 % was cut, and the methods that are not judged have three or four seeds with 0 %.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.claims import Contrast, EmpiricalClaim, Family
from gcalign.lab.experiments.engine.drawing import DOUBLE, Look, letter, look, page, part
from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, data_name, joined, noises
from gcalign.lab.experiments.engine.records import Record, by_seed, check_any
from gcalign.lab.experiments.studies import mismatch

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from gcalign.lab.experiments.engine.measures import MeasuredRun

NAME = "fig-cone"
FROM_E1: Chosen = {  # by the search of E1, `search-mismatch`
    "ince": ("method.eps=0.12",),
    "rince": ("method.eps=0.05", "method.q=0.3"),
    "gca-uot": ("method.eps=0.1", "method.relax=[0.2,0.2]"),
}
MOST = mismatch.MOST
SHARES = (MOST, 0.0, 0.3)  # the question first
SETTINGS: dict[str, dict[str, Any]] = {
    "tiny": {**mismatch.SETTINGS["tiny"], "noise": SHARES},
    "small": {
        **mismatch.SETTINGS["small"],
        # half of E1's images and two thirds of its epochs, so that the runs fit a few core-hours
        "images": ("data=cifar10", "data.limit=5000"),
        "train": joined(mismatch.SETTINGS["small"]["train"], ("epochs=10",)),
        "noise": SHARES,
        "seeds": tuple(range(80, 88)),  # fresh
    },
    "paper": {**mismatch.SETTINGS["paper"], "noise": SHARES},
}
CENTRED, MASS = "center=true", ("total_mass=true", "method.w_robust=0")  # the robust term has a scale of its own
# each compared: its method, the method whose setting it takes, and its own words
COMPARED: Mapping[str, tuple[str, str | None, tuple[str, ...]]] = {
    "ince": ("ince", "ince", ()),
    "ince centred": ("ince", "ince", (CENTRED,)),
    "siglip": ("siglip", None, ("method.eps=0.1", "method.bias=-10", "method.learnable=false")),
    "rince": ("rince", "rince", ()),
    "gca-uot": ("gca-uot", "gca-uot", ()),
    "gca-uot published": ("gca-uot-published", "gca-uot", ()),
    "gca-uot λ→0": ("gca-uot", "gca-uot", ("method.relax=[0.001,0.001]",)),
    "total mass": ("gca-uot", "gca-uot", MASS),
    "total mass centred": ("gca-uot", "gca-uot", (*MASS, CENTRED)),
}


JUDGED = {"ince", "ince centred", "gca-uot"}  # run first


def jobs(scale: Scale, _: Chosen) -> list[Job]:
    """Why InfoNCE fails with mismatched pairs: centring, a scale of scores, a fixed mass; eight seeds (ours)."""
    shared = {"data": data_name(scale.images), "setting": "standard"}
    return [
        Job(
            {"method": name, **shared, **labels},
            joined((f"method={method}",), scale.train, scale.images, setting, own, words, (f"seed={seed}",)),
            (scale.probe, "knn", "cone"),
            seed,
        )
        for labels, words in noises(scale)
        for names in (JUDGED, COMPARED.keys() - JUDGED)
        for seed in scale.seeds
        for name, (method, base, own) in COMPARED.items()
        if name in names
        for setting in [FROM_E1[base] if base else ()]
    ]


# --- what is measured ----------------------------------------------------------------------------------------------

COSINE, RANK = "negative-cosine", "rank"
EVERY = 3  # epochs


def cone(of: MeasuredRun) -> list[Record]:
    """The mean cosine of different images and the effective rank, in batches of training: means over some epochs.

    Both are of the projections of first views, before any centring. A run logs `spread` = 1 − ‖m‖², where m is the mean
    of a batch of b unit vectors. The mean cosine of two different ones is then (b‖m‖² − 1)/(b − 1).
    """
    b, epochs = of.config.batch_size, of.config.epochs
    lines = [line for line in of.run.results() if line["kind"] == "train"]
    length = lines[-1]["step"] / epochs  # steps of an epoch; the last step is always logged
    records = []
    for epoch in sorted({1, *range(EVERY, epochs, EVERY), epochs}):
        some = [line for line in lines if epoch - 1 < line["step"] / length <= epoch]
        values = {
            COSINE: [(b * (1 - line["spread"]) - 1) / (b - 1) for line in some],
            RANK: [line["rank"] for line in some],
        }
        about = {"of": f"projections of first views, batches of {b} in training", "batches": len(some)}
        records += [
            Record(measure=measure, value=statistics.fmean(each), labels={"epoch": epoch}, about=about)
            for measure, each in values.items()
            if each
        ]
    return records


# --- the figure ----------------------------------------------------------------------------------------------------

LOOKS = {
    "ince": look("ince"),
    "ince centred": Look("InfoNCE, centred", "#0072B2", "o", "-", True),
    "siglip": Look("SigLIP", "#E69F00", "v", ":"),
    "rince": look("rince"),
    "gca-uot": look("gca-uot"),
    "gca-uot published": Look("GCA-UOT, published", "#CC79A7", "P", ":"),
    "gca-uot λ→0": Look("GCA-UOT, λ = 0.001", "0.5", "D", ":"),
    "total mass": Look("total mass", "#009E73", "^"),
    "total mass centred": Look("total mass, centred", "#009E73", "^", "-", True),
}


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Accuracy against the share of mismatched pairs; cosine and rank over training with most pairs mismatched."""
    accuracies = ((drawing.accuracy_of(records, NAME), "linear probe"), ("knn", "nearest neighbours"))
    shapes = ((COSINE, "cosine of different images"), (RANK, "effective rank"))
    with page(folder, NAME, DOUBLE, 5.2) as made:
        above, below = made.figure.subplots(2, 2)
        drawn = 0
        for k, (axes, (measure, title)) in enumerate(zip(above, accuracies, strict=True)):
            table = by_seed(records, measure, "method", "noise", unit=100)
            drawn += _lines(axes, table, unit=100, apart=0.7)
            letter(axes, k, title, xlabel="mismatched pairs (%)", ylabel="accuracy (%)")
            axes.set_xticks([100 * share for share in sorted(table.index.unique(1))])
        for k, (axes, (measure, title)) in enumerate(zip(below, shapes, strict=True), 2):
            table = by_seed(records, measure, "method", "epoch", noise=MOST)
            drawn += _lines(axes, table, unit=1, apart=0.05)
            letter(axes, k, f"{title}, {100 * MOST:.0f} % mismatched", xlabel="epoch", ylabel=title)
            axes.set_xticks(sorted(table.index.unique(1)))
        check_any(range(drawn), NAME, "method and noise")
        handles, names = above[0].get_legend_handles_labels()
        made.figure.legend(handles, names, loc="outside upper center", ncols=5)
        note = "Accuracy on clean test images after training with a share of pairs mismatched on purpose. C and D: of "
        note += "the projections in batches of training, before any centring. Marks of one place stand side by side."
        made.caption(records, note, spread=drawing.INTERVAL)
    return made.paths


def _lines(axes: Axes, table: pd.DataFrame, *, unit: float, apart: float) -> int:
    """A line for each method of a table (method, x), side by side; how many were drawn."""
    drawn = [name for name in LOOKS if len(part(table, name))]
    drawing.lines(axes, table, drawn, apart, unit=unit, look=LOOKS.__getitem__)
    return len(drawn)


# --- claims --------------------------------------------------------------------------------------------------------

E7 = Family("E7: the cone", 28, "planned")
COMPARISONS = (
    ("ince centred", "ince", "knn", "nearest neighbours"),
    ("gca-uot", "ince centred", "knn", "nearest neighbours"),
    ("gca-uot", "ince centred", None, "linear probe"),
)
TITLES = {"ince": "INCE", "ince centred": "INCE centred", "gca-uot": "GCA-UOT"}


def claims() -> Iterable[EmpiricalClaim]:
    return [
        EmpiricalClaim(
            E7,
            f"E7 {TITLES[a]}, {TITLES[b]}, {protocol}",
            f"{TITLES[a]} is above {TITLES[b]} where most pairs are mismatched, {protocol}",
            Contrast(
                NAME,
                {a: 1, b: -1},
                measure,
                at={"noise": MOST},
                planned=True,
                text=f"{{gap}} points{{other}} ({{percent[{a}]}} against {{percent[{b}]}} %) {mismatch.SHARE}",
            ),
        )
        for a, b, measure, protocol in COMPARISONS
    ]


EXPERIMENTS = (Experiment(NAME, draw, jobs, changes=SETTINGS, measures={"cone": cone}, claims=claims, place=17.5),)
