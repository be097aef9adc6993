"""RINCE: its d_M, its Wasserstein bound, and the symmetry that is to make it robust."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.lab.verify.claims import Case, Draw, RandomBatch, claim, loss
from gcalign.lab.verify.paths import projections
from gcalign.public import Columns, Entropic, Rows, solve


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
    score = loss("rince", batch, eps=batch.eps, q=q, lam=lam, scale="score")
    kernel = loss("rince", batch, eps=batch.eps, q=q, lam=lam) * math.exp(q / batch.eps)
    scale = float(spread + kept)  # the loss is their difference, and may vanish
    numbers = {"q": q, "lam": lam, "score": abs(left - score) / scale, "kernel": abs(left - kernel) / scale}
    return Case(left, max(score, kernel, key=lambda x: abs(left - x)), numbers, scale)


@claim(
    "thm:rince d_M",
    "… with d_M = −(1/q)(diag P/u)^q + (λ/u)^q as the theorem prints it",
    sides=("eq:RINCE in kernel scale", "=", "the d_M of the theorem on the row projection"),
    tell="the second term lacks its 1/q, which eq:rincedm in the appendix has: with it the difference is "
    "{worst.appendix:.0e}, without it {median.excess:.0%} of the loss's terms in the median, and nothing at q = 1",
    kind="misprint",
)
def rince_as_printed(draw: Draw) -> Case:
    batch = draw.batch()
    q, lam = draw.one_of(0.1, 0.5, 0.9), draw.one_of(0.01, 0.1, 0.5)
    k = batch.log_k.exp()
    *_, row = projections(batch.log_k, 1)
    u = row.a.exp()
    kept, spread = ((row.p.diagonal() / u) ** q).mean() / q, ((lam / u) ** q).mean()
    left = float(((lam * k.sum(1)) ** q).mean() - (k.diagonal() ** q).mean()) / q
    scale = float(kept + spread / q)
    numbers = {"q": q, "lam": lam, "appendix": abs(left - float(spread / q - kept)) / scale}
    return Case(left, float(spread - kept), numbers, scale)


@dataclass(frozen=True)
class _Bracket:
    """dual ≤ W₁ ≤ primal, both rigorous whatever the solver did."""

    dual: float
    primal: float


def wasserstein(cost: Tensor, mu: Tensor, nu: Tensor) -> _Bracket:
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
    "app:wdm",
    "−E[RINCE] ≤ (1 − λ) e^(1/ε)/ε · W₁(π, μ⊗ν) for q = 1 and λ(B − 1) > 1 − λ: what is proved of co:rince",
    sides=("−E[RINCE]", "≤", "(1 − λ) e^(1/ε)/ε · W₁"),
    tell="a bound and no equality: −E[L] is {worst.ratio:.2f} of it at most, {median.ratio:.2f} in the median; W₁ "
    "is taken from below by a feasible dual (from above in {total.undecided:.0f}); with the batch's own negatives in "
    "place of draws from ν the constant is too small in {total.batch_exceeds:.0f}",
    holds="holds as a bound",
)
def w1_bound(draw: Draw) -> Case:
    """The appendix's expectation: positives from π, the B pairs, and B − 1 negatives from μ⊗ν, all B² of them."""
    batch = draw.batch((2, 3, 5, 6), (1, 2, 8), eps=(0.1, 5.0))
    b = len(batch.z1)
    lam = draw.uniform(1.0, 1.2) / b  # just above 1/B, where the bound is tightest
    e = batch.scores.exp()
    positives, everyone = float(e.diagonal().mean()), float(e.mean())
    left = (1 - lam) * positives - lam * (b - 1) * everyone
    uniform = torch.ones(b * b, dtype=torch.float64)
    w1 = wasserstein(_pair_distances(batch), uniform[:b] / b, uniform / b**2)
    constant = (1 - lam) * math.exp(1 / batch.eps) / batch.eps
    undecided = left > constant * w1.dual
    own = -loss("rince", batch, eps=batch.eps, q=1.0, lam=lam, scale="score")
    right = constant * (w1.primal if undecided else w1.dual)
    numbers = {"lam": lam, "w1_at_least": w1.dual, "w1_at_most": w1.primal, "ratio": left / right if right > 0 else 0.0}
    counts = {"undecided": float(undecided), "batch": own, "batch_exceeds": float(own > constant * w1.primal + 1e-12)}
    return Case(left, right, numbers | counts)


@claim(
    "co:rince",
    "RINCE at q = 1 is W₁(P_tgt ‖ P): of two encoders the one with less RINCE has less W₁",
    sides=("minus the product of the two changes", "≤", "0"),
    tell="two encoders of one batch can have their order turned round, by W₁ between the plans as measures on pairs "
    "(bracketed from both sides; {total.undecided:.0f} undecided count as agreeing); RINCE is also negative at times, "
    "W₁ never; the bound that app:wdm proves holds",
    unit="pairs of batches",
    kind="substance",
)
def w1_orders(draw: Draw) -> Case:
    batch = draw.batch((3, 4, 5), (2, 8), eps=(0.1, 1.0))
    lam = draw.one_of(0.01, 0.1, 0.5)
    noise = draw.uniform(0.1, 2.0)
    other = RandomBatch(batch.z1, batch.z1 + noise * draw.normal(*batch.z1.shape), batch.eps)
    change = loss("rince", batch, eps=batch.eps, q=1.0, lam=lam) - loss("rince", other, eps=batch.eps, q=1.0, lam=lam)
    one, two = (_plan_distance(b) for b in (batch, other))
    # the smallest change that both brackets allow, 0 where they overlap
    moved = max(one.dual - two.primal, 0.0) - max(two.dual - one.primal, 0.0)
    numbers = {"lam": lam, "rince": change, "w1": moved, "undecided": float(moved == 0)}
    return Case(-change * moved, 0.0, numbers, scale=abs(change * moved) or 1.0)


def _pair_distances(batch: RandomBatch) -> Tensor:  # [B, B²]
    """The metric of app:wdm, from each pair (i, i) to every pair (j, k)."""
    to_x, to_y = (torch.cdist(z, z) for z in batch.pair)
    return (to_x[:, :, None] + to_y[:, None, :]).flatten(1)


def _plan_distance(batch: RandomBatch) -> _Bracket:
    """W₁ between I/B and P⁽¹⁾/B on pairs of points, with the metric of app:wdm."""
    b = len(batch.z1)
    *_, row = projections(batch.log_k, 1)
    return wasserstein(_pair_distances(batch), torch.full((b,), 1 / b, dtype=torch.float64), row.p.flatten() / b)


@claim(
    "lm:symmetry",
    "A loss with L(f, 1) + L(f, −1) = K keeps its minimiser when labels are flipped with probability η < 1/2",
    sides=("risk with flipped labels", "=", "(1 − 2η) risk + ηK"),
    tell="worst relative difference {worst.excess:.0e}, for L = B − y e^s; the order of 50 random classifiers is kept "
    "({total.turned:.0f} exceptions)",
)
def symmetric_losses(draw: Draw) -> Case:
    n, eta, eps, k = 32, draw.uniform(0.0, 0.49), draw.log_uniform(0.2, 2.0), 2 * 512.0
    y = draw.normal(n).sign()
    exponentials = (draw.normal(50, n).tanh() / eps).exp()  # scores of 50 classifiers, at most 1/ε

    def risk(flipped: float) -> Tensor:
        losses = [k / 2 - label * exponentials for label in (y, -y)]
        return ((1 - flipped) * losses[0] + flipped * losses[1]).mean(1)

    clean, noisy = risk(0.0), risk(eta)
    turned = clean.argsort().ne(noisy.argsort()).any()
    worst = int((noisy - (1 - 2 * eta) * clean - eta * k).abs().argmax())
    numbers = {"eta": eta, "eps": eps, "turned": float(turned)}
    return Case(float(noisy[worst]), float((1 - 2 * eta) * clean[worst] + eta * k), numbers)


@claim(
    "app:symmetry",
    "RINCE at q = 1 is a symmetric loss",
    sides=("weight of eˢ for a positive pair, sign turned", "=", "weight of eˢ for a negative pair"),
    tell="a positive pair counts −(1 − λ) eˢ and a negative one λ eˢ, whose sum (2λ − 1) eˢ is constant at λ = 1/2 "
    "alone ({total.half:.0f} of these batches); the proof takes −y eˢ, without λ, and needs s ≤ log B, which s = 1/ε "
    "passes in {total.unbounded:.0f}",
    kind="substance",
)
def rince_symmetry(draw: Draw) -> Case:
    batch = draw.batch((8,))
    lam = draw.one_of(0.01, 0.1, 0.5)
    s = batch.scores.requires_grad_()
    rince = (lam * s.exp().sum(1) - s.diagonal().exp()).sum()
    (slope,) = torch.autograd.grad(rince, s)
    weights = slope / s.detach().exp()  # of eˢ, which is its own derivative
    numbers = {"lam": lam, "half": float(lam == 0.5), "unbounded": float(1 / batch.eps > math.log(len(s)))}
    return Case(-float(weights[0, 0]), float(weights[0, 1]), numbers)
