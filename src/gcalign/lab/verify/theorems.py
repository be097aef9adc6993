"""The theorems: what the library computes against the paper's formulas in plain torch, on random batches."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from gcalign.lab.verify.claims import Case, Draw, claim, loss
from gcalign.lab.verify.paths import projections

PROJECTIONS = 100


@claim(
    "thm:cl_eq_ot",
    "InfoNCE is KL(I ‖ one row projection of K)",
    sides=("−log softmax of the scores (eq:INCE)", "=", "method 'ince'"),
    tell="worst relative difference {worst.excess:.0e}",
)
def info_nce(draw: Draw) -> Case:
    batch = draw.batch()
    left = float(-batch.scores.log_softmax(1).diagonal().mean())
    return Case(left, loss("ince", batch, eps=batch.eps))


@claim(
    "thm:byol",
    "BYOL is KL(I ‖ S) without a projection, with the squared distance in S and without mass terms",
    sides=("‖q(z') − z''‖²", "=", "method 'byol': S = exp(−‖·‖²), no mass terms"),
    tell="worst relative difference {worst.excess:.0e} with these two corrections; with exp(−‖·‖) as printed it is "
    "off by up to {worst.unsquared:.2f}, with the mass terms of the KL by {worst.mass:.2f}",
    holds="holds after correction",
    kind="slip",
)
def byol(draw: Draw) -> Case:
    batch = draw.batch()
    x, y = batch.pair
    distance = (x - y).norm(dim=1)
    left, right = float(distance.square().mean()), loss("byol", batch)
    kernel = (-torch.cdist(x, y).square()).exp()
    numbers = {
        "unsquared": abs(float(distance.mean()) - left),
        "mass": abs(float(kernel.sum()) / len(x) - 1),
    }
    return Case(left, right, numbers)


@claim(
    "thm:lowest",
    "GCA-INCE falls with every projection, so it is lowest when they converge",
    sides=("KL(I‖P) after a projection", "≤", "KL(I‖P) before"),
    tell="{total.projections:.0f} projections, KL(I‖P) − KL(I‖P⁺) = KL(P⁺‖P) (Pythagoras) to {worst.pythagoras:.0e}",
)
def lowest(draw: Draw) -> Case:
    batch = draw.batch()
    steps = list(projections(batch.log_k, PROJECTIONS))
    worst, residual = (-torch.inf, 0.0, 0.0), 0.0
    for before, after in pairwise(steps):
        fall = before.kl - after.kl
        moved = float((after.p * (after.log_p - before.log_p) - after.p + before.p).sum())
        residual = max(residual, abs(fall - moved) / max(1.0, before.kl))
        worst = max(worst, (-fall / max(1.0, before.kl), after.kl, before.kl))
    numbers = {"projections": len(steps) - 1, "pythagoras": residual, "first": steps[1].kl, "last": steps[-1].kl}
    return Case(worst[1], worst[2], numbers)


@claim(
    "thm:gcarince",
    "GCA-RINCE ≤ RINCE at q = 1, because the scalings only grow",
    sides=("GCA-RINCE after t steps (eq:gcarince)", "≤", "RINCE"),
    tell="largest excess {worst.excess:.0%} of the loss's terms; with mean log v = 0, as the library fixes the gauge, "
    "{total.gauged:.0f} violations; some v_j falls below 1 in {total.falls:.0f}",
    kind="substance",
)
def gca_rince(draw: Draw) -> Case:
    """P/u = K diag(v) with the v of t − 1 iterations from v⁰ = 1, and λ/u = λ K v: the equation as printed."""
    batch = draw.batch((8, 32), eps=(0.1, 1.0))
    lam, t = draw.one_of(0.01, 0.1, 0.5), draw.one_of(2, 5, 20)
    *_, before = projections(batch.log_k, 2 * (t - 1))
    k, v = batch.log_k.exp(), before.b.exp()

    def robust(q: Tensor) -> float:
        return float(lam * q.sum(1).mean() - q.diagonal().mean())

    left, right = robust(k * v), robust(k)
    gauged = robust(k * (v / v.log().mean().exp()))
    scale = float(lam * k.sum(1).mean() + k.diagonal().mean())
    counts = {"gauged": float((gauged - right) / scale > 1e-12), "falls": float(v.min() < 1)}
    numbers = {"lam": lam, "t": t, **counts}
    return Case(left, right, numbers, scale)


@claim(
    "thm:uniformity",
    "The dual value f·μ + g·ν − ε ΣP rises with every step, up to the converged plan",
    sides=("dual value before a step", "≤", "dual value after"),
    tell="{total.steps:.0f} steps; the proof's single potentials do not (lm:monotonicity)",
)
def uniformity(draw: Draw) -> Case:
    batch = draw.batch()
    steps = list(projections(batch.log_k, PROJECTIONS))
    worst = (-torch.inf, 0.0, 0.0)
    for before, after in pairwise(steps):
        worst = max(worst, ((before.dual - after.dual) / max(1.0, abs(after.dual)), before.dual, after.dual))
    numbers = {"steps": len(steps) - 1}
    return Case(batch.eps * worst[1], batch.eps * worst[2], numbers)
