"""B and h: the sets a plan is projected on, hard or relaxed, each as the multiplier that one projection takes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from gcalign.errors import Terse, positive
from gcalign.geometry import Entropic
from gcalign.transport.support import Support, seen

if TYPE_CHECKING:
    from gcalign.transport.problem import Problem

# --- h: what leaving a marginal costs -------------------------------------------------------------------------


class Penalty(Terse, ABC):
    """λ·h(P1, μ) for one marginal. Only sums enter, so it is all vectors: gap = log μ − log(K v)."""

    has_dual: ClassVar[bool] = False  # whether `price` and `distance` are given, so that the envelope gradient is exact

    @abstractmethod
    def step(self, gap: Tensor, eps: Tensor) -> Tensor:
        """log u, the scaling that solves this side alone; entry by entry."""

    def tau(self, eps: float) -> float | None:
        """The exponent of u = (μ/(K v))^τ, where the step has that form."""
        return None

    def price(self, mass: Tensor, log_sums: Tensor, eps: Tensor) -> Tensor:
        """(λ/ε) h(P1, μ), entry by entry: what the plan pays for its sums."""
        return torch.zeros_like(mass)

    def distance(self, mass: Tensor, log_sums: Tensor, eps: Tensor) -> Tensor:
        """What the penalty adds to KL(T‖P) in the Fenchel–Young loss, entry by entry: (λ/ε) KL(T1‖P1) for the KL
        relaxation."""
        return torch.zeros_like(mass)


@dataclass(frozen=True, repr=False)
class Hard(Penalty):
    """The marginal is met: u = μ/(K v)."""

    has_dual: ClassVar[bool] = True

    def step(self, gap: Tensor, eps: Tensor) -> Tensor:
        return gap

    def tau(self, eps: float) -> float | None:
        return 1.0


@dataclass(frozen=True, repr=False)
class Relaxed(Penalty):
    """λ KL(P1‖μ): u = (μ/(K v))^τ with τ = λ/(λ + ε)."""

    lam: float
    has_dual: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("lam", self.lam, "small values let mass go, large ones keep the marginal")

    def step(self, gap: Tensor, eps: Tensor) -> Tensor:
        return gap * (self.lam / (self.lam + eps))

    def tau(self, eps: float) -> float | None:
        return self.lam / (self.lam + eps)

    def price(self, mass: Tensor, log_sums: Tensor, eps: Tensor) -> Tensor:
        sums = log_sums.exp()
        return self.lam / eps * (sums * (log_sums - mass.log()) - sums + mass)

    def distance(self, mass: Tensor, log_sums: Tensor, eps: Tensor) -> Tensor:
        return self.lam / eps * (torch.xlogy(mass, mass) - mass * log_sums - mass + log_sums.exp())


@dataclass(frozen=True, repr=False)
class TotalVariation(Penalty):
    """λ ‖P1 − μ‖₁: the hard scaling, but never beyond e^{±λ/ε}."""

    lam: float
    has_dual: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("lam", self.lam, "each entry of the marginal may be violated at this cost")

    def step(self, gap: Tensor, eps: Tensor) -> Tensor:
        bound = self.lam / eps
        return torch.maximum(torch.minimum(gap, bound), -bound)

    def price(self, mass: Tensor, log_sums: Tensor, eps: Tensor) -> Tensor:
        return self.lam / eps * (log_sums.exp() - mass).abs()


def as_penalty(penalty: float | Penalty) -> Penalty:
    """inf is the hard constraint, a finite value the KL relaxation."""
    if isinstance(penalty, Penalty):
        return penalty
    lam = positive("penalty", penalty, "inf is the hard constraint, the paper relaxes with 0.2", infinite=True)
    return Hard() if math.isinf(lam) else Relaxed(lam)


class Marginal(NamedTuple):
    """What one side of a plan must sum to, and what leaving it costs."""

    mass: Tensor  # [n]
    penalty: Penalty

    def gap(self, log_sums: Tensor, which: slice = slice(None)) -> Tensor:
        """log μ − log(K v)."""
        return self.mass[which].log() - log_sums


# --- B: the sets ----------------------------------------------------------------------------------------------


class Constraint(Terse, ABC):
    """One convex set (or penalty), given by its multiplier in mirror coordinates.

    `transport.dykstra` does `z = y + U; U = multiplier(z); y = z − U`: return what must be taken off `z`
    for it to lie in the set. That one method is a constraint of your own.
    """

    reads: ClassVar[frozenset[str]] = frozenset()  # what it wants to know of the sides beyond the target

    @abstractmethod
    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:  # [n, m] -> broadcasts to [n, m]
        """z − (its projection), where z = ∇Γ(P)."""

    def check(self, problem: Problem, shape: tuple[int, int]) -> None:
        """Raise where this set cannot hold on such a plan."""


@dataclass(frozen=True, repr=False, eq=False)
class _Sums(Constraint, ABC):
    penalty: float | Penalty = math.inf
    mass: Tensor | float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "h", as_penalty(self.penalty))
        if self.mass is not None:
            mass = torch.as_tensor(self.mass)
            if mass.dim() > 1 or not bool((mass > 0).all()) or not bool(torch.isfinite(mass).all()):
                raise ValueError(
                    f"mass={self.mass} must be one positive number, or one for each; None follows the target"
                )

    _dim: ClassVar[int]  # the axis that is summed over
    h: Penalty = field(init=False)

    def target_mass(self, target: Support | None, shape: tuple[int, int], like: Tensor) -> Tensor:
        """μ (or ν): as given, else the target's, else uniform with total n."""
        kept = 1 - self._dim
        if self.mass is not None:
            mass = torch.as_tensor(self.mass, dtype=like.dtype, device=like.device)
            if mass.dim() == 1 and len(mass) != shape[kept]:
                raise ValueError(
                    f"{self!r} has {len(mass)} masses for a plan {shape[0]}×{shape[1]}; give {shape[kept]}"
                )
            return mass.expand(shape[kept])
        if target is None:
            return like.new_full((shape[kept],), shape[0] / shape[kept])
        mass = target.nu if kept else target.mu
        if kept and not target.complete and seen((mass == 0).any()):
            lonely = (mass == 0).nonzero().flatten().tolist()
            raise ValueError(
                f"columns {_some(lonely)} have no positive, so {self!r}, which follows the target, would empty them "
                "and they could not act as negatives; give masses with Columns(mass=...), "
                "or constrain rows only as 'ince' and 'rince' do"
            )
        return mass.to(like)

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        mass = self.target_mass(problem.target, (z.shape[0], z.shape[1]), z).unsqueeze(self._dim)
        if isinstance(problem.geometry, Entropic):
            return -self.h.step(mass.log() - z.logsumexp(self._dim, keepdim=True), problem.eps)
        _only_hard(self, self.h)
        return (z.sum(self._dim, keepdim=True) - mass) / z.shape[self._dim]


@dataclass(frozen=True, repr=False, eq=False)
class Rows(_Sums):
    """C₁^μ: P1 = μ (eq:Birkhoff); a finite `penalty` λ is the KL relaxation, `mass=None` follows the target."""

    _dim: ClassVar[int] = 1


@dataclass(frozen=True, repr=False, eq=False)
class Columns(_Sums):
    """C₂^ν: Pᵀ1 = ν (eq:Birkhoff); a finite `penalty` λ is the KL relaxation, `mass=None` follows the target."""

    _dim: ClassVar[int] = 0


@dataclass(frozen=True, repr=False, eq=False)
class Capacity(Constraint):
    """P ≤ c, entry by entry; c is a number or a matrix [n, m]."""

    bound: float | Tensor

    def __post_init__(self) -> None:
        bound = torch.as_tensor(self.bound)
        if not bool((bound > 0).all()):
            raise ValueError(
                f"bound={self.bound} must be > 0; a pair that may carry no mass is one the kernel gives −∞"
            )

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        return (z - problem.geometry.coordinate(torch.as_tensor(self.bound, dtype=z.dtype, device=z.device))).clamp(
            min=0
        )

    def check(self, problem: Problem, shape: tuple[int, int]) -> None:
        bound = torch.as_tensor(self.bound)
        if bound.dim() and tuple(bound.shape) != shape:
            raise ValueError(f"bound of shape {tuple(bound.shape)} must be a number or {shape}, as the plan")


@dataclass(frozen=True, repr=False, eq=False)
class NonNegative(Constraint):
    """P ≥ 0. An entropic plan is positive by itself; a Euclidean one needs this."""

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        zero = problem.geometry.coordinate(torch.zeros_like(problem.eps))
        return torch.where(z < zero, z - zero, 0)


@dataclass(frozen=True, repr=False, eq=False)
class BlockSums(Constraint):
    """Σ P over each (group of rows) × (group of columns) = mass [G, H], hard or KL-relaxed.

    Groups are given, or the sides' domains; numbered in sorted order. `mass=None` follows the target.
    """

    rows: Tensor | None = None  # [n]
    columns: Tensor | None = None  # [m]
    mass: Tensor | None = None  # [G, H]
    penalty: float | Penalty = math.inf
    reads: ClassVar[frozenset[str]] = frozenset({"domains"})

    def __post_init__(self) -> None:
        as_penalty(self.penalty)
        if self.mass is not None and (self.mass.dim() != 2 or not bool((self.mass > 0).all())):
            raise ValueError(f"mass={self.mass.tolist()} must be a matrix of positive sums, row groups × column groups")

    def _groups(self, problem: Problem, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        sides = problem.sides
        domains = (None, None) if sides is None else (sides.rows.domains, sides.columns.domains)
        codes = []
        for given, domain, length, name in zip(
            (self.rows, self.columns), domains, shape, ("rows", "columns"), strict=True
        ):
            groups = domain if given is None else given
            if groups is None or len(groups) != length:
                got = "none" if groups is None else f"{len(groups)}"
                raise ValueError(
                    f"BlockSums needs a group for each of {length} {name}, got {got}; give {name}= or domains="
                )
            codes.append(torch.unique(groups, return_inverse=True)[1].to(problem.eps.device))
        return codes[0], codes[1]

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        g, h = self._groups(problem, (z.shape[0], z.shape[1]))
        if self.mass is not None:
            mass = self.mass.to(z)
        else:
            if problem.target is None:
                raise ValueError("BlockSums() follows the target, and there is none; give mass=")
            mass = _by_group(problem.target.dense(), g, h, torch.Tensor.sum)
            if bool((mass == 0).any()):
                empty = (mass == 0).nonzero()[0].tolist()
                raise ValueError(
                    f"BlockSums() follows the target, which has no mass in the block of groups {empty} and would empty "
                    "the plan there; give mass="
                )
        if isinstance(problem.geometry, Entropic):
            gap = mass.log() - _by_group(z, g, h, torch.Tensor.logsumexp)
            shift = -as_penalty(self.penalty).step(gap, problem.eps)
        else:
            _only_hard(self, as_penalty(self.penalty))
            members = _by_group(torch.ones_like(z), g, h, torch.Tensor.sum)
            shift = (_by_group(z, g, h, torch.Tensor.sum) - mass) / members
        return shift[g][:, h]

    def check(self, problem: Problem, shape: tuple[int, int]) -> None:
        g, h = self._groups(problem, shape)
        groups = (int(g.max()) + 1, int(h.max()) + 1)
        if self.mass is not None and tuple(self.mass.shape) != groups:
            raise ValueError(f"mass of shape {tuple(self.mass.shape)} must be {groups}: row groups × column groups")


def _by_group(x: Tensor, g: Tensor, h: Tensor, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
    """x [n, m] reduced over each group of columns, then each group of rows: [G, H]."""
    narrow = torch.stack([reduce(x[:, h == k], 1) for k in range(int(h.max()) + 1)], 1)
    return torch.stack([reduce(narrow[g == k], 0) for k in range(int(g.max()) + 1)])


def _only_hard(constraint: Constraint, penalty: Penalty) -> None:
    if not isinstance(penalty, Hard):
        raise ValueError(f"{constraint!r} relaxes by KL, which needs the Entropic geometry; use penalty=inf")


def _some(rows: list[int]) -> str:
    return f"{rows[:5]}" + ("" if len(rows) <= 5 else f" and {len(rows) - 5} more")
