"""d_M: how far the solved plan is from its target, row by row."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gcalign.constraints import Hard, Marginal, Penalty, TotalVariation
from gcalign.errors import Terse, one_of, positive
from gcalign.plan import Plan
from gcalign.transport.support import Pairs

RowStatistic = Callable[[Tensor, Tensor], Tensor]  # (log P rows [b, m], T rows [b, m]) -> [b]


class Divergence(Terse, ABC):
    """d_M(T ‖ P). A divergence of your own gives `per_row`, or `value` where it is no mean over rows.

    It reads a `Plan` as vectors, each with its gradient: `log_p` on the target's pairs, `log_rows`, `log_columns`,
    `log_u`, `log_v`. Where these do not suffice, `statistics` are functions of whole rows of log P and T; they are
    evaluated block by block and arrive as columns of `plan.terms`.
    """

    statistics: ClassVar[tuple[RowStatistic, ...]] = ()
    powers: ClassVar[tuple[float, ...]] = ()  # q of Σ_j T_ij P_ij^q, read with `plan.power`
    needs_columns: ClassVar[bool] = False
    reads_entries: ClassVar[bool] = True  # whether it reads `plan.log_p`, which a target that is a matrix has in full

    def per_row(self, plan: Plan) -> Tensor:  # [n]
        """The loss of each row; its mean is d_M."""
        raise NotImplementedError(
            f"{type(self).__name__} has no loss for each row; give it per_row(plan), or use reduction='mean'"
        )

    def value(self, plan: Plan) -> Tensor:  # []
        """d_M, differentiable in everything it reads."""
        return self.per_row(plan).mean()

    def has_dual(self, rows: Penalty | None, columns: Penalty | None) -> bool:
        """Whether this is a Fenchel–Young loss, whose gradient in log K is P − T on a converged plan (envelope)."""
        return False

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

    Args:
        mass: the terms −T + P. Without them there is no repulsion unless a hard projection came last (BYOL).
        penalties: the relaxed marginals' own terms.
        entropy: the constant Σ T log T; without it this is cross-entropy, as SupCon is published.
        normalized: divide P by its row sums first, which makes the loss blind to the row relaxation.
    """

    mass: bool = True
    penalties: bool = True
    entropy: bool = True
    normalized: bool = False
    reads_entries: ClassVar[bool] = False

    def per_row(self, plan: Plan) -> Tensor:
        mu, cross = plan.target.mu, plan.cross
        if self.normalized:
            total = mu * (plan.log_rows - mu.log()) - cross
        elif self.mass:
            total = plan.log_rows.exp() - cross - mu
        elif plan.rows is not None or plan.columns is not None:
            # a converged plan has the target's mass; with scalings held constant its gradient is P's part of P − T
            total = torch.where(plan.enveloped, plan.log_rows.exp() - mu, 0) - cross
        else:
            total = -cross
        if self.entropy and not (isinstance(plan.target, Pairs) and plan.target.unit):
            total = total + plan.target.entropy()
        if not self.normalized:
            if plan.rows is not None and not isinstance(plan.rows.penalty, Hard):
                total = total + self._relaxation(plan, plan.rows, mu, plan.log_rows)
            if plan.columns is not None and not isinstance(plan.columns.penalty, Hard):
                columns = self._relaxation(plan, plan.columns, plan.target.nu, plan.log_columns)
                total = total + columns.sum() / len(total)
        return total

    def _relaxation(self, plan: Plan, side: Marginal, mass: Tensor, log_sums: Tensor) -> Tensor:
        """What a relaxed marginal adds, entry by entry.

        Where the gradient is the envelope's, KL(T‖P) moves with log K alone, and a relaxation moves only with λ/ε, by
        minus what the plan pays for it.
        """
        h, eps = side.penalty, plan.eps
        total = torch.zeros_like(mass)
        if self.penalties:
            held = torch.where(plan.enveloped, log_sums.detach(), log_sums)
            total = h.distance(mass, held, torch.where(plan.enveloped, eps.detach(), eps) if eps.requires_grad else eps)
        if eps.requires_grad:
            price = h.price(side.mass, log_sums.detach(), eps)
            total = total - torch.where(plan.enveloped, price - price.detach(), 0)
        return total

    def has_dual(self, rows: Penalty | None, columns: Penalty | None) -> bool:
        sides = [h for h in (rows, columns) if h is not None]
        mass = self.mass or any(isinstance(h, Hard) for h in sides)  # a hard side keeps the mass by itself
        penalties = self.penalties or all(isinstance(h, (Hard, TotalVariation)) for h in sides)  # these add nothing
        return mass and penalties and not self.normalized and all(h.has_dual for h in sides)


@dataclass(frozen=True, repr=False)
class Robust(Divergence):
    """(1/q)·mean_i [(λ Σ_j Q_ij)^q − Σ_j T_ij Q_ij^q] with Q = K diag(v), mean log v = 0 (eq:RINCE, eq:gcarince).

    The gauge is fixed because (cu, v/c) is the same balanced plan but another Q.

    Args:
        q: 1 is the W₁ surrogate; towards 0 it becomes InfoNCE.
        lam: the weight λ of negatives; the paper uses 0.01.
        scale: "kernel" is bounded; "score" multiplies by e^{q/ε}, which gives eq:RINCE itself for the cosine cost.
    """

    q: float
    lam: float
    scale: str = "kernel"
    reads_entries: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("q", self.q, "1 is W₁, towards 0 it becomes InfoNCE")
        if self.q > 1:
            raise ValueError(f"q={self.q:g} must be in (0, 1]; 1 is W₁, towards 0 it becomes InfoNCE")
        positive("lam", self.lam, "the weight of negatives; the paper uses 0.01", zero=True)
        one_of("scale", self.scale, ("kernel", "score"))

    @property
    def powers(self) -> tuple[float, ...]:  # type: ignore[override]  # its own
        return (self.q,)

    def per_row(self, plan: Plan) -> Tensor:
        value = self._in_kernel_scale(plan)
        return value * (self.q / plan.eps).exp() if self.scale == "score" else value

    def value(self, plan: Plan) -> Tensor:
        value = self._in_kernel_scale(plan).mean()  # scaled after the mean, where a row may be 0 and the factor ∞
        return value * (self.q / plan.eps).exp() if self.scale == "score" else value

    def _in_kernel_scale(self, plan: Plan) -> Tensor:
        shift = plan.log_u + plan.log_v.mean()
        spread = (self.q * (plan.log_rows - shift)).exp()
        return (self.lam**self.q * spread - plan.power(self.q, shift)) / self.q


def W1(lam: float, scale: str = "kernel") -> Robust:  # noqa: N802  # the paper's name for a d_M
    """The W₁ surrogate of Theorem co:rince, which is Robust at q = 1: a bound on W₁, not W₁."""
    return Robust(1.0, lam, scale)


def _squares(log_p: Tensor, t: Tensor) -> Tensor:
    return (log_p.exp() - t).square().sum(1)


@dataclass(frozen=True, repr=False)
class SquaredL2(Divergence):
    """Σ (T − P)², averaged over rows."""

    statistics: ClassVar[tuple[RowStatistic, ...]] = (_squares,)
    reads_entries: ClassVar[bool] = False

    def per_row(self, plan: Plan) -> Tensor:
        return plan.terms[:, 0]


def _off_mass(log_p: Tensor, t: Tensor) -> Tensor:
    return log_p.exp().masked_fill(t > 0, 0).sum(1)


def _off_log(log_p: Tensor, t: Tensor) -> Tensor:
    return log_p.masked_fill((t > 0) | (log_p == -torch.inf), 0).sum(1)


def _positives(log_p: Tensor, t: Tensor) -> Tensor:
    return (t > 0).sum(1).to(log_p.dtype) + 0 * log_p[:, 0].detach().clamp(min=0)


@dataclass(frozen=True, repr=False)
class Uniformity(Divergence):
    """KL(Q‖P) where Q is P with its off-positive entries replaced by their mean (the term of IOT-uni)."""

    statistics: ClassVar[tuple[RowStatistic, ...]] = (_off_mass, _off_log, _positives)
    reads_entries: ClassVar[bool] = False

    def per_row(self, plan: Plan) -> Tensor:
        off_mass, off_log, positives = plan.terms.unbind(1)
        off = plan.shape[1] - int(plan.kernel.exclude_self) - positives.detach()
        mean = (off_mass.sum() / off.sum().clamp(min=1)).clamp(min=torch.finfo(off_mass.dtype).tiny)
        return (off * mean.log() - off_log) * mean


@dataclass(frozen=True, repr=False)
class Sum(Divergence):
    """w₁·d₁ + w₂·d₂ + …; written with + and *."""

    terms: tuple[tuple[float, Divergence], ...]

    def __post_init__(self) -> None:
        parts = [d for _, d in self.terms]
        for name, value in (
            ("statistics", tuple(f for d in parts for f in d.statistics)),
            ("powers", tuple(q for d in parts for q in d.powers)),
            ("needs_columns", any(d.needs_columns for d in parts)),
            ("reads_entries", any(d.reads_entries for d in parts)),
        ):
            object.__setattr__(self, name, value)

    def per_row(self, plan: Plan) -> Tensor:
        total = plan.log_rows.new_zeros(len(plan.log_rows))
        for weight, d, mine in self._each(plan):
            total = total + weight * d.per_row(mine)
        return total

    def value(self, plan: Plan) -> Tensor:
        total: Tensor | None = None
        for weight, d, mine in self._each(plan):
            part = weight * d.value(mine)
            total = part if total is None else total + part
        return torch.zeros_like(plan.eps) if total is None else total

    def _each(self, plan: Plan) -> list[tuple[float, Divergence, Plan]]:
        """Each term with the plan whose statistics and powers are its own."""
        if not plan.terms.shape[1]:
            return [(weight, d, plan) for weight, d in self.terms]
        found, k, power = [], 0, len(self.statistics)
        for weight, d in self.terms:
            own = (plan.terms[:, k : k + len(d.statistics)], plan.terms[:, power : power + len(d.powers)])
            found.append((weight, d, replace(plan, terms=torch.cat(own, 1))))
            k, power = k + len(d.statistics), power + len(d.powers)
        return found

    def has_dual(self, rows: Penalty | None, columns: Penalty | None) -> bool:
        return all(d.has_dual(rows, columns) for _, d in self.terms)

    def __repr__(self) -> str:
        return " + ".join(f"{d!r}" if math.isclose(w, 1) else f"{w:g} * {d!r}" for w, d in self.terms)


def _terms(d: Divergence) -> tuple[tuple[float, Divergence], ...]:
    return d.terms if isinstance(d, Sum) else ((1.0, d),)
