"""What comes after an encoder: the projector before the loss, and BYOL's predictor and momentum twin."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from gcalign.lab.models.state import made


class Head(nn.Sequential):
    """Layers in a row that know the size of their output: [B, D] -> [B, features]."""

    def __init__(self, *layers: nn.Module, features: int) -> None:
        super().__init__(*layers)
        self.features = features


def projector(kind: str, features: int, hidden: int = 2048, out: int = 128, seed: int = 0) -> Head:
    """`mlp2`: 2048→128 of app:hpdetails; `mlp3-bn`: appendix:dgsetting, where `out` is 2048 too; `none`: the identity.

    Weights follow from `seed`; the global random state is left alone.
    """
    if kind == "none":
        return Head(features=features)

    def make() -> Head:
        if kind == "mlp2":
            return Head(nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out), features=out)
        layers = (*_normalised(features, hidden), *_normalised(hidden, hidden))
        return Head(*layers, nn.Linear(hidden, out), features=out)

    return made(make, seed, f"projector={kind} hidden={hidden} out={out}")


def predictor(dim: int, hidden: int = 2048, seed: int = 0) -> Head:
    """BYOL's predictor dim → hidden → dim, of the online branch only."""
    size = f"predictor dim={dim} hidden={hidden}"
    return made(lambda: Head(*_normalised(dim, hidden), nn.Linear(hidden, dim), features=dim), seed, size)


def _normalised(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    # no bias: BatchNorm subtracts it again
    return nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True)


class Twin(nn.Module):
    """ξ ← m ξ + (1 − m) θ after each optimiser step; forward gives no gradient.

    In train mode its BatchNorm normalises by the batch, as BYOL's target does; its running statistics are the online
    network's, copied at each update.
    """

    def __init__(self, online: nn.Module, momentum: float = 0.996) -> None:
        super().__init__()
        self.momentum = momentum
        self.module = copy.deepcopy(online).requires_grad_(False)
        self._online = (online,)  # in a tuple: as a submodule its weights would be saved and optimised twice

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)

    @torch.no_grad()
    def update(self, momentum: float | None = None) -> None:
        """One step of the average; call it after the optimiser's step, so that it sees the new weights."""
        m = self.momentum if momentum is None else momentum
        (online,) = self._online
        for mine, theirs in zip(self.module.parameters(), online.parameters(), strict=True):
            mine.lerp_(theirs, 1 - m)
        for copied, running in zip(self.module.buffers(), online.buffers(), strict=True):
            copied.copy_(running)


def momentum_at(step: int, total: int, base: float = 0.996) -> float:
    """BYOL's schedule 1 − (1 − base)(cos(π step / total) + 1)/2: from `base` at step 0 to 1 at the end."""
    return 1 - (1 - base) * (math.cos(math.pi * min(step / total, 1)) + 1) / 2
