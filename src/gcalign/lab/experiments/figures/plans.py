"""Plans as pictures: −log P of trained encoders by class, and plans against ε."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments.figures.style import DOUBLE, letter, look, needed, ordered, page
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.statistics import cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST, MOST = 1e-4, 1.0  # mass of a pair, in fig-epsilon's colours


def fig_plans(records: Sequence[Record], folder: Path) -> list[Path]:
    """−log P of each method, rows and columns sorted by class, on one colour scale (fig:diagnolline)."""
    import numpy as np

    found = {r.labels["method"]: r for r in records if r.measure == "plan" and "log_plan" in r.about}
    methods = ordered(needed(found, "fig-plans", "plan"))
    tables = {method: -np.asarray(found[method].about["log_plan"], dtype=float) for method in methods}
    finite = np.concatenate([table[np.isfinite(table)] for table in tables.values()])
    low, high = np.percentile(finite, (0.5, 99.5))
    with page(folder, "fig-plans", DOUBLE, 2.25) as made:
        panels = made.figure.subplots(1, len(methods), squeeze=False)[0]
        for k, (axes, method) in enumerate(zip(panels, methods, strict=True)):
            image = axes.imshow(tables[method], cmap="Blues_r", vmin=low, vmax=high, interpolation="nearest")
            known = found[method].about
            _boundaries(axes, known.get("classes", []), named=k == 0)
            said = [
                f"{name} {known[key]:g}"
                for key, name in (("eps", "ε ="), ("iterations", "iterations:"))
                if key in known
            ]
            axes.set_xlabel(", ".join(said), fontsize=6)
            letter(axes, k, look(method).name)
        bar = made.figure.colorbar(image, ax=panels, aspect=18, pad=0.01, shrink=0.9, extend="both")
        bar.set_label("−log P (nat)")
        n = len(tables[methods[0]])
        made.caption(records, f"Plans between two views of {n} images, sorted by class. Dark: much mass.")
    return made.paths


def _boundaries(axes: Axes, classes: Sequence[str], *, named: bool) -> None:
    """Thin lines between classes, and their names on the left."""
    axes.grid(visible=False)
    axes.set_xticks([])
    start, middles, names = 0, [], []
    for name, members in groupby(classes):
        size = len(list(members))
        middles.append(start + size / 2 - 0.5)
        names.append(str(name))
        start += size
        if start < len(classes):
            axes.axhline(start - 0.5, color="white", linewidth=0.4)
            axes.axvline(start - 0.5, color="white", linewidth=0.4)
    axes.set_yticks(middles, names if named else [""] * len(names), fontsize=5.5)
    axes.tick_params(length=0)


def fig_epsilon(records: Sequence[Record], folder: Path) -> list[Path]:
    """Plans of one encoder for several ε, a row of panels for each method (fig:epsilon_study)."""
    import numpy as np
    from matplotlib.colors import LogNorm

    found = {
        (r.labels["method"], float(r.labels["eps"])): r
        for r in records
        if r.measure == "plan" and "log_plan" in r.about
    }
    needed(found, "fig-epsilon", "plan by method and eps")
    methods, values = ordered(key[0] for key in found), sorted({key[1] for key in found})
    shown = {
        f"{m} {{:,.{digits}f}}": cells(records, m, "method", "eps") for m, digits in (("diagonal", 2), ("entropy", 1))
    }
    side = (DOUBLE - 1.1) / max(len(values), 4)
    with page(folder, "fig-epsilon", DOUBLE, len(methods) * (side + 0.27) + 0.5) as made:
        grid = made.figure.subplots(len(methods), len(values), squeeze=False)
        for row, method in enumerate(methods):
            for column, eps in enumerate(values):
                axes = grid[row][column]
                axes.grid(visible=False)
                axes.set_xticks([])
                axes.set_yticks([])
                if column == 0:
                    axes.set_ylabel(look(method).name)
                if row == 0:
                    axes.set_title(f"ε = {eps:g}", loc="center")
                if (method, eps) not in found:
                    axes.set_axis_off()
                    continue
                plan = np.exp(np.asarray(found[method, eps].about["log_plan"], dtype=float))
                image = axes.imshow(
                    np.maximum(plan, LEAST), cmap="Blues", norm=LogNorm(LEAST, MOST), interpolation="nearest"
                )
                said = [text.format(by[method, eps].mean) for text, by in shown.items() if (method, eps) in by]
                axes.set_xlabel("\n".join(said), fontsize=6)
        bar = made.figure.colorbar(image, ax=grid, aspect=24, pad=0.01, shrink=0.8, extend="both")
        bar.set_label("mass of a pair, P")
        note = "Plans of one encoder on one batch. Diagonal: mean share of a row's mass on its own pair."
        made.caption(records, note)
    return made.paths
