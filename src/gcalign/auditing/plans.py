"""The plan as a score: log P_ij of the transport plan between all a and all b, solved whole, or in batches and passes.

Copies of an item count as one and share its mass: a caption that stands beside many images competes once for each.

A plan of n pairs needs n² similarities in each iteration. Up to `WHOLE` pairs they are kept. From there on the
potentials come from plans of random batches, and a few passes over all similarities, each an iteration of Sinkhorn's
algorithm, correct them. Above `PASSED` pairs a pass takes too long, and the batches are larger instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gcalign.auditing.embeddings import Embeddings, blocks, copies, nearest
from gcalign.auditing.fits import Potentials
from gcalign.constraints import Columns, Rows
from gcalign.functional import solve
from gcalign.geometry import Entropic

WHOLE = 8192  # pairs up to which the plan of all of them is solved at once
PASSED = 200_000  # pairs up to which passes over all similarities are made
BATCH = 4096  # pairs of a batch if passes follow
LARGE = 16_384  # and if not; three matrices of them take 3 GB
ITERATIONS, TOL = 300, 1e-3
FIRST = 50  # iterations of a batch if passes follow
RELAX = 3.0  # λ/ε of both marginals: an item without a partner must not take that of another
TAU = RELAX / (RELAX + 1)
SAMPLE = 1024  # pairs from which ε is chosen
GRID = tuple(0.3 / 1.5**k for k in range(16))  # candidates for ε, the largest first
NEAREST = 5  # neighbours of an item with which it can have been exchanged


def solved(
    cosines: Tensor,
    eps: float,
    iterations: int = ITERATIONS,
    tol: float = TOL,
    counts: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """f and g of the plan log P_ij = (cos − 1)/ε + f_i + g_j, both marginals relaxed at cost λ = `RELAX` ε.

    Row and column sums count each item once; `counts` is how often those of both sides occur.
    """
    log_k = cosines.sub(1).div_(eps)  # the cost is 1 − cos
    lam = RELAX * eps
    sides: tuple[Rows, Columns] = Rows(lam), Columns(lam)
    if counts is not None:
        log_k.sub_(counts[0].log()[:, None]).sub_(counts[1].log())
        sides = Rows(lam, mass=1 / counts[0]), Columns(lam, mass=1 / counts[1])
    plan = solve(log_k, sides, Entropic(eps), iterations=iterations, tol=tol)
    return plan.log_u, plan.log_v


def conditional(f: Tensor, eps: float) -> Tensor:
    """The potential of √(P(b_j | a_i) P(a_i | b_j)), which is P_ij over the root of its row sum and its column sum.

    In a relaxed plan f = −τ log Σ_j exp(…), so the logarithm of the row sum is (1 − 1/τ) f.
    """
    return f * (1 + 1 / TAU) / 2 - 0.5 / eps


def chosen_eps(samples: Sequence[tuple[Embeddings, Embeddings]]) -> float:
    """The ε at which the plan explains the pairs best: the paper's objective, KL(I‖P_ε), made robust.

    It maximises the mean of log(π₁ P_ii + π₂ N_i + π₃/n) over ε and the shares π, where N_i is the mean of P_ij over
    the nearest of i: wrong pairs, which no plan explains, do not make ε larger.
    """
    known = []
    for a, b in samples:
        cosines = a.rows(slice(None)) @ b.rows(slice(None)).to(a.device).T
        known.append((cosines, (copies(a), copies(b).to(a.device)), neighbours(a), neighbours(b)))
    best, eps, worse = -math.inf, GRID[0], 0
    for candidate in GRID:
        value = sum(len(each[0]) * _likelihood(candidate, *each) for each in known)
        if value > best:
            best, eps, worse = value, candidate, 0
        else:
            worse += 1
        if worse > 3:
            break
    return eps


def _likelihood(eps: float, cosines: Tensor, counts: tuple[Tensor, Tensor], near_a: Tensor, near_b: Tensor) -> float:
    f, g = (conditional(x, eps) for x in solved(cosines, eps, iterations=50, tol=1e-2, counts=counts))
    plan = (cosines / eps + f[:, None] + g).exp()
    row = torch.arange(len(plan), device=plan.device)[:, None]
    near = (plan[row, near_b].mean(1) + plan[near_a, row].mean(1)) / 2
    parts = torch.stack([plan.diag(), near, torch.full_like(near, 1 / len(plan))], 1).double()
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
    *,
    batch: int,
    passes: int,
    generator: torch.Generator,
    progress: bool,
) -> tuple[Potentials, Tensor]:
    """√(P(b_j | a_i) P(a_i | b_j)), and for each a_i the other b_j with the largest P_ij: of all, or of its batch."""
    n = len(a)
    f, g = (torch.empty(n, dtype=a.dtype, device=a.device) for _ in range(2))
    best = torch.empty(n, dtype=torch.int64, device=a.device)
    # equal parts: the potentials of a batch depend on its size
    parts = torch.randperm(n, generator=generator).to(a.device).chunk(math.ceil(n / batch))
    from rich.progress import track  # slow to import

    for part in track(parts, description="plans of batches", disable=not progress or len(parts) == 1):
        cosines = a.rows(part) @ b.rows(part).to(a.device).T
        within = copies(a.take(part)), copies(b.take(part)).to(a.device)
        f[part], g[part] = solved(cosines, eps, FIRST if passes else ITERATIONS, counts=within)
        if not passes:
            cosines.mul_(1 / eps).add_(g[part]).fill_diagonal_(-math.inf)
            best[part] = part[cosines.argmax(1)]
    for k in range(passes):
        label = f"all pairs, pass {k + 1} of {passes}" if progress else None
        f, g, best = _iterated(a, b, eps, g, label)
    f, g = (conditional(x, eps) - copies(side).to(x.device).log() / 2 for x, side in ((f, a), (g, b)))
    return Potentials(a, b, 1 / eps, f, g), best


def _iterated(a: Embeddings, b: Embeddings, eps: float, g: Tensor, label: str | None) -> tuple[Tensor, Tensor, Tensor]:
    """f ← −τ log Σ_j exp((cos − 1)/ε + g_j), then g in the same way, in one pass over the cosines; and the best."""
    f, best = torch.empty_like(g), torch.empty(len(g), dtype=torch.int64, device=g.device)
    once_a, once_b = (1 / copies(x).to(g.device) for x in (a, b))
    columns = torch.zeros_like(g)
    for start, stop, s in blocks(a, b, label):
        s.sub_(1).mul_(1 / eps).add_(g)
        row = torch.arange(stop - start, device=s.device)
        own = s[row, start + row]
        s[row, start + row] = -math.inf
        top, best[start:stop] = s.max(1)
        top = torch.maximum(top, own)
        s[row, start + row] = own
        s.sub_(top[:, None]).exp_()
        f[start:stop] = -TAU * (top + (s @ once_b).log())
        columns += ((top + f[start:stop]).exp() * once_a[start:stop]) @ s
    columns = columns.clamp(min=torch.finfo(g.dtype).tiny).log() - g  # log Σ_i exp((cos − 1)/ε + f_i)
    return f, -TAU * columns, best
