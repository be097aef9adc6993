"""Marginals, hard or relaxed: alternate u ← (μ/(K v))^τ₁ and v ← (ν/(Kᵀ u))^τ₂ (eq:uvupdatesapp), v⁰ = 1.

Vectors in, vectors out, in logarithms: a = log u, b = log v. The same code is plain autograd where gradients are
on (`unrolled`) and leaves the record that `gradients` reverses by hand where they are off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gcalign.constraints import Penalty
from gcalign.operators import Operator


@dataclass(frozen=True)
class Marginal:
    """What one side must sum to, and what leaving it costs."""

    mass: Tensor  # [n]
    penalty: Penalty

    def gap(self, log_sums: Tensor) -> Tensor:
        """log μ − log(K v)."""
        return self.mass.log() - log_sums


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
    unit: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    record: bool = False,
) -> Scalings:
    """Scale rows, then columns, until the row marginal moves by less than `tol` in units of `unit(a, b, mass)`.

    After a column step only the rows can be off, by r·|e^{a⁺ − a} − 1| where a⁺ is what the next row step would
    give: |μ − P1| where rows are hard, the distance to the fixed point where they are relaxed. `unit` is ‖P − T‖₁
    where there is a target: near it, an absolute tolerance would leave a gradient that is mostly error.
    """
    n, m = operator.shape
    a, b = torch.zeros_like(eps).expand(n), torch.zeros_like(eps).expand(m)
    log_kv = operator.log_matvec(b)
    log_ktu: Tensor | None = None
    if rows is None and columns is None:
        return Scalings(a, b, log_kv, None, iterations=0, converged=True)
    one_sided = rows is None or columns is None
    steps: list[Step] = []
    done, converged = 0, one_sided
    while done < (1 if one_sided else iterations):
        done += 1
        before, log_kv_before = b, log_kv
        if rows is not None:
            a = rows.penalty.step(rows.gap(log_kv), eps)
        if columns is not None:
            log_ktu = operator.log_rmatvec(a)
            b = columns.penalty.step(columns.gap(log_ktu), eps)
            log_kv = operator.log_matvec(b)
        if record:
            steps.append(Step(log_kv_before, before, a, log_ktu))
        if rows is None or columns is None or tol == 0 or torch.compiler.is_compiling():
            continue
        if _reached(a, b, log_kv, rows, eps, tol, unit):
            converged = True
            break
    return Scalings(a, b, log_kv, log_ktu, done, converged, steps)


@torch.no_grad()
def _reached(
    a: Tensor,
    b: Tensor,
    log_kv: Tensor,
    rows: Marginal,
    eps: Tensor,
    tol: float,
    unit: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
) -> bool:
    sums = (a + log_kv).exp()
    residual = (sums * torch.expm1(rows.penalty.step(rows.gap(log_kv), eps) - a).abs()).sum()
    mass = sums.sum()
    # below this the residual is rounding: no more iterations can help
    floor = 4 * torch.finfo(sums.dtype).eps * mass
    scale = mass if unit is None else unit(a, b, mass)
    return bool(residual <= torch.maximum(tol * scale, floor))
