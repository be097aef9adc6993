"""Time and memory against n on logarithmic axes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gcalign.lab import files
from gcalign.lab.bench.table import BenchResult, Row

FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, distinct to the colour-blind and, with markers and dashes, in grey
_STYLES = (("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", "-."), ("#CC79A7", "D", ":"))
_PANELS = (
    ("seconds", "time", "forward plus backward (s)"),
    ("megabytes", "memory", "peak extra memory (MB)"),
)


def check(path: Path) -> Path:
    """The path, if a plot of its kind can be drawn: better known before the run than after it."""
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot={path} must end in {', '.join(FORMATS)}; try {path.with_suffix('.png').name}")
    if find_spec("matplotlib") is None:
        raise ValueError(f"--plot={path} needs matplotlib, which is not installed; pip install matplotlib")
    return path


def draw(result: BenchResult, path: Path) -> None:
    """Both panels of a scaling result, written whole or not at all."""
    matplotlib = import_module("matplotlib")
    figures = import_module("matplotlib.figure")
    rows, fits = result.sheets[0].rows, result.sheets[1].rows
    with matplotlib.rc_context({"svg.hashsalt": "gcalign", "font.size": 10}):
        figure = figures.Figure(figsize=(10, 4.4), layout="constrained")
        for axes, (key, what, label) in zip(figure.subplots(1, 2), _PANELS, strict=True):
            _panel(axes, rows, fits, key, what)
            axes.set_ylabel(label)
        eps, dim = result.settings["eps"], result.settings["dim"]
        figure.suptitle(f"streaming losses, D = {dim}, ε = {eps:g}, float32")
        buffer = io.BytesIO()
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(buffer, format=path.suffix[1:], dpi=150, metadata=metadata)
    files.write(path, buffer.getvalue())


def _panel(axes: Any, rows: Sequence[Row], fits: Sequence[Row], key: str, what: str) -> None:
    for fit, (colour, marker, dash) in zip(fits, _STYLES, strict=False):
        mine = [row for row in rows if row["name"] == fit["name"]]
        n, values = [row["n"] for row in mine], [row[key] for row in mine]
        label = f"{fit['name']}: $n^{{{fit[what]:.2f}}}$"
        axes.loglog(n, values, color=colour, marker=marker, linestyle=dash, label=label)
    sizes = sorted({row["n"] for row in rows})
    power = 2 if what == "time" else 1
    end = min(row[key] for row in rows if row["n"] == sizes[-1]) / 2
    guide = [end * (size / sizes[-1]) ** power for size in sizes]
    axes.loglog(sizes, guide, color="0.6", linewidth=1, label=f"$n^{power}$, to compare")
    axes.set_xlabel("batch size n (pairs)")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ticker = import_module("matplotlib.ticker")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.minorticks_off()
    axes.grid(which="major", color="0.9")
    axes.legend(frameon=False)
