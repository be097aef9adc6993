"""The problem of one batch, how it is solved, and what torch is told about both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcalign.batch import Sides
from gcalign.constraints import Columns, Constraint, Hard, Marginal, Penalty, Rows
from gcalign.errors import count, one_of, positive
from gcalign.geometry import Entropic, Geometry
from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Source
from gcalign.transport.support import Pairs, Support, seen

MODES = ("auto", "envelope", "implicit", "truncated", "unrolled")
LONG = 20  # from so many iterations on, a plan is solved to convergence, accelerated


@dataclass(frozen=True)
class Options:
    """How a plan is solved and differentiated."""

    iterations: int = 10
    tol: float = 1e-6
    gradient: str = "auto"
    block: int | str | None = None
    cache: str | None = None
    long: bool = field(init=False, repr=False)  # whether iterations mean "to convergence"

    def __post_init__(self) -> None:
        count("iterations", self.iterations, "each is one row and one column projection; the paper uses 5 to 10")
        positive("tol", self.tol, "0 never stops early, 1e-6 stops when the marginals are met", zero=True)
        one_of("gradient", self.gradient, MODES)
        if isinstance(self.block, str):
            one_of("block", self.block, ("auto",))
        elif self.block is not None:
            count("block", self.block, "rows of the kernel held at once; None stores it whole, 'auto' if there is room")
        if self.cache is not None:
            one_of("cache", self.cache, ("half",))
        object.__setattr__(self, "long", self.iterations >= LONG and self.tol > 0)


@dataclass(frozen=True, eq=False)
class Problem:
    """argmin over P in B of h(P) + d_Γ(P ‖ K), and the target it is compared with (eq:mainobj), for one batch.

    A constraint of your own may read `geometry`, `eps`, `target` and `sides`.
    """

    kernel: Source
    constraints: tuple[Constraint, ...]
    geometry: Geometry
    eps: Tensor  # []  the geometry's, as a tensor
    target: Support | None = None
    rows: Marginal | None = None
    columns: Marginal | None = None
    feasible: bool = True  # whether the target has the marginals asked for
    only_marginals: bool = True  # whether scaling vectors suffice: rows and columns, once each, entropic
    sides: Sides | None = None
    eps_value: float = math.nan  # ε as a number, where it is one
    shard: Shard | None = None  # which rows are this rank's to compute
    start: Tensor | None = None  # [m]  log v to begin with

    @staticmethod
    def of(
        kernel: Source,
        constraints: tuple[Constraint, ...],
        geometry: Geometry,
        eps: Tensor,
        target: Support | None = None,
        **more: Any,
    ) -> Problem:
        """With its marginals; raises where a constraint cannot hold."""
        rows, columns, feasible, follows, kinds = None, None, True, True, []
        for constraint in constraints:
            kinds.append(type(constraint))
            if not isinstance(constraint, (Rows, Columns)):
                constraint.check(Problem(kernel, constraints, geometry, eps, target, **more), kernel.shape)
                continue
            side = Marginal(constraint.target_mass(target, kernel.shape, eps), constraint.h)
            rows, columns = (side, columns) if isinstance(constraint, Rows) else (rows, side)
            if constraint.mass is not None and target is not None:
                own = target.mu if isinstance(constraint, Rows) else target.nu
                feasible = feasible and not seen(((side.mass - own).abs() > 1e-6 * own).any())
            follows = follows and constraint.mass is None
        if not follows and rows is not None and columns is not None and not torch.compiler.is_compiling():
            _same_total(rows, columns)
        plain = isinstance(geometry, Entropic) and set(kinds) <= {Rows, Columns} and len(set(kinds)) == len(kinds)
        return Problem(kernel, constraints, geometry, eps, target, rows, columns, feasible, plain, **more)

    def masses(self) -> tuple[Tensor, Tensor]:
        """μ and ν, asked for or, where a side is free, what the target has there."""
        n, m = self.kernel.shape
        target, uniform = self.target, self.eps.new_full
        mu = uniform((n,), 1.0) if target is None else target.mu
        nu = uniform((m,), n / m) if target is None else target.nu
        return mu if self.rows is None else self.rows.mass, nu if self.columns is None else self.columns.mass


def _same_total(rows: Marginal, columns: Marginal) -> None:
    mu, nu = float(rows.mass.sum()), float(columns.mass.sum())
    if isinstance(rows.penalty, Hard) and isinstance(columns.penalty, Hard) and abs(mu - nu) > 1e-5 * mu:
        raise ValueError(
            f"rows must sum to {mu:g} in all and columns to {nu:g}, and no plan does both; "
            "give masses with one total, or relax one side with a penalty"
        )


def as_constraints(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """A tuple of constraints, if that is what it is."""
    remedy = "try constraints=(gcalign.Rows(), gcalign.Columns())"
    if not isinstance(constraints, (tuple, list)):
        raise TypeError(f"constraints={constraints!r} must be a tuple; {remedy}")
    for constraint in constraints:
        if not isinstance(constraint, Constraint):
            raise TypeError(f"{constraint!r} is not a Constraint; {remedy}")
    return tuple(constraints)


# --- which gradient -------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """A gradient mode and the reason for it."""

    mode: str
    reason: str


def choose(options: Options, *, constrained: int, converged: bool, dual: bool, feasible: bool) -> Choice:
    """The cheapest exact mode for row and column marginals, or the one asked for if it would be exact.

    `constrained` is how many sides are; `dual` whether the divergence is a Fenchel–Young loss, whose gradient is P − T.
    """
    requested, enveloped = options.gradient, dual and feasible
    if requested == "unrolled":
        return Choice("unrolled", "asked for: autograd through every iteration")
    if not constrained:
        return Choice("envelope", "nothing is solved: P = K, so log K is all there is to differentiate")
    if requested == "envelope" and not enveloped:
        why = "the divergence has no dual form here" if not dual else "the target's marginals are not the plan's"
        raise ValueError(f"gradient='envelope' would be wrong: {why}; use 'implicit' or 'auto'")
    if requested == "auto":
        if not converged:
            return Choice("truncated", "the plan has not converged, so its iterations are reversed one by one")
        if enveloped:
            return Choice("envelope", "the plan has converged and the target has its marginals, so ∂L/∂log K = P − T")
        why = "the divergence is not KL" if not dual else "the target does not have the plan's marginals"
        if constrained == 2 and not options.long:
            return Choice("truncated", f"{why}, and the few iterations are reversed one by one")
        return Choice(
            "implicit",
            f"the plan has converged and {why}, so its fixed point is differentiated (where that is nearly singular, "
            "its iterations)",
        )
    return Choice(
        requested, "asked for" if converged or requested == "truncated" else "asked for, on a plan not converged"
    )


# --- what torch is told ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """What is the same for every batch of a criterion. A torch operator takes tensors, numbers and strings, so a form
    has a name by which the operator finds it."""

    rows: Penalty | None
    columns: Penalty | None
    options: Options
    statistics: tuple[Any, ...] = ()  # row statistics of the divergence
    powers: tuple[float, ...] = ()  # q of Σ_j T_ij P_ij^q
    reads_entries: bool = False
    needs_columns: bool = False
    dual: bool = False
    plan_only: bool = False  # nothing is read but the plan
    group: str = ""  # of processes


_NAMES: dict[Any, str] = {}
FORMS: dict[str, Form] = {}


def name_of(form: Form) -> str:
    """The name of a form; equal forms have one name."""
    try:
        name = _NAMES.setdefault(form, f"form {len(FORMS)}")
    except TypeError:  # a penalty of the user's that cannot be hashed
        name = f"form {len(FORMS)}"
    FORMS.setdefault(name, form)
    return name


class Power:
    """log Σ_j T_ij P_ij^q of each row."""

    def __init__(self, q: float) -> None:
        self.q = q

    def __call__(self, log_p: Tensor, t: Tensor) -> Tensor:  # [b, m], [b, m] -> [b]
        return torch.logsumexp(torch.where(t > 0, self.q * log_p + t.log(), -torch.inf), 1)


def statistics_of(form: Form, target: Support) -> tuple[Any, ...]:
    """The divergence's row statistics and, where T is no list of pairs, log Σ_j T_ij P_ij^q for its powers."""
    if isinstance(target, Pairs) or not form.powers:
        return form.statistics
    return (*form.statistics, *(Power(q) for q in form.powers))
