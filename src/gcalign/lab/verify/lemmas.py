"""The appendix on projections: convergence, monotonicity, uniqueness and duality, along the path in plain torch."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from gcalign.lab.verify.claims import Case, Draw, claim, loss
from gcalign.lab.verify.paths import converged, projections

STEPS = 40


def _hilbert(log_ratio: Tensor) -> float:
    """d_H(u, u*) = max − min of log(u/u*)."""
    return float(log_ratio.max() - log_ratio.min())


def contraction(log_k: Tensor) -> tuple[float, float]:
    """λ(K) as it is printed, √(η − 1)/√(η + 1), and Birkhoff's (√η − 1)/(√η + 1)."""
    differences = log_k[:, None, :] - log_k[None, :, :]  # log K_ik/K_jk
    log_eta = float((differences.amax(2) - differences.amin(2)).max())
    eta = math.exp(log_eta)
    return math.sqrt((eta - 1) / (eta + 1)), math.tanh(log_eta / 4)


@claim(
    "Convergence",
    "Sinkhorn contracts: d_H(u⁺, u*) ≤ λ(K) d_H(v, v*), d_H(u, u*) ≤ d_H(P1, μ)/(1 − λ²), and ‖log P − log P*‖∞ ≤ "
    "d_H(u, u*) + d_H(v, v*)",
    sides=("left side of the inequality that is nearest to failing", "≤", "its right side"),
    tell="three inequalities over {total.steps:.0f} projections with λ(K) = √(η − 1)/√(η + 1) as printed, "
    "{median.printed:.3f} in the median; Birkhoff's (√η − 1)/(√η + 1), {median.birkhoff:.3f}, is smaller and holds "
    "as well ({total.birkhoff_violated:.0f} violations)",
    tolerance=1e-11,
)
def convergence(draw: Draw) -> Case:
    batch = draw.batch((2, 8, 16), eps=(0.3, 2.0))
    end, steps = converged(batch.log_k), list(projections(batch.log_k, STEPS))
    printed, birkhoff = contraction(batch.log_k)
    worst, tighter = (-math.inf, 0.0, 0.0), 0.0
    for before, after in pairwise(steps):
        # a row projection moves u by the old v; a column projection v by the new u
        rows = before.b is after.b
        moved, held = (after.a - end.a, before.b - end.b) if rows else (after.b - end.b, before.a - end.a)
        u, v = _hilbert(after.a - end.a), _hilbert(after.b - end.b)
        gap = float((after.log_p - end.log_p).abs().max())
        sums = after.log_p.logsumexp(1)
        sides = [(_hilbert(moved), printed * _hilbert(held)), (gap, u + v)]
        if not rows:  # the corollary's P has the newest u and v
            sides.append((u, _hilbert(sums) / (1 - printed**2)))
        tighter = max(tighter, _hilbert(moved) - birkhoff * _hilbert(held))
        worst = max(worst, *((left - right, left, right) for left, right in sides))
    numbers = {"steps": STEPS, "printed": printed, "birkhoff": birkhoff, "birkhoff_violated": float(tighter > 1e-11)}
    return Case(worst[1], worst[2], numbers)


@claim(
    "lm:monotonicity",
    "Every potential rises to its limit: f⁽ᵗ⁾ ≤ f⁽∞⁾ (cited by the proofs of thm:lowest, thm:gcarince and "
    "thm:uniformity)",
    sides=("f_i or g_j after some projection", "≤", "its limit"),
    tell="single potentials pass their limit by up to {worst.above:.2f}; their sum over the batch rises "
    "(thm:uniformity), and with it thm:lowest is true by another proof",
    tolerance=1e-9,
    kind="substance",
)
def monotonicity(draw: Draw) -> Case:
    batch = draw.batch((8, 32), eps=(0.2, 2.0))
    steps, end = list(projections(batch.log_k, STEPS)), converged(batch.log_k)
    pairs = [(s.a, end.a) for s in steps[1:]] + [(s.b, end.b) for s in steps[2:]]
    above = torch.stack([now - limit for now, limit in pairs])
    k = int(above.argmax())
    now, limit = (torch.stack(side).flatten()[k] for side in zip(*pairs, strict=True))
    numbers = {"above": batch.eps * float(above.max())}
    return Case(batch.eps * float(now), batch.eps * float(limit), numbers)


@claim(
    "eq:uvupdates",
    "v⁽ᵗ⁺¹⁾ = ν/(Kᵀu⁽ᵗ⁾), with the old u",
    sides=("mass of diag(u) K diag(v) after 200 updates", "=", "mass of μ"),
    tell="two chains that never meet: the plan stays a multiple of the optimum, up to {worst.factor:.0f} times too "
    "large or small and turning over at every step; with the new u (eq:uvupdatesapp) mass is off by {worst.newest:.0e}",
    tolerance=1e-6,
    kind="misprint",
)
def old_scalings(draw: Draw) -> Case:
    batch = draw.batch((8, 32), eps=(0.2, 2.0))
    k, b = batch.log_k.exp(), len(batch.z1)
    u, v = (torch.ones(b, dtype=torch.float64) for _ in range(2))
    for _ in range(200):
        u, v = 1 / (k @ v), 1 / (k.T @ u)
    newest = [*projections(batch.log_k, 200)][-1]
    mass = float(u @ k @ v)
    numbers = {"factor": max(mass / b, b / mass), "newest": abs(float(newest.p.sum()) / b - 1)}
    return Case(mass, float(b), numbers)


@claim(
    "lm:unique",
    "The projection on a closed convex set is unique",
    sides=("largest difference between the plans of two orders of projection", "=", "0"),
    tell="rows first and columns first end at one plan, to {worst.difference:.0e}; on the line between it and another "
    "plan of the set KL(·‖K) lies below its chord ({total.flat:.0f} exceptions)",
    tolerance=1e-10,
)
def unique(draw: Draw) -> Case:
    batch = draw.batch((2, 8, 16), eps=(0.3, 2.0))
    one, two = (converged(batch.log_k, first=side) for side in (0, 1))
    b = len(batch.z1)
    other = converged(draw.normal(b, b)).p

    def objective(p: Tensor) -> float:
        return float((p * (p.log() - batch.log_k) - p).sum())

    middle = objective((one.p + other) / 2)
    flat = middle >= (objective(one.p) + objective(other)) / 2
    difference = float((one.p - two.p).abs().max())
    return Case(difference, 0.0, {"difference": difference, "flat": float(flat)}, scale=1.0)


@claim(
    "eq:qual",
    "Dykstra converges where ri(dom φ₁) ∩ ri(dom φ₂) ∩ ri(dom Γ) = ∅, with dom φ = {φ = +∞}",
    sides=("how far its plan is from the marginals where no plan has both", "=", "0"),
    tell="as printed the condition asks for sets that do not meet, and then there is nothing to converge to: marginals "
    "are missed by {median.missed:.0%} in the median; where they meet (≠ ∅, dom φ = {{φ < ∞}}) by {worst.met:.0e}",
    tolerance=1e-9,
    kind="misprint",
)
def qualification(draw: Draw) -> Case:
    batch = draw.batch((2, 8, 16), eps=(0.5, 2.0))
    b, more = len(batch.z1), draw.uniform(1.1, 2.0)
    ones = torch.ones(b, dtype=torch.float64)

    def missed(total: float) -> float:
        *_, end = projections(batch.log_k, 600, ones, total * ones)
        return float((end.p.sum(1) - 1).abs().max() + (end.p.sum(0) - total).abs().max())

    numbers = {"mass of the columns": more, "missed": missed(more), "met": missed(1.0)}
    return Case(numbers["missed"], 0.0, numbers, scale=1.0)


@claim(
    "lm:eoteqbreg",
    "Entropic transport is the projection of K: ⟨P, C⟩ − εH(P) = ε KL(P‖K) for plans of equal mass",
    sides=("⟨P, C⟩ − εH(P)", "=", "ε (KL(P‖K) + ΣP − ΣK)"),
    tell="worst relative difference {worst.excess:.0e}; the proof's last line, eq:eoteqbreg, prints +εH(P), which is "
    "off by 2εH(P), up to {worst.sign:.1f}",
    holds="holds after correction",
    kind="misprint",
)
def entropic_projection(draw: Draw) -> Case:
    batch = draw.batch()
    p = draw.normal(*batch.log_k.shape).exp()
    cost, entropy = -batch.eps * batch.log_k, -float((p * p.log()).sum())
    left = float((p * cost).sum()) - batch.eps * entropy
    kl = float((p * (p.log() - batch.log_k) - p + batch.log_k.exp()).sum())
    right = batch.eps * (kl + float(p.sum()) - float(batch.log_k.exp().sum()))
    return Case(left, right, {"sign": 2 * batch.eps * abs(entropy)})


@claim(
    "lm:klfg",
    "KL(I‖P) = Σ (C_ii − f_i − g_i)/ε, whatever the number of projections",
    sides=("method 'gca-ince' with t iterations", "=", "(C_ii − f_i − g_i)/ε, mean over i, of the path"),
    tell="worst relative difference {worst.excess:.0e} after a projection; of K itself the mass terms are missing, "
    "{median.unprojected:.2f} in the median",
)
def kl_by_potentials(draw: Draw) -> Case:
    batch = draw.batch()
    t = draw.one_of(1, 2, 5)
    *_, end = projections(batch.log_k, 2 * t)
    right = -float(end.log_p.diagonal().mean())
    left = loss("gca-ince", batch, eps=batch.eps, iterations=t, tol=0.0)
    numbers = {"t": t, "unprojected": abs(float(batch.log_k.exp().sum()) / len(batch.z1) - 1)}
    return Case(left, right, numbers)


@claim(
    "eq:eotdual",
    "Dual of entropic transport (eq:wdual), for measures of B points each: the primal at P is the dual at f and g",
    sides=("Σ CP + ε Σ (φ(P/μν) μν)", "=", "f·μ + g·ν − ε Σ e^((f + g − C)/ε) μν"),
    tell="worst relative difference {worst.excess:.0e} with φ(x) = x log x − x; printed without g in the second "
    "integral, where the supremum is infinite",
    holds="holds after correction",
    tolerance=1e-10,
    kind="misprint",
)
def entropic_duality(draw: Draw) -> Case:
    batch = draw.batch((2, 8, 16), eps=(0.3, 2.0))
    b = len(batch.z1)
    mu, nu = (draw.normal(b).softmax(0) for _ in range(2))
    product = torch.outer(mu, nu)
    end = converged(batch.log_k + product.log(), mu, nu)
    cost, ratio = -batch.eps * batch.log_k, end.p / product
    left = float((cost * end.p).sum()) + batch.eps * float(((ratio * ratio.log() - ratio) * product).sum())
    right = batch.eps * float(end.a @ mu + end.b @ nu - (end.a[:, None] + end.b + batch.log_k).exp().mul(product).sum())
    return Case(left, right)
