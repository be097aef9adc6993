"""The plan as a score: log P_ij of the transport plan between all a and all b, solved whole, or in batches and passes.

A plan of n pairs needs n² similarities in each iteration. Up to `WHOLE` pairs they are kept. From there on the
potentials come from plans of random batches, and a few passes over all similarities, each an iteration of Sinkhorn's
algorithm, correct them. Above `PASSED` pairs a pass takes too long, and the batches are larger instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from rich.progress import track
from torch import Tensor

from gcalign.auditing.embeddings import Embeddings, blocks, nearest
from gcalign.auditing.fits import Potentials
from gcalign.constraints import Columns, Rows
from gcalign.functional import solve
from gcalign.geometry import Entropic

WHOLE = 8192  # pairs up to which the plan of all of them is solved at once
PASSED = 200_000  # pairs up to which passes over all similarities are made
BATCH = 4096  # pairs of a batch if passes follow
LARGE = 16_384  # and if not; three matrices of them take 3 GB
ITERATIONS, TOL = 300, 1e-3
SAMPLE = 1024  # pairs from which ε is chosen
GRID = tuple(0.3 / 1.5**k for k in range(16))  # candidates for ε, the largest first
NEAREST = 5  # neighbours of an item with which it can have been exchanged


def solved(
    cosines: Tensor, eps: float, mass: Tensor | None = None, iterations: int = ITERATIONS, tol: float = TOL
) -> tuple[Tensor, Tensor]:
    """f and g of the plan log P_ij = cos/ε + f_i + g_j, whose rows and columns sum to `mass`, or to 1."""
    log_k = cosines.sub(1).div_(eps)  # the cost is 1 − cos
    sides = (Rows(), Columns()) if mass is None else (Rows(mass=mass), Columns(mass=mass))
    plan = solve(log_k, sides, Entropic(eps), iterations=iterations, tol=tol)
    return plan.log_u - 1 / eps, plan.log_v


def chosen_eps(samples: Sequence[tuple[Embeddings, Embeddings, Tensor]]) -> float:
    """The ε at which the plan explains the pairs best: the paper's objective, KL(I‖P_ε), made robust.

    It maximises the mean of log(π₁ P_ii + π₂ N_i + π₃/n) over ε and the shares π, where N_i is the mean of P_ij over
    the nearest of i: wrong pairs, which no plan explains, do not make ε larger. A sample is a, b and the mass of each.
    """
    known = []
    for a, b, mass in samples:
        x, y = a.rows(slice(None)), b.rows(slice(None)).to(a.device)
        known.append((x @ y.T, mass, neighbours(a), neighbours(b)))
    best, eps, worse = -math.inf, GRID[0], 0
    for candidate in GRID:
        value = sum(
            len(mass) * _likelihood(candidate, *rest, mass) for mass, rest in ((k[1], (k[0], *k[2:])) for k in known)
        )
        worse = 0 if value > best else worse + 1
        if value > best:
            best, eps = value, candidate
        if worse > 3:
            break
    return eps


def _likelihood(eps: float, cosines: Tensor, near_a: Tensor, near_b: Tensor, mass: Tensor) -> float:
    f, g = solved(cosines, eps, mass, iterations=50, tol=1e-2)
    plan = (cosines / eps + f[:, None] + g - mass.log()[:, None]).exp().clamp(max=1.0).double()  # rows sum to 1
    row = torch.arange(len(plan), device=plan.device)[:, None]
    near = (plan[row, near_b].mean(1) + (plan * (mass[:, None] / mass))[near_a, row].mean(1)) / 2
    parts = torch.stack([plan.diag(), near, torch.full_like(near, 1 / len(plan))], 1)
    shares = parts.new_tensor([0.8, 0.1, 0.1])
    for _ in range(25):
        posterior = shares * parts
        shares = (posterior / posterior.sum(1, keepdim=True)).mean(0)
    return float((parts @ shares).log().mean())


def neighbours(x: Embeddings) -> Tensor:  # [n, k]
    """The nearest of each item on its own side that are no copies of it."""
    everyone = torch.arange(len(x), device=x.device)
    return nearest(x, everyone, min(NEAREST, len(x) - 1), everyone)


def sizes(n: int, batch: int | None, passes: int | None) -> tuple[int, int]:
    """Pairs of a batch and number of passes, where they are left open."""
    if batch is None:
        batch = n if n <= WHOLE else BATCH if n <= PASSED or passes else LARGE
    if passes is None:
        passes = 0 if batch >= n or n > PASSED else 2
    return min(batch, n), passes


def plan(
    a: Embeddings,
    b: Embeddings,
    eps: float,
    mass: Tensor,
    *,
    batch: int,
    passes: int,
    generator: torch.Generator,
    progress: bool,
) -> tuple[Potentials, Tensor]:
    """log P, and for each a_i the b_j, j ≠ i, with the largest P_ij: among all, or without passes in its batch."""
    n = len(a)
    f, g = (torch.empty(n, dtype=a.dtype, device=a.device) for _ in range(2))
    best = torch.empty(n, dtype=torch.int64, device=a.device)
    # equal parts: the potentials of a batch depend on its size
    parts = torch.randperm(n, generator=generator).to(a.device).chunk(math.ceil(n / batch))
    for part in track(parts, description="plans of batches", disable=not progress or len(parts) == 1):
        cosines = a.rows(part) @ b.rows(part).to(a.device).T
        f[part], g[part] = solved(cosines, eps, mass[part])
        if not passes:
            cosines.mul_(1 / eps).add_(g[part]).fill_diagonal_(-math.inf)
            best[part] = part[cosines.argmax(1)]
    for k in range(passes):
        label = f"all pairs, pass {k + 1} of {passes}" if progress else None
        f, g, best = _iterated(a, b, eps, mass, g, label)
    return Potentials(a, b, 1 / eps, f, g), best


def _iterated(
    a: Embeddings, b: Embeddings, eps: float, mass: Tensor, g: Tensor, label: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """f ← log μ − log Σ_j exp(cos/ε + g_j), then g in the same way, in one pass over the similarities; and the best."""
    f, best = torch.empty_like(g), torch.empty(len(g), dtype=torch.int64, device=g.device)
    columns = torch.zeros_like(g)
    for start, stop, s in blocks(a, b, label):
        s.mul_(1 / eps).add_(g)
        row = torch.arange(stop - start, device=s.device)
        own = s[row, start + row]
        s[row, start + row] = -math.inf
        top, best[start:stop] = s.max(1)
        top = torch.maximum(top, own)
        s[row, start + row] = own
        s.sub_(top[:, None]).exp_()
        f[start:stop] = mass[start:stop].log() - top - s.sum(1).log()
        columns += (top + f[start:stop]).exp() @ s
    columns = columns.clamp(min=torch.finfo(g.dtype).tiny).log() - g  # log Σ_i exp(cos/ε + f_i)
    return f, mass.log() - columns, best
