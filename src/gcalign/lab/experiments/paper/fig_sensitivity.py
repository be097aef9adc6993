"""fig:sensitivity_study: compactness and accuracy of GCA-INCE against the number of iterations and against ε."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.drawing import ACCURACIES, DOUBLE, STD, letter, look, page
from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, grid, options
from gcalign.lab.experiments.engine.records import Record, by_seed, check_any

if TYPE_CHECKING:
    import pandas as pd

    from gcalign.lab.experiments.engine.measures import MeasuredRun

COUNTS = (1, 2, 3, 5, 10, 20)  # of iterations
EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0)


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """Compactness and accuracy against iterations and ε."""
    varied = [
        *options([{"iterations": n} for n in COUNTS], varied="iterations"),
        *options([{"eps": eps} for eps in EPSILONS], varied="eps"),
    ]
    return grid(scale, chosen, (scale.probe, "compactness"), ("gca-ince",), varied)


def compactness(of: MeasuredRun) -> list[Record]:
    """Mean distance of the encoder's features to their class centre."""
    from gcalign import metrics
    from gcalign.lab.data.sources import labels_of

    images = of.images("test")
    value = metrics.compactness(of.features("test"), labels_of(images, "compactness")).item()
    about = {"of": "the encoder's output", "split": "test", "images": len(images)}
    return [Record(measure="compactness", value=value, about=about)]


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Compactness and accuracy against iterations and ε."""
    measure = drawing.accuracy_of(records, "fig-sensitivity")
    rows = (("compactness", 1.0, "compactness"), (measure, 100.0, "accuracy (%)"))
    columns = (("iterations", "Sinkhorn iterations"), ("eps", "entropic regularisation ε"))
    with page(folder, "fig-sensitivity", DOUBLE, 3.5) as made:
        grid = made.figure.subplots(2, 2, sharey="row", sharex="col")
        drawn = []
        for row, (what, unit, label) in enumerate(rows):
            grid[row][0].set_ylabel(label)
            for column, (knob, name) in enumerate(columns):
                axes = grid[row][column]
                table = by_seed(records, what, knob, unit=unit, varied=knob)
                if row == 0:
                    letter(axes, column, f"{name} varied")
                if table.empty:
                    continue
                drawn.append(knob)
                drawing.line(axes, table, look("gca-ince"))
                drawing.log_ticks(axes, list(table.index))
                if row == 1:
                    axes.set_xlabel(name)
        check_any(drawn, "fig-sensitivity", "varied=iterations or varied=eps")
        made.figure.align_ylabels(grid[:, 0])
        note = (
            "GCA-INCE. Compactness: mean L2 distance of the encoder's features to their class centre (low: tight); "
            f"accuracy: {ACCURACIES[measure]}."
        )
        made.caption(records, note, spread=STD)
    return made.paths


EXPERIMENTS = (
    Experiment(
        "fig-sensitivity",
        draw,
        jobs,
        searched=("gca-ince",),
        measures={"compactness": compactness},
        place=12,
    ),
)
