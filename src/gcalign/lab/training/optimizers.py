"""The optimisers of a run and the learning rate at each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from gcalign.lab.training.config import Optimizer


def lr_at(step: int, total: int, o: Optimizer) -> float:
    """Linear warm-up, then the schedule down to `final` of lr."""
    warm = round(o.warmup * total)
    if step < warm:
        return o.lr * (step + 1) / warm
    along = (step - warm) / max(1, total - warm)
    if o.schedule == "linear":
        return o.lr * (1 - (1 - o.final) * along)
    if o.schedule == "cosine":
        return o.lr * (o.final + (1 - o.final) * 0.5 * (1 + math.cos(math.pi * along)))
    return o.lr


def optimizer_of(o: Optimizer, trained: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimiser that a config names."""
    if o.name == "adam":
        return torch.optim.Adam(trained, lr=o.lr, weight_decay=o.weight_decay)
    if o.name == "adamw":
        return torch.optim.AdamW(trained, lr=o.lr, weight_decay=o.weight_decay)
    kind = LARS if o.name == "lars" else torch.optim.SGD
    return kind(trained, lr=o.lr, momentum=o.momentum, weight_decay=o.weight_decay)


class LARS(torch.optim.Optimizer):
    """SGD with momentum in which the step of each weight tensor is in proportion to its norm (arXiv:1708.03888).

    With g the gradient plus weight_decay · w, a weight w takes g · trust · ‖w‖ / ‖g‖ for its gradient. Biases and the
    parameters of norms, which have one dimension, take the gradient itself, without weight decay.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                g = w.grad
                if w.dim() > 1:
                    g = g.add(w, alpha=group["weight_decay"])
                    size, length = w.norm(), g.norm()
                    ratio = torch.where((size > 0) & (length > 0), group["trust"] * size / length, 1.0)
                    g = g * ratio
                moving = self.state[w].setdefault("momentum_buffer", torch.zeros_like(w))
                moving.mul_(group["momentum"]).add_(g)
                w.add_(moving, alpha=-group["lr"])
        return loss
