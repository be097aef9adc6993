"""Row statistics that the library's divergences read: functions of rows of log P and T, known by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Statistic = Callable[[Tensor, Tensor], Tensor]  # (log P rows [b, m], T rows [b, m]) -> [b]


def squares(log_p: Tensor, t: Tensor) -> Tensor:
    """Σ_j (P_ij − T_ij)²."""
    return (log_p.exp() - t).square().sum(1)


def off_mass(log_p: Tensor, t: Tensor) -> Tensor:
    """Σ_j P_ij over the negatives."""
    return log_p.exp().masked_fill(t > 0, 0).sum(1)


def off_log(log_p: Tensor, t: Tensor) -> Tensor:
    """Σ_j log P_ij over the negatives that are not forbidden."""
    return log_p.masked_fill((t > 0) | (log_p == -torch.inf), 0).sum(1)


def positives(log_p: Tensor, t: Tensor) -> Tensor:
    """The number of positives."""
    return (t > 0).sum(1).to(log_p.dtype)


def softplus(log_p: Tensor, t: Tensor) -> Tensor:
    """Σ_j log(1 + P_ij)."""
    return torch.nn.functional.softplus(log_p).sum(1)


STATISTICS: dict[str, Statistic] = {f.__name__: f for f in (squares, off_mass, off_log, positives, softplus)}
