"""Alignment and uniformity of each method, on clean and on corrupted images (app:representation).

Both are lower where they are better. The paper claims that GCA improves both "in general"; `fig-same-eps` has the
control, since the search may give a method and its GCA version different ε.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab.experiments.engine.claims import BELOW, Contrast, EmpiricalClaim, Judgement, Results, plainly
from gcalign.lab.experiments.engine.drawing import (
    DOUBLE,
    INK,
    SETTINGS,
    bars,
    letter,
    look,
    ordered,
    page,
)
from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, grid, value_of, views
from gcalign.lab.experiments.engine.records import by_seed, check_any, having
from gcalign.lab.experiments.engine.statistics import estimates
from gcalign.lab.experiments.paper import QUALITY
from gcalign.lab.paper import METHODS, NAMES, PAIRS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

ON = {"clean": "clean images", "corrupted": "corrupted images"}
STD = "± 1 standard deviation over seeds"


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """Alignment and uniformity of each method, on clean and corrupted images."""
    return grid(scale, chosen, ("align-uniform",), METHODS, views())


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Alignment above the line and uniformity below it, and both as a plane (app:representation)."""
    labels = ("on", "setting", "method")
    above, below = (estimates(by_seed(records, measure, *labels)) for measure in ("alignment", "uniformity"))
    keys = {*above, *below}
    check_any(keys, "fig-align-uniform", "alignment and uniformity by on, setting and method")
    on, settings = ordered((k[0] for k in keys), ON), ordered((k[1] for k in keys), SETTINGS)
    methods = ordered(k[2] for k in keys)
    with page(folder, "fig-align-uniform", DOUBLE, 0.8 + 2.2 * len(on)) as made:
        panels = made.figure.subplots(len(on), 1, sharex=True, squeeze=False)[:, 0]
        for row, (axes, where) in enumerate(zip(panels, on, strict=True)):
            for cells in (above, below):
                for place, method in enumerate(methods):
                    along = 0.88 * ((place + 0.5) / len(methods) - 0.5)
                    places = {k + along: (where, setting, method) for k, setting in enumerate(settings)}
                    shown = {x: cells[at] for x, at in places.items() if at in cells}
                    bars(axes, shown, 0.75 / len(methods), look(method))
            _two_scales(axes)
            axes.set_xlim(-0.5, len(settings) - 0.5)
            axes.set_xticks(range(len(settings)), [SETTINGS.get(s, s) for s in settings])
            axes.tick_params(axis="x", length=0)
            axes.grid(visible=False, axis="x")
            letter(axes, row, ON.get(where, where))
        made.legend(methods)
        note = (
            "Alignment (above the line): mean squared distance of two views. Uniformity (below, on its own scale): log "
            "mean Gaussian potential of different images. Lower is better for both: short bars above, long bars below. "
            "Bars are in the legend's order."
        )
        made.caption(records, note, spread=STD)
    with page(folder, "fig-align-uniform-plane", DOUBLE, 0.9 + 1.75 * len(on)) as plane:
        grid = plane.figure.subplots(len(on), len(settings), sharex="row", sharey="row", squeeze=False)
        for k, (axes, (where, setting)) in enumerate(zip(grid.flat, product(on, settings), strict=True)):
            for method in (m for m in methods if (where, setting, m) in above and (where, setting, m) in below):
                x, y = (cells[where, setting, method] for cells in (above, below))
                error = {"xerr": x.std or None, "yerr": y.std or None, "elinewidth": 0.6}
                axes.errorbar(x.mean, y.mean, label=look(method).name, **error, **look(method).marks)
            letter(axes, k, SETTINGS.get(setting, setting))
        for row, where in zip(grid, on, strict=True):
            row[0].set_ylabel(f"{ON.get(where, where)}\nuniformity (← better)")
        for axes in grid[-1]:
            axes.set_xlabel("alignment (← better)")
        plane.legend(methods)
        plane.caption(records, "Lower is better for both.", spread=f"bars: {STD}")
    return made.paths + plane.paths


def _two_scales(axes: Axes) -> None:
    """Equal halves for what is above zero and what is below it, each with its own ticks."""
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_ylim()
    low, high = min(low, -1e-9), max(high, 1e-9)
    stretch = -low / high

    def forward(y: Any) -> Any:
        return np.where(np.asarray(y) > 0, np.asarray(y) * stretch, y)

    def inverse(y: Any) -> Any:
        return np.where(np.asarray(y) > 0, np.asarray(y) / stretch, y)

    axes.set_yscale("function", functions=(forward, inverse))
    ticks = [*MaxNLocator(4).tick_values(low, 0)[:-1], *MaxNLocator(4).tick_values(0, high)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(ticks, [f"{abs(tick) if tick == 0 else tick:g}".replace("-", "−") for tick in ticks])
    axes.set_ylim(low, high)
    axes.axhline(0, color=INK, linewidth=1.0)
    axes.spines.bottom.set_visible(False)
    for name, at in (("alignment", 0.75), ("uniformity", 0.25)):
        axes.text(-0.055, at, name, transform=axes.transAxes, rotation=90, ha="right", va="center")


# --- claims --------------------------------------------------------------------------------------------------------


def lower(results: Results, measure: str, on: str, a: str, b: str) -> Judgement:
    """Whether a's alignment or uniformity (lower is better) is below b's, over the settings measured.

    Both measures follow ε, so where a and b have different ones nothing is said of the methods.
    """
    contrast = Contrast(
        "fig-align-uniform",
        {a: 1, b: -1},
        measure,
        at={"on": on},
        over="setting",
        rule=BELOW,
        text="{gap}{other}",
        show=plainly,
    )
    judgement, records = contrast(results), results.of("fig-align-uniform")
    eps = {m: _eps(having(records, method=m)) for m in (a, b)}
    if eps[a] == eps[b]:
        return judgement
    text = f"{judgement.result}; confounded by ε ({eps[a]} against {eps[b]})"
    return Judgement("not judgeable", text, judgement.n)


def _eps(records: pd.DataFrame) -> str:
    """The values of ε that the words of runs name."""
    named = {value_of(words, "method.eps") for words in records["words"]}
    return ", ".join(sorted(eps for eps in named if eps is not None))


def claims() -> Iterable[EmpiricalClaim]:
    return [
        EmpiricalClaim(
            QUALITY,
            f"{measure} {NAMES[a]}, {on}",
            f"{NAMES[a]} improves {measure} over {NAMES[b]} on {images}",
            partial(lower, measure=measure, on=on, a=a, b=b),
            "app:representation",
            "no figure (a bar chart)",
        )
        for a, b in PAIRS
        for measure in ("alignment", "uniformity")
        for on, images in (("clean", "CIFAR-10"), ("corrupted", "CIFAR-10C"))
    ]


EXPERIMENTS = (Experiment("fig-align-uniform", draw, jobs, searched=METHODS, claims=claims, place=9),)
