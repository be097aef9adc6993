"""Plans that are stored whole and differentiated by autograd: any constraint set, and `gradient="unrolled"`.

Any constraint set, in mirror coordinates, is for Dykstra's algorithm (Eq. 48–50). It stores a multiplier for each set
and adds it back before it projects again. So it reaches the proximal point on the intersection. Without the
multipliers, relaxed sets would give another plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gcalign.constraints import Columns, Constraint, Rows
from gcalign.geometry import Entropic
from gcalign.plan import Plan
from gcalign.transport.gradients import statistics_of
from gcalign.transport.operators.blocked import Reference
from gcalign.transport.problem import Options, Problem
from gcalign.transport.sinkhorn import LogStep, Stop, iterate
from gcalign.transport.statistics import Reads, Vectors
from gcalign.transport.support import Pairs, values_readable


def by_dykstra(problem: Problem, options: Options, reads: Reads) -> Plan:
    """A plan for any constraint set, by Dykstra's algorithm."""
    if options.gradient not in ("auto", "unrolled"):
        raise ValueError(
            f"gradient={options.gradient!r} is for row and column marginals; use 'unrolled' (or 'auto') here"
        )
    if isinstance(options.block, int) or options.cache is not None:
        raise ValueError(
            f"block={options.block} is for row and column marginals, but {problem.constraints} needs the whole "
            "matrix; leave out block and cache"
        )
    geometry, (n, m), constraints = problem.geometry, problem.kernel.shape, problem.constraints
    log_k = problem.kernel.rows(0, n)
    if not isinstance(geometry, Entropic):  # there a projection can give mass to a forbidden pair
        constraints = (*constraints, _Forbidden(log_k.detach() == -torch.inf))
    y, multipliers, done, converged = _projected(geometry.from_log(log_k), constraints, problem, options)
    a, b = y.new_zeros(n), y.new_zeros(m)  # 0 if the geometry has no scalings
    if isinstance(geometry, Entropic):
        for constraint, multiplier in zip(constraints, multipliers, strict=True):
            if isinstance(constraint, Rows):
                a = a - multiplier.squeeze(1)
            elif isinstance(constraint, Columns):
                b = b - multiplier.squeeze(0)
    log_plan = geometry.log_plan(y)
    p = log_plan.exp()
    vectors = _read(log_plan, problem, reads, p.sum(1).log(), p.sum(0).log(), a, b)
    return Plan.of(problem, vectors, done, converged, log_plan)


def _projected(
    y: Tensor, constraints: tuple[Constraint, ...], problem: Problem, options: Options
) -> tuple[Tensor, list[Tensor], int, bool]:
    """∇Γ of argmin Σ h(P) + d_Γ(P ‖ K) over P in all sets, from y = ∇Γ(K), and the multiplier of each set.

    Stops when the multipliers no longer change the plan: Σ_k Σ |ΔU_k|·∂P/∂y ≤ tol·Σ|P|, which for a marginal is its
    error. Under torch.compile, where values cannot be read, all iterations are done.
    """
    geometry, tol = problem.geometry, options.tol
    multipliers = [torch.zeros_like(problem.eps) for _ in constraints]
    if not constraints:
        return y, multipliers, 0, True
    for done in range(1, options.iterations + 1):
        moved = torch.zeros_like(problem.eps)
        for k, constraint in enumerate(constraints):
            z = y + multipliers[k]
            new = constraint.multiplier(z, problem)
            y = z - new
            with torch.no_grad():
                moved = moved + (geometry.slope(y) * (new - multipliers[k]).abs()).sum()
            multipliers[k] = new
        if tol > 0 and not torch.compiler.is_compiling():
            with torch.no_grad():
                mass = geometry.log_plan(y).exp().abs().nansum()
            if bool(moved <= max(tol, 4 * torch.finfo(y.dtype).eps) * mass):
                return y, multipliers, done, True
    return y, multipliers, options.iterations, False


@dataclass(frozen=True, repr=False, eq=False)
class _Forbidden(Constraint):
    """P = 0 where the kernel is 0. In the entropic geometry this always holds."""

    where: Tensor  # [n, m]

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        return torch.where(self.where, z, 0)


def by_autograd(problem: Problem, options: Options, reads: Reads) -> Plan:
    """A plan by log-space iterations that autograd differentiates. Without values to read, all of them are done."""
    if options.check_finite and torch.compiler.is_compiling():
        _assert_masses(problem)
    kernel, both = Reference(problem.kernel), problem.constrained == 2
    step = LogStep(kernel, problem)
    tested = options if both and values_readable() else replace(options, tol=0)
    stop = Stop(step, tested, (None, None), patience=30)
    sweep, done, converged = iterate(step, stop, options.iterations if both else 1)
    a, b = sweep.scaling, sweep.after
    log_kv = kernel.log_matvec(b)
    if problem.total is not None:  # the plan without this constraint has the right proportions
        a = a + problem.missing(a + log_kv)
    log_plan = kernel.log_k + a[:, None] + b
    vectors = _read(log_plan, problem, reads, a + log_kv, b + kernel.log_rmatvec(a), a, b)
    return Plan.of(problem, vectors, done if problem.constrained else 0, (converged and stop.accurate) or not both)


def _assert_masses(problem: Problem) -> None:
    """Make compiled code raise if a mass is not positive; eager code has refused the target before."""
    for name, side in (("row", problem.rows), ("column", problem.columns)):
        if side is not None:
            message = f"a {name} of the target has no positive; give it a positive weight, or drop the sample"
            torch._assert_async((side.mass > 0).all(), message)


def _read(
    log_plan: Tensor, problem: Problem, reads: Reads, log_rows: Tensor, log_columns: Tensor, a: Tensor, b: Tensor
) -> Vectors:
    """What a divergence reads of a plan that is a matrix."""
    target, statistics = problem.support, statistics_of(reads, problem.support)
    t = None if isinstance(target, Pairs) and not statistics else target.dense()
    terms = log_plan.new_zeros(len(log_plan), 0)
    if statistics:
        assert t is not None
        terms = torch.stack([f(log_plan, t) for f in statistics], 1)
    if isinstance(target, Pairs):
        on_target = log_plan[target.i, target.j]
    else:
        assert t is not None
        on_target = log_plan.masked_fill(t == 0, 0)
        on_target = on_target if reads.entries else (t * on_target).sum(1)
    return Vectors(on_target, log_rows, log_columns, terms, a, b, problem.eps)
