"""Marginals, hard or relaxed: alternate u ← (μ/(K v))^τ₁ and v ← (ν/(Kᵀ u))^τ₂ (Eq. 23, eq:uvupdatesapp), v⁰ = 1.

`plain` multiplies by the stored K̂ and divides: four torch operations an iteration, six where a side is relaxed. It is
for kernels whose scalings cannot leave the range of the dtype; the module `logarithmic` is for the others.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gcalign.transport.logarithmic import Scalings, accelerated, logarithmic, one_side
from gcalign.transport.operators.blocked import Blocked
from gcalign.transport.problem import Options, Problem
from gcalign.transport.support import Pairs, Support

FIRST_CHECK = 5  # iterations before the first test for convergence, which waits for the device
MODERATE = 10.0  # |log mass| up to which scalings stay in range beside a tame kernel


def exponents(problem: Problem, eps: float) -> tuple[float | None, float | None]:
    """τ of both steps; 1 where a side is free, None where a step has not that form."""
    rows, columns = problem.rows, problem.columns
    return (
        1.0 if rows is None else rows.penalty.tau(eps),
        1.0 if columns is None else columns.penalty.tau(eps),
    )


def scalings(
    operator: Blocked, problem: Problem, options: Options, tau: tuple[float | None, float | None], *, slots: int,
    free: bool, linear: bool,
) -> Scalings:  # fmt: skip
    """The scalings of a problem. `slots` are for the record of iterations, 0 for none; `free` says that only the fixed
    point counts, and not the iterations that lead to it; without `linear` nothing is done but in logarithms."""
    linear = linear and operator.tame and None not in tau and problem.start is None
    linear = linear and _moderate(problem, tau)
    if problem.rows is None or problem.columns is None:
        return _one_side_plain(operator, problem, tau) if linear else one_side(operator, problem)
    if options.long and free:
        found = accelerated(operator, problem, options, tau)
        if found.converged:
            return found
        linear = linear and operator.tame  # it may have moved its potentials
    if linear:
        return plain(operator, problem, tau, options, slots)
    return logarithmic(operator, problem, options, slots, tau)


def _moderate(problem: Problem, tau: tuple[float | None, float | None]) -> bool:
    """Whether no mass is huge or tiny, and no scaling makes up for different totals of rows and columns; looks only
    where the target does not say so."""
    assert problem.target is not None
    if problem.target.ordinary and problem.feasible:
        return True
    sides = [side.mass for side in (problem.rows, problem.columns) if side]
    masses = torch.cat(sides or [problem.eps.view(1)])
    sums = [mass.sum() for mass in sides]
    low, high, *totals = torch.stack([*masses.aminmax(), *sums]).log().tolist()
    drift = 0.0
    if len(totals) == 2 and tau != (1.0, 1.0):  # log u = (λ/ε) log μ/(P1), and λ/ε = τ/(1 − τ)
        drift = abs(totals[0] - totals[1]) / sum(1 / t - 1 for t in tau if t is not None)
    return bool(low >= -MODERATE and high <= MODERATE and drift <= MODERATE)


# --- plain scalings -------------------------------------------------------------------------------------------


def _top(mass: Tensor, tau: float, offset: Tensor) -> Tensor:
    """μ^τ e^{(1 − τ) r}: with it a step in K̂'s frame is top / (K̂ x)^τ."""
    return mass if tau == 1 else mass.pow(tau) * ((1 - tau) * offset).exp()


def _step(top: Tensor, sums: Tensor, tau: float, out: Tensor) -> None:
    if tau == 1:
        torch.div(top, sums, out=out)
    else:
        torch.pow(sums, -tau, out=out).mul_(top)


def plain(
    operator: Blocked, problem: Problem, tau: tuple[float | None, float | None], options: Options, slots: int
) -> Scalings:
    """Scale rows, then columns. After a row step only the columns can be off, by Σ_j (Kᵀu)_j |v⁺_j − v_j| where v⁺ is
    the next column step; that, relative to ‖P − T‖₁, is compared with `tol` after five iterations and then where its
    rate lets it be expected. Where it cannot be expected, nothing is looked at any more."""
    rows, columns, target, (tau_1, tau_2) = problem.rows, problem.columns, problem.target, tau
    assert rows is not None
    assert columns is not None
    assert tau_1 is not None
    assert tau_2 is not None
    n, m = operator.shape
    r, c = operator.r, operator.c
    top_r, top_c = _top(rows.mass, tau_1, r), _top(columns.mass, tau_2, c)
    slots = slots or 3  # the last three serve the test for convergence
    make = operator.like.new_empty if operator.shard is None else operator.like.new_zeros
    row_record, column_record = make(slots, 2, n), make(slots, 2, m)
    kxs, zs = row_record[:, 0].unbind(), row_record[:, 1].unbind()
    xs, ws = column_record[:, 0].unbind(), column_record[:, 1].unbind()
    torch.exp(c.expand(m), out=xs[0])
    inner = operator.source.on_pairs(target) if isinstance(target, Pairs) else None
    each = options.most_change(tau)
    done, converged, check = 0, False, min(FIRST_CHECK, options.iterations) if options.tol > 0 else 0
    one = operator.spans == [(0, n)]
    while done < options.iterations and not converged:
        k = done % slots
        x, w, kx, z = xs[k], ws[k], kxs[k], zs[k]
        done += 1
        after = xs[done % slots]
        for first, last, block in operator.made or operator.blocks():
            kx_block, z_block, top = kx, z, top_r
            if not one:  # views cost as much as a small product
                kx_block, z_block, top = kx[first:last], z[first:last], top_r[first:last]
            torch.mv(block, x, out=kx_block)
            _step(top, kx_block, tau_1, z_block)
            if first == operator.first:
                torch.mv(block.T, z_block, out=w)
            else:
                w.addmv_(block.T, z_block)
        if operator.shard is not None:
            w.copy_(operator.summed(w)[0])
        _step(top_c, w, tau_2, after)
        if done == check:
            whole = z if operator.shard is None else operator.summed(z)[0]
            before = (done - 2) % slots
            last_error = torch.dot(ws[before], (x - xs[before]).abs_()) if done > 1 else None
            error, rate, enough, change = _errors(operator, target, inner, whole, x, w, after, last_error, options.tol)
            converged = error <= enough and change <= each
            check = _next_check(done, max(error, enough * change / each), rate, enough, options.iterations)
    x, kx = xs[done % slots], kxs[done % slots]
    for first, last, block in operator.made or operator.blocks():
        torch.mv(block, x, out=kx[first:last])
    if operator.shard is not None:
        kx, z = operator.summed(kx, z)
    log_z, log_x = z.log(), x.log()
    on_pairs = None
    if inner is not None and isinstance(target, Pairs):
        base = target.along_rows(log_z) + target.along_columns(log_x)
        on_pairs = torch.add(base, inner, alpha=operator.source.scale)
    return Scalings(
        log_z - r,
        log_x - c,
        (z * kx).log_(),
        (x * w).log_(),
        done,
        converged,
        row_record,
        column_record,
        True,
        on_pairs,
    )


def _errors(
    operator: Blocked,
    target: Support | None,
    inner: Tensor | None,
    z: Tensor,
    x: Tensor,
    w: Tensor,
    after: Tensor,
    last: Tensor | None,
    tol: float,
) -> tuple[float, float, float, float]:
    """How far the columns are from their next step, how fast that falls, how far they may be, and the largest change
    of one of them: one device wait."""
    change = (after - x).abs_()
    error, mass = torch.dot(w, change), torch.dot(w, x)
    scale = mass
    if isinstance(target, Pairs) and inner is not None:
        log_p = target.along_rows(z).log() + target.along_columns(x).log()
        scale = target.distance(torch.add(log_p, inner, alpha=operator.source.scale).exp_(), mass)
    found = torch.stack([error, error if last is None else last, scale, mass, change.div_(x).max()]).tolist()
    enough = max(tol * found[2], 4 * torch.finfo(x.dtype).eps * found[3])
    return found[0], found[0] / found[1] if found[1] > 0 else 0.0, enough, found[4]


def _next_check(done: int, error: float, rate: float, enough: float, last: int) -> int:
    """The iteration after which convergence can be expected; beyond the last where it cannot."""
    if not (0 < rate < 1 and error > enough > 0):
        return last  # no number, or no rate: look once more at the end
    steps = math.ceil(math.log(enough / error) / math.log(rate))
    return done + steps if done + steps <= last else last if done + steps <= last + 2 else last + 1


# --- one side -------------------------------------------------------------------------------------------------


def _one_side_plain(operator: Blocked, problem: Problem, tau: tuple[float | None, float | None]) -> Scalings:
    """One step meets one side for good; where both are free, P is K."""
    (tau_1, tau_2), (n, m), target = tau, operator.shape, problem.target
    assert tau_1 is not None
    assert tau_2 is not None
    r, c, done = operator.r, operator.c, 0
    make = operator.like.new_empty if operator.shard is None else operator.like.new_zeros
    row_record, column_record = make(2, 2, n), make(2, 2, m)
    x, z = torch.exp(c.expand(m), out=column_record[0, 0]), row_record[0, 1]
    kx = row_record[0, 0]
    if problem.columns is not None:
        torch.exp(r.expand(n), out=z)
        w = column_record[0, 1].zero_()
        for first, last, block in operator.blocks():
            w.addmv_(block.T, z[first:last])
        if operator.shard is not None:
            w.copy_(operator.summed(w)[0])
        _step(_top(problem.columns.mass, tau_2, c), w, tau_2, column_record[1, 0])
        x, kx, done = column_record[1, 0], row_record[1, 0], 1
    top = None if problem.rows is None else _top(problem.rows.mass, tau_1, r)
    for first, last, block in operator.blocks():
        torch.mv(block, x, out=kx[first:last])
        if top is not None:
            _step(top[first:last], kx[first:last], tau_1, z[first:last])
    if operator.shard is not None:
        kx, z = operator.summed(*(torch.where(_mine(operator), v, 0) for v in (kx, z)))
    zero = operator.like.new_zeros(max(n, m))
    if problem.rows is None:
        log_kv = kx.log() + r
        b = zero[:m] if problem.columns is None else x.log() - c
        log_columns = None if problem.columns is None else b + w.log() + c
        return Scalings(zero[:n].clone(), b, log_kv, log_columns, done, True, row_record, column_record, linear=True)
    log_z, on_pairs = z.log(), None
    if isinstance(target, Pairs):
        base = target.along_rows(log_z) + (c if len(c) == 1 else target.along_columns(c))
        on_pairs = torch.add(base, operator.source.on_pairs(target), alpha=operator.source.scale)
    log_rows = (z * kx).log_()
    return Scalings(log_z - r, zero[:m], log_rows, None, 1, True, row_record, column_record, True, on_pairs)


def _mine(operator: Blocked) -> Tensor:  # [n]
    """Which rows are this rank's."""
    i = torch.arange(operator.shape[0], device=operator.like.device)
    return (i >= operator.first) & (i < operator.last)
