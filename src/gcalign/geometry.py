"""d_Γ: the Bregman divergence by which the kernel is projected, given by its mirror map y = ∇Γ(P)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.errors import CallRepr, positive


@dataclass(frozen=True, repr=False)
class Geometry(CallRepr, ABC):
    """Base class of Bregman divergences ε·d_Γ(P ‖ K) (Definition 1, def:prox; Table A1).

    Args:
        eps: ε, the weight of d_Γ relative to the penalties λ.

    Example:
        >>> import torch, gcalign
        >>> [geometry.coordinate(torch.ones(1)).item() for geometry in (gcalign.Entropic(), gcalign.Euclidean())]
        [0.0, 1.0]
    """

    eps: float | Tensor = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.eps, Tensor):
            positive("eps", self.eps, "the paper uses 0.5")

    @abstractmethod
    def coordinate(self, p: Tensor) -> Tensor:
        """∇Γ(P)."""

    def from_log(self, log_p: Tensor) -> Tensor:
        """∇Γ(P), given log P."""
        return self.coordinate(log_p.exp())

    @abstractmethod
    def log_plan(self, y: Tensor) -> Tensor:
        """log P, given ∇Γ(P)."""

    @abstractmethod
    def slope(self, y: Tensor) -> Tensor:
        """∂P/∂y of each entry: how much a multiplier changes the plan."""


@dataclass(frozen=True, repr=False)
class Entropic(Geometry):
    """Entropic geometry, Γ(P) = Σ P log P − P: d_Γ is KL and y = log P (Eq. 3, eq:eot; Table A1). The default.

    Example:
        >>> import torch, gcalign
        >>> plan = gcalign.solve(torch.zeros(3, 3), geometry=gcalign.Entropic(0.5))
        >>> round(float(plan.mass), 3)
        3.0
    """

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
    """Euclidean geometry, Γ(P) = ½‖P‖²: d_Γ = ½‖P − K‖² and y = P (Table A1).

    With row and column constraints alone, entries can become negative: add `NonNegative()`.

    Example:
        >>> import torch, gcalign
        >>> sets = (gcalign.Rows(), gcalign.Columns(), gcalign.NonNegative())
        >>> plan = gcalign.solve(3 * torch.eye(3), sets, gcalign.Euclidean())
        >>> bool((plan.matrix >= 0).all())
        True
    """

    def coordinate(self, p: Tensor) -> Tensor:
        return p

    def log_plan(self, y: Tensor) -> Tensor:
        # a zero entry gives −∞ without gradient; a negative one has no logarithm and gives NaN
        return torch.where(y == 0, -torch.inf, torch.where(y == 0, 1, y).log())

    def slope(self, y: Tensor) -> Tensor:
        return torch.ones_like(y)


def as_geometry(geometry: Geometry) -> Geometry:
    """Return a geometry unchanged; raise if it is none."""
    if not isinstance(geometry, Geometry):
        raise TypeError(f"geometry={geometry!r} is not a Geometry; try gcalign.Entropic(0.5), or leave it out")
    return geometry
