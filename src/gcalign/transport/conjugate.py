"""Conjugate gradients for the linear system of the implicit gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor], rhs: Tensor, weights: Tensor, null: Tensor | None
) -> Tensor | None:
    """apply⁻¹ rhs for an operator that is symmetric and positive in the weighted inner product, except for `null`.

    Returns None if it does not converge, or if an eigenvalue is below 1e-3: the scalings of a plan that converged to
    1e-6 are not exact enough then.
    """

    def project(v: Tensor) -> Tensor:
        return v if null is None else v - null * (v.sum() / null.sum())  # weights · null is constant

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (weights * x * y).sum()

    largest = rhs.abs().max()
    unit = torch.where(largest > 0, largest, 1)  # squares of a tiny right-hand side would underflow
    residual = project(rhs / unit)
    x, direction, size = torch.zeros_like(rhs), residual, inner(residual, residual)
    enough = size * torch.finfo(rhs.dtype).eps ** 1.6
    for _ in range(2 * len(rhs) + 20):
        if bool(size <= enough):
            return x * unit
        image = project(apply(direction))
        curvature = inner(direction, image)
        if not bool(curvature > 1e-3 * inner(direction, direction)):
            return None
        step = size / curvature
        x = x + step * direction
        residual = residual - step * image
        size, before = inner(residual, residual), size
        direction = residual + size / before * direction
    return x * unit if bool(size <= 1e3 * enough) else None
