"""Sinkhorn's iterations in log space, for any kernel and any penalty: a = log u, b = log v (Eq. 23, eq:uvupdatesapp).

`accelerated` reaches the same fixed point in fewer iterations. `unrolled` can be differentiated by autograd.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gcalign.transport.acceleration import Accelerated
from gcalign.transport.operators.blocked import Blocked
from gcalign.transport.operators.reference import Reference
from gcalign.transport.problem import Options, Problem
from gcalign.transport.support import Pairs, Support

LEAP = 300  # maximum of accelerated iterations


class Scalings(NamedTuple):
    """log u and log v, the logarithms of the plan's sums, and a record of the iterations.

    The record holds what the reverse pass needs of each iteration t: (K v_{t−1}, u_t) for the rows, (v_{t−1}, Kᵀ u_t)
    for the columns. One more entry holds the final values. If `linear`, it is in the frame of K̂, else in log space.
    """

    a: Tensor  # [n]
    b: Tensor  # [m]
    log_rows: Tensor  # [n]  log P1
    log_columns: Tensor | None  # [m]  log Pᵀ1 before the last column step; None without a column constraint
    iterations: int
    converged: bool
    rows: Tensor  # [iterations + 1, 2, n]
    columns: Tensor  # [iterations + 1, 2, m]
    linear: bool
    on_pairs: Tensor | None = None  # [k]  log P on the target's pairs, if it was computed


def one_side(operator: Blocked, problem: Problem) -> Scalings:
    """One constrained side needs one step; without constraints, P = K."""
    (n, m), rows, columns, eps = operator.shape, problem.rows, problem.columns, problem.eps
    zero = operator.like.new_zeros(max(n, m))
    a, b = zero[:n], zero[:m].clone()
    row_record, column_record = operator.like.new_zeros(2, 2, n), operator.like.new_zeros(2, 2, m)
    log_columns, done = None, 0
    if columns is not None:
        log_ktu = operator.log_rmatvec(a)
        column_record[0, 1] = log_ktu
        b, done = columns.penalty.step(columns.gap(log_ktu), eps), 1
        log_columns = b + log_ktu
    log_kv = operator.log_matvec(b)
    if rows is not None:
        a, done = rows.penalty.step(rows.gap(log_kv), eps), 1
        row_record[0, 0], row_record[0, 1] = log_kv, a
    return Scalings(a, b, a + log_kv, log_columns, done, True, row_record, column_record, linear=False)


def logarithmic(
    operator: Blocked, problem: Problem, options: Options, slots: int, tau: tuple[float | None, float | None]
) -> Scalings:
    """Scale rows, then columns, with a test for convergence after each iteration."""
    rows, columns, eps = problem.rows, problem.columns, problem.eps
    assert rows is not None
    assert columns is not None
    n, m = operator.shape
    row_record, column_record = operator.like.new_empty(slots, 2, n), operator.like.new_empty(slots, 2, m)
    b = torch.zeros_like(eps).expand(m) if problem.start is None else problem.start
    stop = _Stop(operator, problem.target, options.tol, patience=30, each=options.most_change(tau))
    for done in range(1, options.iterations + 1):  # read after the loop
        log_kv, a, log_ktu = operator.sweep(b, lambda sums, which: rows.penalty.step(rows.gap(sums, which), eps))
        after = columns.penalty.step(columns.gap(log_ktu), eps)
        if slots:
            row_record[done - 1, 0], row_record[done - 1, 1] = log_kv, a
            column_record[done - 1, 0], column_record[done - 1, 1] = b, log_ktu
        converged = options.tol > 0 and stop(a, b, after, log_ktu)
        b = after
        if converged:
            break
    log_rows = a + operator.log_matvec(b)
    return Scalings(a, b, log_rows, b + log_ktu, done, converged, row_record, column_record, linear=False)


def accelerated(
    operator: Blocked, problem: Problem, options: Options, tau: tuple[float | None, float | None]
) -> Scalings:
    """The fixed point in fewer iterations; `converged` is whether it was reached."""
    rows, columns, eps, target = problem.rows, problem.columns, problem.eps, problem.target
    assert rows is not None
    assert columns is not None
    n, m = operator.shape
    rate = None if tau[0] is None or tau[1] is None else tau[0] * tau[1]
    b = torch.zeros_like(eps).expand(m) if problem.start is None else problem.start
    faster = Accelerated(balanced=rate == 1)
    stop = _Stop(operator, target, options.tol, patience=1, each=options.most_change(tau))
    for done in range(1, min(options.iterations, LEAP) + 1):  # noqa: B007  # read after the loop
        log_kv, a, log_ktu = operator.sweep(b, lambda sums, which: rows.penalty.step(rows.gap(sums, which), eps))
        after = columns.penalty.step(columns.gap(log_ktu), eps)
        converged = stop(a, b, after, log_ktu)
        if converged:
            break
        slope = None if rate is None or stop.on_pairs is None else rate * _overlap(target, stop.on_pairs, a, b)
        b = faster(b, after, stop.error, slope)
    none = operator.like.new_empty
    return Scalings(a, b, a + log_kv, b + log_ktu, done, converged, none(0, 2, n), none(0, 2, m), linear=False)


def _overlap(target: Support | None, log_k: Tensor, a: Tensor, b: Tensor) -> Tensor:  # [m]
    """Σ_i P_ij² / (μ_i ν_j) over the pairs: near 1 if a column has nearly all its mass in one entry."""
    assert isinstance(target, Pairs)
    p = (log_k + target.along_rows(a) + target.along_columns(b)).exp()
    return target.sum_columns(p.square() / target.along_rows(target.mu)) / target.nu


class _Stop:
    """Whether to stop: the column sums change by less than `tol`, relative to ‖P − T‖₁ or the mass, and none of them
    by much."""

    def __init__(
        self, operator: Blocked | None, target: Support | None, tol: float, patience: int, each: float = math.inf
    ) -> None:
        self.operator, self.target, self.tol, self.patience, self.each = operator, target, tol, patience, each
        self.on_pairs: Tensor | None = None
        if operator is not None and isinstance(target, Pairs) and len(target.weight) > 0:
            self.on_pairs = operator.source.log_on_pairs(target)
        self.error, self._mark, self._stalled = math.inf, math.inf, 0

    @torch.no_grad()
    def __call__(self, a: Tensor, b: Tensor, after: Tensor, log_ktu: Tensor) -> bool:
        sums = (b + log_ktu).exp()
        error, mass = (sums * torch.expm1(after - b).abs()).sum(), sums.sum()
        unit = torch.finfo(sums.dtype).eps * mass
        scale = mass
        if self.on_pairs is not None and isinstance(self.target, Pairs):
            p = (self.on_pairs + self.target.along_rows(a) + self.target.along_columns(b)).exp_()
            scale = self.target.distance(p, mass)
        largest = (after - b).abs().max()
        numbers = torch.stack([error, torch.maximum(self.tol * scale, 4 * unit), mass, largest]).tolist()
        self.error, enough, total, change = numbers
        self._stalled = 0 if self.error < 0.5 * self._mark else self._stalled + 1
        self._mark = self.error if self._stalled == 0 else self._mark
        if not self.error < math.inf:
            return False
        if self.error <= enough and change <= self.each:
            return True
        if self.error > enough and self._stalled < self.patience:
            return False
        # an error of the size of rounding that no longer falls cannot be reduced
        rounding = self._rounding(a, b)
        return self.error <= max(enough, total * rounding) and change <= max(self.each, 4 * rounding)

    def _rounding(self, a: Tensor, b: Tensor) -> float:
        """How far rounding leaves the columns, of the mass."""
        shift = 0.0 if self.operator is None else float(self.operator.shift())
        size = float(a.abs().max() + b.abs().max()) + shift
        return torch.finfo(a.dtype).eps * min(4 + size, 1e4)


def unrolled(kernel: Reference, problem: Problem, options: Options) -> tuple[Tensor, Tensor, Tensor, Tensor, int, bool]:
    """a, b, log(K v), log(Kᵀ u), iterations and convergence, computed so that autograd can differentiate them.

    Under torch.compile, where values cannot be read, all iterations are done.
    """
    rows, columns, eps, (n, m) = problem.rows, problem.columns, problem.eps, problem.kernel.shape
    zero = torch.zeros_like(eps)
    a, b = zero.expand(n), zero.expand(m)
    both = rows is not None and columns is not None
    stop = _Stop(None, None, options.tol, patience=30)
    done, converged = 0, not both
    for done in range(1, (options.iterations if both else 1) + 1):  # noqa: B007  # read after the loop
        if rows is not None:
            a = rows.penalty.step(rows.gap(kernel.log_matvec(b)), eps)
        if columns is not None:
            log_ktu = kernel.log_rmatvec(a)
            before, b = b, columns.penalty.step(columns.gap(log_ktu), eps)
            if both and options.tol > 0 and not torch.compiler.is_compiling():
                converged = stop(a, before, b, log_ktu)
        if converged:
            break
    return a, b, kernel.log_matvec(b), kernel.log_rmatvec(a), done, converged
