"""P_θ = argmin_{P ∈ B} h(P) + d_Γ(P ‖ K_θ), with its gradient: solver and gradient mode meet here."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gcalign.constraints import Columns, Constraint, Hard, Problem, Rows
from gcalign.divergences import Divergence, Summary
from gcalign.errors import count, one_of, positive
from gcalign.geometry import Entropic, Geometry
from gcalign.gradients import MODES, Choice, Job, choose, differentiable_vectors, vectors
from gcalign.operators import Dense, Given, Operator, Source, Streamed
from gcalign.plan import Plan
from gcalign.solvers import Marginal, Scalings, dykstra, scaling
from gcalign.support import Full, Pairs, Support


@dataclass(frozen=True)
class Settings:
    """How a plan is solved and differentiated."""

    iterations: int = 10
    tol: float = 1e-6
    gradient: str = "auto"
    block: int | None = None

    def __post_init__(self) -> None:
        count("iterations", self.iterations, "each is one row and one column projection; the paper uses 5 to 10")
        positive("tol", self.tol, "0 never stops early, 1e-6 stops when the marginals are met", zero=True)
        one_of("gradient", self.gradient, MODES)
        if self.block is not None:
            count("block", self.block, "rows of the kernel held at once; None stores it whole")


@dataclass(frozen=True)
class Setting:
    """The problem of one batch: where log K comes from, what constrains it, what it is compared with."""

    source: Source
    constraints: tuple[Constraint, ...]
    problem: Problem
    support: Support
    allowed: int

    def __post_init__(self) -> None:
        for constraint in self.constraints:
            constraint.check(self.problem, self.source.shape)
        hard = [side for side in (self.rows, self.columns) if side is not None and isinstance(side.penalty, Hard)]
        if len(hard) == 2 and any(isinstance(c, (Rows, Columns)) and c.mass is not None for c in self.constraints):
            mu, nu = (float(side.mass.sum()) for side in hard)
            if abs(mu - nu) > 1e-5 * mu:
                raise ValueError(
                    f"rows must sum to {mu:g} in all and columns to {nu:g}, and no plan does both; "
                    "give masses with one total, or relax one side with a penalty"
                )

    @cached_property
    def rows(self) -> Marginal | None:
        return self._marginal(Rows)

    @cached_property
    def columns(self) -> Marginal | None:
        return self._marginal(Columns)

    def _marginal(self, kind: type[Rows] | type[Columns]) -> Marginal | None:
        for constraint in self.constraints:
            if isinstance(constraint, kind):
                mass = constraint.target_mass(self.problem, self.source.shape, self.support.weight)
                return Marginal(mass, constraint.h)
        return None

    def masses(self) -> tuple[Tensor, Tensor]:
        """μ and ν, asked for or, where a side is free, what the target has there."""
        if self.problem.target is not None:
            mu, nu = self.problem.target.mu, self.problem.target.nu
        else:
            mu, nu = (c.target_mass(self.problem, self.source.shape, self.problem.eps) for c in (Rows(), Columns()))
        return mu if self.rows is None else self.rows.mass, nu if self.columns is None else self.columns.mass

    @property
    def only_marginals(self) -> bool:
        """Whether scaling vectors suffice: rows and columns, each at most once, in the entropic geometry."""
        kinds = [type(c) for c in self.constraints]
        return (
            isinstance(self.problem.geometry, Entropic)
            and set(kinds) <= {Rows, Columns}
            and len(set(kinds)) == len(kinds)
        )


@dataclass(frozen=True)
class Proximal:
    """The solved plan: a divergence's vectors with their gradients, the plan itself, and the gradient mode."""

    summary: Summary
    plan: Plan
    choice: Choice

    def loss(self, divergence: Divergence) -> Tensor:
        enveloped = self.choice.mode == "envelope" and (
            self.summary.rows is not None or self.summary.columns is not None
        )
        return divergence.dual(self.summary) if enveloped else divergence.value(self.summary)


def proximal(setting: Setting, divergence: Divergence, settings: Settings) -> Proximal:
    """Solve by marginal scalings where the constraints allow, by Dykstra's algorithm where not."""
    if not setting.only_marginals:
        choice = choose(
            settings.gradient, marginals=False, constrained=True, converged=False, dual=False, feasible=False
        )
        return _by_dykstra(setting, divergence, settings, choice)
    return _by_scaling(setting, divergence, settings)


def _by_scaling(setting: Setting, divergence: Divergence, settings: Settings) -> Proximal:
    support, problem = setting.support, setting.problem
    rows, columns = setting.rows, setting.columns
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (problem.eps, *setting.source.leaves))
    # under torch.compile nothing can be tested, so the iterations are fixed and autograd follows them
    unrolled = settings.gradient == "unrolled" or torch.compiler.is_compiling()
    with torch.set_grad_enabled(unrolled and torch.is_grad_enabled()):
        operator: Operator = (
            Dense(setting.source) if settings.block is None else Streamed(setting.source, settings.block)
        )

        def unit(a: Tensor, b: Tensor, mass: Tensor) -> Tensor:
            """‖P − T‖₁, of which everything off the support is mass."""
            p = support.where(log_k_support + support.along_rows(a) + support.along_columns(b), -torch.inf).exp()
            return (support.weight - p).abs().sum() + (mass - p.sum()).clamp(min=0)

        two_sided = rows is not None and columns is not None
        log_k_support = operator.gather(support).detach() if two_sided else support.weight
        found = scaling(
            operator,
            rows,
            columns,
            problem.eps,
            iterations=settings.iterations,
            tol=settings.tol,
            unit=unit if len(support.weight) else None,
            record=wanted and settings.gradient in ("auto", "truncated") and not unrolled,
        )
    if wanted and not found.converged and settings.gradient in ("envelope", "implicit") and not unrolled:
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
        dual=divergence.has_dual(rows.penalty if rows else None, columns.penalty if columns else None),
        feasible=_feasible(setting),
    )
    job = Job(operator, found, rows, columns, support, divergence.statistics, divergence.needs_columns, choice.mode)
    by_hand = wanted and not unrolled
    outputs = differentiable_vectors(job, problem.eps) if by_hand else vectors(job)
    log_p, log_rows, log_columns, a, b, terms = outputs
    summary = Summary(
        support, log_p, log_rows, log_columns if len(log_columns) else None, a, b, problem.eps, rows, columns, terms,
        setting.allowed,
    )  # fmt: skip
    return Proximal(summary, _plan(setting, operator, found, a, b), choice)


def _plan(setting: Setting, operator: Operator, found: Scalings, a: Tensor, b: Tensor) -> Plan:
    source, spans = setting.source, operator.spans

    def blocks() -> Iterator[Tensor]:
        for start, stop in spans:
            yield source.rows(start, stop, source.tensors) + a[start:stop, None] + b

    mu, nu = setting.masses()
    return Plan(a, b, mu, nu, setting.problem.eps, found.iterations, found.converged, blocks)


def _by_dykstra(setting: Setting, divergence: Divergence, settings: Settings, choice: Choice) -> Proximal:
    source, support, problem = setting.source, setting.support, setting.problem
    geometry, (n, m) = problem.geometry, source.shape
    y = geometry.from_log(source.rows(0, n, source.tensors))
    found = dykstra(y, setting.constraints, problem, iterations=settings.iterations, tol=settings.tol)
    log_plan = geometry.log_plan(found.y)
    a, b = y.new_zeros(n), y.new_zeros(m)
    if isinstance(geometry, Entropic):
        for constraint, multiplier in zip(setting.constraints, found.multipliers, strict=True):
            if isinstance(constraint, Rows):
                a = a - multiplier.squeeze(1)
            elif isinstance(constraint, Columns):
                b = b - multiplier.squeeze(0)
    rows, columns = setting.rows, setting.columns
    p = log_plan.exp()
    terms = y.new_zeros(n, 0)
    if divergence.statistics:
        terms = torch.stack([f(log_plan, support.dense()) for f in divergence.statistics], 1)
    summary = Summary(
        support, support.where(support.gather(log_plan, 0, n), 0), p.sum(1).log(), p.sum(0).log(), a, b, problem.eps,
        rows, columns, terms, setting.allowed,
    )  # fmt: skip
    mu, nu = setting.masses()
    plan = Plan(a, b, mu, nu, problem.eps, found.iterations, found.converged, lambda: iter((log_plan,)))
    return Proximal(summary, plan, choice)


def _feasible(setting: Setting) -> bool:
    """Whether the target has the marginals asked for: always where they follow it."""
    target = setting.support
    pairs = ((setting.rows, target.mu), (setting.columns, target.nu))
    if all(c.mass is None for c in setting.constraints if isinstance(c, (Rows, Columns))):
        return True
    return all(side is None or torch.allclose(side.mass, own, rtol=1e-6) for side, own in pairs)


def solve(
    log_k: Tensor,  # [n, m]
    constraints: Sequence[Constraint] = (Rows(), Columns()),
    geometry: Geometry | None = None,
    *,
    iterations: int = 1000,
    tol: float = 1e-6,
    gradient: str = "auto",
    target: Tensor | None = None,
) -> Plan:
    """The proximal point of a kernel: argmin over P in B of h(P) + d_Γ(P ‖ e^{log K}) (eq:mainobj), as a `Plan`.

    `plan.log` is differentiable in `log_k`. Marginals follow `target` where it is given; else rows sum to 1 and
    columns share the total evenly. `geometry` is `Entropic(eps)`, whose ε is the unit of the relaxations.
    """
    if not isinstance(log_k, Tensor) or log_k.dim() != 2 or 0 in log_k.shape or not log_k.is_floating_point():
        got = tuple(log_k.shape) if isinstance(log_k, Tensor) else type(log_k).__name__
        raise ValueError(f"log_k={got} must be a real matrix [n, m]; pass −cost/eps")
    if bool(log_k.isnan().any()) or bool((log_k == torch.inf).any()):
        raise ValueError("log_k has NaN or +inf entries; every entry must be a number, or −inf for a forbidden pair")
    if bool((log_k == -torch.inf).all(1).any()) or bool((log_k == -torch.inf).all(0).any()):
        raise ValueError("log_k forbids a whole row or column (−inf throughout); leave it out of the problem")
    geometry = Entropic() if geometry is None else geometry
    n, m = log_k.shape
    eps = torch.as_tensor(geometry.eps, dtype=log_k.dtype, device=log_k.device)
    if target is not None and target.shape != log_k.shape:
        raise ValueError(f"target of shape {tuple(target.shape)} must be {tuple(log_k.shape)}, as log_k")
    problem = Problem(geometry, eps, None if target is None else Full(target.to(log_k)))
    none = torch.zeros(0, dtype=torch.long, device=log_k.device)
    nowhere = Pairs(none, none, log_k.new_zeros(0), (n, m))
    setting = Setting(Given(log_k), tuple(constraints), problem, nowhere, n * m)
    return proximal(setting, _Nothing(), Settings(iterations, tol, gradient)).plan


class _Nothing(Divergence):
    """No loss: only the plan is wanted."""

    def value(self, s: Summary) -> Tensor:
        return torch.zeros_like(s.eps)
