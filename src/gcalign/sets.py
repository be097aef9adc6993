"""B beyond the marginals: bounds on the entries of a plan, and sums over blocks of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from gcalign.constraints import Constraint, Penalty, as_penalty, only_hard
from gcalign.geometry import Entropic

if TYPE_CHECKING:
    from gcalign.transport.problem import Problem


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
        sides, numbered = problem.sides, problem.memo.get(self)
        if numbered is not None:
            return numbered[0], numbered[1]
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
        problem.memo[self] = codes
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
