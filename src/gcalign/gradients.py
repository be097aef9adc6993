"""∂L/∂log K, exactly: envelope, implicit and truncated by hand; unrolled is autograd on the same vectors.

`Vectors` gives what a divergence looks at (log P on the support, row and column sums, scalings, row statistics) as
differentiable vectors; the loss on top is ordinary autograd. Its backward pass receives one adjoint per vector and
turns them all into ∂L/∂log K in a single pass over blocks:

    ∂L/∂E = (adjoint of log P on the support) + row softmax ∘ ρ + column softmax ∘ σ + (row statistics) + (steps)

The two softmaxes, P over its row sums and P over its column sums, are what log(K v) and log(Kᵀ u) have for derivatives;
their entries are at most 1 whatever the plan, so nothing overflows where a relaxed plan has lost its mass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcalign.divergences import RowStatistic
from gcalign.operators import Blocked, Operator
from gcalign.solvers import Marginal, Scalings, conjugate_gradients
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

    def log_ktu(self) -> Tensor:
        known = self.scalings.log_ktu
        return self.operator.log_rmatvec(self.scalings.a) if known is None else known

    @property
    def blocked(self) -> Blocked:
        assert isinstance(self.operator, Blocked)  # the reference is differentiated by autograd
        return self.operator

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
        terms = operator.by_rows([_statistics(job, *block) for block in operator.log_blocks()], len(job.statistics))
    return support.where(log_p, 0), s.a + s.log_kv, log_columns, s.a.clone(), s.b.clone(), terms


def _statistics(job: Job, start: int, stop: int, log_k: Tensor) -> Tensor:  # [b, k]
    log_p, t = job.log_plan(start, stop, log_k), job.support.scatter(job.support.weight, start, stop)
    return torch.stack([f(log_p, t) for f in job.statistics], 1)


def _statistics_adjoint(job: Job, start: int, stop: int, adjoint: Tensor) -> Tensor:  # [b, m]
    """∂/∂log P of the row statistics in these rows, by autograd on the block."""
    source = job.operator.source
    log_k = source.rows(start, stop, source.tensors)
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
    s, support, operator = job.scalings, job.support, job.blocked
    log_p = None if log_p is None else support.where(log_p, 0)
    log_columns = None if log_columns is None or not len(log_columns) else log_columns
    terms = terms if job.statistics else None
    parts = _Parts()
    eps_grad = torch.zeros_like(eps)
    rho, sigma = log_rows, log_columns
    if job.mode != "envelope" and (job.rows is not None or job.columns is not None):
        # every output also depends on a and b
        a = torch.zeros_like(s.a) if a is None else a.clone()
        b = torch.zeros_like(s.b) if b is None else b.clone()
        if log_p is not None:
            a, b = a + support.sum_rows(log_p), b + support.sum_columns(log_p)
        if log_rows is not None:
            a, b = a + log_rows, b + operator.scaled(-s.log_kv, s.b).rmatvec(log_rows)
        if log_columns is not None:
            a, b = a + operator.scaled(s.a, -job.log_ktu()).matvec(log_columns), b + log_columns
        if terms is not None:
            through_a, through_b = torch.zeros_like(a), torch.zeros_like(b)
            for start, stop in operator.spans:
                seen = _statistics_adjoint(job, start, stop, terms)
                through_a[start:stop] = seen.sum(1)
                through_b += seen.sum(0)
            through_a, through_b = operator.summed(through_a, through_b)
            a, b = a + through_a, b + through_b
        fixed = _implicit(job, eps, a, b) if job.mode == "implicit" else None
        if fixed is not None:
            delta, eta, eps_grad = fixed
            rho = delta if rho is None else rho + delta
            sigma = eta if sigma is None else sigma + eta
        else:
            eps_grad = _truncated(job, eps, a, b, parts)
    if rho is not None:
        parts.add(-s.log_kv, rho, s.b, None)
    if sigma is not None:
        parts.add(s.a, None, -job.log_ktu(), sigma)
    frames = parts.on(operator, s)

    def more(start: int, stop: int) -> Tensor:
        log_k = operator.source.rows(start, stop, operator.source.tensors)
        total = torch.zeros_like(log_k) if frames is not None else parts.block(start, stop, log_k)
        return total if terms is None else total + _statistics_adjoint(job, start, stop, terms)

    left, right = (None, None) if frames is None else frames
    asked = more if terms is not None or (frames is None and parts) else None
    grads = operator.pullback(left, right, support, log_p, asked)
    operator.release()
    return eps_grad, grads


class _Parts:
    """A sum of K ∘ (e^α x ⊗ e^β y): what a gradient is made of besides the support."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, alpha: Tensor, x: Tensor | None, beta: Tensor, y: Tensor | None) -> None:
        one_n, one_m = torch.ones_like(alpha), torch.ones_like(beta)
        self._parts.append((alpha, one_n if x is None else x, beta, one_m if y is None else y))

    def on(self, operator: Blocked, s: Scalings) -> tuple[Tensor, Tensor] | None:
        """left [n, k] and right [m, k] with K̂ ∘ (left rightᵀ) the sum; None where no K̂ serves all parts."""
        if not self._parts:
            return None
        alpha, x, beta, y = (torch.stack(vectors, 1) for vectors in zip(*self._parts, strict=True))
        frame = operator.frame(alpha, beta, s.a, s.b)
        return None if frame is None else (frame[0] * x, frame[1] * y)

    def block(self, start: int, stop: int, log_k: Tensor) -> Tensor:
        """The sum in some rows, each part by itself."""
        total = torch.zeros_like(log_k)
        for alpha, x, beta, y in self._parts:
            total += (log_k + alpha[start:stop, None] + beta).exp() * x[start:stop, None] * y
        return total


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
    by_rows = job.blocked.scaled(-s.log_kv, s.b)
    by_columns = job.blocked.scaled(s.a, -s.log_ktu)
    tau_1 = -_step_adjoint(rows, s.log_kv, eps, torch.ones_like(a))[0]
    tau_2 = -_step_adjoint(columns, s.log_ktu, eps, torch.ones_like(b))[0]

    def schur(v: Tensor) -> Tensor:
        return v - tau_2 * by_columns.then(by_rows, v, tau_1)[1]

    log_columns = s.b + s.log_ktu
    sums = (log_columns - log_columns.max()).exp()
    # the Schur complement is symmetric for the inner product with weights 1/(τ₂ S)
    weights = torch.where(tau_2 > 0, (log_columns.min() - log_columns).exp() / tau_2, 0)
    # a balanced plan has a gauge: S is a null vector, and the right side is orthogonal to it
    null = sums if bool((tau_1 == 1).all() & (tau_2 == 1).all()) else None
    right = -tau_2 * (b - by_rows.rmatvec(tau_1 * a))
    solution = conjugate_gradients(schur, right, weights, null)
    if solution is None:
        return None
    eta = solution
    a = a + by_columns.matvec(eta)
    delta, eps_rows = _step_adjoint(rows, s.log_kv, eps, a)
    b = b + by_rows.rmatvec(delta)
    return delta, eta, eps_rows + _step_adjoint(columns, s.log_ktu, eps, b)[1]


def _truncated(job: Job, eps: Tensor, a: Tensor, b: Tensor, parts: _Parts) -> Tensor:
    """Reverse the recorded iterations: adds to `parts` what they give ∂L/∂E, and returns ∂L/∂ε through the steps.

    A column step sends its adjoint through the column softmax e^{E + a_t ⊖ log(Kᵀu_t)}, a row step through the row
    softmax: each is K times a rank-one matrix, so the record is vectors, and a reversed iteration is one pass.
    """
    operator, rows, columns = job.blocked, job.rows, job.columns
    eps_grad = torch.zeros_like(eps)
    # iterations forget: once the adjoint is rounding, so is all that earlier ones would add
    negligible = 8 * torch.finfo(eps.dtype).eps * (a.abs().sum() + b.abs().sum())
    steps = job.scalings.steps
    for k, step in zip(range(len(steps) - 1, -1, -1), reversed(steps), strict=True):
        eta = None
        if columns is not None:
            assert step.log_ktu is not None
            eta, through_eps = _step_adjoint(columns, step.log_ktu, eps, b)
            parts.add(step.a, None, -step.log_ktu, eta)
            eps_grad = eps_grad + through_eps
        if rows is None:
            break
        by_rows = operator.scaled(-step.log_kv, step.b_before)
        if eta is not None and step.log_ktu is not None and k == 0:  # nothing comes before
            a = a + operator.scaled(step.a, -step.log_ktu).matvec(eta)
        elif eta is not None and step.log_ktu is not None:
            tau = -_step_adjoint(rows, step.log_kv, eps, torch.ones_like(a))[0]
            through, b = operator.scaled(step.a, -step.log_ktu).then(by_rows, eta, -tau, a)
            a = a + through
        delta, through_eps = _step_adjoint(rows, step.log_kv, eps, a)
        if eta is None:
            b = by_rows.rmatvec(delta)
        parts.add(-step.log_kv, delta, step.b_before, None)
        eps_grad = eps_grad + through_eps
        a = torch.zeros_like(a)
        if (k % 4 == 0 or a.device.type == "cpu") and bool(b.abs().sum() <= negligible):
            break
    return eps_grad
