"""What divergences read of a plan: vectors, and row statistics, functions of rows of log P and T, known by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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


class Reads(NamedTuple):
    """What a divergence reads of a plan."""

    statistics: tuple[Statistic, ...] = ()  # of rows
    powers: tuple[float, ...] = ()  # q of Σ_j T_ij P_ij^q
    entries: bool = False  # log P on the target, if that is a matrix
    columns: bool = False  # log Pᵀ1 also if the columns have no constraint
    dual: bool = False  # it is a Fenchel–Young loss
    plan: bool = False  # the plan itself is wanted, and no loss


class Vectors(NamedTuple):
    """What a divergence reads of a solved plan."""

    on_target: Tensor  # log P on the target's pairs [k], Σ_j T_ij log P_ij [n], or log P [n, m]
    log_rows: Tensor  # [n]  log P1
    log_columns: Tensor  # [m]  log Pᵀ1; empty if nothing needs it
    terms: Tensor  # [n, k]  row statistics
    a: Tensor  # [n]  log u
    b: Tensor  # [m]  log v
    eps: Tensor  # []


class Adjoints(NamedTuple):
    """∂L/∂ of each of the `Vectors`; None if the loss does not depend on it."""

    on_target: Tensor | None
    log_rows: Tensor | None
    log_columns: Tensor | None
    terms: Tensor | None
    a: Tensor | None
    b: Tensor | None
    eps: Tensor | None
