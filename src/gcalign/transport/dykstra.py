"""Any constraint sets, on dense matrices in mirror coordinates, outside the torch operator (Eq. 48–50).

Dykstra's algorithm stores a multiplier for each set and adds it back before it projects again. So it reaches the
proximal point on the intersection. Without the multipliers, relaxed sets would give another plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.constraints import Columns, Constraint, Rows
from gcalign.geometry import Entropic
from gcalign.transport.problem import Problem


@dataclass(frozen=True)
class Projected:
    """∇Γ(P) on the intersection, with the multiplier of each set."""

    y: Tensor  # [n, m]
    multipliers: tuple[Tensor, ...]
    iterations: int
    converged: bool


def dykstra(
    y: Tensor, constraints: Sequence[Constraint], problem: Problem, *, iterations: int, tol: float
) -> Projected:
    """argmin of Σ h(P) + d_Γ(P ‖ K) over P in all sets, starting from y = ∇Γ(K). Differentiable by plain autograd.

    Stops when the multipliers no longer change the plan: Σ_k Σ |ΔU_k|·∂P/∂y ≤ tol·Σ|P|, which for a marginal is its
    error. Under torch.compile, where values cannot be read, all iterations are done.
    """
    geometry = problem.geometry
    multipliers = [torch.zeros_like(problem.eps) for _ in constraints]
    done, converged = 0, len(constraints) == 0
    while len(constraints) > 0 and done < iterations:
        done += 1
        moved = torch.zeros_like(problem.eps)
        for k, constraint in enumerate(constraints):
            z = y + multipliers[k]
            new = constraint.multiplier(z, problem)
            y = z - new
            with torch.no_grad():
                moved = moved + (geometry.slope(y) * (new - multipliers[k]).abs()).sum()
            multipliers[k] = new
        if tol > 0 and not torch.compiler.is_compiling():
            with torch.no_grad():
                mass = geometry.log_plan(y).exp().abs().nansum()
            if bool(moved <= max(tol, 4 * torch.finfo(y.dtype).eps) * mass):
                converged = True
                break
    return Projected(y, tuple(multipliers), done, converged)


def projected(problem: Problem, iterations: int, tol: float) -> tuple[Tensor, Tensor, Tensor, Projected]:
    """log P, log u and log v (0 if the geometry has none), and the result of Dykstra's algorithm."""
    geometry, (n, m) = problem.geometry, problem.kernel.shape
    log_k = problem.kernel.rows(0, n)
    constraints = problem.constraints
    if not isinstance(geometry, Entropic):  # there a projection can give mass to a forbidden pair
        constraints = (*constraints, _Forbidden(log_k.detach() == -torch.inf))
    y = geometry.from_log(log_k)
    result = dykstra(y, constraints, problem, iterations=iterations, tol=tol)
    a, b = y.new_zeros(n), y.new_zeros(m)
    if isinstance(geometry, Entropic):
        for constraint, multiplier in zip(constraints, result.multipliers, strict=True):
            if isinstance(constraint, Rows):
                a = a - multiplier.squeeze(1)
            elif isinstance(constraint, Columns):
                b = b - multiplier.squeeze(0)
    return geometry.log_plan(result.y), a, b, result


@dataclass(frozen=True, repr=False, eq=False)
class _Forbidden(Constraint):
    """P = 0 where the kernel is 0. In the entropic geometry this always holds."""

    where: Tensor  # [n, m]

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        return torch.where(self.where, z, 0)
