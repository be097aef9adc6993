"""The momentum twin of BYOL: an average of the online network's past, without a gradient."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from gcalign.errors import count


class Twin(nn.Module):
    """ξ ← m ξ + (1 − m) θ after each optimiser step; forward gives no gradient.

    In train mode its BatchNorm normalises by the batch, as BYOL's target does; its running statistics are the online
    network's, copied at each update.
    """

    def __init__(self, online: nn.Module, momentum: float = 0.996) -> None:
        super().__init__()
        self.momentum = _share(momentum)
        self.module = copy.deepcopy(online).requires_grad_(False)
        self._online = (online,)  # in a tuple: as a submodule its weights would be saved and optimised twice

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)

    @torch.no_grad()
    def update(self, momentum: float | None = None) -> None:
        """One step of the average; call it after the optimiser's step, so that it sees the new weights."""
        m = self.momentum if momentum is None else _share(momentum)
        (online,) = self._online
        for mine, theirs in zip(self.module.parameters(), online.parameters(), strict=True):
            mine.lerp_(theirs, 1 - m)
        for copied, running in zip(self.module.buffers(), online.buffers(), strict=True):
            copied.copy_(running)


def momentum_at(step: int, total: int, base: float = 0.996) -> float:
    """BYOL's schedule 1 − (1 − base)(cos(π step / total) + 1)/2: from `base` at step 0 to 1 at the end."""
    count("total", total, "the number of optimiser steps")
    count("step", step, "counted from 0", least=0)
    return 1 - (1 - _share(base)) * (math.cos(math.pi * min(step / total, 1)) + 1) / 2


def _share(momentum: float) -> float:
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum={momentum} must lie in [0, 1]; BYOL uses 0.996")
    return momentum
