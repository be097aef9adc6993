"""∂L/∂log K, exactly: from the adjoints of what a divergence reads to those of the kernel, in one pass over blocks.

    ∂L/∂log K = (on the target) + row softmax ∘ ρ + column softmax ∘ σ + (row statistics) + (iterations)

ρ and σ are the adjoints of log(K v) and log(Kᵀ u). Their derivatives are the two softmaxes, P over its row sums and P
over its column sums, whose entries are at most 1 whatever the plan. *Truncated*: iterations are reversed, each by two
matrix–vector products; what they add is K times a rank-two matrix, and all of it is one skinny matrix product at the
end. *Implicit*: the fixed point is differentiated (module `implicit`, which has all that is done in logarithms).
*Envelope*: the loss is a Fenchel–Young loss of a converged plan, so ∂L/∂log K = γ(P − T), where γ is the weight of the
loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from gcalign.transport.implicit import REVERSED, Parts, in_logarithms
from gcalign.transport.operators.blocked import Blocked
from gcalign.transport.operators.sources import Inner, add_offset
from gcalign.transport.problem import Options, Problem
from gcalign.transport.sinkhorn import Scalings, exponents
from gcalign.transport.statistics import Adjoints, Reads, Statistic, Vectors
from gcalign.transport.support import Pairs, Support

MANY = 20  # recorded iterations from which their reversal may end early
LARGE = 1 << 20  # entries of a kernel from which a step on the CPU takes longer than a look at its result
Factors = tuple[Tensor, Tensor]  # of rows and of columns: vectors, or matrices with a vector in each column
Rows = Callable[[int, int], Tensor]  # (first row, last row) -> these rows of a matrix [n, m]

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
        return Choice(
            "truncated", f"{asked}the plan has not converged, so its iterations are differentiated one by one"
        )
    if requested != "auto":
        return Choice(requested, "requested")
    if enveloped:
        return Choice("envelope", "the plan has converged and the target has its marginals, so ∂L/∂log K = P − T")
    why = "the divergence is not KL" if not dual else "the target does not have the plan's marginals"
    if constrained == 2 and options.iterations < MANY and not options.accelerated:
        return Choice("truncated", f"{why}, so the few iterations are differentiated one by one")
    return Choice("implicit", f"the plan has converged and {why}, so its fixed point is differentiated")


# --- what a divergence reads ----------------------------------------------------------------------------------


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
    extra, parts, factors, eps_grad = list[Rows](), None, None, None
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
    operator: Blocked, target: Support, on: Tensor | None, adjoint: Adjoints, extra: Sequence[Rows]
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
    one, parts, back = operator.spans == [(0, operator.shape[0])], list[Tensor](), None
    for first, last, k in operator.filled or operator.blocks():
        u, sums, more = z, kx, outer
        if not one:  # views cost as much as a small product
            u, sums, more = z[first:last], kx[first:last], None if outer is None else outer[first:last]
        part = torch.mv(k, y).mul_(u) if more is None else torch.addcmul(more, torch.mv(k, y), u)
        parts.append(part.div_(sums))
        if factor is not None:
            back = torch.addmv(y if back is None else back, k.T, parts[-1], beta=back is not None, alpha=factor)
    delta = parts[0] if one else operator.joined(parts)
    if factor is not None and (back is None or operator.shard is not None):
        back = operator.over_ranks(back)
    return delta, back


# --- from ∂L/∂log K to the kernel's tensors -------------------------------------------------------------------


def _pullback(
    operator: Blocked,
    target: Support,
    wanted: Sequence[bool],
    factors: Factors | None,  # left [n, k], right [m, k]
    on_target: Tensor | None,  # [k] on pairs, [n] for Σ_j T_ij log K_ij, or [n, m]
    extra: Sequence[Rows],
) -> list[Tensor | None]:
    """The gradient in each tensor of Σ W·log K for W = K̂ ∘ (left rightᵀ) + (on the target) + extra rows."""
    source, grads = operator.source, list[Tensor | None]()
    for tensor, want in zip(source.tensors, wanted, strict=True):
        grads.append(torch.zeros_like(tensor) if want else None)
    dense = on_target if on_target is not None and on_target.dim() == 2 else None
    more = extra if dense is None else [lambda start, stop: dense[start:stop], *extra]
    products = isinstance(source, Inner) and source.own is None and not more
    if products and factors is not None and factors[0].shape[1] == 1:
        _pull_rank_one(operator, *factors, grads)
    elif factors is not None or more:
        _pull_blocks(operator, factors, more, grads)
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


def _pull_blocks(operator: Blocked, factors: Factors | None, extra: Sequence[Rows], grads: list[Tensor | None]) -> None:
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
