"""`gcalign bench losses`: forward plus backward of each loss against eager InfoNCE."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as the field writes it
from torch import Tensor

from gcalign.alignment import Alignment
from gcalign.constraints import Columns, Hard, Rows
from gcalign.lab.bench import peers, table
from gcalign.lab.bench.batches import WORDS, eager_info_nce, linear_info_nce, pairs
from gcalign.lab.bench.peers import Loss
from gcalign.lab.bench.table import BenchResult, BenchTable, Row
from gcalign.lab.terminal import Progress
from gcalign.lab.timing import interleaved
from gcalign.methods import method
from gcalign.plan import Plan

EAGER, INCE, GCA_INCE, GCA_UOT = "eager InfoNCE", "INCE", "GCA-INCE", "GCA-UOT"
LINEAR = "torch's linear_cross_entropy"
GCA_RINCE = "GCA-RINCE, truncated at 10"
FEW = {called: f"{called}, at most 10" for called in (GCA_INCE, GCA_UOT)}  # iterations, the default
TOL = 1e-5
# method name and options of our own losses; ε is added
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    INCE: ("ince", {}),
    GCA_INCE: ("gca-ince", {"iterations": 1000, "tol": TOL}),
    GCA_UOT: ("gca-uot", {"iterations": 1000, "tol": TOL}),
    GCA_RINCE: ("gca-rince", {"iterations": 10, "tol": 0.0, "gradient": "truncated"}),
    FEW[GCA_INCE]: ("gca-ince", {"iterations": 10, "tol": TOL}),
    FEW[GCA_UOT]: ("gca-uot", {"iterations": 10, "tol": TOL}),
}
COLUMNS = table.columns(
    *("n", "dim", "eps", "name", "seconds"),
    ("iqr", "± iqr", table.milliseconds),
    "against_eager",
    ("against_ince", "/ INCE", table.ratio),
    "iterations",
    ("converged", "converged", lambda reached: "yes" if reached else "no"),
    ("error", "error / ‖P − T‖", table.error),
)


def bench_losses(
    *, n: Sequence[int], dim: Sequence[int], eps: Sequence[float], repeats: int, seed: int, progress: Progress
) -> BenchResult:
    """Time every loss at every n, D and ε."""
    rows: list[Row] = []
    cells = list(product(n, dim, eps))
    for cell in progress.over(cells, lambda c: f"n = {c[0]}, D = {c[1]}, ε = {c[2]:g}"):
        rows += _cell(*cell, repeats, seed, progress)
    notes = [p.peer.missing for p in peers.LOSSES if not p.peer.installed]
    notes += [
        f"{p.name}: not run above n = {p.largest:,}, where its matrices no longer fit"
        for p in peers.LOSSES
        if p.peer.installed and any(size > p.largest for size in n)
    ]
    return BenchResult(
        f"forward plus backward to the embeddings, {WORDS}, exact gradients, tol = {TOL:g} of ‖P − T‖₁; medians, "
        "contestants taking turns",
        [BenchTable("losses", "losses against eager InfoNCE", COLUMNS, rows)],
        notes,
        {"tol": TOL},
    )


def _cell(n: int, dim: int, eps: float, repeats: int, seed: int, progress: Progress) -> list[Row]:
    z1, z2 = pairs(n, dim, seed)
    losses = contestants(n, eps)
    times = interleaved({name: partial(backward, f, z1, z2) for name, f in losses.items()}, repeats, progress)
    rows = []
    for name, loss in losses.items():
        row: Row = {"n": n, "dim": dim, "eps": eps, "name": name, **table.figures(times[name])}
        row["against_eager"] = times[name].median / times[EAGER].median
        row["against_ince"] = times[name].median / times[INCE].median
        if isinstance(loss, Alignment):
            row |= solved(loss, z1, z2)
        rows.append(row)
    return rows


def contestants(n: int, eps: float) -> dict[str, Loss]:
    """The baseline, our losses, and what peers are installed and can run at this n."""
    losses: dict[str, Loss] = {EAGER: partial(eager_info_nce, eps=eps)}
    if hasattr(F, "linear_cross_entropy"):  # since torch 2.13
        losses[LINEAR] = partial(linear_info_nce, eps=eps)
    losses |= {name: method(called, eps=eps, **options) for name, (called, options) in OURS.items()}
    return losses | {p.name: p.make(eps) for p in peers.LOSSES if p.peer.installed and n <= p.largest}


def backward(loss: Loss, z1: Tensor, z2: Tensor) -> None:
    """Forward plus backward, gradients not accumulated."""
    z1.grad = z2.grad = None
    loss(z1, z2).backward()


def solved(criterion: Alignment, z1: Tensor, z2: Tensor) -> Row:
    """How the plan was reached and, where both marginals are hard, its ‖P1 − μ‖₁ + ‖Pᵀ1 − ν‖₁ over ‖P − T‖₁."""
    plan = criterion.plan(z1, z2)
    row: Row = {"iterations": plan.iterations, "converged": plan.converged}
    hard = [c for c in criterion.constraints if isinstance(c, (Rows, Columns)) and isinstance(c.h, Hard)]
    if len(hard) == 2:
        missed = plan.row_error * plan.mu.sum() + plan.column_error * plan.nu.sum()
        row["error"] = (missed / _distance(plan)).item()
    return row


def _distance(plan: Plan) -> Tensor:
    """‖P − T‖₁ for the target of plain pairs, block by block."""
    diagonal, start = [], 0
    for log_p in plan.blocks():
        diagonal.append(log_p.diagonal(start).exp())
        start += len(log_p)
    p = torch.cat(diagonal)
    return (1 - p).abs().sum() + plan.mass - p.sum()
