"""d_Γ: the Bregman geometry in which the kernel is projected, as its mirror map y = ∇Γ(P)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.errors import Terse, positive


@dataclass(frozen=True, repr=False)
class Geometry(Terse, ABC):
    """ε·d_Γ(P ‖ K): `eps` is the price of moving away from the kernel, in units of the penalties λ."""

    eps: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.eps, Tensor):
            positive("eps", self.eps, "the paper uses 0.5")

    @abstractmethod
    def coordinate(self, p: Tensor) -> Tensor:
        """∇Γ(P)."""

    @abstractmethod
    def from_log(self, log_p: Tensor) -> Tensor:
        """∇Γ(P), given log P."""

    @abstractmethod
    def log_plan(self, y: Tensor) -> Tensor:
        """log P, given ∇Γ(P)."""

    @abstractmethod
    def slope(self, y: Tensor) -> Tensor:
        """∂P/∂y, entry by entry: how far a multiplier moves the plan."""


@dataclass(frozen=True, repr=False)
class Entropic(Geometry):
    """Γ(P) = Σ P log P − P, so d_Γ is KL and y = log P."""

    def coordinate(self, p: Tensor) -> Tensor:
        return p.log()

    def from_log(self, log_p: Tensor) -> Tensor:
        return log_p

    def log_plan(self, y: Tensor) -> Tensor:
        return y

    def slope(self, y: Tensor) -> Tensor:
        return y.exp()


@dataclass(frozen=True, repr=False)
class Euclidean(Geometry):
    """Γ(P) = ½‖P‖², so d_Γ = ½‖P − K‖² and y = P. Rows and columns alone can go negative: add `NonNegative()`."""

    def coordinate(self, p: Tensor) -> Tensor:
        return p

    def from_log(self, log_p: Tensor) -> Tensor:
        return log_p.exp()

    def log_plan(self, y: Tensor) -> Tensor:
        # a zero entry is −∞ with no gradient; a negative one has no logarithm and is NaN
        return torch.where(y == 0, -torch.inf, torch.where(y == 0, 1, y).log())

    def slope(self, y: Tensor) -> Tensor:
        return torch.ones_like(y)
