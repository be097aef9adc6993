"""∂L/∂log K, exactly: from the adjoints of what a divergence reads to those of the kernel, in one pass over blocks.

    ∂L/∂log K = (on the target) + row softmax ∘ ρ + column softmax ∘ σ + (row statistics) + (iterations)

ρ and σ are the adjoints of log(K v) and log(Kᵀ u). Their derivatives are the two softmaxes, P over its row sums and P
over its column sums, whose entries are at most 1 whatever the plan. *Truncated*: iterations are reversed, each by two
matrix–vector products; what they add is K times a rank-two matrix, and all of it is one skinny matrix product at the
end. *Implicit*: the fixed point is differentiated. *Envelope*: the loss is a Fenchel–Young loss of a converged plan, so
∂L/∂log K = γ(P − T), where γ is the weight of the loss.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from gcalign.constraints import Marginal
from gcalign.plan import Adjoints, Reads, Statistic, Vectors
from gcalign.transport.operators.blocked import Block, Blocked
from gcalign.transport.operators.sources import Inner, add_offset
from gcalign.transport.problem import Options, Problem
from gcalign.transport.sinkhorn import Scalings, exponents
from gcalign.transport.support import Pairs, Support

REVERSED = 8  # iterations between two tests of whether the adjoint is negligible
MANY = 20  # recorded iterations from which their reversal may end early
LARGE = 1 << 20  # entries of a kernel from which a step on the CPU takes longer than a look at its result
Factors = tuple[Tensor, Tensor]  # of rows and of columns: vectors, or matrices with a vector in each column
SomeRows = Callable[[int, int], Tensor]  # (first row, last row) -> these rows of a matrix [n, m]

# --- which gradient -------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """A gradient mode and the reason for it."""

    mode: str
    reason: str


def choose(problem: Problem, options: Options, reads: Reads, converged: bool) -> Choice:
    """The cheapest exact mode for row and column marginals, or the requested one if it is exact."""
    requested, dual, constrained = options.gradient, reads.dual, problem.constrained
    enveloped = dual and problem.feasible  # the gradient is P − T
    if requested == "unrolled":
        return Choice("unrolled", "requested: autograd through every iteration")
    if not constrained:
        return Choice("envelope", "there are no constraints: P = K, so only log K is differentiated")
    if requested == "envelope" and not enveloped:
        why = "the divergence has no dual form here" if not dual else "the target's marginals are not the plan's"
        raise ValueError(f"gradient='envelope' would be wrong: {why}; use 'implicit' or 'auto'")
    if not converged:
        asked = "" if requested in ("auto", "truncated") else f"{requested} was requested, but "
        why = "the plan has not converged, so its iterations are differentiated one by one"
        return Choice("truncated", asked + why)
    if requested != "auto":
        return Choice(requested, "requested")
    if enveloped:
        return Choice("envelope", "the plan has converged and the target has its marginals, so ∂L/∂log K = P − T")
    why = "the divergence is not KL" if not dual else "the target does not have the plan's marginals"
    if constrained == 2 and options.iterations < MANY and not options.accelerated:
        return Choice("truncated", f"{why}, so the few iterations are differentiated one by one")
    return Choice("implicit", f"the plan has converged and {why}, so its fixed point is differentiated")


def _power_sum(log_p: Tensor, t: Tensor, *, q: float) -> Tensor:  # [b, m], [b, m] -> [b]
    """log Σ_j T_ij P_ij^q of each row."""
    return torch.logsumexp(torch.where(t > 0, q * log_p + t.log(), -torch.inf), 1)


def statistics_of(reads: Reads, target: Support) -> tuple[Statistic, ...]:
    """Row statistics and, if T is not a list of pairs, log Σ_j T_ij P_ij^q for the powers."""
    if isinstance(target, Pairs) or not reads.powers:
        return reads.statistics
    return (*reads.statistics, *(partial(_power_sum, q=q) for q in reads.powers))


def read(operator: Blocked, problem: Problem, reads: Reads, s: Scalings) -> Vectors:
    """The vectors of a solved plan."""
    target, n = problem.support, operator.shape[0]
    if s.on_pairs is not None:
        on_target = s.on_pairs
    elif isinstance(target, Pairs):
        on_target = operator.source.log_on_pairs(target) + target.along_rows(s.a) + target.along_columns(s.b)
    elif reads.entries:
        on_target = (operator.source.rows(0, n) + s.a[:, None] + s.b).masked_fill(target.dense() == 0, 0)
    else:
        on_target = operator.source.against(target) + s.a * target.mu + target.dot(s.b)
    log_columns = s.log_columns
    if log_columns is None:
        log_columns = s.b + operator.log_rmatvec(s.a) if reads.columns else operator.like.new_empty(0)
    terms = operator.like.new_empty(n, 0)
    if statistics := statistics_of(reads, target):
        parts = [
            torch.stack([f(log_k + s.a[i:j, None] + s.b, target.rows(i, j)) for f in statistics], 1)
            for i, j, log_k in operator.log_blocks()
        ]
        terms = operator.summed(operator.joined(parts, len(statistics)))[0]
    return Vectors(on_target, s.log_rows, log_columns, terms, s.a, s.b, problem.eps)


# --- the gradient ---------------------------------------------------------------------------------------------


def backward(
    operator: Blocked,
    problem: Problem,
    reads: Reads,
    s: Scalings,
    mode: str,
    adjoint: Adjoints,
    wanted: Sequence[bool],
    eps_wanted: bool,
) -> tuple[Tensor | None, list[Tensor | None]]:
    """∂L/∂ε other than through the kernel, and ∂L/∂ of each tensor of the kernel."""
    target, on_target = problem.support, adjoint.on_target
    if on_target is not None and on_target.dim() == 2:
        on_target = on_target.masked_fill(target.dense() == 0, 0)
    if adjoint.log_columns is not None and not len(adjoint.log_columns):
        adjoint = adjoint._replace(log_columns=None)
    extra, parts, factors, eps_grad = list[SomeRows](), None, None, None
    if mode == "envelope" and problem.constrained:
        if on_target is None:
            return None, [None] * len(wanted)
        weight, scale = _envelope_weights(problem, s, on_target)
        if s.linear:
            assert s.x is not None
            z = s.record[-1].scaling if operator.shard is None else (s.a + operator.r).exp()
            factors = (scale * z)[:, None], s.x[:, None]
        else:
            parts = Parts()
            parts.add(s.a, scale.expand(len(s.a)), s.b, None)
            eps_grad = _price_slope(problem, s, weight, scale) if eps_wanted else None
    else:
        statistics, terms = statistics_of(reads, target), adjoint.terms
        if statistics and terms is not None:

            def of_statistics(start: int, stop: int) -> Tensor:
                """∂/∂log P of the row statistics in these rows, by autograd on the block."""
                log_p = (operator.source.rows(start, stop) + s.a[start:stop, None] + s.b).detach().requires_grad_()
                with torch.enable_grad():
                    total = torch.stack([f(log_p, target.rows(start, stop)) for f in statistics], 1)
                return torch.autograd.grad(total, log_p, terms[start:stop])[0]

            extra.append(of_statistics)
        scalings = _direct(operator, target, on_target, adjoint, extra) if problem.constrained else (None, None)
        through = adjoint._replace(a=scalings[0], b=scalings[1])
        if s.linear:
            factors = _linear(operator, problem, s, through)
        else:
            parts, eps_grad = in_logarithms(operator, problem, s, mode, through)
        if adjoint.eps is not None:
            eps_grad = adjoint.eps if eps_grad is None else eps_grad + adjoint.eps
    if parts:
        factors = parts.factors(operator, s)
        if factors is None:
            extra.append(partial(parts.rows, operator))
    return eps_grad, _pullback(operator, target, wanted, factors, on_target, extra)


def _envelope_weights(problem: Problem, s: Scalings, on_target: Tensor) -> tuple[Tensor, Tensor]:
    """γ of ∂L/∂log K = γ(P − T), and what makes γP of the plan of `s`, which may have another mass.

    The adjoint of log P on the target is −γT, and that tells γ. All other adjoints are without use: a Fenchel–Young
    loss has this gradient, whatever it reads of the plan.
    """
    target = problem.support
    if on_target.dim() == 1 and (not isinstance(target, Pairs) or target.unit):
        weight = -on_target[0]
    else:
        t = target.weight if isinstance(target, Pairs) else target.dense().flatten()
        largest = t.argmax()
        weight = -on_target.flatten()[largest] / t[largest]
    return weight, weight if problem.total is None else weight * problem.missing(s.log_rows).exp()


def _price_slope(problem: Problem, s: Scalings, weight: Tensor, scale: Tensor) -> Tensor:
    """∂L/∂ε through λ/ε at a constant log K: minus the derivative of the price of the plan."""
    shift = 0.0 if problem.total is None else (scale / weight).log()
    with torch.enable_grad():
        eps = problem.eps.detach().requires_grad_()
        price = 0 * eps
        for side, log_sums in ((problem.rows, s.log_rows), (problem.columns, s.log_columns)):
            if side is not None and log_sums is not None:
                price = price + side.penalty.price(side.mass, log_sums + shift, eps).sum()
    return -weight * torch.autograd.grad(price, eps)[0]


def _direct(
    operator: Blocked, target: Support, on: Tensor | None, adjoint: Adjoints, extra: Sequence[SomeRows]
) -> tuple[Tensor, Tensor]:
    """Adjoints of a and b, but for what reaches them through log(K v) and log(Kᵀ u)."""
    to_a, to_b = [adjoint.a, adjoint.log_rows], [adjoint.b, adjoint.log_columns]
    if isinstance(target, Pairs) and on is not None:
        to_a.append(target.sum_rows(on))
        to_b.append(target.sum_columns(on))
    elif on is not None:
        matrix = on.dim() == 2
        to_a.append(on.sum(1) if matrix else on * target.mu)
        to_b.append(on.sum(0) if matrix else target.tdot(on))
    for slopes in extra:
        sums = operator.like.new_zeros(operator.shape[0]), operator.like.new_zeros(operator.shape[1])
        for start, stop in operator.spans:
            slope = slopes(start, stop)
            sums[0][start:stop] = slope.sum(1)
            sums[1].add_(slope.sum(0))
        for total, part in zip((to_a, to_b), operator.summed(*sums), strict=True):
            total.append(part)
    (n, m), zeros = operator.shape, operator.like.new_zeros
    a, b = [*filter(torch.is_tensor, to_a)], [*filter(torch.is_tensor, to_b)]
    return reduce(torch.add, a or [zeros(n)]), reduce(torch.add, b or [zeros(m)])


# --- iterations reversed, where K̂ serves every step -----------------------------------------------------------


def _linear(operator: Blocked, problem: Problem, s: Scalings, adjoint: Adjoints) -> Factors | None:
    """left [n, k] and right [m, k] with K̂ ∘ (left rightᵀ) = ∂L/∂log K off the target.

    A column step sends K̂ ∘ (z ⊗ −τ₂y) to the kernel and −τ₂ z ∘ K̂y to ū, where y = b̄/(K̂ᵀz). A row step sends
    K̂ ∘ (−τ₁δ ⊗ x) to the kernel and −τ₁ x ∘ K̂ᵀδ to the v̄ before it, where δ = ū/(K̂x). So the factors −τ₂ and τ₁τ₂
    are left out of y and δ, and multiplied in at the end.
    """
    rows, columns = problem.rows, problem.columns
    rho, sigma, a, b = adjoint.log_rows, adjoint.log_columns, adjoint.a, adjoint.b
    sums, by_columns, by_rows = list[Factors](), list[Factors](), list[Factors]()
    if rho is not None:
        assert s.x is not None
        assert s.kx is not None
        y = rho / s.kx
        sums.append((y, s.x))
        if b is not None:
            b = torch.addcmul(b, s.x, operator.rmatvec(y))
    if sigma is not None and columns is None:  # only the divergence needs these sums
        z = (s.a + operator.r).exp()
        y = sigma / operator.rmatvec(z)
        sums.append((z, y))
        if a is not None:
            a = torch.addcmul(a, z, operator.matvec(y))
    tau_1, tau_2 = exponents(problem, problem.eps_value)
    if a is not None and b is not None and tau_1 is not None and tau_2 is not None:
        if columns is None:
            assert s.record[-1].sums is not None
            by_rows.append((a / s.record[-1].sums, s.record[-1].before))
            return _stacked((by_rows, -tau_1), (sums, 1.0))
        # b̄/ν is relative to what reaches an entry of the plan from its row, as are these
        least, every = 0.0, _test_every(operator, len(s.record)) if rows is not None else 0
        if every and rows is not None:
            least = torch.finfo(a.dtype).eps * max(_largest(x, rows.mass) for x in (a, rho) if x is not None)
        if sigma is not None:  # the sums of the last column step are read as well
            b = b - sigma / tau_2
        outer: Tensor | None = a / -tau_2  # what u has from outside: in the last iteration alone
        for t in range(len(s.record) - 1, -1, -1):
            x, kx, z, w, _ = s.record[t]
            assert w is not None
            y = b / w
            by_columns.append((z, y))
            if kx is None:  # rows are free
                break
            delta, back = _reversed_row_step(operator, y, z, outer, kx, tau_1 * tau_2 if t > 0 else None)
            by_rows.append((delta, x))
            if back is None:
                break
            b, outer = x * back, None
            # the adjoint decays: once it is negligible, so are the terms of all earlier iterations
            if every and t % every == 0 and _largest(b, columns.mass) <= least:
                break
        return _stacked((by_columns, -tau_2), (by_rows, tau_1 * tau_2), (sums, 1.0))
    return _stacked((sums, 1.0))


def _stacked(*groups: tuple[list[Factors], float]) -> Factors | None:
    """All terms as the columns of two matrices, those of each group times a number."""
    lists, _ = zip(*groups, strict=True)
    terms = [*chain(*lists)]
    if not terms:
        return None
    left, right = (torch.stack(vectors) for vectors in zip(*terms, strict=True))
    start = 0
    for group, factor in groups:
        if group and factor != 1:
            right[start : start + len(group)] *= factor
        start += len(group)
    return left.T, right.T


def _test_every(operator: Blocked, done: int) -> int:
    """Iterations between two tests of whether the adjoint is negligible, which wait for the device; 0 for none."""
    if operator.exact:
        return 0
    if operator.like.device.type == "cpu" and operator.shape[0] * operator.shape[1] >= LARGE:
        return 1
    return REVERSED if done >= MANY else 0


def _largest(x: Tensor, mass: Tensor) -> float:
    return float(torch.linalg.vector_norm(x / mass, torch.inf))


def _reversed_row_step(
    operator: Blocked, y: Tensor, z: Tensor, outer: Tensor | None, kx: Tensor, factor: float | None
) -> tuple[Tensor, Tensor | None]:
    """δ = (outer + z ∘ K̂y)/(K̂x), and K̂ᵀδ times a factor unless that is None, in one pass."""
    if (k := operator.whole) is not None:  # the views and lists that blocks need cost as much as a small product
        delta = torch.mv(k, y).mul_(z) if outer is None else torch.addcmul(outer, torch.mv(k, y), z)
        delta.div_(kx)
        return delta, None if factor is None else torch.addmv(y, k.T, delta, beta=0, alpha=factor)
    parts, back = list[Tensor](), None
    for first, last, k in operator.blocks():
        part = torch.mv(k, y).mul_(z[first:last])
        part = part if outer is None else part.add_(outer[first:last])
        parts.append(part.div_(kx[first:last]))
        if factor is not None:
            back = torch.addmv(y if back is None else back, k.T, parts[-1], beta=back is not None, alpha=factor)
    return operator.joined(parts), None if factor is None else operator.over_ranks(back)


# --- in log space, for any kernel and any penalty: the fixed point, or the recorded iterations in reverse --------


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


# --- from ∂L/∂log K to the kernel's tensors -------------------------------------------------------------------


def _pullback(
    operator: Blocked,
    target: Support,
    wanted: Sequence[bool],
    factors: Factors | None,
    on: Tensor | None,
    extra: list[SomeRows],
) -> list[Tensor | None]:
    """The gradient in each tensor of Σ W·log K for W = K̂ ∘ (left rightᵀ) + (on the target) + extra rows.

    `factors` are left [n, k] and right [m, k]. `on` is [k] on pairs, [n] for Σ_j T_ij log K_ij, or [n, m].
    """
    source, grads = operator.source, list[Tensor | None]()
    for tensor, want in zip(source.tensors, wanted, strict=True):
        grads.append(torch.zeros_like(tensor) if want else None)
    dense = on if on is not None and on.dim() == 2 else None
    more = extra if dense is None else [lambda start, stop: dense[start:stop], *extra]
    products = isinstance(source, Inner) and source.own is None and not more
    if products and factors is not None and factors[0].shape[1] == 1:
        _pull_rank_one(operator, *factors, grads)
    elif factors is not None or more:
        _pull_blocks(operator, factors, more, grads)
    if operator.shard is not None:
        whole = iter(operator.summed(*(grad for grad in grads if grad is not None)))
        grads = [None if grad is None else next(whole) for grad in grads]
    if on is not None and isinstance(target, Pairs):
        source.pull_pairs(target, on, grads)
    elif on is not None and dense is None:
        source.pull_target(target, on, grads)
    return grads


def _pull_rank_one(operator: Blocked, left: Tensor, right: Tensor, grads: list[Tensor | None]) -> None:
    """W = diag(left) K̂ diag(right) is never made: its products with the factors are products with K̂."""
    source, (phi, psi, r, c) = operator.source, grads
    assert isinstance(source, Inner)
    ahead = right * source.psi if phi is not None else None
    for start, stop, k in operator.blocks():
        mine = left[start:stop]
        if phi is not None and ahead is not None:
            part = phi[start:stop]
            torch.addmm(part, k, ahead, beta=0, alpha=source.scale, out=part).mul_(mine)
        if psi is not None:
            psi.addmm_(k.T, mine * source.phi[start:stop], alpha=source.scale)
        if r is not None:
            add_offset(r, slice(start, stop), mine[:, 0] * torch.mv(k, right[:, 0]))
        if c is not None:
            add_offset(c, slice(None), right[:, 0] * torch.mv(k.T, mine[:, 0]))
    if psi is not None:
        psi *= right


def _pull_blocks(
    operator: Blocked, factors: Factors | None, extra: Sequence[SomeRows], grads: list[Tensor | None]
) -> None:
    weights = operator.like.new_empty(operator.block, operator.shape[1])
    for start, stop, k in operator.blocks() if factors else ((*span, None) for span in operator.spans):
        w = weights[: stop - start]
        if factors is None or k is None:
            w.zero_()
        else:
            torch.mm(factors[0][start:stop], factors[1].T, out=w).mul_(k)
        for rows in extra:
            w += rows(start, stop)
        operator.source.pull(start, stop, w, grads)
