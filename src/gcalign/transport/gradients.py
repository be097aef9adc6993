"""∂L/∂log K, exactly: from the adjoints of what a divergence reads to those of the kernel, in one pass over blocks.

    ∂L/∂log K = (on the target) + row softmax ∘ ρ + column softmax ∘ σ + (row statistics) + (iterations)

ρ and σ are the adjoints of log(K v) and log(Kᵀ u). Their derivatives are the two softmaxes, P over its row sums and P over
its column sums, whose entries are at most 1 whatever the plan. *Envelope*: scalings are constant. *Implicit*: the fixed
point is differentiated. *Truncated*: iterations are reversed, each by two matrix–vector products; what they add is K times
a rank-two matrix, and all of it is one skinny matrix product at the end.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcalign.constraints import Marginal
from gcalign.transport.conjugate import conjugate_gradients
from gcalign.transport.operators.blocked import Blocked
from gcalign.transport.sinkhorn import Scalings, Sides
from gcalign.transport.support import Pairs, Support

REVERSED = 8  # iterations between two looks at whether the adjoint has become rounding


@dataclass(frozen=True)
class Solved:
    """A solved problem as its gradient needs it."""

    operator: Blocked
    scalings: Scalings
    sides: Sides
    target: Support
    statistics: tuple[Any, ...]
    column_sums: bool
    entries: bool  # of log P on a target that is no list of pairs

    def log_ktu(self) -> Tensor:
        known = self.scalings.log_ktu
        return self.operator.log_rmatvec(self.scalings.a) if known is None else known

    def log_plan(self, start: int, stop: int, log_k: Tensor) -> Tensor:
        return log_k + self.scalings.a[start:stop, None] + self.scalings.b


@dataclass
class Adjoints:
    """∂L/∂ of each output of `outputs`; None where the loss has no use for one."""

    on_target: Tensor | None
    log_rows: Tensor | None
    log_columns: Tensor | None
    a: Tensor | None
    b: Tensor | None
    terms: Tensor | None


def outputs(solved: Solved) -> tuple[Tensor, ...]:
    """log P on the target, log P1, log Pᵀ1, the row statistics, a and b."""
    operator, s, target = solved.operator, solved.scalings, solved.target
    if isinstance(target, Pairs):
        on_target = operator.source.on_pairs(target) + target.along_rows(s.a) + target.along_columns(s.b)
    elif solved.entries:
        on_target = solved.log_plan(0, operator.shape[0], operator.source.rows(0, operator.shape[0]))
        on_target = on_target.masked_fill(target.dense() == 0, 0)
    else:
        on_target = operator.source.against(target) + s.a * target.mu + target.dot(s.b)
    log_columns = s.b + solved.log_ktu() if s.log_ktu is not None or solved.column_sums else s.b[:0].clone()
    terms = s.a.new_zeros(len(s.a), 0)
    if solved.statistics:
        parts = [_statistics(solved, *block) for block in operator.log_blocks()]
        terms = operator.by_rows(parts, len(solved.statistics))
    return on_target, s.a + s.log_kv, log_columns, terms, s.a, s.b


def _statistics(solved: Solved, start: int, stop: int, log_k: Tensor) -> Tensor:  # [b, k]
    log_p, t = solved.log_plan(start, stop, log_k), solved.target.rows(start, stop)
    return torch.stack([f(log_p, t) for f in solved.statistics], 1)


def _statistics_adjoint(solved: Solved, start: int, stop: int, adjoint: Tensor) -> Tensor:  # [b, m]
    """∂/∂log P of the row statistics in these rows, by autograd on the block."""
    log_k = solved.operator.source.rows(start, stop)
    with torch.enable_grad():
        log_p = solved.log_plan(start, stop, log_k).detach().requires_grad_()
        total = torch.stack([f(log_p, solved.target.rows(start, stop)) for f in solved.statistics], 1)
    return torch.autograd.grad(total, log_p, adjoint[start:stop])[0]


def backward(
    solved: Solved, mode: str, adjoint: Adjoints, wanted: list[bool]
) -> tuple[Tensor | None, list[Tensor | None]]:
    """∂L/∂ε through the steps, and ∂L/∂ of each tensor of the kernel."""
    operator, sides = solved.operator, solved.sides
    if not solved.statistics:
        adjoint.terms = None
    if adjoint.log_columns is not None and not len(adjoint.log_columns):
        adjoint.log_columns = None
    if adjoint.on_target is not None and adjoint.on_target.dim() == 2:
        adjoint.on_target = adjoint.on_target.masked_fill(solved.target.dense() == 0, 0)
    moved = mode != "envelope" and (sides.rows is not None or sides.columns is not None)
    a, b = _direct(solved, adjoint) if moved else (None, None)
    parts = _Parts()
    if solved.scalings.linear:
        eps_grad, frame = None, _linear(solved, adjoint, a, b)
    else:
        eps_grad = _logarithmic(solved, mode, adjoint, a, b, parts)
        frame = parts.on(operator, solved.scalings)
    loose = parts if frame is None and parts else None
    terms = adjoint.terms

    def more(start: int, stop: int) -> Tensor:
        total = operator.like.new_zeros(stop - start, operator.shape[1])
        if loose is not None:
            total += loose.block(start, stop, operator.source.rows(start, stop))
        return total if terms is None else total + _statistics_adjoint(solved, start, stop, terms)

    left, right = (None, None) if frame is None else frame
    asked = more if terms is not None or loose is not None else None
    return eps_grad, operator.pullback(wanted, left, right, solved.target, adjoint.on_target, asked)


def _direct(solved: Solved, adjoint: Adjoints) -> tuple[Tensor, Tensor]:
    """Adjoints of a and b, but for what reaches them through log(K v) and log(Kᵀ u)."""
    s, target, on = solved.scalings, solved.target, adjoint.on_target
    a = torch.zeros_like(s.a) if adjoint.a is None else adjoint.a
    b = torch.zeros_like(s.b) if adjoint.b is None else adjoint.b
    if on is not None and isinstance(target, Pairs):
        a, b = a + target.sum_rows(on), b + target.sum_columns(on)
    elif on is not None and on.dim() == 2:
        a, b = a + on.sum(1), b + on.sum(0)
    elif on is not None:
        a, b = a + on * target.mu, b + target.tdot(on)
    a = a if adjoint.log_rows is None else a + adjoint.log_rows
    b = b if adjoint.log_columns is None else b + adjoint.log_columns
    if adjoint.terms is not None:
        through_a, through_b = torch.zeros_like(a), torch.zeros_like(b)
        for start, stop in solved.operator.spans:
            seen = _statistics_adjoint(solved, start, stop, adjoint.terms)
            through_a[start:stop] = seen.sum(1)
            through_b += seen.sum(0)
        through_a, through_b = solved.operator.summed(through_a, through_b)
        a, b = a + through_a, b + through_b
    return a, b


# --- where K̂ serves every step --------------------------------------------------------------------------------


def _linear(
    solved: Solved, adjoint: Adjoints, a: Tensor | None, b: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """left [n, k] and right [m, k] with K̂ ∘ (left rightᵀ) = ∂L/∂log K off the target; a and b None: the envelope.

    With y = −τ₂ b̄/(K̂ᵀz) a column step sends K̂ ∘ (z ⊗ y) to the kernel and z ∘ K̂y to ū; with δ = −τ₁ ū/(K̂x) a row step
    sends K̂ ∘ (δ ⊗ x) to the kernel and x ∘ K̂ᵀδ to the v̄ before it.
    """
    operator, s = solved.operator, solved.scalings
    (kxs, zs), (xs, ws) = ([part.unbind(0) for part in record.unbind(1)] for record in (s.rows, s.columns))
    rows, columns, done = solved.sides.rows, solved.sides.columns, s.iterations
    lefts: list[Tensor] = []
    rights: list[Tensor] = []
    if adjoint.log_rows is not None:
        if kxs:
            end = done if columns is not None else 0
            kx, x = kxs[end], xs[end]
        else:  # nothing was recorded
            kx, x = (s.log_kv + operator.alpha).exp(), (s.b - operator.beta).exp()
        y = adjoint.log_rows / kx
        lefts.append(y)
        rights.append(x)
        b = None if b is None else torch.addcmul(b, x, _times_transposed(operator, y))
    if adjoint.log_columns is not None:
        w, z = (solved.log_ktu() + operator.beta).exp(), (s.a - operator.alpha).exp()
        y = adjoint.log_columns / w
        lefts.append(z)
        rights.append(y)
        a = None if a is None else torch.addcmul(a, z, _times(operator, y))
    if a is not None and b is not None:
        tau_1, tau_2 = solved.sides.tau()
        minus_k = None if rows is None or tau_1 is None else s.rows[:done, 0] * (-1 / tau_1)
        minus_w = None if columns is None or tau_2 is None else s.columns[:done, 1] * (-1 / tau_2)
        least = 8 * torch.finfo(a.dtype).eps * (a.abs().sum() + b.abs().sum()) if done > REVERSED else None
        outer: Tensor | None = a  # the adjoint that u has from outside: of the last iteration's alone
        for t in range(done - 1, -1, -1):
            y = None
            if minus_w is not None:
                y = b / minus_w[t]
                lefts.append(zs[t])
                rights.append(y)
            if minus_k is None:
                break
            delta, b = _reversed_row_step(operator, y, zs[t], outer, minus_k[t], need=t > 0)
            lefts.append(delta)
            rights.append(xs[t])
            if b is None:
                break
            b, outer = xs[t] * b, None
            # iterations forget: once the adjoint is rounding, so is all that earlier ones would add
            if least is not None and t % REVERSED == 0 and bool(b.abs().sum() <= least):
                break
    return (torch.stack(lefts, 1), torch.stack(rights, 1)) if lefts else None


def _reversed_row_step(
    operator: Blocked, y: Tensor | None, z: Tensor, outer: Tensor | None, minus_k: Tensor, *, need: bool
) -> tuple[Tensor, Tensor | None]:
    """δ of the row step, and K̂ᵀδ where it is needed, in one pass: ū = outer + z ∘ K̂y, δ = ū/minus_k."""
    if y is None:
        assert outer is not None
        return outer / minus_k, None
    delta = torch.empty_like(z) if operator.shard is None else torch.zeros_like(z)
    back = None
    for first, last, k in operator.blocks():
        mine = slice(first, last)
        through = torch.mv(k, y).mul_(z[mine])
        if outer is not None:
            through += outer[mine]
        torch.div(through, minus_k[mine], out=delta[mine])
        if need:
            back = torch.mv(k.T, delta[mine]) if back is None else back.addmv_(k.T, delta[mine])
    if need and operator.shard is not None:
        back = operator.summed(torch.zeros_like(y) if back is None else back)[0]
    return delta, back


def _times(operator: Blocked, x: Tensor) -> Tensor:  # [m] -> [n]
    """K̂x, in this rank's rows."""
    parts = [torch.mv(k, x) for _, _, k in operator.blocks()]
    if operator.shard is None:
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    y = operator.like.new_zeros(operator.shape[0])
    for (first, last), part in zip(operator.spans, parts, strict=True):
        y[first:last] = part
    return y


def _times_transposed(operator: Blocked, y: Tensor) -> Tensor:  # [n] -> [m]
    """K̂ᵀy."""
    total = None
    for first, last, k in operator.blocks():
        part = y[first:last]
        total = torch.mv(k.T, part) if total is None else total.addmv_(k.T, part)
    if operator.shard is not None:
        total = operator.summed(operator.like.new_zeros(operator.shape[1]) if total is None else total)[0]
    assert total is not None
    return total


# --- where each step has its own frame ------------------------------------------------------------------------


def _logarithmic(
    solved: Solved, mode: str, adjoint: Adjoints, a: Tensor | None, b: Tensor | None, parts: _Parts
) -> Tensor | None:
    """Adds to `parts` what ∂L/∂log K is made of besides the target, and returns ∂L/∂ε through the steps."""
    s, operator = solved.scalings, solved.operator
    rho, sigma, eps_grad = adjoint.log_rows, adjoint.log_columns, None
    if a is not None and b is not None:
        if rho is not None:
            b = b + operator.scaled(-s.log_kv, s.b).rmatvec(rho)
        if sigma is not None:
            a = a + operator.scaled(s.a, -solved.log_ktu()).matvec(sigma)
        fixed = _implicit(solved, a, b) if mode == "implicit" else None
        if fixed is not None:
            delta, eta, eps_grad = fixed
            rho = delta if rho is None else rho + delta
            sigma = eta if sigma is None else sigma + eta
        else:
            if not len(s.rows):
                warnings.warn(
                    "the linear system of gradient='implicit' was not solved, and its iterations were not kept; the "
                    "gradient lacks what reaches it through the scalings: use gradient='truncated'",
                    stacklevel=2,
                )
            eps_grad = _truncated(solved, a, b, parts)
    if rho is not None:
        parts.add(-s.log_kv, rho, s.b, None)
    if sigma is not None:
        parts.add(s.a, None, -solved.log_ktu(), sigma)
    return eps_grad


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


def _implicit(solved: Solved, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Adjoints of log(K v) and log(Kᵀ u) at the fixed point, and ∂L/∂ε through the steps.

    With them called δ and η, the fixed point a = φ₁(log(K v)), b = φ₂(log(Kᵀ u)) has the adjoint equations

        δ = −τ₁ (a + column softmax · η)        η = −τ₂ (b + row softmaxᵀ · δ)

    which are the system of the mathematics page with x = −δ/R, y = −η/S, free of divisions by sums that may vanish.
    None where the plan is so near a permutation that its fixed point does not say what the scalings are: they were
    left where the iterations stopped, and only those can be differentiated.
    """
    s, rows, columns, eps = solved.scalings, solved.sides.rows, solved.sides.columns, solved.sides.eps
    delta, eta = torch.zeros_like(s.a), torch.zeros_like(s.b)
    if columns is None:
        assert rows is not None
        delta, eps_grad = _step_adjoint(rows, s.log_kv, eps, a)
        return delta, eta, eps_grad
    assert s.log_ktu is not None
    if rows is None:
        eta, eps_grad = _step_adjoint(columns, s.log_ktu, eps, b)
        return delta, eta, eps_grad
    by_rows = solved.operator.scaled(-s.log_kv, s.b)
    by_columns = solved.operator.scaled(s.a, -s.log_ktu)
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


def _truncated(solved: Solved, a: Tensor, b: Tensor, parts: _Parts) -> Tensor:
    """Reverse the recorded iterations: adds to `parts` what they give ∂L/∂E, and returns ∂L/∂ε through the steps.

    A column step sends its adjoint through the column softmax e^{E + a_t ⊖ log(Kᵀu_t)}, a row step through the row
    softmax: each is K times a rank-one matrix, so the record is vectors, and a reversed iteration is one pass.
    """
    operator, rows, columns, eps = solved.operator, solved.sides.rows, solved.sides.columns, solved.sides.eps
    eps_grad = torch.zeros_like(eps)
    # iterations forget: once the adjoint is rounding, so is all that earlier ones would add
    negligible = 8 * torch.finfo(eps.dtype).eps * (a.abs().sum() + b.abs().sum())
    s = solved.scalings
    for k in range(min(s.iterations, len(s.rows)) - 1, -1, -1):
        (log_kv, a_then), (b_before, log_ktu) = s.rows[k], s.columns[k]
        eta = None
        if columns is not None:
            eta, through_eps = _step_adjoint(columns, log_ktu, eps, b)
            parts.add(a_then, None, -log_ktu, eta)
            eps_grad = eps_grad + through_eps
        if rows is None:
            break
        by_rows = operator.scaled(-log_kv, b_before)
        if eta is not None and k == 0:  # nothing comes before
            a = a + operator.scaled(a_then, -log_ktu).matvec(eta)
        elif eta is not None:
            tau = -_step_adjoint(rows, log_kv, eps, torch.ones_like(a))[0]
            through, b = operator.scaled(a_then, -log_ktu).then(by_rows, eta, -tau, a)
            a = a + through
        delta, through_eps = _step_adjoint(rows, log_kv, eps, a)
        if eta is None:
            b = by_rows.rmatvec(delta)
        parts.add(-log_kv, delta, b_before, None)
        eps_grad = eps_grad + through_eps
        a = torch.zeros_like(a)
        if (k % REVERSED == 0 or a.device.type == "cpu") and bool(b.abs().sum() <= negligible):
            break
    return eps_grad
