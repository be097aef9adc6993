"""Fewer sweeps to the same fixed point b = G(b), where nothing but that point counts.

Two things make Sinkhorn slow, and each has its remedy. A plan near its target has columns that are nearly all one
entry: G moves them by a tiny share of what is missing, because the big entry drowns the small ones. The derivative of
G in b_j is about Σ_i P_ij² / (r_i s_j) there, so the step is divided by one minus that (Newton's method on the
diagonal). What is slow in a few directions only is mended by mixing the last few points so that their steps cancel
(Anderson).
"""

from __future__ import annotations

import torch
from torch import Tensor

MEMORY = 5
_SLOW = 0.1  # an iteration this fast needs no mixing


class Accelerated:
    """b and G(b) in, the next b out; safeguarded: where the error grew, the memory is dropped and G(b) taken."""

    def __init__(self, *, balanced: bool) -> None:
        self.balanced = balanced  # scalings are then known up to a constant, which must not wander
        self._points: list[Tensor] = []
        self._steps: list[Tensor] = []
        self._error = float("inf")
        self._calls = 0
        self._damped = False

    def __call__(self, b: Tensor, g: Tensor, error: float, slope: Tensor | None) -> Tensor:
        """The next b; `slope` is the diagonal of G's derivative, where it is known."""
        rate, self._error = error / self._error, error
        self._calls += 1
        if not rate <= 2:  # worse than before, or no number
            self._points.clear()
            self._steps.clear()
            return g
        step = g - b
        if slope is not None:
            # columns that are each other's only rivals both move, and overshoot: half a step is their whole way
            self._damped = self._damped or (rate > 0.7 and self._calls > 2)
            whole = 1 - slope / 2 if self._damped else 1
            longer = step * whole / (1 - slope).clamp(min=torch.finfo(b.dtype).eps ** 0.5)
            step = torch.where(step.abs() < 1, longer.clamp(-1, 1), step)  # far off, the derivative says little
        if self.balanced:
            step = step - step.mean()
        self._points.append(b + step)
        self._steps.append(step)
        del self._points[:-MEMORY], self._steps[:-MEMORY]
        if rate < _SLOW or self._calls <= 1 or len(self._steps) < 2:
            return b + step
        steps = torch.stack(self._steps).double()
        gram = steps @ steps.T
        gram = gram / gram.diagonal().mean().clamp(min=torch.finfo(gram.dtype).tiny)
        gram.diagonal().add_(1e-10)
        weights = torch.linalg.solve_ex(gram, torch.ones_like(gram[0]))[0]  # which makes no device wait
        mixed = (weights / weights.sum()).to(b.dtype) @ torch.stack(self._points)
        return torch.where(torch.isfinite(mixed).all(), mixed, g)
