"""d_M: how far the solved plan is from its target, as a function of sums and of the target's support."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gcalign.constraints import Hard, Penalty, TotalVariation
from gcalign.errors import Terse, one_of, positive
from gcalign.solvers import Marginal
from gcalign.support import Support

RowStatistic = Callable[[Tensor, Tensor], Tensor]  # (log P rows [b, m], T rows [b, m]) -> [b]


@dataclass(frozen=True)
class Summary:
    """A plan as a divergence sees it: vectors, each with its gradient, and never the matrix."""

    target: Support
    log_p: Tensor  # log P on the target's support (0 where a full target is empty)
    log_rows: Tensor  # [n]  log P1
    log_columns: Tensor | None  # [m]  log Pᵀ1, where columns are constrained or `needs_columns`
    a: Tensor  # [n]  log u
    b: Tensor  # [m]  log v
    eps: Tensor  # []
    rows: Marginal | None
    columns: Marginal | None
    terms: Tensor  # [n, k]  the divergence's row statistics
    allowed: int  # pairs that may carry mass


class Divergence(Terse, ABC):
    """d_M(T ‖ P), averaged over rows. A divergence of your own gives `value`.

    Where sums over the support, rows and columns do not suffice, `statistics` are functions of whole rows of log P
    and T; they are evaluated block by block and arrive as columns of `Summary.terms`.
    """

    statistics: ClassVar[tuple[RowStatistic, ...]] = ()
    needs_columns: ClassVar[bool] = False

    @abstractmethod
    def value(self, s: Summary) -> Tensor:
        """d_M, differentiable in every vector of the summary."""

    def has_dual(self, rows: Penalty | None, columns: Penalty | None) -> bool:
        """Whether `dual` is this loss for converged plans whose marginals are the target's."""
        return False

    def dual(self, s: Summary) -> Tensor:
        """The loss with a and b at their optimum, to be differentiated with a and b held constant (envelope)."""
        raise NotImplementedError(f"{self!r} has no dual form")

    def __add__(self, other: Divergence) -> Divergence:
        if not isinstance(other, Divergence):
            return NotImplemented
        return Sum((*_terms(self), *_terms(other)))

    def __mul__(self, weight: float) -> Divergence:
        if isinstance(weight, bool) or not isinstance(weight, (int, float)):
            return NotImplemented
        positive("weight", weight, "a divergence is scaled by a non-negative number", zero=True)
        return Sum(tuple((weight * w, d) for w, d in _terms(self) if weight > 0))

    __rmul__ = __mul__


@dataclass(frozen=True, repr=False)
class KL(Divergence):
    """KL(T‖P) = Σ T log(T/P) − T + P, plus (λ/ε) KL of each relaxed marginal: the Fenchel–Young loss (eq:uot).

    Without `mass` there is no repulsion unless a hard projection came last (BYOL); without `penalties` the
    marginals' own terms are left out; without `entropy` the constant Σ T log T is (cross-entropy, as SupCon
    is published); `normalized` divides P by its row sums first, and so is blind to the row relaxation.
    """

    mass: bool = True
    penalties: bool = True
    entropy: bool = True
    normalized: bool = False

    def value(self, s: Summary) -> Tensor:
        total = self._plain(s)
        if self.penalties and not self.normalized:
            if s.rows is not None:
                total = total + s.rows.penalty.distance(s.target.mu, s.log_rows, s.eps)
            if s.columns is not None and s.log_columns is not None:
                total = total + s.columns.penalty.distance(s.target.nu, s.log_columns, s.eps)
        return total / s.target.shape[0]

    def has_dual(self, rows: Penalty | None, columns: Penalty | None) -> bool:
        sides = [h for h in (rows, columns) if h is not None]
        mass = self.mass or any(isinstance(h, Hard) for h in sides)  # a hard side keeps the mass by itself
        penalties = self.penalties or all(isinstance(h, (Hard, TotalVariation)) for h in sides)  # these add nothing
        return mass and penalties and not self.normalized and all(h.has_dual for h in sides)

    def dual(self, s: Summary) -> Tensor:
        # KL(T‖P) moves with log K alone; a relaxation moves only with λ/ε, by minus what the plan pays for it
        total = self._plain(s) if self.mass else replace(self, mass=True)._plain(s)
        for side, log_sums in ((s.rows, s.log_rows), (s.columns, s.log_columns)):
            if side is not None and log_sums is not None:
                price = side.penalty.price(side.mass, log_sums.detach(), s.eps)
                distance = side.penalty.distance(side.mass, log_sums.detach(), s.eps.detach())
                total = total + distance - (price - price.detach())
        return total / s.target.shape[0]

    def _plain(self, s: Summary) -> Tensor:
        t, log_p = s.target.weight, s.log_p
        if self.normalized:
            log_p = s.target.where(log_p - s.target.along_rows(s.log_rows - s.target.mu.log()), 0)
        total = -(t * log_p).sum()
        if self.entropy:
            total = total + torch.xlogy(t, t).sum()
        if self.mass and not self.normalized:
            total = total + s.log_rows.exp().sum() - t.sum()
        return total


@dataclass(frozen=True, repr=False)
class Robust(Divergence):
    """(1/q)·mean_i [(λ Σ_j Q_ij)^q − Σ_j T_ij Q_ij^q] with Q = K diag(v), mean log v = 0 (eq:RINCE, eq:gcarince).

    The gauge is fixed because (cu, v/c) is the same balanced plan but another Q. `scale="kernel"` is bounded;
    `scale="score"` multiplies by e^{q/ε}, which gives eq:RINCE itself for the cosine cost.
    """

    q: float
    lam: float
    scale: str = "kernel"

    def __post_init__(self) -> None:
        positive("q", self.q, "1 is W₁, towards 0 it becomes InfoNCE")
        if self.q > 1:
            raise ValueError(f"q={self.q:g} must be in (0, 1]; 1 is W₁, towards 0 it becomes InfoNCE")
        positive("lam", self.lam, "the weight of negatives; the paper uses 0.01", zero=True)
        one_of("scale", self.scale, ("kernel", "score"))

    def value(self, s: Summary) -> Tensor:
        gauge = s.b.mean()
        log_q = s.target.where(s.log_p - s.target.along_rows(s.a) - gauge, 0)
        log_total = s.log_rows - s.a - gauge
        kept = (s.target.weight * (self.q * log_q).exp()).sum()
        spread = self.lam**self.q * (self.q * log_total).exp().sum()
        value = (spread - kept) / (self.q * s.target.shape[0])
        return value * (self.q / s.eps).exp() if self.scale == "score" else value


def W1(lam: float, scale: str = "kernel") -> Robust:  # noqa: N802  # the paper's name for a d_M
    """The W₁ surrogate of Theorem co:rince, which is Robust at q = 1: a bound on W₁, not W₁."""
    return Robust(1.0, lam, scale)


def _squares(log_p: Tensor, t: Tensor) -> Tensor:
    return (log_p.exp() - t).square().sum(1)


@dataclass(frozen=True, repr=False)
class SquaredL2(Divergence):
    """Σ (T − P)², averaged over rows."""

    statistics: ClassVar[tuple[RowStatistic, ...]] = (_squares,)

    def value(self, s: Summary) -> Tensor:
        return s.terms.sum() / s.target.shape[0]


def _off_mass(log_p: Tensor, t: Tensor) -> Tensor:
    return log_p.exp().masked_fill(t > 0, 0).sum(1)


def _off_log(log_p: Tensor, t: Tensor) -> Tensor:
    return log_p.masked_fill((t > 0) | (log_p == -torch.inf), 0).sum(1)


@dataclass(frozen=True, repr=False)
class Uniformity(Divergence):
    """KL(Q‖P) where Q is P with its off-positive entries replaced by their mean (the term of IOT-uni)."""

    statistics: ClassVar[tuple[RowStatistic, ...]] = (_off_mass, _off_log)

    def value(self, s: Summary) -> Tensor:
        off_mass, off_log = s.terms.sum(0)
        off = (s.allowed - (s.target.weight > 0).sum()).clamp(min=1)  # with none, every sum is 0
        mean = (off_mass / off).clamp(min=torch.finfo(off_mass.dtype).tiny)
        return (off * mean.log() - off_log) * mean / s.target.shape[0]


@dataclass(frozen=True, repr=False)
class Sum(Divergence):
    """w₁·d₁ + w₂·d₂ + …; written with + and *."""

    terms: tuple[tuple[float, Divergence], ...]

    @property
    def statistics(self) -> tuple[RowStatistic, ...]:  # type: ignore[override]  # those of the terms, in order
        return tuple(f for _, d in self.terms for f in d.statistics)

    @property
    def needs_columns(self) -> bool:  # type: ignore[override]  # as soon as one term does
        return any(d.needs_columns for _, d in self.terms)

    def value(self, s: Summary) -> Tensor:
        total, k = torch.zeros_like(s.eps), 0
        for weight, d in self.terms:
            mine = s.terms[:, k : k + len(d.statistics)]
            total = total + weight * d.value(replace(s, terms=mine))
            k += len(d.statistics)
        return total

    def has_dual(self, rows: Penalty | None, columns: Penalty | None) -> bool:
        return all(d.has_dual(rows, columns) for _, d in self.terms)

    def dual(self, s: Summary) -> Tensor:
        total = torch.zeros_like(s.eps)
        for weight, d in self.terms:
            total = total + weight * d.dual(s)
        return total

    def __repr__(self) -> str:
        return " + ".join(f"{d!r}" if math.isclose(w, 1) else f"{w:g} * {d!r}" for w, d in self.terms)


def _terms(d: Divergence) -> tuple[tuple[float, Divergence], ...]:
    return d.terms if isinstance(d, Sum) else ((1.0, d),)
