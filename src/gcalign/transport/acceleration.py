"""Reach the same fixed point b = G(b) in fewer iterations.

Sinkhorn can be slow for two reasons. First, if a plan is near its target, a column has nearly all its mass in one
entry, and G moves b_j by only a small part of its error. The derivative of G in b_j is about Σ_i P_ij² / (r_i s_j)
there, so the step is divided by one minus that (Newton's method on the diagonal). Second, convergence can be slow in
a few directions. There the last few points are mixed so that their steps cancel (Anderson acceleration).
"""

from __future__ import annotations

import torch
from torch import Tensor

MEMORY = 5
_SLOW = 0.1  # if the error falls faster than this, points are not mixed


class Mixing:
    """Computes the next b from b and G(b). If the error grew, the stored points are dropped and the next b is G(b)."""

    def __init__(self, *, balanced: bool) -> None:
        self.balanced = balanced  # b is then determined up to a constant, which must not drift
        self._points: list[Tensor] = []
        self._steps: list[Tensor] = []
        self._error = float("inf")
        self._calls = 0
        self._damped = False

    def __call__(self, b: Tensor, g: Tensor, error: float, slope: Tensor | None) -> Tensor:
        """The next b; `slope` is the diagonal of the derivative of G, if it is known."""
        rate, self._error = error / self._error if self._error else float("inf"), error
        self._calls += 1
        if not rate <= 2:  # worse than before, or NaN
            self._points.clear()
            self._steps.clear()
            return g
        step = g - b
        if slope is not None:
            # two columns that compete for the same mass would both move and overshoot: half a step is enough
            self._damped = self._damped or (rate > 0.7 and self._calls > 2)
            whole = 1 - slope / 2 if self._damped else 1
            longer = step * whole / (1 - slope).clamp(min=torch.finfo(b.dtype).eps ** 0.5)
            step = torch.where(
                step.abs() < 1, longer.clamp(-1, 1), step
            )  # far from the solution the derivative is not reliable
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
        weights = torch.linalg.solve_ex(gram, torch.ones_like(gram[0]))[0]  # solve_ex does not wait for the device
        mixed = (weights / weights.sum()).to(b.dtype) @ torch.stack(self._points)
        return torch.where(torch.isfinite(mixed).all(), mixed, g)
