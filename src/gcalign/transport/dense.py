"""Plans that are stored whole and differentiated by autograd: any constraint set, and `gradient="unrolled"`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gcalign.plan import Plan
from gcalign.transport.dykstra import projected
from gcalign.transport.gradients import Reads, Vectors, statistics_of
from gcalign.transport.operators.reference import Reference
from gcalign.transport.problem import Options, Problem
from gcalign.transport.sinkhorn import LogStep, Stop, iterate
from gcalign.transport.support import Pairs
from gcalign.transport.validation import values_readable


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
    log_plan, a, b, result = projected(problem, options.iterations, options.tol)
    p = log_plan.exp()
    vectors = _read(log_plan, problem, reads, p.sum(1).log(), p.sum(0).log(), a, b)
    return Plan.of(problem, vectors, result.iterations, result.converged, log_plan)


def by_autograd(problem: Problem, options: Options, reads: Reads) -> Plan:
    """A plan by log-space iterations that autograd differentiates. Without values to read, all of them are done."""
    if options.check_finite and torch.compiler.is_compiling():
        _assert_masses(problem)
    kernel, both = Reference(problem.kernel), problem.constrained == 2
    step = LogStep(kernel, problem)
    tested = options if both and values_readable() else replace(options, tol=0)
    stop = Stop(step, None, tested, (None, None), patience=30)
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
