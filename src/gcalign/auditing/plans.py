"""The plan as a score: log P_ij of the transport plan between all a and all b, solved whole, or in batches and passes.

A plan of n pairs needs n² similarities in each iteration. Up to `WHOLE` pairs they are kept. From there on the
potentials come from plans of random batches, and a few passes over all similarities, each an iteration of Sinkhorn's
algorithm, correct them. Above `PASSED` pairs a pass takes too long, and the batches are larger instead.
"""

from __future__ import annotations

import math

import torch
from rich.progress import track
from torch import Tensor

from gcalign.auditing.embeddings import Embeddings, blocks
from gcalign.auditing.fits import Potentials
from gcalign.constraints import Columns, Rows
from gcalign.functional import solve
from gcalign.geometry import Entropic

WHOLE = 8192  # pairs up to which the plan of all of them is solved at once
PASSED = 200_000  # pairs up to which passes over all similarities are made
BATCH = 4096  # pairs of a batch if passes follow
LARGE = 16_384  # and if not; three matrices of them take 3 GB
ITERATIONS, TOL = 300, 1e-3


def solved(cosines: Tensor, eps: float, relax: float = math.inf, tol: float = TOL) -> tuple[Tensor, Tensor]:
    """f and g of the plan log P_ij = cos/ε + f_i + g_j: balanced, or with both marginals relaxed at cost `relax`."""
    log_k = cosines.sub(1).div_(eps)  # the cost is 1 − cos
    plan = solve(log_k, (Rows(relax), Columns(relax)), Entropic(eps), iterations=ITERATIONS, tol=tol)
    return plan.log_u - 1 / eps, plan.log_v


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
    relax: float,
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
        f[part], g[part] = solved(cosines, eps, relax)
        if not passes:
            cosines.mul_(1 / eps).add_(g[part]).fill_diagonal_(-math.inf)
            best[part] = part[cosines.argmax(1)]
    for k in range(passes):
        label = f"all pairs, pass {k + 1} of {passes}" if progress else None
        f, g, best = _iterated(a, b, eps, relax, g, label)
    return Potentials(a, b, 1 / eps, f, g), best


def _iterated(
    a: Embeddings, b: Embeddings, eps: float, relax: float, g: Tensor, label: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """f ← −τ log Σ_j exp(cos/ε + g_j), then g in the same way, in one pass over the similarities; and the best."""
    tau = 1.0 if math.isinf(relax) else relax / (relax + eps)
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
        # relative to K = exp((cos − 1)/ε): what a relaxed side gives up depends on the size of K
        lse = top + s.sum(1).log()
        f[start:stop] = -tau * (lse - 1 / eps) - 1 / eps
        columns += (top + f[start:stop]).exp() @ s
    columns = columns.clamp(min=torch.finfo(g.dtype).tiny).log() - g  # log Σ_i exp(cos/ε + f_i)
    return f, -tau * columns, best
