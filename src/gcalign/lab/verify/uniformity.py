"""The appendix on downstream tasks: centroids, uniformity, suppressed features, the minimiser of relaxed transport."""

from __future__ import annotations

import torch
from torch import Tensor

from gcalign.lab.verify.claims import Case, Draw, claim


def _log_mean(points: Tensor, eps: float = 1.0) -> float:
    """log E e^(−ε‖μ_y − μ_y'‖²) over all pairs of classes."""
    return float((-eps * torch.cdist(points, points).square()).exp().mean().log())


def simplex(classes: int, dim: int) -> Tensor:
    """A regular simplex on the unit sphere of `dim` ≥ classes − 1 dimensions."""
    corners = torch.eye(classes, dtype=torch.float64) - 1 / classes
    basis = torch.linalg.svd(corners).Vh[: classes - 1]
    return torch.nn.functional.pad(torch.nn.functional.normalize(corners @ basis.T), (0, dim - classes + 1))


@claim(
    "lm:ot_sup_loss",
    "With M ≤ d + 1 classes the supervised loss is least where the centroids are a regular simplex on the sphere",
    sides=("L_sup of the simplex", "≤", "L_sup of other centroids in the ball, after 100 steps of descent"),
    tell="nearest: {worst.excess:.0e}; descent ends within {median.gap:.0e} of the simplex in the median; "
    "the lemma's “linearly separable” asks only w_y·μ_y ≥ 0, which w = μ gives for any centroids",
)
def optimal_centroids(draw: Draw) -> Case:
    classes = draw.one_of(2, 3, 5, 10)
    dim = classes - 1 + draw.one_of(0, 1, 8)
    points = torch.nn.functional.normalize(draw.normal(classes, dim)) * draw.uniform(0.3, 1.0)
    for _ in range(100):
        points.requires_grad_()
        (slope,) = torch.autograd.grad((-torch.cdist(points, points).square()).exp().mean().log(), points)
        points = points.detach() - slope
        points = points / points.norm(dim=1, keepdim=True).clamp(min=1)
    left, right = _log_mean(simplex(classes, dim)), _log_mean(points)
    return Case(left, right, {"M": classes, "d": dim, "gap": right - left})


@claim(
    "cl:ce_eq_uniform",
    "Less uniformity loss is less supervised loss, where classes have no spread at all",
    sides=("minus the product of the two changes", "≤", "0"),
    tell="of two random sets of class centroids one can have the better uniformity at ε and the worse supervised loss, "
    "whose exponent has no ε; the optimum, a simplex, is shared (lm:ot_sup_loss)",
    unit="pairs of centroids",
    kind="substance",
)
def uniformity_orders(draw: Draw) -> Case:
    classes, dim, eps = draw.one_of(3, 5, 10), draw.one_of(2, 8), draw.one_of(0.1, 0.5, 4.0)
    one, two = (torch.nn.functional.normalize(draw.normal(classes, dim)) for _ in range(2))
    uniform, supervised = (_log_mean(one, e) - _log_mean(two, e) for e in (eps, 1.0))
    numbers = {"M": classes, "d": dim, "eps": eps, "uniformity": uniform, "supervised": supervised}
    return Case(-uniform * supervised, 0.0, numbers, scale=abs(uniform * supervised) or 1.0)


@claim(
    "prop:feat_suppress",
    "Every minimiser of L_S = L_align + E[−log E[e^(f(x⁺)·f(x⁻)) | same S]] suppresses the features S",
    sides=("L_S of an encoder that suppresses S", "≤", "L_S of one that shows nothing but S"),
    tell="with the sign as printed, an encoder that is the feature S itself has L_S = −1, the least there is, and "
    "distinguishes S; with +log E, as in the work it cites, suppressing S is better in all cases "
    "({total.corrected:.0f} exceptions)",
    kind="misprint",
)
def suppression(draw: Draw) -> Case:
    """Two features, uniform on a sphere, S = {1}: f = z² against f = z¹, for pairs that share z¹."""
    dim, n = draw.one_of(2, 3, 8), 64
    other = torch.nn.functional.normalize(draw.normal(n, dim))
    suppressed = (other @ other.T).exp().mean(1).log()  # log E e^{f·f'} with f = z², free given z¹
    shown = torch.ones(n, dtype=torch.float64)  # f = z¹ is the same for all that share it: log e¹
    left, right = -float(suppressed.mean()), -float(shown.mean())
    return Case(left, right, {"d": dim, "n": n, "corrected": float(suppressed.mean() > shown.mean())})


def _relaxed(p: Tensor, cost: Tensor, r: Tensor, c: Tensor, weights: tuple[float, float]) -> float:
    """⟨P, C⟩ + λ₁ KL(P1‖r) + λ₂ KL(Pᵀ1‖c)."""

    def kl(a: Tensor, b: Tensor) -> float:
        return float((a * (a / b).log() - a + b).sum())

    return float((p * cost).sum()) + weights[0] * kl(p.sum(1), r) + weights[1] * kl(p.sum(0), c)


@claim(
    "app:gcauot-feature",
    "Relaxed transport has the minimiser P_ij = exp((−C_ij + λ₁ log r_i + λ₂ log c_j)/(λ₁ + λ₂))",
    sides=("objective at that plan", "≤", "objective at another plan, found by descent"),
    tell="{median.closed:.3f} against {median.found:.3f} in the median: the second line of its derivation puts P_ij "
    "where the marginals Σ_j P_ij and Σ_i P_ij stood",
    kind="substance",
)
def closed_form(draw: Draw) -> Case:
    batch = draw.batch((4, 8, 16))
    x, y = batch.pair
    cost, n = 1 - x @ y.T, len(batch.z1)
    weights = draw.log_uniform(0.05, 2.0), draw.log_uniform(0.05, 2.0)
    r = c = torch.full((n,), 1 / n, dtype=torch.float64)
    total = sum(weights)
    closed = ((-cost + weights[0] * r.log()[:, None] + weights[1] * c.log()) / total).exp()
    p = closed
    for _ in range(300):  # each step minimises a convex bound of the objective that touches it at P
        slope = cost + weights[0] * (p.sum(1) / r).log()[:, None] + weights[1] * (p.sum(0) / c).log()
        p = p * (-slope / total).exp()
    found, said = (_relaxed(plan, cost, r, c, weights) for plan in (p, closed))
    numbers = {"lambda1": weights[0], "lambda2": weights[1], "closed": said, "found": found}
    return Case(said, found, numbers)
