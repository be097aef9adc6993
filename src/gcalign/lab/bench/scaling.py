"""`gcalign bench scaling`: time and peak memory of the streaming losses against n, and their exponents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch

from gcalign.lab.bench import losses, table
from gcalign.lab.bench.batches import WORDS, pairs
from gcalign.lab.bench.losses import backward
from gcalign.lab.bench.memory import BLOCK
from gcalign.lab.bench.probe import METHOD, probed
from gcalign.lab.bench.table import BenchResult, BenchTable, BenchTarget, Column, Row
from gcalign.lab.bench.timing import Progress, interleaved
from gcalign.methods import method

NAMES = (losses.INCE, losses.GCA_INCE)
COLUMNS: tuple[Column, ...] = (
    ("name", "loss", str),
    ("n", "n", table.whole),
    ("seconds", "ms", table.milliseconds),
    ("repeats", "runs", table.whole),
    ("megabytes", "extra MB", table.ratio),
    ("iterations", "iterations", table.whole),
)
FIT_COLUMNS: tuple[Column, ...] = (
    ("name", "loss", str),
    ("time", "exponent in time", table.ratio),
    ("memory", "exponent in memory", table.ratio),
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
    criteria = {name: method(called, eps=eps, block=BLOCK, **chosen) for name, (called, chosen) in _chosen().items()}
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
        called, chosen = losses.OURS[name]
        found = probed({"method": called, "options": {"block": BLOCK, **chosen}, "n": size, **common})
        plan = criteria[name].plan(*batches[size])
        row = {"name": name, "n": size, **times[f"{name}, n = {size}"].figures()}
        rows.append(row | {"megabytes": found["extra_bytes"] / 1e6, "iterations": plan.iterations})
    top = max(sizes[-1], 8192)
    judged = sizes[0] >= 1024 and sizes[-1] == top  # below, what does not grow with n decides
    fits = [{"name": name, **_exponents([row for row in rows if row["name"] == name])} for name in criteria]
    return BenchResult(
        "scaling",
        f"forward plus backward, streaming in blocks of {BLOCK} rows, {WORDS}, D = {dim}, ε = {eps:g}, "
        f"tol = {losses.TOL:g} of ‖P − T‖₁; medians, contestants taking turns; {METHOD}; exponents by least squares "
        "in logarithms",
        {"n": sizes, "dim": dim, "eps": eps, "repeats": repeats, "seed": seed, "block": BLOCK, "tol": losses.TOL},
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
    )


def _chosen() -> dict[str, tuple[str, Row]]:
    return {name: losses.OURS[name] for name in NAMES}


def _exponents(rows: Sequence[Row]) -> Row:
    sizes = [row["n"] for row in rows]
    return {
        "time": exponent(sizes, [row["seconds"] for row in rows]),
        "memory": exponent(sizes, [max(row["megabytes"], 0.004) for row in rows]),  # one page, where none was added
    }


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log values in log sizes, by least squares."""
    return statistics.linear_regression([*map(math.log, sizes)], [*map(math.log, values)]).slope
