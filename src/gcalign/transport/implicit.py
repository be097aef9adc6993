"""The implicit and truncated gradients in log space, for any kernel and any penalty.

*Implicit* differentiates the fixed point. *Truncated* differentiates the recorded iterations in reverse.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.constraints import Marginal
from gcalign.transport.operators.blocked import Block, Blocked
from gcalign.transport.problem import Problem
from gcalign.transport.sinkhorn import Scalings
from gcalign.transport.statistics import Adjoints

REVERSED = 8  # iterations between two tests of whether the adjoint is negligible


def in_logarithms(
    operator: Blocked, problem: Problem, s: Scalings, mode: str, adjoint: Adjoints
) -> tuple[Parts, Tensor | None]:
    """The terms of ∂L/∂log K other than the target's, and ∂L/∂ε through the steps.

    If the adjoints of a and b are None, the scalings are constants.
    """
    rho, sigma, a, b = adjoint.log_rows, adjoint.log_columns, adjoint.a, adjoint.b
    parts, eps_grad = Parts(), None
    log_kv, log_ktu = s.log_rows - s.a, None
    if s.log_columns is not None:
        log_ktu = s.log_columns - s.b
    elif sigma is not None:  # only the divergence needs these sums
        log_ktu = operator.log_rmatvec(s.a)
    if a is not None and b is not None:
        if rho is not None:
            b = b + Scaled(operator, -log_kv, s.b).rmatvec(rho)
        if sigma is not None and log_ktu is not None:
            a = a + Scaled(operator, s.a, -log_ktu).matvec(sigma)
        fixed = _implicit(operator, problem, s, log_kv, log_ktu, a, b) if mode == "implicit" else None
        if fixed is not None:
            delta, eta, eps_grad = fixed
            rho = delta if rho is None else rho + delta
            sigma = eta if sigma is None else sigma + eta
        else:
            if not s.record:
                warnings.warn(
                    "the linear system of gradient='implicit' was not solved, and its iterations were not stored; the "
                    "gradient through the scalings is missing: use gradient='truncated'",
                    stacklevel=2,
                )
            eps_grad = _truncated(operator, problem, s, a, b, parts)
    if rho is not None:
        parts.add(-log_kv, rho, s.b, None)
    if sigma is not None and log_ktu is not None:
        parts.add(s.a, None, -log_ktu, sigma)
    return parts, eps_grad


class Parts:
    """A sum of terms K ∘ (e^α x ⊗ e^β y) of a gradient."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, alpha: Tensor, x: Tensor | None, beta: Tensor, y: Tensor | None) -> None:
        one_n, one_m = torch.ones_like(alpha), torch.ones_like(beta)
        self._parts.append((alpha, one_n if x is None else x, beta, one_m if y is None else y))

    def factors(self, operator: Blocked, s: Scalings) -> tuple[Tensor, Tensor] | None:
        """left [n, k] and right [m, k], so that the sum is K̂ ∘ (left rightᵀ); None if no K̂ fits all terms."""
        if operator.exact:
            return None
        alpha, x, beta, y = (torch.stack(vectors, 1) for vectors in zip(*self._parts, strict=True))
        factors = operator.relative(alpha, beta, s.a, s.b)
        if factors is None:
            return None
        left, right = factors[0] * x, factors[1] * y
        largest = len(self._parts) * left.abs().max() * right.abs().max()  # of left rightᵀ, before it meets K̂
        return (left, right) if bool(torch.isfinite(largest)) else None

    def rows(self, operator: Blocked, start: int, stop: int) -> Tensor:
        """The sum in rows start:stop, term by term."""
        log_k = operator.source.rows(start, stop)
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


def _implicit(
    operator: Blocked, problem: Problem, s: Scalings, log_kv: Tensor, log_ktu: Tensor | None, a: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Adjoints of log(K v) and log(Kᵀ u) at the fixed point, and ∂L/∂ε through the steps.

    With them called δ and η, the fixed point a = φ₁(log(K v)), b = φ₂(log(Kᵀ u)) has the adjoint equations

        δ = −τ₁ (a + column softmax · η)        η = −τ₂ (b + row softmaxᵀ · δ)

    This form has no division by sums that may be 0. The result is None if the plan is so close to a permutation that
    the fixed point does not determine the scalings. They then depend on where the iterations stopped, and only the
    iterations can be differentiated.
    """
    rows, columns, eps = problem.rows, problem.columns, problem.eps
    delta, eta = torch.zeros_like(s.a), torch.zeros_like(s.b)
    if columns is None:
        assert rows is not None
        delta, eps_grad = _step_adjoint(rows, log_kv, eps, a)
        return delta, eta, eps_grad
    assert log_ktu is not None
    if rows is None:
        eta, eps_grad = _step_adjoint(columns, log_ktu, eps, b)
        return delta, eta, eps_grad
    by_rows = Scaled(operator, -log_kv, s.b)
    by_columns = Scaled(operator, s.a, -log_ktu)
    tau_1 = -_step_adjoint(rows, log_kv, eps, torch.ones_like(a))[0]
    tau_2 = -_step_adjoint(columns, log_ktu, eps, torch.ones_like(b))[0]

    def schur(v: Tensor) -> Tensor:
        return v - tau_2 * by_columns.then(by_rows, v, tau_1)[1]

    log_columns = s.b + log_ktu
    sums = (log_columns - log_columns.max()).exp()
    # the Schur complement is symmetric for the inner product with weights 1/(τ₂ S)
    weights = torch.where(tau_2 > 0, (log_columns.min() - log_columns).exp() / tau_2, 0)
    # (c·u, v/c) is the same balanced plan: S is a null vector, and the right-hand side is orthogonal to it
    null = sums if bool((tau_1 == 1).all() & (tau_2 == 1).all()) else None
    right = -tau_2 * (b - by_rows.rmatvec(tau_1 * a))
    solution = _conjugate_gradients(schur, right, weights, null)
    if solution is None:
        return None
    eta = solution
    a = a + by_columns.matvec(eta)
    delta, eps_rows = _step_adjoint(rows, log_kv, eps, a)
    b = b + by_rows.rmatvec(delta)
    return delta, eta, eps_rows + _step_adjoint(columns, log_ktu, eps, b)[1]


def _conjugate_gradients(
    apply: Callable[[Tensor], Tensor], rhs: Tensor, weights: Tensor, null: Tensor | None
) -> Tensor | None:
    """apply⁻¹ rhs for an operator that is symmetric and positive in the weighted inner product, except for `null`.

    Returns None if it does not converge, or if an eigenvalue is below 1e-3: the scalings of a plan that converged to
    1e-6 are not exact enough then.
    """

    def project(v: Tensor) -> Tensor:
        return v if null is None else v - null * (v.sum() / null.sum())  # weights · null is constant

    def inner(x: Tensor, y: Tensor) -> Tensor:
        return (weights * x * y).sum()

    largest = rhs.abs().max()
    unit = torch.where(largest > 0, largest, 1)  # squares of a tiny right-hand side would underflow
    residual = project(rhs / unit)
    x, direction, size = torch.zeros_like(rhs), residual, inner(residual, residual)
    enough = size * torch.finfo(rhs.dtype).eps ** 1.6
    for _ in range(2 * len(rhs) + 20):
        if bool(size <= enough):
            return x * unit
        image = project(apply(direction))
        curvature = inner(direction, image)
        if not bool(curvature > 1e-3 * inner(direction, direction)):
            return None
        step = size / curvature
        x = x + step * direction
        residual = residual - step * image
        size, before = inner(residual, residual), size
        direction = residual + size / before * direction
    return x * unit if bool(size <= 1e3 * enough) else None


def _truncated(operator: Blocked, problem: Problem, s: Scalings, a: Tensor, b: Tensor, parts: Parts) -> Tensor:
    """Differentiate the recorded iterations in reverse: add their terms of ∂L/∂log K to `parts`, return ∂L/∂ε.

    The derivative of a column step is the column softmax e^{log K + a_t ⊖ log(Kᵀu_t)}, that of a row step the row
    softmax. Each is K times a rank-one matrix, so the record holds only vectors, and an iteration costs one pass.
    """
    rows, columns, eps = problem.rows, problem.columns, problem.eps
    eps_grad = torch.zeros_like(eps)
    # the adjoint decays: once it is negligible, so are the terms of all earlier iterations
    negligible = 8 * torch.finfo(eps.dtype).eps * (a.abs().sum() + b.abs().sum())
    for k in range(len(s.record) - 1, -1, -1):
        b_before, log_kv, a_then, log_ktu, _ = s.record[k]
        eta = None
        if columns is not None and log_ktu is not None:
            eta, through_eps = _step_adjoint(columns, log_ktu, eps, b)
            parts.add(a_then, None, -log_ktu, eta)
            eps_grad = eps_grad + through_eps
        if rows is None or log_kv is None:
            break
        by_rows = Scaled(operator, -log_kv, b_before)
        if eta is not None and log_ktu is not None and k == 0:  # the first iteration
            a = a + Scaled(operator, a_then, -log_ktu).matvec(eta)
        elif eta is not None and log_ktu is not None:
            tau = -_step_adjoint(rows, log_kv, eps, torch.ones_like(a))[0]
            through, b = Scaled(operator, a_then, -log_ktu).then(by_rows, eta, -tau, a)
            a = a + through
        delta, through_eps = _step_adjoint(rows, log_kv, eps, a)
        if eta is None:
            b = by_rows.rmatvec(delta)
        parts.add(-log_kv, delta, b_before, None)
        eps_grad = eps_grad + through_eps
        a = torch.zeros_like(a)
        if operator.exact:
            continue
        if (k % REVERSED == 0 or a.device.type == "cpu") and bool(b.abs().sum() <= negligible):
            break
    return eps_grad


@dataclass(frozen=True)
class Scaled:
    """diag(eᵃ) K diag(eᵇ) as a linear map; its entries must be at most about 1, as those of a plan."""

    operator: Blocked
    a: Tensor  # [n]
    b: Tensor  # [m]

    def _parts(self) -> tuple[Tensor, Tensor, Iterable[Block] | None]:
        """left and right with diag(left) K̂ diag(right) = diag(eᵃ) K diag(eᵇ), and None; or ones, and its blocks."""
        if self.operator.exact:
            blocks = ((i, j, (log_k + self.a[i:j, None] + self.b).exp()) for i, j, log_k in self.operator.log_blocks())
            return torch.ones_like(self.a), torch.ones_like(self.b), blocks
        factors = self.operator.relative(self.a, self.b, self.a, self.b)
        if factors is None:  # a and b themselves are always in range, unless they are NaN
            factors = self.a * math.nan, self.b * math.nan
        return *factors, None

    def matvec(self, x: Tensor) -> Tensor:  # [m] -> [n]
        left, right, blocks = self._parts()
        return left * self.operator.summed(self.operator.matvec(right * x, blocks))[0]

    def rmatvec(self, z: Tensor) -> Tensor:  # [n] -> [m]
        left, right, blocks = self._parts()
        return right * self.operator.rmatvec(left * z, blocks)

    def then(self, back: Scaled, x: Tensor, factor: Tensor, plus: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """y = self·x [n], and backᵀ·(factor ∘ (y + plus)) [m]; in one pass if one K̂ fits both."""
        factors = None
        if not self.operator.exact:
            alpha, beta = torch.stack([self.a, back.a], 1), torch.stack([self.b, back.b], 1)
            factors = self.operator.relative(alpha, beta, self.a, self.b)
        if factors is None:
            y = self.matvec(x)
            return y, back.rmatvec(factor * (y if plus is None else y + plus))
        left, right = factors

        def middle(y: Tensor, rows: slice) -> Tensor:
            y = left[rows, 0] * y
            return left[rows, 1] * factor[rows] * (y if plus is None else y + plus[rows])

        y, w = self.operator.round_trip(right[:, 0] * x, middle)
        return left[:, 0] * self.operator.summed(y)[0], right[:, 1] * w
