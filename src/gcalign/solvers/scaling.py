"""Marginals, hard or relaxed: alternate u ← (μ/(K v))^τ₁ and v ← (ν/(Kᵀ u))^τ₂ (eq:uvupdatesapp), v⁰ = 1.

Vectors in, vectors out, in logarithms: a = log u, b = log v. On the `Reference` operator this is plain log-space
Sinkhorn, which autograd can follow; any other operator makes each `sweep` one pass over its blocks, and the
record of the sweeps is what `gradients` reverses by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gcalign.constraints import Penalty
from gcalign.operators import Operator
from gcalign.solvers.acceleration import Accelerated
from gcalign.solvers.near import Near


@dataclass(frozen=True)
class Marginal:
    """What one side must sum to, and what leaving it costs."""

    mass: Tensor  # [n]
    penalty: Penalty

    def gap(self, log_sums: Tensor, which: slice = slice(None)) -> Tensor:
        """log μ − log(K v)."""
        return self.mass[which].log() - log_sums


@dataclass(frozen=True)
class Step:
    """One iteration, as the reverse pass needs it: a from log(K v) and the b before; b from log(Kᵀ u)."""

    log_kv: Tensor  # [n]
    b_before: Tensor  # [m]
    a: Tensor  # [n]
    log_ktu: Tensor | None  # [m]  None where columns are free


@dataclass(frozen=True)
class Scalings:
    """log u and log v with log(K v) at that v, and how they were reached."""

    a: Tensor  # [n]
    b: Tensor  # [m]
    log_kv: Tensor  # [n]
    log_ktu: Tensor | None  # [m]  at that u; None where columns are free
    iterations: int
    converged: bool
    steps: list[Step] = field(default_factory=list)


def scaling(
    operator: Operator,
    rows: Marginal | None,
    columns: Marginal | None,
    eps: Tensor,
    *,
    iterations: int,
    tol: float,
    near: Near | None = None,
    record: bool = False,
    start: Tensor | None = None,
    accelerate: bool = False,
) -> Scalings:
    """Scale rows, then columns, until the columns move by less than `tol`, relative to ‖P − T‖₁ or else to the mass.

    After a row step only the columns can be off, by s·|e^{b⁺ − b} − 1| where b⁺ is what the next column step gives:
    |ν − Pᵀ1| where columns are hard, the distance to the fixed point where they are relaxed; plain iterations return
    the plan with that step done. Near the target an absolute tolerance would leave a gradient that is mostly error.
    On accelerators the test, which waits for the device, is made every fourth time.
    """
    n, m = operator.shape
    a, b = torch.zeros_like(eps).expand(n), torch.zeros_like(eps).expand(m)
    if rows is None or columns is None:
        return _one_sided(operator, rows, columns, eps, a, b, record=record)
    b = b if start is None else start

    def row_step(log_sums: Tensor, which: slice) -> Tensor:
        return rows.penalty.step(rows.gap(log_sums, which), eps)

    tau = contraction(rows, columns, eps) if accelerate else None
    faster = Accelerated(balanced=tau == 1) if accelerate else None
    every = 0 if tol == 0 or torch.compiler.is_compiling() else 1 if eps.device.type == "cpu" or accelerate else 4
    steps: list[Step] = []
    patience = 1 if accelerate else 30  # checks in which the error must halve
    done, converged, stalled, error, mark = 0, False, 0, math.inf, math.inf
    while True:
        done += 1
        log_kv, a, log_ktu = operator.sweep(b, row_step)
        after = columns.penalty.step(columns.gap(log_ktu), eps)
        if record:
            steps.append(Step(log_kv, b, a, log_ktu))
        if every and done % every == 0:
            error, enough, mass = _error(a, b, after, log_ktu, tol, near)
            stalled = 0 if error < 0.5 * mark else stalled + 1
            mark = error if stalled == 0 else mark
            # logarithms are rounded in their last digit: an error of that size that no longer falls is all there is
            converged = error < math.inf and (
                error <= enough or (stalled >= patience and error <= mass * _rounding(operator, a, b))
            )
        if converged or done == iterations:
            break
        if faster is None:
            b = after
        else:
            b = faster(b, after, error, None if near is None or tau is None else tau * near.overlap(a, b))
    if converged and accelerate:  # nothing is gained by one more step
        return Scalings(a, b, log_kv, log_ktu, done, converged)
    return Scalings(a, after, operator.log_matvec(after), log_ktu, done, converged, steps)


def contraction(rows: Marginal, columns: Marginal, eps: Tensor) -> float | None:
    """τ₁τ₂: an iteration shrinks the error of the scalings by that at least; 1 for a balanced plan, None if unknown."""
    tau = rows.penalty.tau(eps), columns.penalty.tau(eps)
    return None if tau[0] is None or tau[1] is None else tau[0] * tau[1]


def _one_sided(
    operator: Operator,
    rows: Marginal | None,
    columns: Marginal | None,
    eps: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    record: bool,
) -> Scalings:
    """One step meets one side for good."""
    if rows is not None:
        log_kv = operator.log_matvec(b)
        a = rows.penalty.step(rows.gap(log_kv), eps)
        steps = [Step(log_kv, b, a, None)] if record else []
        return Scalings(a, b, log_kv, None, 1, converged=True, steps=steps)
    if columns is not None:
        before, log_ktu = b, operator.log_rmatvec(a)
        b = columns.penalty.step(columns.gap(log_ktu), eps)
        steps = [Step(torch.zeros_like(a), before, a, log_ktu)] if record else []
        return Scalings(a, b, operator.log_matvec(b), log_ktu, 1, converged=True, steps=steps)
    return Scalings(a, b, operator.log_matvec(b), None, 0, converged=True)


@torch.no_grad()
def _error(
    a: Tensor, b: Tensor, after: Tensor, log_ktu: Tensor, tol: float, near: Near | None
) -> tuple[float, float, float]:
    """How far the columns of (a, b) are from their next step, how far they may be, and the plan's mass."""
    sums = (b + log_ktu).exp()
    error = (sums * torch.expm1(after - b).abs()).sum()
    mass = sums.sum()
    unit = torch.finfo(sums.dtype).eps * mass
    scale = mass if near is None else near.distance(a, b, mass)
    error, enough, total = torch.stack([error, torch.maximum(tol * scale, 4 * unit), mass]).tolist()
    return error, enough, total  # the one thing that waits for the device


@torch.no_grad()
def _rounding(operator: Operator, a: Tensor, b: Tensor) -> float:
    """How far rounding leaves the columns, of the mass."""
    size = float(a.abs().max() + b.abs().max() + operator.shift())
    return torch.finfo(a.dtype).eps * min(4 + size, 1e4)
