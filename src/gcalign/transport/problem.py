"""The problem of one batch, how it is solved, and what torch is told about both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcalign.batch import Sides
from gcalign.constraints import Columns, Constraint, Hard, Marginal, Penalty, Rows
from gcalign.errors import count, one_of, positive
from gcalign.geometry import Entropic, Geometry
from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Source
from gcalign.transport.support import Support, seen

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

    @property
    def long(self) -> bool:
        """Whether iterations mean "to convergence"."""
        return self.iterations >= LONG and self.tol > 0


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
    sides: Sides | None = None
    rows: Marginal | None = None
    columns: Marginal | None = None
    feasible: bool = True  # whether the target has the marginals asked for
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
        problem = Problem(kernel, constraints, geometry, eps, target, **more)
        for constraint in constraints:
            constraint.check(problem, kernel.shape)
        sums = [c for c in constraints if isinstance(c, (Rows, Columns))]
        rows, columns = (
            next((c.marginal(target, kernel.shape, eps) for c in sums if isinstance(c, kind)), None)
            for kind in (Rows, Columns)
        )
        follows = all(c.mass is None for c in sums)
        if not follows and rows is not None and columns is not None and not torch.compiler.is_compiling():
            _same_total(rows, columns)
        feasible = follows or target is None or not (
            _differs(rows, target.mu) or _differs(columns, target.nu)
        )
        return Problem(
            kernel, constraints, geometry, eps, target, rows=rows, columns=columns, feasible=feasible, **more
        )

    @property
    def only_marginals(self) -> bool:
        """Whether scaling vectors suffice: rows and columns, each at most once, in the entropic geometry."""
        kinds = [type(c) for c in self.constraints]
        once = len(set(kinds)) == len(kinds)
        return isinstance(self.geometry, Entropic) and set(kinds) <= {Rows, Columns} and once

    def masses(self) -> tuple[Tensor, Tensor]:
        """μ and ν, asked for or, where a side is free, what the target has there."""
        mu, nu = (None if side is None else side.mass for side in (self.rows, self.columns))
        mu = Rows().target_mass(self.target, self.kernel.shape, self.eps) if mu is None else mu
        if nu is None:
            uniform = self.target is None
            nu = Columns().target_mass(None, self.kernel.shape, self.eps) if uniform else self.target.nu  # type: ignore[union-attr]  # as just seen
        return mu, nu


def _differs(side: Marginal | None, own: Tensor) -> bool:
    return side is not None and seen(((side.mass - own).abs() > 1e-6 * own).any())


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
    group: str = ""  # of processes


_NAMES: dict[Any, str] = {}
_FORMS: dict[str, Form] = {}


def name_of(form: Form) -> str:
    """The name of a form; equal forms have one name."""
    try:
        name = _NAMES.setdefault(form, f"form {len(_FORMS)}")
    except TypeError:  # a penalty of the user's that cannot be hashed
        name = f"form {len(_FORMS)}"
    _FORMS.setdefault(name, form)
    return name


def form_named(name: str) -> Form:
    if name not in _FORMS:
        raise RuntimeError(f"{name!r} is not known in this process; an exported program needs the criterion that made it")
    return _FORMS[name]
