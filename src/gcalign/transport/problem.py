"""The problem of one batch, the options of its solution, and the form that the torch operator uses."""

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
from gcalign.transport.refusals import refuse_bad_weights, refuse_self_pairs, seen
from gcalign.transport.support import Full, Pairs, Support

MODES = ("auto", "envelope", "implicit", "truncated", "unrolled")
LONG = 20  # with at least so many iterations, a plan is solved to convergence, with acceleration


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
            count(
                "block",
                self.block,
                "rows of the kernel held at once; None stores it whole, 'auto' if it fits in memory",
            )
        if self.cache is not None:
            one_of("cache", self.cache, ("half",))
        object.__setattr__(self, "long", self.iterations >= LONG and self.tol > 0)

    def most_change(self, tau: tuple[float | None, float | None]) -> float:
        """By how much log v may still change in any column of a converged plan. A step shrinks distances by τ₁τ₂, so v
        is then within √tol of its fixed point. A sum over columns does not show this: small masses count little."""
        rate = 1.0 if tau[0] is None or tau[1] is None else tau[0] * tau[1]
        return float(self.tol**0.5 * (1 - rate if rate < 1 else 1))


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
        >>> problem = gcalign.method("gca-ince", eps=0.5).problem(torch.eye(3), torch.eye(3), {})
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
    feasible: bool = True  # whether the target has the required marginals
    only_marginals: bool = (
        True  # whether the plan is diag(u) K diag(v): entropic, with at most one Rows and one Columns
    )
    sides: Sides | None = None
    eps_value: float = math.nan  # ε as a number; NaN if it is a tensor
    shard: Shard | None = None  # the rows that this rank computes
    start: Tensor | None = None  # [m]  initial log v
    memo: dict[Any, Any] = field(default_factory=dict)  # what a constraint computes once

    @staticmethod
    def of(
        kernel: Source,
        constraints: tuple[Constraint, ...],
        geometry: Geometry,
        eps: Tensor,
        target: Support | None = None,
        **more: Any,
    ) -> Problem:
        """The problem with its marginals; raises if a constraint cannot hold."""
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
        """μ and ν: of the constraints or, for a side without one, of the target."""
        n, m = self.kernel.shape
        target, uniform = self.target, self.eps.new_full
        mu = uniform((n,), 1.0) if target is None else target.mu
        nu = uniform((m,), n / m) if target is None else target.nu
        return mu if self.rows is None else self.rows.mass, nu if self.columns is None else self.columns.mass


def _same_total(rows: Marginal, columns: Marginal) -> None:
    mu, nu = float(rows.mass.sum()), float(columns.mass.sum())
    if isinstance(rows.penalty, Hard) and isinstance(columns.penalty, Hard) and abs(mu - nu) > 1e-5 * mu:
        raise ValueError(
            f"rows must sum to {mu:g} in total and columns to {nu:g}, which no plan can satisfy; "
            "give masses with one total, or relax one side with a penalty"
        )


def refuse_bad_input(problem: Problem, found: Tensor) -> None:
    """Raise if features or the target are wrong; under torch.compile, values are first seen here. `found` is a number
    that is finite if the plan is; if it is and the masses are positive, this is one look for most targets."""
    assert problem.target is not None
    if isinstance(problem.target, Full):
        refuse_bad_weights(problem.target.weight)
    if problem.kernel.exclude_self and isinstance(problem.target, (Full, Pairs)) and not problem.target.ordinary:
        refuse_self_pairs(problem.target)
    masses = [("row", problem.target.mu)]
    masses += [] if problem.columns is None else [("column", problem.columns.mass)]
    for _, mass in masses:
        found = found + mass.log().sum()
    if math.isfinite(found):
        return
    features = problem.kernel.tensors[:2]
    for side, x in zip(("rows", "columns"), features if len(features) == 2 else (), strict=False):
        bad = (~torch.isfinite(x).all(1)).nonzero()[:, 0].tolist()
        if bad:
            raise ValueError(
                f"embedding {bad[0]} of the plan's {side} has NaN or Inf; embeddings must be finite: lower the "
                "learning rate, clip gradients, or pass check_finite=False to skip this test"
            )
    for side, mass in masses:
        bad = (~(torch.isfinite(mass) & (mass > 0))).nonzero()[:, 0].tolist()
        if bad:
            raise ValueError(
                f"{side} {bad[0]} of the target has no positive: its mass is {mass[bad[0]].item():g} ({len(bad)} such "
                f"{side}s); give it a positive weight, or drop the sample; without torch.compile the message names the "
                "weight or label"
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


# --- which gradient -------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """A gradient mode and the reason for it."""

    mode: str
    reason: str


def choose(options: Options, *, constrained: int, converged: bool, dual: bool, feasible: bool) -> Choice:
    """The cheapest exact mode for row and column marginals, or the requested one if it is exact.

    `constrained` is the number of constrained sides. `dual` is whether the divergence is a Fenchel–Young loss, whose
    gradient is P − T.
    """
    requested, enveloped = options.gradient, dual and feasible
    if requested == "unrolled":
        return Choice("unrolled", "requested: autograd through every iteration")
    if not constrained:
        return Choice("envelope", "there are no constraints: P = K, so only log K is differentiated")
    if requested == "envelope" and not enveloped:
        why = "the divergence has no dual form here" if not dual else "the target's marginals are not the plan's"
        raise ValueError(f"gradient='envelope' would be wrong: {why}; use 'implicit' or 'auto'")
    if requested == "auto":
        if not converged:
            return Choice("truncated", "the plan has not converged, so its iterations are differentiated one by one")
        if enveloped:
            return Choice("envelope", "the plan has converged and the target has its marginals, so ∂L/∂log K = P − T")
        why = "the divergence is not KL" if not dual else "the target does not have the plan's marginals"
        if constrained == 2 and not options.long:
            return Choice("truncated", f"{why}, so the few iterations are differentiated one by one")
        return Choice(
            "implicit",
            f"the plan has converged and {why}, so its fixed point is differentiated",
        )
    return Choice(
        requested, "requested" if converged or requested == "truncated" else "requested, but the plan has not converged"
    )


# --- the form of a criterion ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """The part of a problem that is the same for every batch of a criterion. A torch operator takes only tensors,
    numbers and strings, so it looks up the form by a name."""

    rows: Penalty | None
    columns: Penalty | None
    options: Options
    statistics: tuple[Any, ...] = ()  # row statistics of the divergence
    powers: tuple[float, ...] = ()  # q of Σ_j T_ij P_ij^q
    reads_entries: bool = False
    needs_columns: bool = False
    dual: bool = False
    plan_only: bool = False  # only the plan is needed, no loss
    group: str = ""  # name of the process group
    check_finite: bool = False  # whether the operator itself looks for bad input, in compiled code


_NAMES: dict[Any, str] = {}
FORMS: dict[str, Form] = {}


def name_of(form: Form) -> str:
    """The name of a form; equal forms have the same name."""
    try:
        name = _NAMES.setdefault(form, f"form {len(FORMS)}")
    except TypeError:  # a user's penalty that cannot be hashed
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
    """Row statistics of the divergence and, if T is not a list of pairs, log Σ_j T_ij P_ij^q for its powers."""
    if isinstance(target, Pairs) or not form.powers:
        return form.statistics
    return (*form.statistics, *(Power(q) for q in form.powers))
