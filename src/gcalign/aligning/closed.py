"""Linear maps of both sides into one space in closed form: regularised CCA, Procrustes and ridge regression.

They need the pairs alone, cost one decomposition, and serve as baselines, as teachers and as the start of heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.errors import one_of


@dataclass(frozen=True)
class Moments:
    """What the closed forms read: second moments of centred rows. Those of one side need no pairs."""

    xx: Tensor  # [D₁, D₁]
    yy: Tensor  # [D₂, D₂]
    xy: Tensor  # [D₁, D₂], of the pairs

    @staticmethod
    def of(x: Tensor, y: Tensor, weights: Tensor) -> Moments:
        """Of pairs (x_i, y_i) with weights [P]."""
        w = (weights / weights.sum())[:, None].to(x.dtype)
        x, y = x - (w * x).sum(0), y - (w * y).sum(0)
        return Moments(x.T @ (w * x), y.T @ (w * y), x.T @ (w * y))

    def double(self) -> Moments:
        return Moments(self.xx.double(), self.yy.double(), self.xy.double())


Maps = tuple[Tensor, Tensor]  # [D₁, k], [D₂, k]


def cca(moments: Moments, ridge: float, dim: int) -> Maps:
    """Regularised canonical correlation: directions by whitened cross-covariance, weighted by their correlation.

    With C_ρ = C + ρ·mean(diag C)·I, the maps are C_xx,ρ^{-1/2} U S^{1/2} and C_yy,ρ^{-1/2} V S^{1/2}, where U S Vᵀ is
    the singular value decomposition of C_xx,ρ^{-1/2} C_xy C_yy,ρ^{-1/2}.
    """
    left, right = _inverse_root(moments.xx, ridge), _inverse_root(moments.yy, ridge)
    u, s, v = _leading(left @ moments.xy @ right, dim)
    return left @ u * s.sqrt(), right @ v * s.sqrt()


def procrustes(moments: Moments, ridge: float, dim: int) -> Maps:
    """Rotations of both sides onto the leading directions of their cross-covariance. It has nothing to regularise."""
    u, _, v = _leading(moments.xy, dim)
    return u, v


def ridge_regression(moments: Moments, ridge: float, dim: int) -> Maps:
    """The first side predicts the leading principal components of the second."""
    values, vectors = torch.linalg.eigh(moments.yy)
    onto = vectors[:, values.argsort(descending=True)[:dim]]
    inverse = torch.linalg.inv(_regularised(moments.xx, ridge))
    return inverse @ moments.xy @ onto, onto


CLOSED: dict[str, Callable[[Moments, float, int], Maps]] = {
    "cca": cca,
    "procrustes": procrustes,
    "ridge": ridge_regression,
}


def closed_form(name: str, moments: Moments, ridge: float, dim: int) -> Maps:
    """The maps of a closed form by its name, computed in float64."""
    form = CLOSED[one_of("teacher", name, CLOSED)]
    a, b = form(moments.double(), ridge, min(dim, *moments.xy.shape))
    return a.to(moments.xy.dtype), b.to(moments.xy.dtype)


def _regularised(c: Tensor, ridge: float) -> Tensor:
    level = c.diagonal().mean().clamp(min=torch.finfo(c.dtype).tiny)
    return c + ridge * level * torch.eye(len(c), dtype=c.dtype, device=c.device)


def _inverse_root(c: Tensor, ridge: float) -> Tensor:
    values, vectors = torch.linalg.eigh(_regularised(c, ridge))
    return vectors * values.clamp(min=values.max() * 1e-12).rsqrt() @ vectors.T


def _leading(c: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    u, s, vt = torch.linalg.svd(c, full_matrices=False)
    return u[:, :dim], s[:dim], vt[:dim].T
