"""The problem of one batch, and the options of its solution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gcalign.batch import Sides
from gcalign.constraints import Columns, Constraint, Hard, Marginal, Relaxed, Rows, TotalMass, missing_mass, total_mass
from gcalign.errors import count, one_of, positive
from gcalign.geometry import Entropic, Geometry
from gcalign.transport.distributed import Shard
from gcalign.transport.operators.sources import Source
from gcalign.transport.support import Pairs, Support, true_if_eager, values_readable

MODES = ("auto", "envelope", "implicit", "truncated", "unrolled")
ACCELERATED_FROM = 20  # iterations from which accelerate="auto" accelerates


@dataclass(frozen=True)
class Options:
    """How a plan is solved and differentiated."""

    iterations: int = 10
    tol: float = 1e-6
    gradient: str = "auto"
    accelerate: bool | str = "auto"
    block: int | str | None = None
    cache: str | None = None
    check_finite: bool = True
    accelerated: bool = field(init=False)  # whether iterations are accelerated where only the fixed point counts
    reads_values: bool = field(init=False)  # whether values may be read, which waits for the device

    def __post_init__(self) -> None:
        count("iterations", self.iterations, "each is one row and one column projection; the paper uses 5 to 10")
        positive("tol", self.tol, "0 never stops early, 1e-6 stops when the marginals are met", zero=True)
        one_of("gradient", self.gradient, MODES)
        if not isinstance(self.accelerate, bool):
            one_of("accelerate", self.accelerate, ("auto",))
        if isinstance(self.block, str):
            one_of("block", self.block, ("auto",))
        elif self.block is not None:
            count(
                "block",
                self.block,
                "rows of the kernel in memory at once; None stores it whole, 'auto' if it fits in memory",
            )
        if self.cache is not None:
            one_of("cache", self.cache, ("half",))
        wanted = self.iterations >= ACCELERATED_FROM if self.accelerate == "auto" else bool(self.accelerate)
        object.__setattr__(self, "accelerated", wanted and self.tol > 0)
        object.__setattr__(self, "reads_values", self.tol > 0 or self.check_finite)


@dataclass(frozen=True, eq=False)
class Problem:
    """The problem of one batch: argmin_{P ∈ B} h(P) + d_Γ(P ‖ K), and its target (Eq. 8, eq:mainobj).

    A `Constraint` of your own gets it in `multiplier` and can read `geometry`, `eps`, `target` and `sides`. A
    criterion makes it with `Problem.of`.

    Args:
        kernel: log K.
        constraints: B and h.
        geometry: d_Γ.
        eps: ε of the geometry, as a tensor.
        target: P_tgt; None for a plan without a target.
        sides: the embeddings of rows and columns, with their ids, labels and domains.

    Example:
        >>> import torch, gcalign
        >>> problem = gcalign.method("gca-ince", eps=0.5).problem(torch.eye(3), torch.eye(3))
        >>> problem.geometry, problem.eps, problem.target.mu
        (Entropic(), tensor(0.5000), tensor([1., 1., 1.]))
    """

    kernel: Source
    constraints: tuple[Constraint, ...]
    geometry: Geometry
    eps: Tensor  # []  ε of the geometry, as a tensor
    target: Support | None = None
    rows: Marginal | None = None
    columns: Marginal | None = None
    total: Tensor | None = None  # []  the required mass of the plan
    at_least: bool = False  # whether the plan may have more
    feasible: bool = True  # whether the target has the marginals that must hold exactly, and no empty row
    follows: bool = True  # whether all masses are those of the target
    only_marginals: bool = True  # whether the plan is diag(u) K diag(v)
    unpaired_rows: bool = False  # whether some rows of the target are empty
    sides: Sides | None = None
    eps_value: float = math.nan  # ε as a number; NaN if it is a tensor
    shard: Shard | None = None  # the rows that this rank computes
    start: Tensor | None = None  # [m]  initial log v
    memo: dict[Any, Any] = field(default_factory=dict)  # what a constraint computes once
    support: Support = field(init=False)  # the target, or an empty list of pairs
    constrained: int = field(init=False)  # how many sides have a marginal

    def __post_init__(self) -> None:
        support = self.target
        if support is None:
            none = torch.zeros(0, dtype=torch.long, device=self.eps.device)
            support = Pairs(none, none, self.eps.new_zeros(0), self.kernel.shape)
        object.__setattr__(self, "support", support)
        object.__setattr__(self, "constrained", (self.rows is not None) + (self.columns is not None))

    @staticmethod
    def of(
        kernel: Source,
        constraints: tuple[Constraint, ...],
        geometry: Geometry,
        eps: Tensor,
        target: Support | None = None,
        *,
        unpaired_rows: bool = False,
        **more: Any,
    ) -> Problem:
        """The problem with its marginals; raises if a constraint cannot hold."""
        rows, columns, total, at_least, feasible, follows = None, None, None, False, not unpaired_rows, True
        own_total, kinds = False, [*map(type, constraints)]
        for constraint in constraints:
            if isinstance(constraint, TotalMass):
                total, at_least = total_mass(constraint.mass, target, kernel.shape[0], eps), constraint.at_least
                own_total = constraint.mass is not None
                continue
            if not isinstance(constraint, (Rows, Columns)):
                constraint.check(Problem(kernel, constraints, geometry, eps, target, **more), kernel.shape)
                continue
            side = Marginal(constraint.target_mass(target, kernel.shape, eps), constraint.h)
            rows, columns = (side, columns) if isinstance(constraint, Rows) else (rows, side)
            if constraint.empty:
                raise ValueError(f"{constraint!r} has masses of 0, which only gcalign.solve takes; drop their samples")
            if constraint.mass is not None:
                follows = False
                if target is not None and not isinstance(side.penalty, Relaxed):
                    own = target.mu if isinstance(constraint, Rows) else target.nu
                    feasible = feasible and not true_if_eager(((side.mass - own).abs() > 1e-6 * own).any())
        if not follows or own_total:  # else all are those of the target
            _check_totals(rows, columns, total, at_least)
        only_marginals = isinstance(geometry, Entropic) and set(kinds) <= {Rows, Columns, TotalMass}
        only_marginals = only_marginals and len(set(kinds)) == len(kinds)
        if total is not None:  # a common factor of K is then a common factor of the plan, for these penalties alone
            only_marginals = only_marginals and all(
                side is None or side.penalty.tau(1.0) is not None for side in (rows, columns)
            )
        sums = rows, columns, total, at_least, feasible, follows, only_marginals
        return Problem(kernel, constraints, geometry, eps, target, *sums, unpaired_rows, **more)

    def missing(self, log_rows: Tensor) -> Tensor:  # [n] -> []
        """The logarithm of the factor that gives a plan with these row sums the total mass."""
        assert self.total is not None
        return missing_mass(self.total, log_rows, self.at_least)

    def masses(self) -> tuple[Tensor, Tensor]:
        """μ and ν: of the constraints or, for a side without one, of the target; uniform without a target."""
        (n, m), target = self.kernel.shape, self.target
        mu, nu = self.rows and self.rows.mass, self.columns and self.columns.mass
        if target is None:
            return self.eps.new_ones(n) if mu is None else mu, self.eps.new_full((m,), n / m) if nu is None else nu
        return target.mu if mu is None else mu, target.nu if nu is None else nu


def _check_totals(rows: Marginal | None, columns: Marginal | None, total: Tensor | None, at_least: bool) -> None:
    """Raise if the masses that must hold exactly have different totals."""
    if not values_readable():
        return
    masses = {"rows": rows, "columns": columns}
    totals = {name: float(m.mass.sum()) for name, m in masses.items() if m and isinstance(m.penalty, Hard)}
    if total is not None and not (at_least and float(total) <= min(totals.values(), default=math.inf)):
        totals["all entries"] = float(total)
    low, high = min(totals.values(), default=0.0), max(totals.values(), default=0.0)
    if high - low > 1e-5 * high:
        sums = " and ".join(f"{name} must sum to {value:g}" for name, value in totals.items())
        raise ValueError(
            f"{sums} in total, which no plan can satisfy; give masses with one total, or relax one side with a penalty"
        )


def as_constraints(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """The constraints as a tuple; raises if it holds anything else."""
    remedy = "try constraints=(gcalign.Rows(), gcalign.Columns())"
    if not isinstance(constraints, (tuple, list)):
        raise TypeError(f"constraints={constraints!r} must be a tuple; {remedy}")
    for constraint in constraints:
        if not isinstance(constraint, Constraint):
            raise TypeError(f"{constraint!r} is not a Constraint; {remedy}")
    return tuple(constraints)
