"""The linear system of the implicit gradient, from products alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor], rhs: Tensor, weights: Tensor, null: Tensor | None
) -> Tensor | None:
    """apply⁻¹ rhs for an operator symmetric and positive in the weighted inner product, but for a null vector.

    None where it is not found: no convergence, or an eigenvalue below 1e-3, since a plan converged to 1e-6 leaves its
    scalings that much less exact.
    """

    def project(v: Tensor) -> Tensor:
        return v if null is None else v - null * (v.sum() / null.sum())  # weights · null is constant

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (weights * x * y).sum()

    residual = project(rhs)
    x, direction, size = torch.zeros_like(rhs), residual, inner(residual, residual)
    enough = size * torch.finfo(rhs.dtype).eps ** 1.6
    for _ in range(2 * len(rhs) + 20):
        if bool(size <= enough):
            return x
        image = project(apply(direction))
        curvature = inner(direction, image)
        if not bool(curvature > 1e-3 * inner(direction, direction)):
            return None
        step = size / curvature
        x = x + step * direction
        residual = residual - step * image
        size, before = inner(residual, residual), size
        direction = residual + size / before * direction
    return x if bool(size <= 1e3 * enough) else None
