"""Other libraries, when installed: their losses and solvers behind the signatures used here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """A library by the name it is imported and the name it is installed under."""

    module: str
    pip: str

    @property
    def installed(self) -> bool:
        return find_spec(self.module) is not None

    @property
    def missing(self) -> str:
        return f"{self.pip}: not installed; pip install {self.pip}"


POT = Peer("ot", "POT")
LIGHTLY = Peer("lightly", "lightly")
METRIC_LEARNING = Peer("pytorch_metric_learning", "pytorch-metric-learning")


def lightly_loss(eps: float) -> Loss:
    """NT-Xent on all 2n embeddings: four times the entries of the cross layout."""
    return import_module("lightly.loss").NTXentLoss(temperature=eps)


def metric_learning_loss(eps: float) -> Loss:
    """NT-Xent with z2 as reference: the cross layout, through a matrix of positives × negatives, n³ entries."""
    loss: Any = import_module("pytorch_metric_learning.losses").NTXentLoss(temperature=eps)

    def call(z1: Tensor, z2: Tensor) -> Tensor:
        labels = torch.arange(len(z1))
        # a copy: with the same object on both sides it takes partners for one embedding and leaves them out
        return loss(z1, labels, ref_emb=z2, ref_labels=labels.clone())

    return call


@dataclass(frozen=True)
class PeerLoss:
    """A peer's InfoNCE and the largest n at which it fits in memory."""

    name: str
    peer: Peer
    make: Callable[[float], Loss]
    largest: int


LOSSES = (
    PeerLoss("lightly NTXentLoss (2n × 2n)", LIGHTLY, lightly_loss, 8192),
    PeerLoss("pytorch-metric-learning NTXentLoss", METRIC_LEARNING, metric_learning_loss, 256),
)


def pot(cost: Tensor, eps: float, *, stop: float, iterations: int) -> Tensor:
    """POT's plan [n, n] of total mass 1; it tests ‖Pᵀ1 − b‖₂ < stop at every tenth iteration."""
    n, m = cost.shape
    a, b = cost.new_full((n,), 1 / n), cost.new_full((m,), 1 / m)
    solve = import_module("ot").bregman.sinkhorn
    return solve(a, b, cost, eps, numItermax=iterations, stopThr=stop, warn=False)
