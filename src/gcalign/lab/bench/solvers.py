"""`gcalign bench solvers`: plans from one cost matrix to one marginal error, against POT and geomloss; warm starts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gcalign.functional import solve
from gcalign.lab.bench import peers, table
from gcalign.lab.bench.batches import WORDS, cost, pairs
from gcalign.lab.bench.table import BenchResult, BenchTable, Row
from gcalign.lab.terminal import Progress
from gcalign.lab.timing import interleaved
from gcalign.methods import method

OURS, OURS_WRITTEN = "gcalign", "gcalign, P written out"
POT, POT_LOG, GEOMLOSS = "POT sinkhorn", "POT sinkhorn_log", "geomloss SamplesLoss"
MOST_ITERATIONS, MOST_GEOMLOSS = 1 << 14, 256
MOVES = (0.01, 0.05, 0.2)  # how far a simulated training step moves each embedding, of its norm
WARM_EPS, WARM_STEPS = 0.05, 6
COLUMNS = table.columns(
    *("n", "eps"),
    ("name", "solver", str),
    ("setting", "setting", str),
    *("seconds", "repeats"),
    ("slower", "/ gcalign", table.ratio),
    ("error", "marginal error", table.error),
)
WARM_COLUMNS = table.columns(
    *("n", "eps"),
    ("move", "step moves by", "{:.0%}".format),
    ("cold", "iterations, cold", table.ratio),
    ("warm", "iterations, warm", table.ratio),
    ("ratio", "warm / cold", table.ratio),
)


def bench_solvers(
    *, n: Sequence[int], dim: int, eps: Sequence[float], tol: float, repeats: int, seed: int, progress: Progress
) -> BenchResult:
    """Time every solver at every n and ε, then count the iterations that warm starts save."""
    rows: list[Row] = []
    cells = [(size, value) for size in n for value in eps]
    for size, value in progress.over(cells, lambda c: f"n = {c[0]}, ε = {c[1]:g}"):
        rows += _cell(size, dim, value, tol, repeats, seed, progress)
    warm = warm_starts(min(n), dim, seed, tol, progress)
    notes = [peer.missing for peer in (peers.POT, peers.GEOMLOSS) if not peer.installed]
    notes += [
        f"{row['name']}, n = {row['n']}, ε = {row['eps']:g}: did not reach {tol:g}; its time is a lower bound"
        for row in rows
        if row["error"] > tol
    ]
    notes.append("POT's time includes writing out P, as gcalign's second row does; geomloss gives potentials alone")
    return BenchResult(
        f"from the cost matrix (geomloss: from the normalised embeddings) to ‖P1 − μ‖₁ + ‖Pᵀ1 − ν‖₁ ≤ {tol:g} of the "
        f"mass, measured on each plan in float64; {WORDS}, D = {dim}; each peer with the loosest setting found that "
        "reaches it; medians, contestants taking turns",
        [
            BenchTable("solvers", "solvers to one marginal error", COLUMNS, rows),
            BenchTable("warm start", "warm start, mean over steps after the first", WARM_COLUMNS, warm),
        ],
        notes,
    )


def _cell(n: int, dim: int, eps: float, tol: float, repeats: int, seed: int, progress: Progress) -> list[Row]:
    matrix, x, y = cost(n, dim, seed)
    jobs: dict[str, Callable[[], Any]] = {
        OURS: lambda: solve(-matrix / eps, iterations=MOST_ITERATIONS, tol=tol),
        OURS_WRITTEN: lambda: solve(-matrix / eps, iterations=MOST_ITERATIONS, tol=tol).matrix,
    }
    kept: deque[Tensor] = deque(maxlen=1)  # its error is measured on the last plan: one more run would take a minute
    with torch.no_grad():
        plan = jobs[OURS]()
        ours = (f"{plan.iterations} iterations", marginal_error(plan.matrix, n))
        seen: dict[str, tuple[str, float | None]] = {OURS: ours, OURS_WRITTEN: ours}
        if peers.POT.installed:
            stop, reached = pot_threshold(matrix, eps, tol)
            most: dict[str, Any] = {"stop": stop, "iterations": MOST_ITERATIONS}
            jobs[POT] = lambda: peers.pot(matrix, eps, method="sinkhorn", **most)
            jobs[POT_LOG] = lambda: kept.append(peers.pot(matrix, eps, method="sinkhorn_log", **most))
            seen |= {POT: (f"stopThr = {stop:.1e}", reached), POT_LOG: (f"stopThr = {stop:.1e}", None)}
        if peers.GEOMLOSS.installed:
            steps, reached = geomloss_iterations(x, y, eps, tol)
            jobs[GEOMLOSS] = lambda: peers.geomloss(x, y, eps, iterations=steps)
            seen[GEOMLOSS] = (f"{steps} iterations", reached)
        times = interleaved(jobs, repeats, progress)
    if kept:
        seen[POT_LOG] = (seen[POT_LOG][0], marginal_error(kept[-1], 1))
    base = times[OURS].median
    return [
        {"n": n, "eps": eps, "name": name, "setting": setting, **table.figures(times[name])}
        | {"slower": times[name].median / base, "error": reached}
        for name, (setting, reached) in seen.items()
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
        reached = marginal_error(peers.pot(matrix, eps, stop=stop, iterations=MOST_ITERATIONS, method="sinkhorn"), 1)
        if reached <= tol:
            break
        stop *= 0.9 * tol / reached
    return stop, reached


def geomloss_iterations(x: Tensor, y: Tensor, eps: float, tol: float, most: int = MOST_GEOMLOSS) -> tuple[int, float]:
    """About the fewest iterations, up to `most`, that reach `tol`, with the error reached: it falls geometrically."""

    def error(steps: int) -> float:
        f, g = peers.geomloss(x, y, eps, iterations=steps)
        return marginal_error(((f[:, None] + g - 1 + x @ y.T) / eps).exp() / len(x) ** 2, 1)

    steps, more = 4, 4
    reached = error(steps)
    while reached > tol and steps < most:
        before, taken = reached, min(more, most - steps)
        steps += taken
        reached = error(steps)
        rate = max(math.log(before / reached) / taken, 1e-6)
        more = min(math.ceil(1.05 * max(math.log(reached / tol), 0) / rate), 2 * steps)
    return steps, reached


def warm_starts(n: int, dim: int, seed: int, tol: float, progress: Progress) -> list[Row]:
    """Iterations per solve over simulated training steps, each of which moves every embedding at random."""
    rows = []
    for move in progress.over(MOVES, lambda m: f"warm start, steps of {m:.0%}"):
        cold, warm = (_iterations(n, dim, seed, tol, move, warm_start=w) for w in (False, True))
        rows.append({"n": n, "eps": WARM_EPS, "move": move, "cold": cold, "warm": warm, "ratio": warm / cold})
    return rows


def _iterations(n: int, dim: int, seed: int, tol: float, move: float, *, warm_start: bool) -> float:
    criterion = method("gca-ince", eps=WARM_EPS, iterations=10_000, tol=tol, warm_start=warm_start)
    z1, z2 = (z.detach() for z in pairs(n, dim, seed))
    ids, generator = torch.arange(n), torch.Generator().manual_seed(seed + 1)
    counted = []
    for step in range(WARM_STEPS + 1):
        plan = criterion.plan(z1, z2, ids=ids)
        if step:
            counted.append(plan.iterations)
        criterion(z1, z2, ids=ids)  # what a training step leaves behind
        noise = (normalize(torch.randn(n, dim, generator=generator), dim=1) for _ in range(2))
        z1, z2 = (z + move * z.norm(dim=1, keepdim=True) * x for z, x in zip((z1, z2), noise, strict=True))
    return sum(counted) / len(counted)
