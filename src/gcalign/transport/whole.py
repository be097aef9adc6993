"""Plans that are stored whole and followed by autograd: any constraint set, and `gradient="unrolled"`."""

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
    """An empty list of pairs, for a plan that is compared with nothing."""
    none = torch.zeros(0, dtype=torch.long, device=problem.eps.device)
    return Pairs(none, none, problem.eps.new_zeros(0), problem.kernel.shape)


def by_dykstra(problem: Problem, form: Form, mu: Tensor, nu: Tensor) -> Plan:
    """Any constraint set, stored whole and followed by autograd."""
    options = form.options
    if options.gradient not in ("auto", "unrolled"):
        raise ValueError(
            f"gradient={options.gradient!r} is for row and column marginals; use 'unrolled' (or 'auto') here"
        )
    if isinstance(options.block, int) or options.cache is not None:
        raise ValueError(
            f"block={options.block} streams row and column marginals, and {problem.constraints} needs the whole "
            "matrix; leave block and cache out"
        )
    log_plan, a, b, found = projected(problem, options.iterations, options.tol)
    target = nothing(problem) if problem.target is None else problem.target
    on_target, terms = read(log_plan, target, form)
    p = log_plan.exp()
    progress = torch.tensor([found.iterations, found.converged])
    return Plan(
        problem.kernel, a, b, problem.eps, mu, nu, progress, target, problem.rows, problem.columns, p.sum(1).log(),
        p.sum(0).log(), on_target, terms, torch.zeros((), dtype=torch.bool, device=a.device), log_plan,
    )  # fmt: skip


def by_autograd(problem: Problem, form: Form, mu: Tensor, nu: Tensor) -> Plan:
    """Log-space iterations that autograd follows."""
    kernel, target = Reference(problem.kernel), problem.target
    assert target is not None
    a, b, log_kv, log_ktu, *progress = unrolled(kernel, problem, form.options)
    on_target, terms = read(kernel.log_k + a[:, None] + b, target, form)
    return Plan(
        problem.kernel, a, b, problem.eps, mu, nu, torch.tensor(progress), target, problem.rows, problem.columns,
        a + log_kv, b + log_ktu, on_target, terms, torch.zeros((), dtype=torch.bool, device=a.device),
    )  # fmt: skip


def read(log_plan: Tensor, target: Support, form: Form) -> tuple[Tensor, Tensor]:
    """What a divergence reads of a plan that is there as a matrix: on the target, and row statistics."""
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
