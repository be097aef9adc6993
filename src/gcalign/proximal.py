"""P_θ = argmin_{P ∈ B} h(P) + d_Γ(P ‖ K_θ), with its gradient: solver and gradient mode meet here."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gcalign.constraints import Columns, Constraint, Hard, Problem, Rows
from gcalign.divergences import Divergence, Summary
from gcalign.errors import count, one_of, positive
from gcalign.geometry import Entropic, Geometry
from gcalign.gradients import Job, differentiable_vectors, vectors
from gcalign.modes import MODES, Choice, choose
from gcalign.operators import Given, Operator, Reference, Shard, Source, operator
from gcalign.plan import Plan
from gcalign.solvers import Marginal, Near, Scalings, contraction, dykstra, scaling
from gcalign.support import Full, Pairs, Support, seen

_LONG, _LEAP = 20, 300  # from so many iterations on, a plan is meant to converge, and is helped to, for so long


@dataclass(frozen=True)
class Settings:
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


@dataclass(frozen=True)
class Setting:
    """The problem of one batch: where log K comes from, what constrains it, what it is compared with."""

    source: Source
    constraints: tuple[Constraint, ...]
    problem: Problem
    support: Support
    allowed: int
    rows: Marginal | None
    columns: Marginal | None
    follows: bool  # whether every marginal follows the target
    shard: Shard | None = None  # which rows are this rank's to compute
    start: Tensor | None = None  # [m]  log v to begin with

    @staticmethod
    def of(
        source: Source,
        constraints: Sequence[Constraint],
        problem: Problem,
        support: Support,
        allowed: int,
        shard: Shard | None = None,
        start: Tensor | None = None,
    ) -> Setting:
        for constraint in constraints:
            constraint.check(problem, source.shape)
        sides = [c for c in constraints if isinstance(c, (Rows, Columns))]
        rows, columns = (_marginal(kind, sides, problem, source.shape) for kind in (Rows, Columns))
        follows = all(side.mass is None for side in sides)
        if not follows and rows is not None and columns is not None and not torch.compiler.is_compiling():
            _same_total(rows, columns)
        return Setting(source, tuple(constraints), problem, support, allowed, rows, columns, follows, shard, start)

    def masses(self) -> tuple[Tensor, Tensor]:
        """μ and ν, asked for or, where a side is free, what the target has there."""
        target, shape, like = self.problem.target, self.source.shape, self.problem.eps
        if target is None:
            mu, nu = (kind().target_mass(self.problem, shape, like) for kind in (Rows, Columns))
        else:
            mu, nu = target.mu, target.nu
        return mu if self.rows is None else self.rows.mass, nu if self.columns is None else self.columns.mass

    @property
    def feasible(self) -> bool:
        """Whether the target has the marginals asked for: always where they follow it."""
        pairs = ((self.rows, self.support.mu), (self.columns, self.support.nu))
        return self.follows or not any(
            side is not None and seen(((side.mass - own).abs() > 1e-6 * own).any()) for side, own in pairs
        )

    @property
    def only_marginals(self) -> bool:
        """Whether scaling vectors suffice: rows and columns, each at most once, in the entropic geometry."""
        kinds = [type(c) for c in self.constraints]
        once = len(set(kinds)) == len(kinds)
        return isinstance(self.problem.geometry, Entropic) and set(kinds) <= {Rows, Columns} and once


def _marginal(
    kind: type[Rows] | type[Columns], sides: Sequence[Rows | Columns], problem: Problem, shape: tuple[int, int]
) -> Marginal | None:
    found = next((side for side in sides if isinstance(side, kind)), None)
    return None if found is None else Marginal(found.target_mass(problem, shape, problem.eps), found.h)


def _same_total(rows: Marginal, columns: Marginal) -> None:
    mu, nu = float(rows.mass.sum()), float(columns.mass.sum())
    if isinstance(rows.penalty, Hard) and isinstance(columns.penalty, Hard) and abs(mu - nu) > 1e-5 * mu:
        raise ValueError(
            f"rows must sum to {mu:g} in all and columns to {nu:g}, and no plan does both; "
            "give masses with one total, or relax one side with a penalty"
        )


@dataclass(frozen=True)
class Proximal:
    """The solved plan: a divergence's vectors with their gradients, the gradient mode, and the plan when wanted."""

    summary: Summary
    choice: Choice
    plan: Callable[[], Plan]

    def loss(self, divergence: Divergence) -> Tensor:
        solved = self.summary.rows is not None or self.summary.columns is not None
        enveloped = self.choice.mode == "envelope" and solved
        return divergence.dual(self.summary) if enveloped else divergence.value(self.summary)


def proximal(setting: Setting, divergence: Divergence, settings: Settings) -> Proximal:
    """Solve by marginal scalings where the constraints allow, by Dykstra's algorithm where not."""
    if setting.only_marginals:
        return _by_scaling(setting, divergence, settings)
    return _by_dykstra(setting, divergence, settings)


def _by_scaling(setting: Setting, divergence: Divergence, settings: Settings) -> Proximal:
    support, problem, rows, columns = setting.support, setting.problem, setting.rows, setting.columns
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (problem.eps, *setting.source.leaves))
    # under torch.compile nothing can be tested, so the iterations are fixed and autograd follows them
    unrolled = settings.gradient == "unrolled" or torch.compiler.is_compiling()
    dual = divergence.has_dual(rows.penalty if rows else None, columns.penalty if columns else None)
    feasible = setting.feasible
    long = settings.iterations >= _LONG and settings.tol > 0
    with torch.set_grad_enabled(unrolled and torch.is_grad_enabled()):
        kernel: Operator
        if unrolled:  # autograd keeps everything anyway
            kernel = Reference(setting.source)
        else:
            kernel = operator(setting.source, settings.block, settings.cache, setting.shard)
        solve = partial(
            scaling,
            kernel,
            rows,
            columns,
            problem.eps,
            iterations=settings.iterations,
            tol=settings.tol,
            start=setting.start,
            near=Near(support, kernel.gather(support).detach()) if len(support.weight) and rows and columns else None,
        )
        # only where the end does not depend on the way: a plan is one, and so are the scalings of a relaxed one
        by_plan = (dual and feasible) if wanted else (dual or isinstance(divergence, _Nothing))
        tau = contraction(rows, columns, problem.eps) if long and rows and columns else None
        unique = (by_plan and settings.gradient in ("auto", "envelope")) or (
            tau is not None and tau < 0.99 and settings.gradient in ("auto", "implicit")
        )
        found = None
        if long and unique and not unrolled:
            found = solve(accelerate=True, iterations=min(settings.iterations, _LEAP))
        if found is None or not found.converged:  # a plan that is not reached is that of the plain iterations
            found = solve(record=wanted and not unrolled and settings.gradient != "envelope")
    if wanted and not unrolled and not found.converged and settings.gradient in ("envelope", "implicit"):
        warnings.warn(
            f"gradient={settings.gradient!r} is exact for converged plans, and {found.iterations} iterations did not "
            f"reach tol={settings.tol:g}; raise iterations, or use gradient='auto'",
            stacklevel=2,
        )
    choice = choose(
        "unrolled" if unrolled else settings.gradient,
        marginals=True,
        constrained=rows is not None or columns is not None,
        converged=found.converged,
        dual=dual,
        feasible=feasible,
    )
    job = Job(kernel, found, rows, columns, support, divergence.statistics, divergence.needs_columns, choice.mode)
    by_hand = wanted and not unrolled
    outputs = differentiable_vectors(job, problem.eps) if by_hand else vectors(job)
    log_p, log_rows, log_columns, a, b, terms = outputs
    summary = Summary(
        support, log_p, log_rows, log_columns if len(log_columns) else None, a, b, problem.eps, rows, columns, terms,
        setting.allowed,
    )  # fmt: skip
    return Proximal(summary, choice, lambda: _plan(setting, kernel.everything, found, a, b))


def _plan(setting: Setting, spans: list[tuple[int, int]], found: Scalings, a: Tensor, b: Tensor) -> Plan:
    # a plan that may be differentiated follows its leaves; any other is of the moment it was made
    source = setting.source
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (a, *source.leaves))
    kept = source if wanted else source.frozen()

    def blocks() -> Iterator[Tensor]:
        for start, stop in spans:
            with torch.autocast(a.device.type, enabled=False):
                rows = kept.rows(start, stop, kept.tensors)
            yield rows + a[start:stop, None] + b

    return Plan(a, b, *setting.masses(), setting.problem.eps, found.iterations, found.converged, blocks)


def _by_dykstra(setting: Setting, divergence: Divergence, settings: Settings) -> Proximal:
    choice = choose(settings.gradient, marginals=False, constrained=True, converged=False, dual=False, feasible=False)
    source, support, problem = setting.source, setting.support, setting.problem
    geometry, (n, m) = problem.geometry, source.shape
    log_k = source.rows(0, n, source.tensors)
    constraints = setting.constraints
    if not isinstance(geometry, Entropic):  # there a projection gives mass to what had none
        constraints = (*constraints, _Forbidden(log_k.detach() == -torch.inf))
    y = geometry.from_log(log_k)
    found = dykstra(y, constraints, problem, iterations=settings.iterations, tol=settings.tol)
    log_plan = geometry.log_plan(found.y)
    a, b = y.new_zeros(n), y.new_zeros(m)
    if isinstance(geometry, Entropic):
        for constraint, multiplier in zip(constraints, found.multipliers, strict=True):
            if isinstance(constraint, Rows):
                a = a - multiplier.squeeze(1)
            elif isinstance(constraint, Columns):
                b = b - multiplier.squeeze(0)
    p = log_plan.exp()
    terms = y.new_zeros(n, 0)
    if divergence.statistics:
        terms = torch.stack([f(log_plan, support.dense()) for f in divergence.statistics], 1)
    summary = Summary(
        support, support.where(support.gather(log_plan, 0, n), 0), p.sum(1).log(), p.sum(0).log(), a, b, problem.eps,
        setting.rows, setting.columns, terms, setting.allowed,
    )  # fmt: skip
    plan = Plan(a, b, *setting.masses(), problem.eps, found.iterations, found.converged, lambda: iter((log_plan,)))
    return Proximal(summary, choice, lambda: plan)


@dataclass(frozen=True, repr=False, eq=False)
class _Forbidden(Constraint):
    """P = 0 where the kernel is 0, for geometries in which that does not follow."""

    where: Tensor  # [n, m]

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        return torch.where(self.where, z, 0)


def solve(
    log_k: Tensor,  # [n, m]
    constraints: Sequence[Constraint] = (Rows(), Columns()),
    geometry: Geometry | None = None,
    *,
    iterations: int = 1000,
    tol: float = 1e-6,
    gradient: str = "auto",
    target: Tensor | None = None,  # [n, m]
) -> Plan:
    """The proximal point of a kernel: argmin over P in B of h(P) + d_Γ(P ‖ e^{log K}) (eq:mainobj), as a `Plan`.

    `plan.log` is differentiable in `log_k`. Marginals follow `target` where it is given; else rows sum to 1 and
    columns share the total evenly. `geometry` is `Entropic(eps)`, whose ε is the unit of the relaxations.
    """
    if not isinstance(log_k, Tensor) or log_k.dim() != 2 or 0 in log_k.shape or not log_k.is_floating_point():
        got = tuple(log_k.shape) if isinstance(log_k, Tensor) else type(log_k).__name__
        raise ValueError(f"log_k={got} must be a real matrix [n, m]; pass −cost/eps")
    log_k = log_k.to(torch.promote_types(log_k.dtype, torch.float32))
    if not math.isfinite(log_k.detach().sum()):  # one number tells, unless huge ones overflow
        _refuse_impossible(log_k.detach())
    geometry = Entropic() if geometry is None else geometry
    if not isinstance(geometry, Geometry):
        raise TypeError(f"geometry={geometry!r} is not a Geometry; try gcalign.Entropic(0.5)")
    n, m = log_k.shape
    eps = torch.as_tensor(geometry.eps, dtype=log_k.dtype, device=log_k.device)
    positive("eps", eps.item(), "the paper uses 0.5")
    problem = Problem(geometry, eps, None if target is None else Full.checked(target, (n, m), log_k))
    none = torch.zeros(0, dtype=torch.long, device=log_k.device)
    nowhere = Pairs(none, none, log_k.new_zeros(0), (n, m))
    setting = Setting.of(Given(log_k), as_constraints(constraints), problem, nowhere, n * m)
    with torch.autocast(log_k.device.type, enabled=False):
        return proximal(setting, _Nothing(), Settings(iterations, tol, gradient)).plan()


def _refuse_impossible(log_k: Tensor) -> None:
    if bool(log_k.isnan().any()) or bool((log_k == torch.inf).any()):
        raise ValueError("log_k has NaN or +inf entries; every entry must be a number, or −inf for a forbidden pair")
    if bool((log_k == -torch.inf).all(1).any()) or bool((log_k == -torch.inf).all(0).any()):
        raise ValueError("log_k forbids a whole row or column (−inf throughout); leave it out of the problem")


def as_constraints(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """A tuple of constraints, if that is what it is."""
    remedy = "try constraints=(gcalign.Rows(), gcalign.Columns())"
    if not isinstance(constraints, (tuple, list)):
        raise TypeError(f"constraints={constraints!r} must be a tuple; {remedy}")
    for constraint in constraints:
        if not isinstance(constraint, Constraint):
            raise TypeError(f"{constraint!r} is not a Constraint; {remedy}")
    return tuple(constraints)


class _Nothing(Divergence):
    """No loss: only the plan is wanted."""

    def value(self, s: Summary) -> Tensor:
        return torch.zeros_like(s.eps)
