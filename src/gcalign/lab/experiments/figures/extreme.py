"""Extreme views: accuracy of each method, and what the GCA versions add, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments import statistics
from gcalign.lab.experiments.figures.style import (
    ACCURACIES,
    DOUBLE,
    INK,
    INTERVAL,
    SETTINGS,
    Cell,
    about,
    accuracy_of,
    cells,
    letter,
    look,
    needed,
    ordered,
    page,
)
from gcalign.lab.experiments.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPARISONS = (("gca-uot", "ince"), ("gca-ince", "ince"), ("gca-rince", "rince"))
MEAN = "mean"
ASIDE = 0.11  # of the gap between two views, from mark to mark


def fig_extreme(records: Sequence[Record], folder: Path) -> list[Path]:
    """Accuracy by view and method; beside it the paired differences; a row for each protocol."""
    measures = dict.fromkeys((accuracy_of(records, "fig-extreme"), "knn"))
    protocols = {m: found for m in measures if (found := _by_view(cells(records, m, "setting", "method", unit=100)))}
    needed(protocols, "fig-extreme", "setting and method")
    methods = ordered({method for found in protocols.values() for _, method in found})
    with page(folder, "fig-extreme", DOUBLE, 0.9 + 2.3 * len(protocols)) as made:
        rows = made.figure.subplots(len(protocols), 2, sharex=True, squeeze=False)
        for k, (measure, found) in enumerate(protocols.items()):
            left, right = rows[k]
            views = [*dict.fromkeys(view for view, _ in found)]
            for j, method in enumerate(methods):
                mine = {view: found[view, method] for view in views if (view, method) in found}
                _marks(left, views, mine, j - (len(methods) - 1) / 2, method, look(method).name)
            right.axhline(0, color=INK, linewidth=0.8)
            for j, (a, b) in enumerate(COMPARISONS):
                both = [view for view in views if (view, a) in found and (view, b) in found]
                gains = {v: gain for v in both if (gain := found[v, a].minus(found[v, b])).by_seed}
                _marks(right, views, gains, j - (len(COMPARISONS) - 1) / 2, a, f"{look(a).name} less {look(b).name}")
            for axes in (left, right):
                axes.set_xticks(range(len(views)), [SETTINGS.get(view, view) for view in views])
                axes.grid(visible=False, axis="x")
            left.set_ylabel("accuracy (%)")
            right.set_ylabel("difference (points)")
            letter(left, 2 * k, ACCURACIES[measure])
            letter(right, 2 * k + 1, "the same, paired by seed")
        made.legend([look(method).name for method in methods])
        rows[0][1].legend(loc="best", fontsize=6)
        note = "Trained with extreme views, tested on clean images. The mean of the views is taken seed by seed."
        made.caption(about(records, note, spread=INTERVAL))
    return made.paths


def _by_view(found: Mapping[tuple[str, str], Cell]) -> dict[tuple[str, str], Cell]:
    """With the mean over views of each method that was trained with all of them, behind the others."""
    views = [*dict.fromkeys(view for view, _ in found)]
    means = {}
    for method in dict.fromkeys(method for _, method in found):
        parts = [found[view, method].by_seed for view in views if (view, method) in found]
        if len(views) > 1 and len(parts) == len(views) and (mean := statistics.averaged(parts)):
            means[MEAN, method] = Cell(mean)
    return {**found, **means}


def _marks(axes: Axes, views: Sequence[str], found: Mapping[str, Cell], place: float, method: str, name: str) -> None:
    """A mark with its interval over each view, `place` marks from the middle."""
    axes.errorbar(
        [views.index(view) + ASIDE * place for view in found],
        [cell.mean for cell in found.values()],
        [cell.half_interval for cell in found.values()],
        label=name,
        capsize=1.5,
        elinewidth=0.7,
        capthick=0.7,
        **(look(method).line | {"linestyle": "none"}),
    )
