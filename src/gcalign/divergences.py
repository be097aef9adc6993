"""d_M: the divergence between the target and the solved plan."""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gcalign.constraints import Hard, Penalty, TotalVariation
from gcalign.errors import CallRepr, one_of, positive
from gcalign.plan import Plan, Statistic, off_log, off_mass, positives, softplus, squares
from gcalign.transport.support import Pairs

MOST_WEIGHT = 1e6


class Divergence(CallRepr, ABC):
    """Base class of divergences, d_M(T ‖ P) in Eq. 8 (eq:mainobj). Add and scale them: `KL() + 0.2 * Uniformity()`.

    Your own divergence overrides `per_row`, or `value` if it is not a mean over rows. It reads vectors of a `Plan`, all
    of them differentiable: `log_p` on the target's pairs, `log_rows`, `log_columns`, `log_u`, `log_v`. If it needs
    more, it lists functions of rows of log P and T in `statistics`. Their values are the columns of `plan.terms`.

    Example:
        >>> import torch, gcalign
        >>> class Missing(gcalign.Divergence):
        ...     def per_row(self, plan):
        ...         return 1 - plan.target.weighted(plan.log_p.exp())
        >>> criterion = gcalign.Alignment(gcalign.Cosine(0.1), (gcalign.Rows(),), Missing())
        >>> round(float(criterion(torch.eye(4), torch.eye(4))), 2)
        0.0
    """

    statistics: ClassVar[tuple[Statistic, ...]] = ()
    powers: ClassVar[tuple[float, ...]] = ()  # q of Σ_j T_ij P_ij^q, read with `plan.power`
    needs_columns: ClassVar[bool] = False
    reads_entries: ClassVar[bool] = True  # whether it reads `plan.log_p`, a whole matrix if the target is one

    def per_row(self, plan: Plan) -> Tensor:  # [n]
        """The loss of each row; its mean is d_M."""
        raise NotImplementedError(
            f"{type(self).__name__} has no loss for each row; define per_row(plan), or use reduction='mean'"
        )

    def value(self, plan: Plan) -> Tensor:  # []
        """d_M, a 0-dim tensor: the mean over the rows that have a positive."""
        losses = self.per_row(plan)
        if not plan.unpaired_rows:
            return losses.mean()
        paired = plan.target.mu > 0
        return torch.where(paired, losses, 0).sum() / paired.sum()

    def has_dual(self, rows: Penalty | None, columns: Penalty | None) -> bool:
        """Whether this is a Fenchel–Young loss. Its gradient in log K is P − T on a converged plan (envelope)."""
        return False

    def __add__(self, other: Divergence) -> Divergence:
        if not isinstance(other, Divergence):
            return NotImplemented
        return Sum((*_terms(self), *_terms(other)))

    def __mul__(self, weight: float) -> Divergence:
        positive("weight", weight, "a divergence is scaled by a non-negative number", zero=True)
        terms = tuple((weight * w, d) for w, d in _terms(self) if weight > 0)
        for product, _ in terms:
            if product > MOST_WEIGHT:
                raise ValueError(
                    f"weight={product:g} must be at most {MOST_WEIGHT:g}, or gradients leave the range of float32; "
                    "make the other weights smaller instead, or raise the learning rate"
                )
        return Sum(terms)

    __rmul__ = __mul__


@dataclass(frozen=True, repr=False)
class KL(Divergence):
    """KL(T‖P) = Σ T log(T/P) − T + P, averaged over rows (Theorem 1, thm:cl_eq_ot).

    If a marginal is relaxed, its term (λ/ε) KL(T1‖P1) is added: the Fenchel–Young loss of Eq. 9 (eq:uot).

    Args:
        mass: whether to include the terms −T + P. Without them, and without a hard constraint, nothing pushes
            negatives apart, as in BYOL.
        penalties: whether to include the terms of the relaxed marginals.
        entropy: whether to include the constant Σ T log T. Without it, this is cross-entropy, as in SupCon.
        normalized: whether to divide P by its row sums first. The loss then ignores the row relaxation.

    Example:
        >>> import torch, gcalign
        >>> criterion = gcalign.Alignment(gcalign.Cosine(0.1), (gcalign.Rows(), gcalign.Columns()), gcalign.KL())
        >>> round(float(criterion(torch.eye(4), torch.eye(4))), 2)
        0.0
    """

    mass: bool = True
    penalties: bool = True
    entropy: bool = True
    normalized: bool = False
    reads_entries: ClassVar[bool] = False

    def per_row(self, plan: Plan) -> Tensor:
        mu, cross = plan.target.mu, plan.cross
        if self.normalized:
            total = mu * plan.log_rows - torch.xlogy(mu, mu) - cross
        elif self.mass:
            total = plan.log_rows.exp() - cross - mu
        else:
            total = -cross
        if self.entropy and not (isinstance(plan.target, Pairs) and plan.target.unit):
            total = total + plan.target.entropy()
        if self.penalties and not self.normalized:
            if plan.rows is not None and not isinstance(plan.rows.penalty, Hard):
                total = total + plan.rows.penalty.distance(mu, plan.log_rows, plan.eps)
            if plan.columns is not None and not isinstance(plan.columns.penalty, Hard):
                columns = plan.columns.penalty.distance(plan.target.nu, plan.log_columns, plan.eps)
                total = total + columns.sum() / len(total)
        return total

    def has_dual(self, rows: Penalty | None, columns: Penalty | None) -> bool:
        sides = [h for h in (rows, columns) if h is not None]
        mass = self.mass or any(isinstance(h, Hard) for h in sides)  # a hard side fixes the mass
        penalties = self.penalties or all(isinstance(h, (Hard, TotalVariation)) for h in sides)  # these have no term
        return mass and penalties and not self.normalized and all(h.has_dual for h in sides)


@dataclass(frozen=True, repr=False)
class Robust(Divergence):
    """d_M of RINCE, (1/q)·mean_i [(λ Σ_j Q_ij)^q − Σ_j T_ij Q_ij^q] with Q = K diag(v) (Eq. 13, eq:gcarince).

    With one row projection it is RINCE (Eq. 2, eq:RINCE). v is scaled to a mean log v of 0, because (c·u, v/c) gives
    the same plan but another Q.

    Args:
        q: from 1e-6 to 1. 1 is the W₁ surrogate; for q → 0 the loss tends to InfoNCE.
        lam: the weight λ of negatives; the paper uses 0.01.
        scale: "kernel" is bounded; "score" multiplies by e^{q/ε}, which gives Eq. 2 exactly for the cosine cost.

    Example:
        >>> import torch, gcalign
        >>> criterion = gcalign.Alignment(gcalign.Cosine(0.5), (gcalign.Rows(),), gcalign.Robust(q=0.6, lam=0.01))
        >>> bool(criterion(torch.eye(4), torch.eye(4)) < criterion(torch.eye(4), torch.eye(4).flip(0)))
        True
    """

    q: float
    lam: float
    scale: str = "kernel"
    reads_entries: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("q", self.q, "1 is W₁, and q → 0 gives InfoNCE", least=1e-6)
        if self.q > 1:
            raise ValueError(f"q={self.q:g} must be in (0, 1]; 1 is W₁, and q → 0 gives InfoNCE")
        positive("lam", self.lam, "the weight of negatives; the paper uses 0.01", zero=True)
        one_of("scale", self.scale, ("kernel", "score"))

    @property
    def powers(self) -> tuple[float, ...]:  # type: ignore[override]  # a property here
        return (self.q,)

    def per_row(self, plan: Plan) -> Tensor:
        shift = plan.log_u + plan.log_v.mean()
        if self.scale == "score":
            shift = shift - 1 / plan.eps  # a factor e^{q/ε} of its own would be ∞·0
        if self.lam == 0:
            value = plan.power(self.q, shift) / -self.q
        else:  # (Σ_j Q_ij)^q is taken out, so that no two terms are ∞
            positives = plan.power(self.q, plan.log_rows)
            value = (self.q * (plan.log_rows - shift)).exp() * (self.lam**self.q - positives) / self.q
        # the gradient is as large as the value: where it may leave the range, the value is ∞, which a criterion refuses
        return value / (value.detach().abs() <= torch.finfo(value.dtype).max ** 0.5)


def W1(lam: float, scale: str = "kernel") -> Robust:  # noqa: N802  # the paper's name for a d_M
    """`Robust` at q = 1: the surrogate of W₁ in Theorem 3 (co:rince). It is a bound on W₁, not W₁ itself.

    Args:
        lam, scale: as for `Robust`.

    Example:
        >>> import gcalign
        >>> gcalign.W1(lam=0.01)
        Robust(1.0, 0.01)
    """
    return Robust(1.0, lam, scale)


@dataclass(frozen=True, repr=False)
class SquaredL2(Divergence):
    """Squared distance between target and plan, Σ (T − P)², averaged over rows.

    Example:
        >>> import torch, gcalign
        >>> criterion = gcalign.Alignment(gcalign.Cosine(0.1), (gcalign.Rows(),), gcalign.SquaredL2())
        >>> round(float(criterion(torch.eye(4), torch.eye(4))), 2)
        0.0
    """

    statistics: ClassVar[tuple[Statistic, ...]] = (squares,)
    reads_entries: ClassVar[bool] = False

    def per_row(self, plan: Plan) -> Tensor:
        return plan.terms[:, 0]


@dataclass(frozen=True, repr=False)
class Logistic(Divergence):
    """Each pair is classified by itself: Σ_j [log(1 + P_ij) − T_ij log P_ij], averaged over rows. The loss of SigLIP.

    With P = K, log K_ij is the logit of "i and j belong together", and this is its binary cross-entropy.

    Example:
        >>> import torch, gcalign
        >>> criterion = gcalign.Alignment(gcalign.Cosine(0.1, bias=-10.0), (), gcalign.Logistic())
        >>> z = torch.eye(3)
        >>> logits = 10 * z @ z.T - 10
        >>> by_hand = -torch.nn.functional.logsigmoid((2 * torch.eye(3) - 1) * logits).sum() / 3
        >>> torch.allclose(criterion(z, z), by_hand)
        True
    """

    statistics: ClassVar[tuple[Statistic, ...]] = (softplus,)
    reads_entries: ClassVar[bool] = False

    def per_row(self, plan: Plan) -> Tensor:
        return plan.terms[:, 0] - plan.cross


@dataclass(frozen=True, repr=False)
class Uniformity(Divergence):
    """KL(Q‖P), where Q is P with its negatives replaced by their mean m: Σ m log(m/P_ij), the term of IOT-uni.

    Example:
        >>> import torch, gcalign
        >>> divergence = gcalign.KL() + 0.2 * gcalign.Uniformity()
        >>> criterion = gcalign.Alignment(gcalign.Cosine(0.5), (gcalign.Rows(), gcalign.Columns()), divergence)
        >>> criterion(torch.eye(4), torch.eye(4)).shape
        torch.Size([])
    """

    statistics: ClassVar[tuple[Statistic, ...]] = (off_mass, off_log, positives)
    reads_entries: ClassVar[bool] = False

    def per_row(self, plan: Plan) -> Tensor:
        mass, logs, count = plan.terms.unbind(1)
        off = plan.shape[1] - int(plan.kernel.exclude_self) - count.detach()
        mean = (mass.sum() / off.sum().clamp(min=1)).clamp(min=torch.finfo(mass.dtype).tiny)
        return (off * mean.log() - logs) * mean


@dataclass(frozen=True, repr=False)
class Sum(Divergence):
    """w₁·d₁ + w₂·d₂ + …, the result of + and *."""

    terms: tuple[tuple[float, Divergence], ...]

    def __post_init__(self) -> None:
        parts = [d for _, d in self.terms]
        for name in ("statistics", "powers"):
            object.__setattr__(self, name, tuple(x for d in parts for x in getattr(d, name)))
        for name in ("needs_columns", "reads_entries"):
            object.__setattr__(self, name, any(getattr(d, name) for d in parts))

    def per_row(self, plan: Plan) -> Tensor:
        losses = [weight * d.per_row(mine) for weight, d, mine in self._each(plan)]
        return sum(losses, torch.zeros_like(plan.log_rows))

    def value(self, plan: Plan) -> Tensor:
        values = [d.value(mine) if weight == 1 else weight * d.value(mine) for weight, d, mine in self._each(plan)]
        return sum(values[1:], values[0]) if values else torch.zeros_like(plan.eps)

    def _each(self, plan: Plan) -> list[tuple[float, Divergence, Plan]]:
        """Each term with a plan that holds only the statistics and powers of that term."""
        if not plan.terms.shape[1]:
            return [(weight, d, plan) for weight, d in self.terms]
        parts, k, power = [], 0, len(self.statistics)
        for weight, d in self.terms:
            own = (plan.terms[:, k : k + len(d.statistics)], plan.terms[:, power : power + len(d.powers)])
            parts.append((weight, d, replace(plan, terms=torch.cat(own, 1))))
            k, power = k + len(d.statistics), power + len(d.powers)
        return parts

    def has_dual(self, rows: Penalty | None, columns: Penalty | None) -> bool:
        return all(d.has_dual(rows, columns) for _, d in self.terms)

    def __repr__(self) -> str:
        return " + ".join(f"{d!r}" if math.isclose(w, 1) else f"{w:g} * {d!r}" for w, d in self.terms)


def _terms(d: Divergence) -> tuple[tuple[float, Divergence], ...]:
    return d.terms if isinstance(d, Sum) else ((1.0, d),)
