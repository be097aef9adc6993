"""Plans that are stored whole and differentiated by autograd: any constraint set, and `gradient="unrolled"`."""

from __future__ import annotations

import torch
from torch import Tensor

from gcalign.plan import Plan
from gcalign.transport.dykstra import projected
from gcalign.transport.logarithmic import unrolled
from gcalign.transport.operators.reference import Reference
from gcalign.transport.problem import Form, Problem, statistics_of
from gcalign.transport.support import Pairs, Support


def nothing(problem: Problem) -> Pairs:
    """An empty list of pairs, for a plan without a target."""
    none = torch.zeros(0, dtype=torch.long, device=problem.eps.device)
    return Pairs(none, none, problem.eps.new_zeros(0), problem.kernel.shape)


def by_dykstra(problem: Problem, form: Form, mu: Tensor, nu: Tensor) -> Plan:
    """A plan for any constraint set, by Dykstra's algorithm."""
    options = form.options
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
    target = nothing(problem) if problem.target is None else problem.target
    on_target, terms = read(log_plan, target, form)
    p = log_plan.exp()
    progress = torch.tensor([result.iterations, result.converged])
    return Plan(
        problem.kernel, a, b, problem.eps, mu, nu, progress, target, problem.rows, problem.columns, p.sum(1).log(),
        p.sum(0).log(), on_target, terms, torch.zeros((), dtype=torch.bool, device=a.device), log_plan,
    )  # fmt: skip


def by_autograd(problem: Problem, form: Form, mu: Tensor, nu: Tensor) -> Plan:
    """A plan by log-space iterations that autograd differentiates."""
    kernel, target = Reference(problem.kernel), problem.target
    assert target is not None
    a, b, log_kv, log_ktu, *progress = unrolled(kernel, problem, form.options)
    on_target, terms = read(kernel.log_k + a[:, None] + b, target, form)
    return Plan(
        problem.kernel, a, b, problem.eps, mu, nu, torch.tensor(progress), target, problem.rows, problem.columns,
        a + log_kv, b + log_ktu, on_target, terms, torch.zeros((), dtype=torch.bool, device=a.device),
    )  # fmt: skip


def read(log_plan: Tensor, target: Support, form: Form) -> tuple[Tensor, Tensor]:
    """The inputs of a divergence from a plan that is a matrix: log P on the target, and row statistics."""
    statistics = statistics_of(form, target)
    terms = log_plan.new_zeros(len(log_plan), 0)
    t = None if isinstance(target, Pairs) and not statistics else target.dense()
    if statistics:
        terms = torch.stack([f(log_plan, t) for f in statistics], 1)
    if isinstance(target, Pairs):
        return log_plan[target.i, target.j], terms
    assert t is not None
    on_target = log_plan.masked_fill(t == 0, 0)
    return on_target if form.reads_entries else (t * on_target).sum(1), terms
