"""B and h: row and column sums of a plan, as constraints or penalties; bounds on its entries, sums over blocks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from gcalign.errors import CallRepr, positive
from gcalign.geometry import Entropic
from gcalign.transport.support import Support, true_if_eager

if TYPE_CHECKING:
    from gcalign.transport.problem import Problem

# --- h: the cost of violating a marginal ----------------------------------------------------------------------


class Penalty(CallRepr, ABC):
    """Base class of penalties λ·h(P1, μ) on one marginal (Eq. 15). It works on vectors: gap = log μ − log(K v).

    Your own penalty overrides `step`. If it also overrides `price` and `distance`, it sets `has_dual = True`.

    Example:
        >>> import torch, gcalign
        >>> class Half(gcalign.Penalty):
        ...     def step(self, gap, eps):
        ...         return gap / 2
        >>> plan = gcalign.solve(torch.zeros(4, 4), (gcalign.Rows(Half()),))  # rows of K sum to 4; the constraint is 1
        >>> round(float(plan.row_sums[0]), 3)
        2.0
    """

    has_dual: ClassVar[bool] = False  # whether `price` and `distance` are defined, so the envelope gradient is exact

    @abstractmethod
    def step(self, gap: Tensor, eps: Tensor) -> Tensor:
        """log u, the scaling that solves the problem of this side alone, entry by entry."""

    def tau(self, eps: float) -> float | None:
        """The exponent of u = (μ/(K v))^τ if the step has that form, else None."""
        return None

    def price(self, mass: Tensor, log_sums: Tensor, eps: Tensor) -> Tensor:
        """(λ/ε) h(P1, μ), entry by entry."""
        return torch.zeros_like(mass)

    def distance(self, mass: Tensor, log_sums: Tensor, eps: Tensor) -> Tensor:
        """The term of the Fenchel–Young loss, entry by entry; for the KL relaxation it is (λ/ε) KL(T1‖P1)."""
        return torch.zeros_like(mass)


@dataclass(frozen=True, repr=False)
class Hard(Penalty):
    """The marginal must hold exactly: u = μ/(K v) (Eq. 17, eq:indf). `Rows()` is `Rows(Hard())`.

    Example:
        >>> import torch, gcalign
        >>> round(float(gcalign.solve(torch.zeros(4, 4), (gcalign.Rows(gcalign.Hard()),)).row_sums[0]), 3)
        1.0
    """

    has_dual: ClassVar[bool] = True

    def step(self, gap: Tensor, eps: Tensor) -> Tensor:
        return gap

    def tau(self, eps: float) -> float | None:
        return 1.0


@dataclass(frozen=True, repr=False)
class Relaxed(Penalty):
    """The marginal may be violated at cost λ KL(P1‖μ): u = (μ/(K v))^τ with τ = λ/(λ + ε) (Eq. 9, eq:uot).

    `Rows(0.2)` is `Rows(Relaxed(0.2))`.

    Example:
        >>> import torch, gcalign
        >>> plan = gcalign.solve(torch.zeros(4, 4), (gcalign.Rows(gcalign.Relaxed(1.0)),))  # between 1 and K's 4
        >>> round(float(plan.row_sums[0]), 3)
        2.0
    """

    lam: float
    has_dual: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("lam", self.lam, "a small λ allows the marginal to change, a large λ keeps it")

    def step(self, gap: Tensor, eps: Tensor) -> Tensor:
        return gap * (self.lam / (self.lam + eps))

    def tau(self, eps: float) -> float | None:
        return self.lam / (self.lam + eps)

    def price(self, mass: Tensor, log_sums: Tensor, eps: Tensor) -> Tensor:
        sums = log_sums.exp()
        return self.lam / eps * (sums * (log_sums - mass.log()) - sums + mass)

    def distance(self, mass: Tensor, log_sums: Tensor, eps: Tensor) -> Tensor:
        fixed = torch.xlogy(mass, mass) - mass
        return self.lam / eps * (torch.addcmul(fixed, mass, log_sums, value=-1) + log_sums.exp())


@dataclass(frozen=True, repr=False)
class TotalVariation(Penalty):
    """The marginal may be violated at cost λ ‖P1 − μ‖₁: u = μ/(K v), limited to the interval e^{±λ/ε} (Eq. 15).

    Example:
        >>> import torch, gcalign
        >>> plan = gcalign.solve(torch.zeros(4, 4), (gcalign.Rows(gcalign.TotalVariation(0.5)),))
        >>> bool(1 < plan.row_sums[0] < 4)
        True
    """

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
    """Return a `Penalty` unchanged; inf is the hard constraint, a finite number the KL relaxation."""
    if isinstance(penalty, Penalty):
        return penalty
    lam = positive("penalty", penalty, "inf is the hard constraint, the paper relaxes with 0.2", infinite=True)
    return Hard() if math.isinf(lam) else Relaxed(lam)


class Marginal(NamedTuple):
    """The sums required on one side of a plan, and the penalty for violating them."""

    mass: Tensor  # [n]
    penalty: Penalty

    def gap(self, log_sums: Tensor, which: slice | None = None) -> Tensor:
        """log μ − log(K v), of all entries or of some."""
        mass = self.mass if which is None else self.mass[which]
        return mass.log() - log_sums

    def scaling(self, log_sums: Tensor, eps: Tensor, which: slice | None = None) -> Tensor:
        """log u, given log(K v), of all entries or of some."""
        return self.penalty.step(self.gap(log_sums, which), eps)


# --- B: the sets ----------------------------------------------------------------------------------------------


class Constraint(CallRepr, ABC):
    """Base class of constraints: one convex set (or penalty) of B and h in Eq. 8 (eq:mainobj).

    Your own constraint overrides `multiplier`. The solver repeats `z = y + U; U = multiplier(z); y = z − U` for each
    constraint (Dykstra's algorithm, Eq. 48–50), with y = ∇Γ(P), which is log P for the entropic geometry.

    Example:
        >>> import math, torch, gcalign
        >>> class TotalMass(gcalign.Constraint):
        ...     def multiplier(self, z, problem):
        ...         return z.logsumexp((0, 1)) - math.log(2.0)
        >>> round(float(gcalign.solve(torch.zeros(3, 3), (TotalMass(),)).mass), 3)
        2.0
    """

    reads: ClassVar[frozenset[str]] = frozenset()  # fields of `Side` that it reads

    @abstractmethod
    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:  # [n, m] -> broadcasts to [n, m]
        """z minus its projection on the set, where z = ∇Γ(P)."""

    def check(self, problem: Problem, shape: tuple[int, int]) -> None:
        """Raise if a plan of this shape cannot satisfy the constraint."""


@dataclass(frozen=True, repr=False, eq=False)
class _Marginals(Constraint, ABC):
    penalty: float | Penalty = math.inf
    mass: Tensor | float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "h", as_penalty(self.penalty))
        if self.mass is not None:
            mass = torch.as_tensor(self.mass)
            least, most = (float(mass.min()), float(mass.max())) if mass.numel() else (0.0, 0.0)
            if mass.dim() > 1 or not 0 <= least <= most < math.inf or most == 0:
                raise ValueError(
                    f"mass={self.mass} must be one positive number, or one for each, some of which may be 0; "
                    "None follows the target"
                )
            object.__setattr__(self, "empty", least == 0)

    _dim: ClassVar[int]  # the axis that is summed over
    h: Penalty = field(init=False)
    empty: bool = field(init=False, default=False)  # whether some masses are 0, which only `solve` allows

    def target_mass(self, target: Support | None, shape: tuple[int, int], like: Tensor) -> Tensor:
        """μ (or ν): `mass` if it is set, else the marginal of the target, else uniform with total n."""
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
        if kept and not target.complete and true_if_eager((mass == 0).any()):
            empty = (mass == 0).nonzero().flatten().tolist()
            some = f"{empty[:5]}" + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
            raise ValueError(
                f"columns {some} have no positive, so {self!r}, which follows the target, would empty them "
                "and they could not act as negatives; give masses with Columns(mass=...), "
                "or constrain rows only as 'ince' and 'rince' do"
            )
        return mass.to(like)

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        mass = self.target_mass(problem.target, (z.shape[0], z.shape[1]), z).unsqueeze(self._dim)
        if isinstance(problem.geometry, Entropic):
            return -self.h.step(mass.log() - z.logsumexp(self._dim, keepdim=True), problem.eps)
        only_hard(self, self.h)
        return (z.sum(self._dim, keepdim=True) - mass) / z.shape[self._dim]


@dataclass(frozen=True, repr=False, eq=False)
class Rows(_Marginals):
    """Row sums of the plan, the set C₁^μ: P1 = μ (Eq. 4, eq:Birkhoff).

    Args:
        penalty: inf for the hard constraint, λ for the KL relaxation with weight λ, or a `Penalty`.
        mass: μ, one positive number or one for each row [n]; for `solve` some may be 0. None: that of the target.

    Example:
        >>> import torch, gcalign
        >>> plan = gcalign.solve(torch.eye(3), (gcalign.Rows(mass=2.0),))
        >>> round(float(plan.row_sums[0]), 3)
        2.0
    """

    _dim: ClassVar[int] = 1


@dataclass(frozen=True, repr=False, eq=False)
class Columns(_Marginals):
    """Column sums of the plan, the set C₂^ν: Pᵀ1 = ν (Eq. 4, eq:Birkhoff).

    Args:
        penalty, mass: as for `Rows`.

    Example:
        >>> import gcalign
        >>> gcalign.Alignment(gcalign.Cosine(), (gcalign.Rows(), gcalign.Columns(0.5)), gcalign.KL()).constraints
        (Rows(), Columns(penalty=0.5))
    """

    _dim: ClassVar[int] = 0


@dataclass(frozen=True, repr=False, eq=False)
class TotalMass(Constraint):
    """The sum of all entries of the plan: ΣP = M, or ΣP ≥ M (a set of B in Eq. 8, eq:mainobj).

    With ΣP = M, and with marginals that are relaxed by KL, a constant that is added to log K changes neither plan nor
    loss. With ΣP ≥ M the loss never falls if all scores rise together: it can push all embeddings apart, but not pull
    them together.

    Args:
        mass: M > 0. None: the sum of the target.
        at_least: whether the sum may be larger than M.

    Example:
        >>> import torch, gcalign
        >>> sets = (gcalign.Rows(0.2), gcalign.Columns(0.2), gcalign.TotalMass())
        >>> plans = [gcalign.solve(shift + torch.eye(3), sets) for shift in (0.0, 5.0)]
        >>> torch.allclose(plans[0].matrix, plans[1].matrix), round(float(plans[0].mass), 3)
        (True, 3.0)
    """

    mass: float | None = None
    at_least: bool = False

    def __post_init__(self) -> None:
        if self.mass is not None:
            positive("mass", self.mass, "None follows the target")

    def target_mass(self, target: Support | None, shape: tuple[int, int], like: Tensor) -> Tensor:  # []
        """M of a plan of this shape."""
        return total_mass(self.mass, target, shape[0], like)

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        mass = total_mass(self.mass, problem.target, z.shape[0], z)
        if isinstance(problem.geometry, Entropic):
            surplus = z.logsumexp((0, 1)) - mass.log()
        else:
            surplus = (z.sum() - mass) / z.numel()
        return surplus.clamp(max=0) if self.at_least else surplus


@dataclass(frozen=True, repr=False, eq=False)
class Capacity(Constraint):
    """Upper bound on the entries of the plan: P ≤ c (a set of B in Eq. 8, eq:mainobj).

    Args:
        bound: c > 0, a number or a matrix [n, m].

    Example:
        >>> import torch, gcalign
        >>> sets = (gcalign.Rows(), gcalign.Columns(), gcalign.Capacity(0.5))
        >>> plan = gcalign.solve(5 * torch.eye(3), sets)
        >>> bool((plan.matrix <= 0.501).all())
        True
    """

    bound: float | Tensor

    def __post_init__(self) -> None:
        bound = torch.as_tensor(self.bound)
        if not bool((bound > 0).all()):
            raise ValueError(f"bound={self.bound} must be > 0; to forbid a pair, set its log K to −∞")

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        bound = torch.as_tensor(self.bound, dtype=z.dtype, device=z.device)
        return (z - problem.geometry.coordinate(bound)).clamp(min=0)

    def check(self, problem: Problem, shape: tuple[int, int]) -> None:
        bound = torch.as_tensor(self.bound)
        if bound.dim() and tuple(bound.shape) != shape:
            raise ValueError(f"bound of shape {tuple(bound.shape)} must be a number or {shape}, as the plan")


@dataclass(frozen=True, repr=False, eq=False)
class NonNegative(Constraint):
    """Lower bound 0 on the entries of the plan: P ≥ 0 (a set of B in Eq. 8, eq:mainobj).

    The Euclidean geometry needs it. An entropic plan is always positive.

    Example:
        >>> import torch, gcalign
        >>> log_k = 3 * torch.eye(3)
        >>> sets = (gcalign.Rows(), gcalign.Columns())
        >>> plan = gcalign.solve(log_k, (*sets, gcalign.NonNegative()), gcalign.Euclidean())
        >>> bool((plan.matrix >= 0).all())
        True
    """

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        zero = problem.geometry.coordinate(torch.zeros_like(problem.eps))
        return torch.where(z < zero, z - zero, 0)


@dataclass(frozen=True, repr=False, eq=False)
class BlockSums(Constraint):
    """Sums of the plan over blocks, (group of rows) × (group of columns) (a set of B in Eq. 8, eq:mainobj).

    Args:
        rows: group of each row [n]. None: the `domains` of the batch. Groups are numbered in sorted order.
        columns: group of each column [m]. None: the `domains` of the batch.
        mass: sum of each block [G, H]. None: the sums of the target, none of which may be 0.
        penalty: inf for the hard constraint, λ for the KL relaxation with weight λ, or a `Penalty`.

    Example:
        >>> import torch, gcalign
        >>> groups = torch.tensor([0, 0, 1])
        >>> sums = torch.tensor([[3.0, 1.0], [1.0, 3.0]])
        >>> plan = gcalign.solve(torch.zeros(3, 3), (gcalign.BlockSums(groups, groups, sums),))
        >>> round(float(plan.matrix[2, 2]), 3)
        3.0
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
        """The number of each row's and each column's group, found once for a problem."""
        if self in problem.memo:
            return problem.memo[self]
        codes = []
        for name, length in zip(("rows", "columns"), shape, strict=True):
            groups = getattr(self, name)
            if groups is None and problem.sides is not None:
                groups = getattr(problem.sides, name).domains
            if groups is None or len(groups) != length:
                got = "none" if groups is None else f"{len(groups)}"
                raise ValueError(
                    f"BlockSums needs a group for each of {length} {name}, got {got}; give {name}= or domains="
                )
            codes.append(torch.unique(groups, return_inverse=True)[1].to(problem.eps.device))
        return problem.memo.setdefault(self, (codes[0], codes[1]))

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
                    f"BlockSums() follows the target, which has no mass in the block of groups {empty}, so the plan "
                    "would have none there; give mass="
                )
        if isinstance(problem.geometry, Entropic):
            gap = mass.log() - _by_group(z, g, h, torch.Tensor.logsumexp)
            shift = -as_penalty(self.penalty).step(gap, problem.eps)
        else:
            only_hard(self, as_penalty(self.penalty))
            members = _by_group(torch.ones_like(z), g, h, torch.Tensor.sum)
            shift = (_by_group(z, g, h, torch.Tensor.sum) - mass) / members
        return shift[g][:, h]

    def check(self, problem: Problem, shape: tuple[int, int]) -> None:
        g, h = self._groups(problem, shape)
        groups = (int(g.max()) + 1, int(h.max()) + 1)
        if self.mass is not None and tuple(self.mass.shape) != groups:
            raise ValueError(f"mass of shape {tuple(self.mass.shape)} must be {groups}: row groups × column groups")


def _by_group(x: Tensor, g: Tensor, h: Tensor, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Reduce x [n, m] over each group of columns, then over each group of rows: [G, H]."""
    narrow = torch.stack([reduce(x[:, h == k], 1) for k in range(int(h.max()) + 1)], 1)
    return torch.stack([reduce(narrow[g == k], 0) for k in range(int(g.max()) + 1)])


def can_lose_mass(constraints: Iterable[Constraint]) -> bool:
    """Whether the plan may have less mass than its target: a marginal is relaxed, and no total mass is required."""
    constraints = tuple(constraints)
    relaxed = any(isinstance(c, (Rows, Columns)) and not isinstance(c.h, Hard) for c in constraints)
    return relaxed and not any(isinstance(c, TotalMass) for c in constraints)


def total_mass(mass: float | None, target: Support | None, rows: int, like: Tensor) -> Tensor:  # []
    """The required sum of all entries: `mass` if it is set, else the sum of the target, else the number of rows."""
    if mass is None and target is not None:
        return target.mu.sum().to(like)
    return like.new_tensor(float(rows) if mass is None else mass)


def missing_mass(mass: Tensor, log_rows: Tensor, at_least: bool) -> Tensor:  # [], [n] -> []
    """The logarithm of the factor that gives a plan with these row sums its total mass.

    If marginals are relaxed by KL, a factor of K is a factor of the plan, so nothing else changes.
    """
    log_factor = mass.log() - log_rows.logsumexp(0)
    return log_factor.clamp(min=0) if at_least else log_factor


def only_hard(constraint: Constraint, penalty: Penalty) -> None:
    if not isinstance(penalty, Hard):
        raise ValueError(f"{constraint!r} relaxes by KL, which needs the Entropic geometry; use penalty=inf")
