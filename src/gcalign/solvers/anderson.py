"""Anderson acceleration of b ↦ G(b): the next point is the mixture of the last few whose step is smallest.

A slow Sinkhorn iteration is slow in a few directions only, and those a handful of past steps span.
"""

from __future__ import annotations

import torch
from torch import Tensor

MEMORY = 6


class Anderson:
    """b and G(b) in, the next b out; safeguarded: where the error grew, the memory is dropped and G(b) taken."""

    def __init__(self, *, centred: bool) -> None:
        self.centred = centred  # balanced scalings are known up to a constant only
        self._points: list[Tensor] = []  # G(b)
        self._steps: list[Tensor] = []  # G(b) − b
        self._error: float = float("inf")
        self._plain = 0

    def __call__(self, b: Tensor, g: Tensor, error: float) -> Tensor:
        rate, self._error = error / self._error, error
        if rate > 2 or not rate == rate:  # worse than before, or no number
            self._points.clear()
            self._steps.clear()
            return g
        step = g - b
        self._points.append(g)
        self._steps.append(step - step.mean() if self.centred else step)
        del self._points[:-MEMORY], self._steps[:-MEMORY]
        self._plain += 1
        # a fast iteration needs no help, and the first steps are not yet along the slow directions
        if self._plain < 3 or len(self._points) < 2 or (rate < 0.2 and len(self._points) < MEMORY):
            return g
        steps = torch.stack(self._steps).double()
        gram = steps @ steps.T
        gram = gram / gram.diagonal().mean().clamp(min=torch.finfo(gram.dtype).tiny)
        gram.diagonal().add_(1e-10)
        weights = torch.linalg.solve(gram, torch.ones_like(gram[0]))
        weights = (weights / weights.sum()).to(g.dtype)
        mixed = weights @ torch.stack(self._points)
        return torch.where(torch.isfinite(mixed).all(), mixed, g)
