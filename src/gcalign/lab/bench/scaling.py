"""`gcalign bench scaling`: time and peak memory of the streaming losses against n, and their exponents."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gcalign.lab import files
from gcalign.lab.bench import losses, table
from gcalign.lab.bench.batches import WORDS, pairs
from gcalign.lab.bench.losses import backward
from gcalign.lab.bench.memory import BLOCK
from gcalign.lab.bench.probe import METHOD, probed
from gcalign.lab.bench.table import BenchResult, BenchTable, BenchTarget, Row
from gcalign.lab.terminal import Progress
from gcalign.lab.timing import interleaved
from gcalign.methods import method

NAMES = (losses.INCE, losses.GCA_INCE)
COLUMNS = table.columns("name", "n", "seconds", "repeats", ("megabytes", "extra MB", table.ratio), "iterations")
FIT_COLUMNS = table.columns(
    "name", ("time", "exponent in time", table.ratio), ("memory", "exponent in memory", table.ratio)
)
FORMATS = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, distinct to the colour-blind and, with markers and dashes, in grey
_STYLES = (("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", "-."), ("#CC79A7", "D", ":"))
_PANELS = (
    ("seconds", "time", "forward plus backward (s)"),
    ("megabytes", "memory", "peak extra memory (MB)"),
)


def bench_scaling(
    *, n: Sequence[int], dim: int, eps: float, repeats: int, seed: int, progress: Progress
) -> BenchResult:
    """Time the streaming losses at every n in one run, measure their memory in fresh processes, fit exponents."""
    if len(set(n)) < 2:
        raise ValueError(
            f"--n {' '.join(map(str, n))} must be at least two sizes to fit an exponent; try --n 1024 2048"
        )
    sizes = sorted(set(n))
    batches = {size: pairs(size, dim, seed) for size in sizes}
    chosen = {name: (called, {"block": BLOCK, **more}) for name, (called, more) in losses.OURS.items() if name in NAMES}
    criteria = {name: method(called, eps=eps, **options) for name, (called, options) in chosen.items()}
    jobs: dict[str, Callable[[], object]] = {
        f"{name}, n = {size}": partial(backward, criterion, *batches[size])
        for name, criterion in criteria.items()
        for size in sizes
    }
    times = interleaved(jobs, repeats, progress)
    rows: list[Row] = []
    common = {"eps": eps, "dim": dim, "seed": seed, "threads": torch.get_num_threads()}
    cells = [(name, size) for name in criteria for size in sizes]
    for name, size in progress.over(cells, lambda c: f"memory of {c[0]}, n = {c[1]}"):
        called, options = chosen[name]
        found = probed({"method": called, "options": options, "n": size, **common})
        plan = criteria[name].plan(*batches[size])
        row = {"name": name, "n": size, **times[f"{name}, n = {size}"].figures()}
        rows.append(row | {"megabytes": found["extra_bytes"] / 1e6, "iterations": plan.iterations})
    top = max(sizes[-1], 8192)
    judged = sizes[0] >= 1024 and sizes[-1] == top  # below, what does not grow with n decides
    fits = [{"name": name, **_exponents([row for row in rows if row["name"] == name])} for name in criteria]
    return BenchResult(
        f"forward plus backward, streaming in blocks of {BLOCK} rows, {WORDS}, D = {dim}, ε = {eps:g}, "
        f"tol = {losses.TOL:g} of ‖P − T‖₁; medians, contestants taking turns; {METHOD}; exponents by least squares "
        "in logarithms",
        [
            BenchTable("scaling", "cost against n", COLUMNS, rows),
            BenchTable("exponents", f"fitted over n = {sizes[0]:,} … {sizes[-1]:,}", FIT_COLUMNS, fits),
        ],
        [
            BenchTarget(
                f"{fit['name']}, exponent in {what}, n = 1024 … {top:,}", "≤", most, fit[what] if judged else None
            )
            for fit in fits
            for what, most in (("time", 2.1), ("memory", 1.1))
        ],
        settings={"n": sizes, "block": BLOCK, "tol": losses.TOL},
    )


def _exponents(rows: Sequence[Row]) -> Row:
    sizes = [row["n"] for row in rows]
    return {
        "time": exponent(sizes, [row["seconds"] for row in rows]),
        "memory": exponent(sizes, [max(row["megabytes"], 0.004) for row in rows]),  # one page, where none was added
    }


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log values in log sizes, by least squares."""
    return statistics.linear_regression([*map(math.log, sizes)], [*map(math.log, values)]).slope


def drawable(path: Path) -> Path:
    """The path, if a plot of its kind can be drawn: better known before the run than after it."""
    if path.suffix not in FORMATS:
        raise ValueError(f"--plot={path} must end in {', '.join(FORMATS)}; try {path.with_suffix('.png').name}")
    if find_spec("matplotlib") is None:
        raise ValueError(f"--plot={path} needs matplotlib, which is not installed; pip install matplotlib")
    return path


def draw(result: BenchResult, settings: Row, path: Path) -> None:
    """Both panels of a scaling result, written whole or not at all."""
    import matplotlib
    from matplotlib.figure import Figure

    rows, fits = result.sheets[0].rows, result.sheets[1].rows
    with matplotlib.rc_context({"svg.hashsalt": "gcalign", "font.size": 10}):
        figure = Figure(figsize=(10, 4.4), layout="constrained")
        for axes, (key, what, label) in zip(figure.subplots(1, 2), _PANELS, strict=True):
            _panel(axes, rows, fits, key, what)
            axes.set_ylabel(label)
        figure.suptitle(f"streaming losses, D = {settings['dim']}, ε = {settings['eps']:g}, float32")
        buffer = io.BytesIO()
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(buffer, format=path.suffix[1:], dpi=150, metadata=metadata)
    files.write(path, buffer.getvalue())


def _panel(axes: Any, rows: Sequence[Row], fits: Sequence[Row], key: str, what: str) -> None:
    from matplotlib.ticker import FormatStrFormatter, LogLocator

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
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.minorticks_off()
    axes.grid(which="major", color="0.9")
    axes.legend(frameon=False)
