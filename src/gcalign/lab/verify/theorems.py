"""The theorems: what the library computes against the paper's formulas in plain torch, on random batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gcalign.constraints import Columns, Problem, Rows
from gcalign.geometry import Entropic
from gcalign.lab.verify.claims import Batch, Case, Draw, claim
from gcalign.methods import method
from gcalign.functional import solve

PROJECTIONS = 100


def _loss(name: str, batch: Batch, **options: Any) -> float:
    return float(method(name, **options)(batch.z1, batch.z2))


@claim(
    "thm:cl_eq_ot",
    "InfoNCE is KL(I ‖ one row projection of K)",
    sides=("−log softmax of the scores (eq:INCE)", "=", "method 'ince'"),
    tell="worst relative difference {worst.excess:.0e}",
)
def info_nce(draw: Draw) -> Case:
    batch = draw.batch()
    left = float(-batch.scores.log_softmax(1).diagonal().mean())
    return Case(left, _loss("ince", batch, eps=batch.eps), batch.numbers)


@claim(
    "thm:rince",
    "RINCE is the robust d_M of one row projection",
    sides=("eq:RINCE", "=", "method 'rince', in whichever scale is further off"),
    tell="worst relative difference {worst.score:.0e} with scale='score', {worst.kernel:.0e} in kernel scale "
    "times e^(q/ε)",
)
def rince(draw: Draw) -> Case:
    batch = draw.batch()
    q, lam = draw.uniform(0.05, 1.0), draw.one_of(0.01, 0.1, 0.5)
    kept = (q * batch.scores.diagonal()).exp().mean() / q
    spread = ((lam * batch.scores.exp().sum(1)) ** q).mean() / q
    left = float(spread - kept)
    score = _loss("rince", batch, eps=batch.eps, q=q, lam=lam, scale="score")
    kernel = _loss("rince", batch, eps=batch.eps, q=q, lam=lam) * math.exp(q / batch.eps)
    scale = float(spread + kept)  # the loss is their difference, and may vanish
    numbers = {"q": q, "lam": lam, "score": abs(left - score) / scale, "kernel": abs(left - kernel) / scale}
    return Case(left, max(score, kernel, key=lambda x: abs(left - x)), {**batch.numbers, **numbers}, scale)


@dataclass(frozen=True)
class _Bracket:
    """dual ≤ W₁ ≤ primal, both rigorous whatever the solver did."""

    dual: float
    primal: float


def _wasserstein(cost: Tensor, mu: Tensor, nu: Tensor) -> _Bracket:
    """Our own entropic plan at small ε: c-transforms make its potentials feasible, rounding its marginals exact."""
    eps = 0.02 * float(cost.mean())
    if eps == 0:  # every point in one place
        return _Bracket(0.0, 0.0)
    plan = solve(-cost / eps, (Rows(mass=mu), Columns(mass=nu)), Entropic(eps), iterations=300, tol=1e-3)
    g = (cost - plan.f[:, None]).amin(0)
    f = (cost - g).amin(1)
    p = plan.matrix
    p = p * (mu / p.sum(1)).clamp(max=1)[:, None]
    p = p * (nu / p.sum(0)).clamp(max=1)
    missing_rows, missing_columns = (mu - p.sum(1)).clamp(min=0), (nu - p.sum(0)).clamp(min=0)
    p = p + torch.outer(missing_rows, missing_columns) / missing_rows.sum().clamp(min=1e-300)
    return _Bracket(float(f @ mu + g @ nu), float((p * cost).sum()))


@claim(
    "co:rince",
    "RINCE at q = 1 is W₁; app:wdm proves −E[L] ≤ (1 − λ) e^(1/ε)/ε · W₁(π, μ⊗ν) for λ(B − 1) > 1 − λ",
    sides=("−E[RINCE]", "≤", "(1 − λ) e^(1/ε)/ε · W₁"),
    tell="a bound and no equality: −E[L] is {worst.ratio:.2f} of it at most, {median.ratio:.2f} in the median; W₁ "
    "is taken from below by a feasible dual (from above in {total.undecided:.0f}); with the batch's own negatives in "
    "place of draws from ν the constant is too small in {total.batch_exceeds:.0f}",
    bound=True,
)
def w1_bound(draw: Draw) -> Case:
    """The appendix's expectation: positives from π, the B pairs, and B − 1 negatives from μ⊗ν, all B² of them."""
    batch = draw.batch((2, 3, 5, 6), (1, 2, 8), eps=(0.1, 5.0))
    b, (x, y) = len(batch.z1), batch.pair
    lam = draw.uniform(1.0, 1.2) / b  # just above 1/B, where the bound is tightest
    e = batch.scores.exp()
    positives, everyone = float(e.diagonal().mean()), float(e.mean())
    left = (1 - lam) * positives - lam * (b - 1) * everyone
    to_x, to_y = torch.cdist(x, x), torch.cdist(y, y)
    cost = (to_x[:, :, None] + to_y[:, None, :]).reshape(b, b * b)
    uniform = torch.ones(b * b, dtype=torch.float64)
    w1 = _wasserstein(cost, uniform[:b] / b, uniform / b**2)
    constant = (1 - lam) * math.exp(1 / batch.eps) / batch.eps
    undecided = left > constant * w1.dual
    own = -_loss("rince", batch, eps=batch.eps, q=1.0, lam=lam, scale="score")
    right = constant * (w1.primal if undecided else w1.dual)
    numbers = {"lam": lam, "w1_at_least": w1.dual, "w1_at_most": w1.primal, "ratio": left / right if right > 0 else 0.0}
    counts = {"undecided": float(undecided), "batch": own, "batch_exceeds": float(own > constant * w1.primal + 1e-12)}
    return Case(left, right, {**batch.numbers, **numbers, **counts})


@claim(
    "thm:byol",
    "BYOL is KL(I ‖ S) without a projection",
    sides=("‖q(z') − z''‖²", "=", "method 'byol': S = exp(−‖·‖²), no mass terms"),
    tell="worst relative difference {worst.excess:.0e} with the squared distance and without mass terms; with "
    "exp(−‖·‖) as printed it is off by up to {worst.unsquared:.2f}, with mass terms by {worst.mass:.2f}",
)
def byol(draw: Draw) -> Case:
    batch = draw.batch()
    x, y = batch.pair
    distance = (x - y).norm(dim=1)
    left, right = float(distance.square().mean()), _loss("byol", batch)
    kernel = (-torch.cdist(x, y).square()).exp()
    numbers = {
        "unsquared": abs(float(distance.mean()) - left),
        "mass": abs(float(kernel.sum()) / len(x) - 1),
    }
    return Case(left, right, {**batch.numbers, **numbers})


@dataclass(frozen=True)
class _Step:
    """A plan on the way, P = diag(eᵃ) K diag(eᵇ)."""

    log_p: Tensor  # [B, B]
    a: Tensor  # [B]
    b: Tensor  # [B]

    @cached_property
    def p(self) -> Tensor:
        return self.log_p.exp()

    @cached_property
    def kl(self) -> float:
        """KL(I‖P)."""
        return float(self.p.sum() - self.log_p.diagonal().sum()) - len(self.a)

    @cached_property
    def dual(self) -> float:
        """(f·μ + g·ν − ε ΣP)/ε with μ = ν = 1."""
        return float(self.a.sum() + self.b.sum() - self.p.sum())


def _projections(batch: Batch) -> Iterator[_Step]:
    """K, then its projections on C₁ and C₂ in turn (eq:sinkp), by the library's constraints."""
    eps = torch.tensor(batch.eps, dtype=torch.float64)
    problem, rows, columns = Problem(Entropic(batch.eps), eps), Rows(), Columns()
    log_p = batch.log_k
    a, b = log_p.new_zeros(len(log_p)), log_p.new_zeros(len(log_p))
    yield _Step(log_p, a, b)
    for k in range(PROJECTIONS):
        multiplier = (rows, columns)[k % 2].multiplier(log_p, problem)
        log_p = log_p - multiplier
        a, b = (a, b - multiplier.flatten()) if k % 2 else (a - multiplier.flatten(), b)
        yield _Step(log_p, a, b)


@claim(
    "thm:lowest",
    "GCA-INCE falls with every projection, so it is lowest when they converge",
    sides=("KL(I‖P) after a projection", "≤", "KL(I‖P) before"),
    tell="{total.projections:.0f} projections, KL(I‖P) − KL(I‖P⁺) = KL(P⁺‖P) (Pythagoras) to {worst.pythagoras:.0e}",
)
def lowest(draw: Draw) -> Case:
    batch = draw.batch()
    steps = list(_projections(batch))
    worst, residual = (-torch.inf, 0.0, 0.0), 0.0
    for before, after in pairwise(steps):
        fall = before.kl - after.kl
        moved = float((after.p * (after.log_p - before.log_p) - after.p + before.p).sum())
        residual = max(residual, abs(fall - moved) / max(1.0, before.kl))
        worst = max(worst, (-fall / max(1.0, before.kl), after.kl, before.kl))
    numbers = {"projections": len(steps) - 1, "pythagoras": residual, "first": steps[1].kl, "last": steps[-1].kl}
    return Case(worst[1], worst[2], {**batch.numbers, **numbers})


@claim(
    "thm:gcarince",
    "GCA-RINCE ≤ RINCE at q = 1, because the scalings only grow",
    sides=("GCA-RINCE after t steps (eq:gcarince)", "≤", "RINCE"),
    tell="largest excess {worst.excess:.0%} of the loss's terms; with mean log v = 0, as the library fixes the gauge, "
    "{total.gauged:.0f} violations; some v_j falls below 1 in {total.falls:.0f}",
)
def gca_rince(draw: Draw) -> Case:
    """P/u = K diag(v) with the v of t − 1 iterations from v⁰ = 1, and λ/u = λ K v: the equation as printed."""
    batch = draw.batch((8, 32), eps=(0.1, 1.0))
    lam, t = draw.one_of(0.01, 0.1, 0.5), draw.one_of(2, 5, 20)
    k, v = batch.log_k.exp(), solve(batch.log_k, iterations=t - 1, tol=0).v

    def robust(q: Tensor) -> float:
        return float(lam * q.sum(1).mean() - q.diagonal().mean())

    left, right = robust(k * v), robust(k)
    gauged = robust(k * (v / v.log().mean().exp()))
    scale = float(lam * k.sum(1).mean() + k.diagonal().mean())
    counts = {"gauged": float((gauged - right) / scale > 1e-12), "falls": float(v.min() < 1)}
    numbers = {"lam": lam, "t": t, **counts}
    return Case(left, right, {**batch.numbers, **numbers}, scale)


@claim(
    "thm:uniformity",
    "The dual value f·μ + g·ν − ε ΣP rises with every step, up to the converged plan",
    sides=("dual value before a step", "≤", "dual value after"),
    tell="{total.steps:.0f} steps; but single potentials f_i or g_j fall in {total.potential_falls:.0f}",
)
def uniformity(draw: Draw) -> Case:
    batch = draw.batch()
    steps = list(_projections(batch))
    worst = (-torch.inf, 0.0, 0.0)
    for before, after in pairwise(steps):
        worst = max(worst, ((before.dual - after.dual) / max(1.0, abs(after.dual)), before.dual, after.dual))
    # lm:monotonicity says that they never do, from their first step on
    potentials = torch.cat([torch.stack([s.a for s in steps[1::2]]), torch.stack([s.b for s in steps[2::2]])], 1)
    falls = bool((potentials.diff(dim=0) < -1e-9).any())
    numbers = {"steps": len(steps) - 1, "potential_falls": float(falls)}
    return Case(batch.eps * worst[1], batch.eps * worst[2], {**batch.numbers, **numbers})
