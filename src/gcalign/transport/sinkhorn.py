"""Marginals, hard or relaxed: alternate u ← (μ/(K v))^τ₁ and v ← (ν/(Kᵀ u))^τ₂ (eq:uvupdatesapp), v⁰ = 1.

`plain` multiplies by the stored K̂ and divides: four torch operations an iteration, six where a side is relaxed. It is
for kernels whose scalings cannot leave the range of the dtype. `logarithmic` does the same for any kernel and any
penalty, with a = log u and b = log v. `accelerated` reaches the same fixed point in fewer passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.constraints import Marginal
from gcalign.transport.acceleration import Accelerated
from gcalign.transport.operators.blocked import Blocked
from gcalign.transport.operators.reference import Reference
from gcalign.transport.problem import Options
from gcalign.transport.support import Pairs, Support

FIRST_CHECK = 5  # iterations before the first test for convergence, which waits for the device
LEAP = 300  # the most accelerated iterations
MODERATE = 10.0  # |log mass| up to which scalings stay in range beside a tame kernel


@dataclass(frozen=True)
class Scalings:
    """log u and log v with log(K v) and log(Kᵀ u) at them, how they were reached, and the record of the iterations.

    A record is what the reverse pass needs of each iteration t: (K v_{t−1}, u_t) for the rows, (v_{t−1}, Kᵀ u_t) for the
    columns; one more entry has the end. It is in K̂'s frame where `linear`, and in logarithms where not.
    """

    a: Tensor  # [n]
    b: Tensor  # [m]
    log_kv: Tensor  # [n]
    log_ktu: Tensor | None  # [m]  None where columns are free
    iterations: int
    converged: bool
    rows: Tensor  # [iterations + 1, 2, n]
    columns: Tensor  # [iterations + 1, 2, m]
    linear: bool


@dataclass(frozen=True)
class Sides:
    """Both marginals of a problem, with ε as a tensor and as a number."""

    rows: Marginal | None
    columns: Marginal | None
    eps: Tensor
    eps_value: float

    def tau(self) -> tuple[float | None, float | None]:
        """The exponents of both steps, where they have that form."""
        rows, columns = (None if side is None else side.penalty.tau(self.eps_value) for side in (self.rows, self.columns))
        return rows, columns


def scalings(
    operator: Blocked,
    sides: Sides,
    options: Options,
    target: Support,
    *,
    start: Tensor | None,
    keep: bool,
    free: bool,
    linear: bool,
) -> Scalings:
    """The scalings of a problem. `keep` records the iterations; `free` says that only the fixed point counts, and not
    the iterations that lead to it; without `linear` nothing is done but in logarithms."""
    tau = sides.tau()
    linear = linear and operator.tame and _moderate(sides, target) and (sides.rows is None or tau[0] is not None)
    linear = linear and (sides.columns is None or tau[1] is not None) and start is None
    if sides.rows is None or sides.columns is None:
        return (_one_side_plain if linear else _one_side)(operator, sides, tau, keep)
    if options.long and free:
        found = accelerated(operator, sides, options, target, start)
        if found.converged:
            return found
    return (plain if linear else logarithmic)(operator, sides, tau, options, target, start, keep)


def _moderate(sides: Sides, target: Support) -> bool:
    """Whether the masses are neither huge nor tiny; looks only where the target does not say so."""
    if target.ordinary:
        return True
    masses = torch.cat([side.mass for side in (sides.rows, sides.columns) if side is not None] or [sides.eps.view(1)])
    low, high = torch.stack(masses.log().aminmax()).tolist()
    return -MODERATE <= low and high <= MODERATE


# --- plain scalings -------------------------------------------------------------------------------------------


def _tops(side: Marginal, tau: float, offset: Tensor) -> Tensor:
    """μ^τ e^{(1 − τ) r}: with it a step in K̂'s frame is top / (K̂ x)^τ."""
    return side.mass if tau == 1 else side.mass.pow(tau) * ((1 - tau) * offset).exp()


def _step(top: Tensor, sums: Tensor, tau: float, out: Tensor) -> None:
    if tau == 1:
        torch.div(top, sums, out=out)
    else:
        torch.pow(sums, -tau, out=out).mul_(top)


def plain(
    operator: Blocked,
    sides: Sides,
    tau: tuple[float | None, float | None],
    options: Options,
    target: Support,
    start: Tensor | None,
    keep: bool,
) -> Scalings:
    """Scale rows, then columns. After a row step only the columns can be off, by Σ_j (Kᵀu)_j |v⁺_j − v_j| where v⁺ is
    the next column step; that, relative to ‖P − T‖₁, is compared with `tol` after five iterations and then where its
    rate lets it be expected. Where it cannot be expected, nothing is looked at any more."""
    rows, columns, (tau_1, tau_2) = sides.rows, sides.columns, tau
    assert rows is not None
    assert columns is not None
    assert tau_1 is not None
    assert tau_2 is not None
    n, m = operator.shape
    r, c = -operator.alpha, -operator.beta
    top_r, top_c = _tops(rows, tau_1, r), _tops(columns, tau_2, c)
    slots = options.iterations + 1 if keep else 2
    make = operator.like.new_empty if operator.shard is None else operator.like.new_zeros
    row_record, column_record = make(slots, 2, n), make(slots, 2, m)
    (kxs, zs), (xs, ws) = ([part.unbind(0) for part in record.unbind(1)] for record in (row_record, column_record))
    torch.exp(c, out=xs[0])
    on_pairs = operator.source.on_pairs(target) if isinstance(target, Pairs) else None
    done, converged, check = 0, False, FIRST_CHECK if options.tol > 0 else options.iterations + 1
    check = min(check, options.iterations) if options.tol > 0 else check
    while done < options.iterations and not converged:
        x, w = xs[done % slots], ws[done % slots]
        kx, z = kxs[done % slots], zs[done % slots]
        done += 1
        after = xs[done % slots]
        for k, (first, last, block) in enumerate(operator.blocks()):
            torch.mv(block, x, out=kx[first:last])
            _step(top_r[first:last], kx[first:last], tau_1, z[first:last])
            if k == 0:
                torch.mv(block.T, z[first:last], out=w)
            else:
                w.addmv_(block.T, z[first:last])
        if operator.shard is not None:
            w.copy_(operator.summed(w)[0])
        _step(top_c, w, tau_2, after)
        if done == check:
            before = (xs[(done - 2) % slots], ws[(done - 2) % slots]) if keep and done > 1 else None
            whole = z if operator.shard is None else operator.summed(z)[0]
            a, b = (whole.log() - r, x.log() - c) if on_pairs is not None else (z, x)
            error, rate, enough = _errors(operator, target, on_pairs, a, b, x, w, after, before, options.tol)
            converged = error <= enough
            check = _next_check(done, error, rate, enough, options.iterations)
    x = xs[done % slots]
    kx = kxs[done % slots]
    for first, last, block in operator.blocks():
        torch.mv(block, x, out=kx[first:last])
    if operator.shard is not None:
        kx, z = operator.summed(kx, z)
    return Scalings(
        z.log() - r, x.log() - c, kx.log() + r, w.log() + c, done, converged, row_record, column_record, linear=True
    )


def _errors(
    operator: Blocked,
    target: Support,
    on_pairs: Tensor | None,
    a: Tensor,
    b: Tensor,
    x: Tensor,
    w: Tensor,
    after: Tensor,
    before: tuple[Tensor, Tensor] | None,
    tol: float,
) -> tuple[float, float, float]:
    """How far the columns are from their next step, how fast that falls, and how far they may be: one device wait."""
    error, mass = torch.dot(w, (after - x).abs_()), torch.dot(w, x)
    scale = mass
    if isinstance(target, Pairs) and on_pairs is not None:
        scale = _distance(target, on_pairs, a, b, mass)
    last = error if before is None else torch.dot(before[1], (x - before[0]).abs_())
    unit = 4 * torch.finfo(x.dtype).eps
    error, last, scale, mass = torch.stack([error, last, scale, mass]).tolist()
    return error, error / last if last > 0 else 0.0, max(tol * scale, unit * mass)


def _distance(target: Pairs, log_k: Tensor, a: Tensor, b: Tensor, mass: Tensor) -> Tensor:
    """‖P − T‖₁ of the plan (a, b) with that mass; everything off the pairs is mass."""
    p = (log_k + target.along_rows(a) + target.along_columns(b)).exp_()
    return (target.weight - p).abs_().sum() + (mass - p.sum()).clamp_(min=0)


def _next_check(done: int, error: float, rate: float, enough: float, last: int) -> int:
    """The iteration after which convergence can be expected; beyond the last where it cannot."""
    if not (0 < rate < 1 and error > enough > 0):
        return last  # no number, or no rate: look once more at the end
    steps = math.ceil(math.log(enough / error) / math.log(rate))
    return done + steps if done + steps <= last else last if done + steps <= last + 2 else last + 1


# --- one side -------------------------------------------------------------------------------------------------


def _one_side_plain(
    operator: Blocked, sides: Sides, tau: tuple[float | None, float | None], keep: bool
) -> Scalings:
    n, m = operator.shape
    r, c = -operator.alpha, -operator.beta
    row_record, column_record = operator.like.new_zeros(2, 2, n), operator.like.new_zeros(2, 2, m)
    (kxs, zs), (xs, ws) = ([part.unbind(0) for part in record.unbind(1)] for record in (row_record, column_record))
    x, z = torch.exp(c, out=xs[0]), torch.exp(r, out=zs[0])
    if sides.rows is not None:
        assert tau[0] is not None
        top = _tops(sides.rows, tau[0], r)
        for first, last, block in operator.blocks():
            torch.mv(block, x, out=kxs[0][first:last])
            _step(top[first:last], kxs[0][first:last], tau[0], z[first:last])
        kx, z = (kxs[0], z) if operator.shard is None else operator.summed(*_only_mine(operator, kxs[0], z))
        return Scalings(z.log() - r, x.log() - c, kx.log() + r, None, 1, True, row_record, column_record, linear=True)
    log_ktu, done = None, 0
    if sides.columns is not None:
        assert tau[1] is not None
        w, done = ws[0], 1
        for first, last, block in operator.blocks():
            w.addmv_(block.T, z[first:last])
        if operator.shard is not None:
            w.copy_(operator.summed(w)[0])
        _step(_tops(sides.columns, tau[1], c), w, tau[1], xs[1])
        x, log_ktu = xs[1], w.log() + c
    kx = kxs[done]
    for first, last, block in operator.blocks():
        torch.mv(block, x, out=kx[first:last])
    if operator.shard is not None:
        kx.copy_(operator.summed(kx)[0])
    return Scalings(z.log() - r, x.log() - c, kx.log() + r, log_ktu, done, True, row_record, column_record, linear=True)


def _only_mine(operator: Blocked, *vectors: Tensor) -> tuple[Tensor, ...]:
    """Vectors that are zero off this rank's rows."""
    for vector in vectors:
        vector[: operator.first] = 0
        vector[operator.last :] = 0
    return vectors


def _one_side(operator: Blocked, sides: Sides, tau: tuple[float | None, float | None], keep: bool) -> Scalings:
    """One step meets one side for good."""
    n, m = operator.shape
    zero = torch.zeros_like(sides.eps)
    a, b = zero.expand(n), zero.expand(m)
    rows, columns, log_ktu, done = torch.empty_like(a), torch.empty_like(b), None, 0
    if sides.rows is not None:
        log_kv = operator.log_matvec(b)
        a = sides.rows.penalty.step(sides.rows.gap(log_kv), sides.eps)
        done = 1
        rows, columns = torch.stack([log_kv, a]), torch.stack([b, b])
    elif sides.columns is not None:
        log_ktu = operator.log_rmatvec(a)
        rows, columns = torch.stack([a, a]), torch.stack([b, log_ktu])
        b = sides.columns.penalty.step(sides.columns.gap(log_ktu), sides.eps)
        log_kv, done = operator.log_matvec(b), 1
    else:
        log_kv = operator.log_matvec(b)
        rows, columns = torch.stack([log_kv, a]), torch.stack([b, b])
    return Scalings(
        a, b, log_kv, log_ktu, done, True, rows.expand(2, 2, n), columns.expand(2, 2, m), linear=False
    )


# --- any kernel, any penalty ----------------------------------------------------------------------------------


def logarithmic(
    operator: Blocked,
    sides: Sides,
    tau: tuple[float | None, float | None],
    options: Options,
    target: Support,
    start: Tensor | None,
    keep: bool,
) -> Scalings:
    """The same iterations in logarithms, tested after each."""
    rows, columns, eps = sides.rows, sides.columns, sides.eps
    assert rows is not None
    assert columns is not None
    n, m = operator.shape
    slots = options.iterations + 1 if keep else 1
    row_record, column_record = operator.like.new_empty(slots, 2, n), operator.like.new_empty(slots, 2, m)
    b = torch.zeros_like(eps).expand(m) if start is None else start
    stop = _Stop(operator, target, options.tol, patience=30)
    for done in range(1, options.iterations + 1):  # noqa: B007  # read after the loop
        log_kv, a, log_ktu = operator.sweep(b, lambda sums, which: rows.penalty.step(rows.gap(sums, which), eps))
        after = columns.penalty.step(columns.gap(log_ktu), eps)
        if keep:
            for record, pair in ((row_record, (log_kv, a)), (column_record, (b, log_ktu))):
                record[done - 1, 0], record[done - 1, 1] = pair
        converged = options.tol > 0 and stop(a, b, after, log_ktu)
        b = after
        if converged:
            break
    log_kv = operator.log_matvec(b)
    return Scalings(a, b, log_kv, log_ktu, done, converged, row_record, column_record, linear=False)


def accelerated(
    operator: Blocked, sides: Sides, options: Options, target: Support, start: Tensor | None
) -> Scalings:
    """The fixed point in fewer passes; `converged` says whether it was reached."""
    rows, columns, eps = sides.rows, sides.columns, sides.eps
    assert rows is not None
    assert columns is not None
    n, m = operator.shape
    tau = sides.tau()
    rate = None if tau[0] is None or tau[1] is None else tau[0] * tau[1]
    b = torch.zeros_like(eps).expand(m) if start is None else start
    faster = Accelerated(balanced=rate == 1)
    stop = _Stop(operator, target, options.tol, patience=1)
    for done in range(1, min(options.iterations, LEAP) + 1):  # noqa: B007  # read after the loop
        log_kv, a, log_ktu = operator.sweep(b, lambda sums, which: rows.penalty.step(rows.gap(sums, which), eps))
        after = columns.penalty.step(columns.gap(log_ktu), eps)
        converged = stop(a, b, after, log_ktu)
        if converged:
            break
        slope = None if rate is None or stop.on_pairs is None else rate * _overlap(target, stop.on_pairs, a, b)
        b = faster(b, after, stop.error, slope)
    none = operator.like.new_empty
    return Scalings(a, b, log_kv, log_ktu, done, converged, none(0, 2, n), none(0, 2, m), linear=False)


def _overlap(target: Support, log_k: Tensor, a: Tensor, b: Tensor) -> Tensor:  # [m]
    """Σ_i P_ij² / (μ_i ν_j) over the pairs: near 1 where a column is nearly all one entry."""
    assert isinstance(target, Pairs)
    p = (log_k + target.along_rows(a) + target.along_columns(b)).exp()
    return target.sum_columns(p.square() / target.along_rows(target.mu)) / target.nu


class _Stop:
    """Whether iterations may stop: the columns of (a, b) move by less than `tol`, relative to ‖P − T‖₁ or the mass."""

    def __init__(self, operator: Blocked, target: Support, tol: float, patience: int) -> None:
        self.operator, self.target, self.tol, self.patience = operator, target, tol, patience
        pairs = isinstance(target, Pairs) and len(target.weight) > 0
        self.on_pairs = operator.source.on_pairs(target) if pairs and isinstance(target, Pairs) else None
        self.error, self._mark, self._stalled = math.inf, math.inf, 0

    def __call__(self, a: Tensor, b: Tensor, after: Tensor, log_ktu: Tensor) -> bool:
        sums = (b + log_ktu).exp()
        error, mass = (sums * torch.expm1(after - b).abs()).sum(), sums.sum()
        unit = torch.finfo(sums.dtype).eps * mass
        scale = mass
        if self.on_pairs is not None and isinstance(self.target, Pairs):
            scale = _distance(self.target, self.on_pairs, a, b, mass)
        numbers = torch.stack([error, torch.maximum(self.tol * scale, 4 * unit), mass]).tolist()
        self.error, enough, total = numbers
        self._stalled = 0 if self.error < 0.5 * self._mark else self._stalled + 1
        self._mark = self.error if self._stalled == 0 else self._mark
        if not self.error < math.inf:
            return False
        # logarithms are rounded in their last digit: an error of that size that no longer falls is all there is
        return self.error <= enough or (self._stalled >= self.patience and self.error <= total * self._rounding(a, b))

    def _rounding(self, a: Tensor, b: Tensor) -> float:
        """How far rounding leaves the columns, of the mass."""
        size = float(a.abs().max() + b.abs().max() + self.operator.shift())
        return torch.finfo(a.dtype).eps * min(4 + size, 1e4)


def unrolled(
    kernel: Reference, sides: Sides, options: Options, shape: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, bool]:
    """a, b, log(K v), log(Kᵀ u), iterations and convergence, in log space for autograd to follow.

    Under torch.compile, where nothing can be looked at, all iterations are done.
    """
    rows, columns, eps = sides.rows, sides.columns, sides.eps
    zero = torch.zeros_like(eps)
    a, b = zero.expand(shape[0]), zero.expand(shape[1])
    both = rows is not None and columns is not None
    done, converged = 0, not both
    for done in range(1, (options.iterations if both else 1) + 1):  # noqa: B007  # read after the loop
        if rows is not None:
            a = rows.penalty.step(rows.gap(kernel.log_matvec(b)), eps)
        if columns is not None:
            log_ktu = kernel.log_rmatvec(a)
            before, b = b, columns.penalty.step(columns.gap(log_ktu), eps)
            if both and options.tol > 0 and not torch.compiler.is_compiling():
                with torch.no_grad():
                    sums = (before + log_ktu).exp()
                    error = (sums * torch.expm1(b - before).abs()).sum()
                    least = max(options.tol, 4 * torch.finfo(b.dtype).eps)
                converged = bool(error <= least * sums.sum())
        if converged:
            break
    return a, b, kernel.log_matvec(b), kernel.log_rmatvec(a), done, converged
