"""∂L/∂log K, exactly: envelope, implicit and truncated by hand, unrolled by autograd (section 4 of the mathematics).

`Vectors` gives what a divergence looks at (log P on the support, row and column sums, scalings, row statistics) as
differentiable vectors; the loss on top is ordinary autograd. Its backward pass receives one adjoint per vector and
turns them all into ∂L/∂log K in a single pass over blocks:

    ∂L/∂E = (adjoint of log P on the support) + P ∘ (ρ ⊕ σ) + (row statistics) + (steps of the iteration)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gcalign.divergences import RowStatistic
from gcalign.operators import Operator
from gcalign.solvers import Marginal, Scalings
from gcalign.support import Support

MODES = ("auto", "envelope", "implicit", "truncated", "unrolled")


class Choice(NamedTuple):
    """A gradient mode and why it is the one."""

    mode: str
    reason: str


def choose(
    requested: str, *, marginals: bool, constrained: bool, converged: bool, dual: bool, feasible: bool
) -> Choice:
    """The cheapest exact mode, or the one asked for if it would be exact."""
    if not marginals:
        if requested in ("auto", "unrolled"):
            return Choice(
                "unrolled", "the constraints are not only rows and columns, so autograd follows Dykstra's steps"
            )
        raise ValueError(f"gradient={requested!r} is for row and column marginals; use 'unrolled' (or 'auto') here")
    if requested == "unrolled":
        return Choice("unrolled", "asked for: autograd through every iteration")
    if not constrained:
        return Choice("envelope", "nothing is solved: P = K, so log K is all there is to differentiate")
    enveloped = dual and feasible
    if requested == "envelope" and not enveloped:
        why = "the divergence has no dual form here" if not dual else "the target's marginals are not the plan's"
        raise ValueError(f"gradient='envelope' would be wrong: {why}; use 'implicit' or 'auto'")
    if requested == "auto":
        if not converged:
            return Choice("truncated", "the plan has not converged, so its iterations are reversed one by one")
        if enveloped:
            return Choice("envelope", "the plan has converged and the target has its marginals, so ∂L/∂log K = P − T")
        why = "the divergence is not KL" if not dual else "the target does not have the plan's marginals"
        return Choice("implicit", f"the plan has converged and {why}, so its fixed point is differentiated")
    return Choice(
        requested, "asked for" if converged or requested == "truncated" else "asked for, on a plan not converged"
    )


@dataclass(frozen=True)
class Job:
    """What one solved plan needs for its gradient."""

    operator: Operator
    scalings: Scalings
    rows: Marginal | None
    columns: Marginal | None
    support: Support
    statistics: tuple[RowStatistic, ...]
    column_sums: bool
    mode: str


class Vectors(torch.autograd.Function):
    """(ε, leaves of log K) → log P on the support, log P1, log Pᵀ1, a, b, row statistics."""

    @staticmethod
    def forward(ctx: Any, job: Job, eps: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.job = job
        # the saved tensors are the check that nothing was changed in place between the two passes
        ctx.save_for_backward(eps, *leaves)
        outputs = vectors(job)
        if job.mode == "envelope":
            ctx.mark_non_differentiable(outputs[3], outputs[4])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *adjoints: Tensor) -> tuple[Any, ...]:
        eps = ctx.saved_tensors[0]
        eps_grad, leaf_grads = _backward(ctx.job, eps, *adjoints)
        return None, eps_grad if ctx.needs_input_grad[1] else None, *leaf_grads


def differentiable_vectors(job: Job, eps: Tensor) -> tuple[Tensor, ...]:
    """The vectors with the gradient of the job's mode."""
    outputs: tuple[Tensor, ...] = Vectors.apply(job, eps, *job.operator.source.leaves)  # type: ignore[no-untyped-call]
    return outputs


def vectors(job: Job) -> tuple[Tensor, ...]:
    """The outputs of `Vectors`, by operations that autograd can also follow."""
    operator, s, support = job.operator, job.scalings, job.support
    log_p = operator.gather(support) + support.along_rows(s.a) + support.along_columns(s.b)
    log_rows = s.a + s.log_kv
    log_columns = s.b[:0]
    if s.log_ktu is not None or job.column_sums:
        log_columns = s.b + (operator.log_rmatvec(s.a) if s.log_ktu is None else s.log_ktu)
    terms = s.a.new_zeros(len(s.a), 0)
    if job.statistics:
        terms = torch.cat([_statistics(job, start, stop, log_k) for start, stop, log_k in operator.blocks()])
    return support.where(log_p, 0), log_rows, log_columns, s.a.clone(), s.b.clone(), terms


def _log_plan(job: Job, start: int, stop: int, log_k: Tensor) -> Tensor:
    return log_k + job.scalings.a[start:stop, None] + job.scalings.b


def _statistics(job: Job, start: int, stop: int, log_k: Tensor) -> Tensor:  # [b, k]
    log_p, t = _log_plan(job, start, stop, log_k), job.support.scatter(job.support.weight, start, stop)
    return torch.stack([f(log_p, t) for f in job.statistics], 1)


def _statistics_adjoint(job: Job, start: int, stop: int, log_k: Tensor, adjoint: Tensor) -> Tensor:  # [b, m]
    """∂/∂log P of the row statistics in these rows, by autograd on the block."""
    with torch.enable_grad():
        log_p = _log_plan(job, start, stop, log_k).detach().requires_grad_()
        t = job.support.scatter(job.support.weight, start, stop)
        total = torch.stack([f(log_p, t) for f in job.statistics], 1)
    return torch.autograd.grad(total, log_p, adjoint[start:stop])[0]


def _backward(
    job: Job, eps: Tensor, log_p: Tensor, log_rows: Tensor, log_columns: Tensor, a: Tensor, b: Tensor, terms: Tensor
) -> tuple[Tensor, list[Tensor | None]]:
    """∂L/∂ε and ∂L/∂leaf from ∂L/∂(each output), which the arguments after ε are."""
    s, support, operator = job.scalings, job.support, job.operator
    log_p = support.where(log_p, 0)
    # P ∘ (ρ ⊕ σ) is what the row and column sums send to log K
    rho = log_rows * (-(s.a + s.log_kv)).exp()
    sigma = torch.zeros_like(s.b)
    if len(log_columns):
        log_ktu = operator.log_rmatvec(s.a) if s.log_ktu is None else s.log_ktu
        sigma = log_columns * (-(s.b + log_ktu)).exp()
    later: Callable[[int, int, Tensor], Tensor] | None = None
    eps_grad = torch.zeros_like(eps)
    solved = job.mode != "envelope" and (job.rows is not None or job.columns is not None)
    if solved:
        # every output also depends on a and b
        plan = operator.scaled(s.a, s.b)
        a = a + log_rows + support.sum_rows(log_p)
        b = b + support.sum_columns(log_p) + plan.rmatvec(rho)
        if len(log_columns):
            a, b = a + plan.matvec(sigma), b + log_columns
        if job.statistics:
            for start, stop, log_k in operator.blocks():
                seen = _statistics_adjoint(job, start, stop, log_k, terms)
                a[start:stop] += seen.sum(1)
                b = b + seen.sum(0)
        if job.mode == "implicit":
            x, y, eps_grad = _implicit(job, eps, a, b)
            rho, sigma = rho - x, sigma - y
        else:
            later, eps_grad = _truncated(job, eps, a, b)

    def weigh(start: int, stop: int, log_k: Tensor) -> Tensor:
        p = _log_plan(job, start, stop, log_k).exp()
        grad = p * (rho[start:stop, None] + sigma) + support.scatter(log_p, start, stop)
        if job.statistics:
            grad = grad + _statistics_adjoint(job, start, stop, log_k, terms)
        return grad if later is None else grad + later(start, stop, log_k)

    return eps_grad, operator.pullback(weigh)


def _step_adjoint(side: Marginal, log_sums: Tensor, eps: Tensor, adjoint: Tensor) -> tuple[Tensor, Tensor]:
    """Adjoints of the gap and of ε for one scaling step, given that of the scaling: τ·adjoint for a KL relaxation."""
    with torch.enable_grad():
        gap, e = side.gap(log_sums).detach().requires_grad_(), eps.detach().requires_grad_()
        scaled = side.penalty.step(gap, e)
    grads = torch.autograd.grad(scaled, (gap, e), adjoint, allow_unused=True)
    return grads[0], torch.zeros_like(eps) if grads[1] is None else grads[1]


def _implicit(job: Job, eps: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x and y with [R/τ₁ P; Pᵀ S/τ₂][x; y] = [a; b], and ∂L/∂ε through the τ; ∂L/∂E gains −P∘(x ⊕ y)."""
    s, rows, columns = job.scalings, job.rows, job.columns
    x, y = torch.zeros_like(s.a), torch.zeros_like(s.b)
    if columns is None:
        assert rows is not None
        gap, eps_grad = _step_adjoint(rows, s.log_kv, eps, a)
        return gap * (-(s.a + s.log_kv)).exp(), y, eps_grad
    assert s.log_ktu is not None
    if rows is None:
        gap, eps_grad = _step_adjoint(columns, s.log_ktu, eps, b)
        return x, gap * (-(s.b + s.log_ktu)).exp(), eps_grad
    plan = job.operator.kept(s.a, s.b)
    tau_1 = _step_adjoint(rows, s.log_kv, eps, torch.ones_like(a))[0]
    tau_2 = _step_adjoint(columns, s.log_ktu, eps, torch.ones_like(b))[0]
    # y = √(τ₂/S) y' makes the Schur complement I − MᵀM with ‖M‖ ≤ 1; τ = 0 drops out of it
    left, right = tau_1 * (-(s.a + s.log_kv)).exp(), (tau_2 * (-(s.b + s.log_ktu)).exp()).sqrt()

    def schur(v: Tensor) -> Tensor:
        return v - right * plan.rmatvec(left * plan.matvec(right * v))

    # a balanced plan has a gauge, and M the singular value 1 with it: √S, which the right side is orthogonal to
    balanced = bool((tau_1 == 1).all() & (tau_2 == 1).all())
    null = torch.nn.functional.normalize(1 / right, dim=0) if balanced else None
    y = right * _conjugate_gradients(schur, right * (b - plan.rmatvec(left * a)), null)
    a = a - plan.matvec(y)
    x = left * a
    b = b - plan.rmatvec(x)
    return x, y, _step_adjoint(rows, s.log_kv, eps, a)[1] + _step_adjoint(columns, s.log_ktu, eps, b)[1]


def _conjugate_gradients(apply: Callable[[Tensor], Tensor], rhs: Tensor, null: Tensor | None) -> Tensor:
    """apply⁻¹ rhs for a symmetric positive operator, orthogonal to its null vector where it has one."""

    def project(v: Tensor) -> Tensor:
        return v if null is None else v - null * (null @ v)

    residual = project(rhs)
    x, direction, size = torch.zeros_like(rhs), residual, residual @ residual
    enough = size * torch.finfo(rhs.dtype).eps ** 1.6
    for _ in range(2 * len(rhs) + 20):
        if bool(size <= enough):
            break
        image = project(apply(direction))
        step = size / (direction @ image)
        x = x + step * direction
        residual = residual - step * image
        size, before = residual @ residual, size
        direction = residual + size / before * direction
    return x


def _truncated(job: Job, eps: Tensor, a: Tensor, b: Tensor) -> tuple[Callable[[int, int, Tensor], Tensor], Tensor]:
    """Reverse the recorded iterations. Returns what they add to ∂L/∂E in a block, and ∂L/∂ε through the τ.

    A column step sends −ḡ through the column softmax e^{E + a_t ⊖ log(Kᵀu_t)}, a row step through the row softmax:
    each is K times a rank-one matrix, so the record is vectors and the memory that of one block.
    """
    s, operator = job.scalings, job.operator
    eps_grad = torch.zeros_like(eps)
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # log-scalings and weights of rows, of columns
    one_n, one_m = torch.ones_like(s.a), torch.ones_like(s.b)
    for step in reversed(s.steps):
        if job.columns is not None:
            assert step.log_ktu is not None
            gap, through_eps = _step_adjoint(job.columns, step.log_ktu, eps, b)
            a = a - operator.scaled(step.a, -step.log_ktu).matvec(gap)
            parts.append((step.a, one_n, -step.log_ktu, -gap))
            eps_grad = eps_grad + through_eps
        b = torch.zeros_like(b)
        if job.rows is not None:
            gap, through_eps = _step_adjoint(job.rows, step.log_kv, eps, a)
            b = -operator.scaled(-step.log_kv, step.b_before).rmatvec(gap)
            parts.append((-step.log_kv, -gap, step.b_before, one_m))
            eps_grad = eps_grad + through_eps
        a = torch.zeros_like(a)
    return _rank_one_sum(job, parts), eps_grad


def _rank_one_sum(job: Job, parts: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Callable[[int, int, Tensor], Tensor]:
    """Σ e^{E + α ⊕ β} ∘ (x ⊗ y) over the parts, in a block: P times one skinny product where that cannot overflow."""
    s = job.scalings
    alpha, x, beta, y = (torch.stack(vectors, 1) for vectors in zip(*parts, strict=True))
    rows, columns = alpha - s.a[:, None], beta - s.b[:, None]
    # one test for all steps; e^±60 keeps their products in range of float32 beside entries P ≤ 1
    if bool(torch.maximum(rows.abs().max(), columns.abs().max()) < 30):
        left, right = rows.exp() * x, columns.exp() * y
        return lambda start, stop, log_k: _log_plan(job, start, stop, log_k).exp() * (left[start:stop] @ right.T)

    def added(start: int, stop: int, log_k: Tensor) -> Tensor:
        total = torch.zeros_like(log_k)
        for k in range(len(parts)):
            softmax = (log_k + alpha[start:stop, k, None] + beta[:, k]).exp()
            total += softmax * x[start:stop, k, None] * y[:, k]
        return total

    return added
