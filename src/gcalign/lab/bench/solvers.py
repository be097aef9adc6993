"""`gcalign bench solvers`: plans from one cost matrix to one marginal error, against POT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gcalign.functional import solve
from gcalign.lab.bench import peers, table
from gcalign.lab.bench.batches import WORDS, cost
from gcalign.lab.bench.table import BenchResult, BenchTable, Row
from gcalign.lab.terminal import Progress
from gcalign.lab.timing import interleaved

OURS, OURS_WRITTEN, POT = "gcalign", "gcalign, P written out", "POT sinkhorn"
MOST_ITERATIONS = 1 << 14
COLUMNS = table.columns(
    *("n", "eps"),
    ("name", "solver", str),
    ("setting", "setting", str),
    *("seconds", "repeats"),
    ("slower", "/ gcalign", table.ratio),
    ("error", "marginal error", table.error),
)


def bench_solvers(
    *, n: Sequence[int], dim: int, eps: Sequence[float], tol: float, repeats: int, seed: int, progress: Progress
) -> BenchResult:
    """Time every solver at every n and ε."""
    rows: list[Row] = []
    cells = [(size, value) for size in n for value in eps]
    for size, value in progress.over(cells, lambda c: f"n = {c[0]}, ε = {c[1]:g}"):
        rows += _cell(size, dim, value, tol, repeats, seed, progress)
    notes = [] if peers.POT.installed else [peers.POT.missing]
    notes += [
        f"{row['name']}, n = {row['n']}, ε = {row['eps']:g}: did not reach {tol:g}; its time is a lower bound"
        for row in rows
        if row["error"] > tol
    ]
    notes.append("POT's time includes writing out P, as gcalign's second row does")
    return BenchResult(
        f"from the cost matrix to ‖P1 − μ‖₁ + ‖Pᵀ1 − ν‖₁ ≤ {tol:g} of the mass, measured on each plan in float64; "
        f"{WORDS}, D = {dim}; POT with the loosest setting found that reaches it; medians, contestants taking turns",
        [BenchTable("solvers", "solvers to one marginal error", COLUMNS, rows)],
        notes,
    )


def _cell(n: int, dim: int, eps: float, tol: float, repeats: int, seed: int, progress: Progress) -> list[Row]:
    matrix = cost(n, dim, seed)
    jobs: dict[str, Callable[[], Any]] = {
        OURS: lambda: solve(-matrix / eps, iterations=MOST_ITERATIONS, tol=tol),
        OURS_WRITTEN: lambda: solve(-matrix / eps, iterations=MOST_ITERATIONS, tol=tol).matrix,
    }
    with torch.no_grad():
        plan = jobs[OURS]()
        ours = (f"{plan.iterations} iterations", marginal_error(plan.matrix, n))
        reached = {OURS: ours, OURS_WRITTEN: ours}
        if peers.POT.installed:
            stop, error = pot_threshold(matrix, eps, tol)
            jobs[POT] = lambda: peers.pot(matrix, eps, stop=stop, iterations=MOST_ITERATIONS)
            reached[POT] = (f"stopThr = {stop:.1e}", error)
        times = interleaved(jobs, repeats, progress)
    base = times[OURS].median
    return [
        {"n": n, "eps": eps, "name": name, "setting": setting, **table.figures(times[name])}
        | {"slower": times[name].median / base, "error": error}
        for name, (setting, error) in reached.items()
    ]


def marginal_error(plan: Tensor, mass: float) -> float:
    """(‖P1 − μ‖₁ + ‖Pᵀ1 − ν‖₁) / mass for uniform μ and ν of that mass."""
    p = plan.double()
    missed = (p.sum(1) - mass / p.shape[0]).abs().sum() + (p.sum(0) - mass / p.shape[1]).abs().sum()
    return missed.item() / mass


def pot_threshold(matrix: Tensor, eps: float, tol: float) -> tuple[float, float]:
    """The loosest `stopThr` found that reaches `tol`, with the error reached: POT's rule is in ‖·‖₂, ours in ‖·‖₁."""
    stop = 4 * tol / len(matrix) ** 0.5
    for _ in range(8):
        reached = marginal_error(peers.pot(matrix, eps, stop=stop, iterations=MOST_ITERATIONS), 1)
        if reached <= tol:
            break
        stop *= 0.9 * tol / reached
    return stop, reached
