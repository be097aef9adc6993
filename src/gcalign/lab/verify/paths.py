"""The path of the projections in plain torch: K, then its projections on C₁ and C₂ in turn (eq:sinkp)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class ProjectionStep:
    """A plan on the way, P = diag(eᵃ) K diag(eᵇ)."""

    log_p: Tensor  # [n, m]
    a: Tensor  # [n]
    b: Tensor  # [m]

    @cached_property
    def p(self) -> Tensor:
        return self.log_p.exp()

    @cached_property
    def kl(self) -> float:
        """KL(I‖P)."""
        return float(self.p.sum() - self.log_p.diagonal().sum()) - len(self.a)

    @cached_property
    def dual(self) -> float:
        """(f·μ + g·ν − ε ΣP)/ε with μ = ν = 1."""
        return float(self.a.sum() + self.b.sum() - self.p.sum())


def projected(step: ProjectionStep, side: int, log_mass: Tensor) -> ProjectionStep:
    """The nearest plan in KL whose rows (side 0) or columns (side 1) have this mass."""
    move = log_mass - step.log_p.logsumexp(1 - side)
    if side == 0:
        return ProjectionStep(step.log_p + move[:, None], step.a + move, step.b)
    return ProjectionStep(step.log_p + move, step.a, step.b + move)


def projections(
    log_k: Tensor,  # [n, m]
    count: int,
    mu: Tensor | None = None,  # [n], 1 by default
    nu: Tensor | None = None,  # [m]
    first: int = 0,  # the side that comes first
) -> Iterator[ProjectionStep]:
    """K and its first `count` projections."""
    n, m = log_k.shape
    masses = [torch.ones(size, dtype=log_k.dtype) if x is None else x for size, x in ((n, mu), (m, nu))]
    step = ProjectionStep(log_k, log_k.new_zeros(n), log_k.new_zeros(m))
    yield step
    for k in range(count):
        side = (k + first) % 2
        step = projected(step, side, masses[side].log())
        yield step


def converged(
    log_k: Tensor, mu: Tensor | None = None, nu: Tensor | None = None, *, first: int = 0, most: int = 20_000
) -> ProjectionStep:
    """The end of the path: a whole turn moves no potential by more than rounding."""
    last = None
    for k, step in enumerate(projections(log_k, most, mu, nu, first)):
        if k % 2 == 0 and k > 1:
            if last is not None and float((step.a - last.a).abs().max() + (step.b - last.b).abs().max()) < 1e-14:
                return step
            last = step
    assert last is not None
    return last
