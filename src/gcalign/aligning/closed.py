"""Linear maps of both sides into one space in closed form: regularised CCA, Procrustes and ridge regression.

They need the pairs alone, cost one decomposition, and serve as baselines, as teachers and as the start of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    variances: tuple[float, float]  # mean variance of a number of each side, by which a ridge is measured

    @staticmethod
    def of(x: Tensor, y: Tensor, weights: Tensor, dims: tuple[int, int] | None = None) -> Moments:
        """Of pairs (x_i, y_i) with weights [P]; `dims` are those of the spaces if rows are coordinates in a part."""
        w = (weights / weights.sum())[:, None].to(x.dtype)
        x, y = x - (w * x).sum(0), y - (w * y).sum(0)
        xx, yy, xy = x.T @ (w * x), y.T @ (w * y), x.T @ (w * y)
        left, right = dims or xy.shape
        return Moments(xx, yy, xy, (float(xx.trace()) / left, float(yy.trace()) / right))


Maps = tuple[Tensor, Tensor]  # [D₁, k], [D₂, k]


def cca(moments: Moments, ridge: float, dim: int) -> Maps:
    """Regularised canonical correlation: directions by whitened cross-covariance, weighted by their correlation.

    With C + ρ·mean(diag C)·I = L Lᵀ for each side, the maps are L_x⁻ᵀ U S^{1/2} and L_y⁻ᵀ V S^{1/2}, where U S Vᵀ is
    the singular value decomposition of L_x⁻¹ C_xy L_y⁻ᵀ. Any other root of the covariances gives the same maps.
    """
    levels = [ridge * variance for variance in moments.variances]
    left, right = _root(moments.xx, levels[0]), _root(moments.yy, levels[1])
    solve = torch.linalg.solve_triangular
    whitened = solve(left, solve(right, moments.xy.T, upper=False).T, upper=False)
    u, s, v = _leading(whitened, dim)
    return solve(left.T, u * s.sqrt(), upper=True), solve(right.T, v * s.sqrt(), upper=True)


def procrustes(moments: Moments, ridge: float, dim: int) -> Maps:
    """Rotations of both sides onto the leading directions of their cross-covariance. It has nothing to regularise."""
    u, _, v = _leading(moments.xy, dim)
    return u, v


def ridge_regression(moments: Moments, ridge: float, dim: int) -> Maps:
    """The first side predicts the leading principal components of the second."""
    values, vectors = torch.linalg.eigh(moments.yy)
    onto = vectors[:, values.argsort(descending=True)[:dim]]
    root = _root(moments.xx, ridge * moments.variances[0])
    return torch.cholesky_solve(moments.xy @ onto, root), onto


CLOSED: dict[str, Callable[[Moments, float, int], Maps]] = {
    "cca": cca,
    "procrustes": procrustes,
    "ridge": ridge_regression,
}


def closed_form(name: str, x: Tensor, y: Tensor, weights: Tensor, ridge: float, dim: int) -> Maps:
    """The maps of a closed form by its name, from pairs (x_i, y_i), computed in float64.

    With fewer pairs than numbers, rows are replaced by their coordinates in the space that they span, which changes
    nothing and costs less.
    """
    form = CLOSED[one_of("teacher", name, CLOSED)]
    x64, y64 = x.double(), y.double()
    with _one_thread():
        bases = _basis(x64), _basis(y64)
        moments = Moments.of(x64 @ bases[0], y64 @ bases[1], weights.double(), (x.shape[1], y.shape[1]))
        a, b = form(moments, ridge, min(dim, *moments.xy.shape))
        return (bases[0] @ a).to(x.dtype), (bases[1] @ b).to(x.dtype)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small decompositions gain little by threads, and on a busy machine these wait for each other: 10 s for 0.1 s."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _basis(x: Tensor) -> Tensor:  # [D, k], orthonormal
    """Of a space that has all rows of x."""
    n, d = x.shape
    return torch.linalg.qr(x.T)[0] if n < d else torch.eye(d, dtype=x.dtype, device=x.device)


def _root(c: Tensor, level: float) -> Tensor:
    """L with L Lᵀ = C + level·I; the level is raised if the sum could not be told from a singular matrix."""
    level = max(level, 1e-10 * float(c.diagonal().max()), torch.finfo(c.dtype).tiny)
    return torch.linalg.cholesky(c + level * torch.eye(len(c), dtype=c.dtype, device=c.device))


def _leading(c: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    u, s, vt = torch.linalg.svd(c, full_matrices=False)
    return u[:, :dim], s[:dim], vt[:dim].T
