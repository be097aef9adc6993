"""∂L/∂log K, exactly: from the adjoints of what a divergence reads to those of the kernel, in one pass over blocks.

    ∂L/∂log K = (on the target) + row softmax ∘ ρ + column softmax ∘ σ + (row statistics) + (iterations)

ρ and σ are the adjoints of log(K v) and log(Kᵀ u). Their derivatives are the two softmaxes, P over its row sums and P
over its column sums, whose entries are at most 1 whatever the plan. *Envelope*: scalings are constant. *Truncated*:
iterations are reversed, each by two matrix–vector products; what they add is K times a rank-two matrix, and all of it
is one skinny matrix product at the end. `implicit` has what is done in logarithms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gcalign.transport.implicit import REVERSED, in_logarithms
from gcalign.transport.logarithmic import Scalings
from gcalign.transport.operators.blocked import Blocked
from gcalign.transport.operators.sources import Inner, add_offset
from gcalign.transport.problem import LONG, Form, Problem, statistics_of
from gcalign.transport.sinkhorn import exponents
from gcalign.transport.support import Pairs, Support

Adjoints = tuple[Tensor | None, ...]  # ∂L/∂ of each output of `outputs`; None where the loss has no use for one


def outputs(operator: Blocked, problem: Problem, form: Form, s: Scalings) -> tuple[Tensor, ...]:
    """log P on the target, log P1, log Pᵀ1, the row statistics, a and b."""
    target, n = problem.target, operator.shape[0]
    assert target is not None
    if s.on_pairs is not None:
        on_target = s.on_pairs
    elif isinstance(target, Pairs):
        on_target = operator.source.log_on_pairs(target) + target.along_rows(s.a) + target.along_columns(s.b)
    elif form.reads_entries:
        on_target = (operator.source.rows(0, n) + s.a[:, None] + s.b).masked_fill(target.dense() == 0, 0)
    else:
        on_target = operator.source.against(target) + s.a * target.mu + target.dot(s.b)
    log_columns = s.log_columns
    if log_columns is None:
        log_columns = s.b + operator.log_rmatvec(s.a) if form.needs_columns else operator.like.new_empty(0)
    terms = operator.like.new_empty(n, 0)
    if statistics := statistics_of(form, target):
        parts = [
            torch.stack([f(log_k + s.a[i:j, None] + s.b, target.rows(i, j)) for f in statistics], 1)
            for i, j, log_k in operator.log_blocks()
        ]
        terms = operator.by_rows(parts, len(statistics))
    return on_target, s.log_rows, log_columns, terms, s.a, s.b


def backward(
    operator: Blocked, problem: Problem, form: Form, s: Scalings, mode: str, adjoint: Adjoints, wanted: list[bool]
) -> tuple[Tensor | None, list[Tensor | None]]:
    """∂L/∂ε through the steps, and ∂L/∂ of each tensor of the kernel."""
    target = problem.target
    assert target is not None
    on_target, rho, sigma, terms, a, b = adjoint
    sigma = None if sigma is None or not len(sigma) else sigma
    statistics = statistics_of(form, target)
    extra: Callable[[int, int], Tensor] | None = None
    if statistics and terms is not None:

        def extra(start: int, stop: int) -> Tensor:
            """∂/∂log P of the row statistics in these rows, by autograd on the block."""
            log_p = (operator.source.rows(start, stop) + s.a[start:stop, None] + s.b).detach().requires_grad_()
            with torch.enable_grad():
                total = torch.stack([f(log_p, target.rows(start, stop)) for f in statistics], 1)
            return torch.autograd.grad(total, log_p, terms[start:stop])[0]

    if on_target is not None and on_target.dim() == 2:
        on_target = on_target.masked_fill(target.dense() == 0, 0)
    if mode == "envelope" or (problem.rows is None and problem.columns is None):
        a = b = None
    else:
        a, b = _direct(operator, target, on_target, rho, sigma, extra, a, b)
    if s.linear:
        eps_grad, loose, frame = None, None, _linear(operator, problem, s, rho, sigma, a, b)
    else:
        parts, eps_grad = in_logarithms(operator, problem, s, mode, rho, sigma, a, b)
        frame = parts.on(operator, s)
        loose = parts if frame is None and parts else None
    left, right = (None, None) if frame is None else frame
    more = extra
    if loose is not None:

        def more(start: int, stop: int) -> Tensor:
            total = loose.block(start, stop, operator.source.rows(start, stop))
            return total if extra is None else total + extra(start, stop)

    return eps_grad, _pullback(operator, target, wanted, left, right, on_target, more)


def _direct(
    operator: Blocked,
    target: Support,
    on: Tensor | None,
    rho: Tensor | None,
    sigma: Tensor | None,
    extra: Callable[[int, int], Tensor] | None,
    a: Tensor | None,
    b: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Adjoints of a and b, but for what reaches them through log(K v) and log(Kᵀ u)."""
    if on is None:
        direct: tuple[Tensor | None, Tensor | None] = (None, None)
    elif isinstance(target, Pairs):
        direct = target.sum_rows(on), target.sum_columns(on)
    elif on.dim() == 2:
        direct = on.sum(1), on.sum(0)
    else:
        direct = on * target.mu, target.tdot(on)
    through: tuple[Tensor | None, ...] = (None, None)
    if extra is not None:
        to_a, to_b = operator.like.new_zeros(operator.shape[0]), operator.like.new_zeros(operator.shape[1])
        for start, stop in operator.spans:
            seen = extra(start, stop)
            to_a[start:stop] = seen.sum(1)
            to_b += seen.sum(0)
        through = operator.summed(to_a, to_b)
    totals, sides = [], ((a, rho, direct[0], through[0]), (b, sigma, direct[1], through[1]))
    for n, parts in zip(operator.shape, sides, strict=True):
        total = None
        for part in parts:
            total = part if total is None else total if part is None else total + part
        totals.append(operator.like.new_zeros(n) if total is None else total)
    return totals[0], totals[1]


# --- iterations reversed, where K̂ serves every step -----------------------------------------------------------


def _linear(
    operator: Blocked,
    problem: Problem,
    s: Scalings,
    rho: Tensor | None,
    sigma: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """left [n, k] and right [m, k] with K̂ ∘ (left rightᵀ) = ∂L/∂log K off the target; a and b None: the envelope.

    With y = −τ₂ b̄/(K̂ᵀz) a column step sends K̂ ∘ (z ⊗ y) to the kernel and z ∘ K̂y to ū; with δ = −τ₁ ū/(K̂x) a row step
    sends K̂ ∘ (δ ⊗ x) to the kernel and x ∘ K̂ᵀδ to the v̄ before it.
    """
    rows, columns, done = problem.rows, problem.columns, s.iterations
    kxs, zs = s.rows[:, 0].unbind(), s.rows[:, 1].unbind()
    xs, ws = s.columns[:, 0].unbind(), s.columns[:, 1].unbind()
    lefts: list[Tensor] = []
    rights: list[Tensor] = []
    if rho is not None:
        end = done if columns is not None else 0
        y = rho / kxs[end]
        lefts.append(y)
        rights.append(xs[end])
        if b is not None:
            b = torch.addcmul(b, xs[end], _products(operator, None, y)[1])
    if sigma is not None:
        if columns is None:  # only the divergence asks for these sums
            z = (s.a + operator.r).exp()
            y = sigma / _products(operator, None, z)[1]
        else:
            z, y = zs[done - 1], sigma / ws[done - 1]
        lefts.append(z)
        rights.append(y)
        if a is not None:
            a = torch.addcmul(a, z, _products(operator, y, None)[0])
    if a is not None and b is not None:
        tau_1, tau_2 = exponents(problem, problem.eps_value)
        minus_k, minus_w = None, None
        if rows is not None and tau_1 is not None:
            minus_k = (-s.rows[:done, 0] if tau_1 == 1 else s.rows[:done, 0] * (-1 / tau_1)).unbind()
        if columns is not None and tau_2 is not None:
            minus_w = (-s.columns[:done, 1] if tau_2 == 1 else s.columns[:done, 1] * (-1 / tau_2)).unbind()
        least = 8 * torch.finfo(a.dtype).eps * (a.abs().sum() + b.abs().sum()) if done >= LONG else None
        outer: Tensor | None = a  # the adjoint that u has from outside: of the last iteration's alone
        for t in range(done - 1, -1, -1):
            to_w = None
            if minus_w is not None:
                to_w = b / minus_w[t]
                lefts.append(zs[t])
                rights.append(to_w)
            if minus_k is None:
                break
            delta, back = _reversed_row_step(operator, to_w, zs[t], outer, minus_k[t], need=t > 0)
            lefts.append(delta)
            rights.append(xs[t])
            if back is None:
                break
            b, outer = xs[t] * back, None
            # iterations forget: once the adjoint is rounding, so is all that earlier ones would add
            if least is not None and t % REVERSED == 0 and bool(b.abs().sum() <= least):
                break
    if len(lefts) == 1:
        return lefts[0][:, None], rights[0][:, None]
    return (torch.stack(lefts, 1), torch.stack(rights, 1)) if lefts else None


def _reversed_row_step(
    operator: Blocked, y: Tensor | None, z: Tensor, outer: Tensor | None, minus_k: Tensor, *, need: bool
) -> tuple[Tensor, Tensor | None]:
    """δ of the row step, and K̂ᵀδ where it is needed, in one pass: ū = outer + z ∘ K̂y, δ = ū/minus_k."""
    if y is None:
        assert outer is not None
        return outer / minus_k, None
    one, back = operator.spans == [(0, operator.shape[0])], None
    delta = z if one else torch.zeros_like(z)
    for first, last, k in operator.made or operator.blocks():
        z_block, minus, more = z, minus_k, outer
        if not one:  # views cost as much as a small product
            z_block, minus, more = z[first:last], minus_k[first:last], None if outer is None else outer[first:last]
        through = torch.mv(k, y)
        part = (through.mul_(z_block) if more is None else torch.addcmul(more, through, z_block)).div_(minus)
        if one:
            delta = part
        else:
            delta[first:last] = part
        if need:
            back = torch.mv(k.T, part) if back is None else back.addmv_(k.T, part)
    if need and operator.shard is not None:
        back = operator.summed(torch.zeros_like(y) if back is None else back)[0]
    return delta, back


def _products(operator: Blocked, x: Tensor | None, y: Tensor | None) -> tuple[Any, Any]:
    """K̂x in this rank's rows [n], and K̂ᵀy [m]; None where there is no x or y."""
    ahead, back = None if x is None else operator.like.new_zeros(operator.shape[0]), None
    for first, last, k in operator.made or operator.blocks():
        if ahead is not None and x is not None:
            torch.mv(k, x, out=ahead[first:last])
        if y is not None:
            part = y[first:last]
            back = torch.mv(k.T, part) if back is None else back.addmv_(k.T, part)
    if operator.shard is not None and y is not None:
        back = operator.summed(operator.like.new_zeros(operator.shape[1]) if back is None else back)[0]
    return ahead, back


# --- from ∂L/∂log K to the kernel's tensors -------------------------------------------------------------------


def _pullback(
    operator: Blocked,
    target: Support,
    wanted: list[bool],
    left: Tensor | None,  # [n, k]
    right: Tensor | None,  # [m, k]
    on_target: Tensor | None,  # [k] on pairs, [n] for Σ_j T_ij log K_ij, or [n, m]
    extra: Callable[[int, int], Tensor] | None,
) -> list[Tensor | None]:
    """The gradient in each tensor of Σ W·log K for W = K̂ ∘ (left rightᵀ) + (on the target) + extra rows."""
    source, grads = operator.source, list[Tensor | None]()
    for tensor, want in zip(source.tensors, wanted, strict=True):
        grads.append(torch.zeros_like(tensor) if want else None)
    dense = on_target if on_target is not None and on_target.dim() == 2 else None
    one = left is not None and left.shape[1] == 1 and dense is None and extra is None and isinstance(source, Inner)
    if one and left is not None and right is not None:
        _pull_rank_one(operator, left, right, grads)
    elif left is not None or dense is not None or extra is not None:
        _pull_blocks(operator, left, right, dense, extra, grads)
    if operator.shard is not None:
        whole = iter(operator.summed(*(grad for grad in grads if grad is not None)))
        grads = [None if grad is None else next(whole) for grad in grads]
    if on_target is not None and isinstance(target, Pairs):
        source.pull_pairs(target, on_target, grads)
    elif on_target is not None and dense is None:
        source.pull_target(target, on_target, grads)
    return grads


def _pull_rank_one(operator: Blocked, left: Tensor, right: Tensor, grads: list[Tensor | None]) -> None:
    """W = diag(left) K̂ diag(right) is never made: its products with the factors are products with K̂."""
    source = operator.source
    assert isinstance(source, Inner)
    phi, psi, r, c = grads
    ahead = right * source.psi if phi is not None else None
    for start, stop, k in operator.made or operator.blocks():
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
    operator: Blocked,
    left: Tensor | None,
    right: Tensor | None,
    dense: Tensor | None,
    extra: Callable[[int, int], Tensor] | None,
    grads: list[Tensor | None],
) -> None:
    weights = operator.like.new_empty(operator.block, operator.shape[1])
    stored = [(*span, None) for span in operator.spans] if left is None else operator.made or operator.blocks()
    for start, stop, k in stored:
        w = weights[: stop - start]
        if k is None or left is None or right is None:
            w.zero_()
        else:
            torch.mm(left[start:stop], right.T, out=w).mul_(k)
        if dense is not None:
            w += dense[start:stop]
        if extra is not None:
            w += extra(start, stop)
        operator.source.pull(start, stop, w, grads)
