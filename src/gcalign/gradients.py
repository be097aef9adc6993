"""∂L/∂log K, exactly: envelope, implicit and truncated by hand; unrolled is autograd on the same vectors.

`Vectors` gives what a divergence looks at (log P on the support, row and column sums, scalings, row statistics) as
differentiable vectors; the loss on top is ordinary autograd. Its backward pass receives one adjoint per vector and
turns them all into ∂L/∂log K in a single pass over blocks:

    ∂L/∂E = (adjoint of log P on the support) + row softmax ∘ ρ + column softmax ∘ σ + (row statistics) + (steps)

The two softmaxes, P over its row sums and P over its column sums, are what log(K v) and log(Kᵀ u) have for derivatives;
their entries are at most 1 whatever the plan, so nothing overflows where a relaxed plan has lost its mass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcalign.divergences import RowStatistic
from gcalign.operators import Operator, Scaled
from gcalign.solvers import Marginal, Scalings
from gcalign.support import Support


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

    def row_softmax(self) -> Scaled:
        """P over its row sums: ∂log(K v)/∂E."""
        return self.operator.scaled(-self.scalings.log_kv, self.scalings.b)

    def column_softmax(self) -> Scaled:
        """P over its column sums: ∂log(Kᵀ u)/∂E."""
        return self.operator.scaled(self.scalings.a, -self.log_ktu())

    def log_ktu(self) -> Tensor:
        known = self.scalings.log_ktu
        return self.operator.log_rmatvec(self.scalings.a) if known is None else known

    def log_plan(self, start: int, stop: int, log_k: Tensor) -> Tensor:
        return log_k + self.scalings.a[start:stop, None] + self.scalings.b


class Vectors(torch.autograd.Function):
    """(ε, leaves of log K) → log P on the support, log P1, log Pᵀ1, a, b, row statistics."""

    @staticmethod
    def forward(ctx: Any, job: Job, eps: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.job = job
        # saved so that torch notices a change in place between the two passes
        masses = [side.mass for side in (job.rows, job.columns) if side is not None]
        ctx.save_for_backward(eps, *leaves, job.support.weight, *masses)
        ctx.set_materialize_grads(False)
        outputs = vectors(job)
        if job.mode == "envelope":
            ctx.mark_non_differentiable(outputs[3], outputs[4])
        return outputs

    @staticmethod
    def backward(ctx: Any, *adjoints: Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(f"gradient={ctx.job.mode!r} has no second derivative; use gradient='unrolled' for that")
        eps = ctx.saved_tensors[0]
        with torch.autocast(eps.device.type, enabled=False):
            eps_grad, leaf_grads = _backward(ctx.job, eps, *adjoints)
        return None, eps_grad if ctx.needs_input_grad[1] else None, *leaf_grads


def differentiable_vectors(job: Job, eps: Tensor) -> tuple[Tensor, ...]:
    """The vectors with the gradient of the job's mode."""
    # torch leaves `apply` untyped
    outputs: tuple[Tensor, ...] = Vectors.apply(job, eps, *job.operator.source.leaves)  # type: ignore[no-untyped-call]
    return outputs


def vectors(job: Job) -> tuple[Tensor, ...]:
    """The outputs of `Vectors`, by operations that autograd can also follow."""
    operator, s, support = job.operator, job.scalings, job.support
    log_p = operator.gather(support) + support.along_rows(s.a) + support.along_columns(s.b)
    log_columns = s.b + job.log_ktu() if s.log_ktu is not None or job.column_sums else s.b[:0]
    terms = s.a.new_zeros(len(s.a), 0)
    if job.statistics:
        terms = torch.cat([_statistics(job, start, stop, log_k) for start, stop, log_k in operator.blocks()])
    return support.where(log_p, 0), s.a + s.log_kv, log_columns, s.a.clone(), s.b.clone(), terms


def _statistics(job: Job, start: int, stop: int, log_k: Tensor) -> Tensor:  # [b, k]
    log_p, t = job.log_plan(start, stop, log_k), job.support.scatter(job.support.weight, start, stop)
    return torch.stack([f(log_p, t) for f in job.statistics], 1)


def _statistics_adjoint(job: Job, start: int, stop: int, log_k: Tensor, adjoint: Tensor) -> Tensor:  # [b, m]
    """∂/∂log P of the row statistics in these rows, by autograd on the block."""
    with torch.enable_grad():
        log_p = job.log_plan(start, stop, log_k).detach().requires_grad_()
        t = job.support.scatter(job.support.weight, start, stop)
        total = torch.stack([f(log_p, t) for f in job.statistics], 1)
    return torch.autograd.grad(total, log_p, adjoint[start:stop])[0]


def _backward(
    job: Job,
    eps: Tensor,
    log_p: Tensor | None,
    log_rows: Tensor | None,
    log_columns: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    terms: Tensor | None,
) -> tuple[Tensor, list[Tensor | None]]:
    """∂L/∂ε and ∂L/∂leaf from ∂L/∂output, which the arguments after ε are; None where the loss has no use for one."""
    s, support, operator = job.scalings, job.support, job.operator
    log_p = None if log_p is None else support.where(log_p, 0)
    log_columns = None if log_columns is None or not len(log_columns) else log_columns
    terms = terms if job.statistics else None
    rho, sigma = log_rows, log_columns
    steps: Callable[[int, int, Tensor], Tensor] | None = None
    eps_grad = torch.zeros_like(eps)
    if job.mode != "envelope" and (job.rows is not None or job.columns is not None):
        # every output also depends on a and b
        a = torch.zeros_like(s.a) if a is None else a.clone()
        b = torch.zeros_like(s.b) if b is None else b.clone()
        if log_p is not None:
            a, b = a + support.sum_rows(log_p), b + support.sum_columns(log_p)
        if log_rows is not None:
            a, b = a + log_rows, b + job.row_softmax().rmatvec(log_rows)
        if log_columns is not None:
            a, b = a + job.column_softmax().matvec(log_columns), b + log_columns
        if terms is not None:
            for start, stop, log_k in operator.blocks():
                seen = _statistics_adjoint(job, start, stop, log_k, terms)
                a[start:stop] += seen.sum(1)
                b = b + seen.sum(0)
        fixed = _implicit(job, eps, a, b) if job.mode == "implicit" else None
        if fixed is not None:
            delta, eta, eps_grad = fixed
            rho = delta if rho is None else rho + delta
            sigma = eta if sigma is None else sigma + eta
        else:
            steps, eps_grad = _truncated(job, eps, a, b)

    log_ktu = s.b if sigma is None else job.log_ktu()

    def weigh(start: int, stop: int, log_k: Tensor) -> Tensor:
        grad = torch.zeros_like(log_k) if log_p is None else support.scatter(log_p, start, stop)
        if rho is not None:
            grad = grad + (log_k - s.log_kv[start:stop, None] + s.b).exp() * rho[start:stop, None]
        if sigma is not None:
            grad = grad + (log_k + s.a[start:stop, None] - log_ktu).exp() * sigma
        if terms is not None:
            grad = grad + _statistics_adjoint(job, start, stop, log_k, terms)
        return grad if steps is None else grad + steps(start, stop, log_k)

    return eps_grad, operator.pullback(weigh)


def _step_adjoint(side: Marginal, log_sums: Tensor, eps: Tensor, adjoint: Tensor) -> tuple[Tensor, Tensor]:
    """Adjoints of log(K v) and of ε for one scaling step, given that of the scaling: −τ·adjoint for a KL relaxation."""
    with torch.enable_grad():
        gap, e = side.gap(log_sums).detach().requires_grad_(), eps.detach().requires_grad_()
        scaled = side.penalty.step(gap, e)
    grads = torch.autograd.grad(scaled, (gap, e), adjoint, allow_unused=True)
    through_eps = torch.zeros_like(eps) if grads[1] is None else grads[1]
    return torch.zeros_like(gap) if grads[0] is None else -grads[0], through_eps


def _implicit(job: Job, eps: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Adjoints of log(K v) and log(Kᵀ u) at the fixed point, and ∂L/∂ε through the steps.

    With them called δ and η, the fixed point a = φ₁(log(K v)), b = φ₂(log(Kᵀ u)) has the adjoint equations

        δ = −τ₁ (a + column softmax · η)        η = −τ₂ (b + row softmaxᵀ · δ)

    which are the system of the mathematics page with x = −δ/R, y = −η/S, free of divisions by sums that may vanish.
    None where the plan is so near a permutation that its fixed point does not say what the scalings are: they were
    left where the iterations stopped, and only those can be differentiated.
    """
    s, rows, columns = job.scalings, job.rows, job.columns
    delta, eta = torch.zeros_like(s.a), torch.zeros_like(s.b)
    if columns is None:
        assert rows is not None
        delta, eps_grad = _step_adjoint(rows, s.log_kv, eps, a)
        return delta, eta, eps_grad
    assert s.log_ktu is not None
    if rows is None:
        eta, eps_grad = _step_adjoint(columns, s.log_ktu, eps, b)
        return delta, eta, eps_grad
    by_rows = job.operator.kept(-s.log_kv, s.b)
    by_columns = job.operator.kept(s.a, -s.log_ktu)
    tau_1 = -_step_adjoint(rows, s.log_kv, eps, torch.ones_like(a))[0]
    tau_2 = -_step_adjoint(columns, s.log_ktu, eps, torch.ones_like(b))[0]

    def schur(v: Tensor) -> Tensor:
        return v - tau_2 * by_rows.rmatvec(tau_1 * by_columns.matvec(v))

    log_columns = s.b + s.log_ktu
    sums = (log_columns - log_columns.max()).exp()
    # the Schur complement is symmetric for the inner product with weights 1/(τ₂ S)
    weights = torch.where(tau_2 > 0, (log_columns.min() - log_columns).exp() / tau_2, 0)
    # a balanced plan has a gauge: S is a null vector, and the right side is orthogonal to it
    null = sums if bool((tau_1 == 1).all() & (tau_2 == 1).all()) else None
    right = -tau_2 * (b - by_rows.rmatvec(tau_1 * a))
    solution = _conjugate_gradients(schur, right, weights, null)
    if solution is None:
        return None
    eta = solution
    a = a + by_columns.matvec(eta)
    delta, eps_rows = _step_adjoint(rows, s.log_kv, eps, a)
    b = b + by_rows.rmatvec(delta)
    return delta, eta, eps_rows + _step_adjoint(columns, s.log_ktu, eps, b)[1]


def _conjugate_gradients(
    apply: Callable[[Tensor], Tensor], rhs: Tensor, weights: Tensor, null: Tensor | None
) -> Tensor | None:
    """apply⁻¹ rhs for an operator symmetric and positive in the weighted inner product, but for a null vector.

    None where an eigenvalue is below 1e-3: a plan converged to 1e-6 leaves its scalings that much less exact.
    """

    def project(v: Tensor) -> Tensor:
        return v if null is None else v - null * (v.sum() / null.sum())  # weights · null is constant

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (weights * x * y).sum()

    residual = project(rhs)
    x, direction, size = torch.zeros_like(rhs), residual, inner(residual, residual)
    enough = size * torch.finfo(rhs.dtype).eps ** 1.6
    for _ in range(2 * len(rhs) + 20):
        if bool(size <= enough):
            break
        image = project(apply(direction))
        curvature = inner(direction, image)
        if not bool(curvature > 1e-3 * inner(direction, direction)):
            return None
        step = size / curvature
        x = x + step * direction
        residual = residual - step * image
        size, before = inner(residual, residual), size
        direction = residual + size / before * direction
    return x


def _truncated(job: Job, eps: Tensor, a: Tensor, b: Tensor) -> tuple[Callable[[int, int, Tensor], Tensor], Tensor]:
    """Reverse the recorded iterations. Returns what they add to ∂L/∂E in a block, and ∂L/∂ε through the τ.

    A column step sends its adjoint through the column softmax e^{E + a_t ⊖ log(Kᵀu_t)}, a row step through the row
    softmax: each is K times a rank-one matrix, so the record is vectors and the memory that of one block.
    """
    s, operator = job.scalings, job.operator
    eps_grad = torch.zeros_like(eps)
    parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # log-scalings and weights of rows, of columns
    one_n, one_m = torch.ones_like(s.a), torch.ones_like(s.b)
    for step in reversed(s.steps):
        if job.columns is not None:
            assert step.log_ktu is not None
            eta, through_eps = _step_adjoint(job.columns, step.log_ktu, eps, b)
            a = a + operator.scaled(step.a, -step.log_ktu).matvec(eta)
            parts.append((step.a, one_n, -step.log_ktu, eta))
            eps_grad = eps_grad + through_eps
        b = torch.zeros_like(b)
        if job.rows is not None:
            delta, through_eps = _step_adjoint(job.rows, step.log_kv, eps, a)
            b = operator.scaled(-step.log_kv, step.b_before).rmatvec(delta)
            parts.append((-step.log_kv, delta, step.b_before, one_m))
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
        return lambda start, stop, log_k: job.log_plan(start, stop, log_k).exp() * (left[start:stop] @ right.T)

    def added(start: int, stop: int, log_k: Tensor) -> Tensor:
        total = torch.zeros_like(log_k)
        for k in range(len(parts)):
            softmax = (log_k + alpha[start:stop, k, None] + beta[:, k]).exp()
            total += softmax * x[start:stop, k, None] * y[:, k]
        return total

    return added
