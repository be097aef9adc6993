"""The objective again: float64, whole matrices, log-sum-exp, autograd. No code is shared with the library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

INF = math.inf


class Side(NamedTuple):
    """One marginal: its masses, and hard, a KL relaxation, or total variation."""

    mass: Tensor
    kind: str  # "hard", "relaxed" or "variation"
    lam: float = INF

    def step(self, log_sums: Tensor, eps: Tensor) -> Tensor:
        gap = self.mass.log() - log_sums
        if self.kind == "hard":
            return gap
        if self.kind == "relaxed":
            return gap * self.lam / (self.lam + eps)
        return torch.maximum(torch.minimum(gap, self.lam / eps), -self.lam / eps)


class Terms(NamedTuple):
    """What a divergence is, as plain numbers: weights of the four kinds of terms, and their options."""

    kl: float = 0.0
    robust: float = 0.0
    squared: float = 0.0
    uniformity: float = 0.0
    mass: bool = True
    penalties: bool = True
    entropy: bool = True
    normalized: bool = False
    q: float = 0.6
    lam: float = 0.01
    score: bool = False


@dataclass(frozen=True)
class Dense:
    """A problem with row and column marginals, and its loss."""

    log_k: Tensor  # [n, m]
    target: Tensor  # [n, m]
    rows: Side | None
    columns: Side | None
    eps: Tensor  # []
    terms: Terms
    joint: bool
    inner: float = 2.0  # the largest number that is divided by ε

    # --- the plan ---------------------------------------------------------------------------------------------

    def row_step(self, b: Tensor) -> Tensor:
        assert self.rows is not None
        return self.rows.step(torch.logsumexp(self.log_k + b, 1), self.eps)

    def column_step(self, a: Tensor) -> Tensor:
        assert self.columns is not None
        return self.columns.step(torch.logsumexp(self.log_k + a[:, None], 0), self.eps)

    def iterated(self, count: int) -> tuple[Tensor, Tensor]:
        """log u and log v after `count` iterations from v = 1; one step if only one side is constrained."""
        n, m = self.log_k.shape
        a, b = self.log_k.new_zeros(n), self.log_k.new_zeros(m)
        for _ in range(count if self.rows is not None and self.columns is not None else 1):
            if self.rows is not None:
                a = self.row_step(b)
            if self.columns is not None:
                b = self.column_step(a)
        return a, b

    def residual(self, a: Tensor, b: Tensor) -> tuple[float, float]:
        """How much mass a further step moves, ‖P1 (u⁺/u − 1)‖₁ and ‖Pᵀ1 (v⁺/v − 1)‖₁."""
        log_p = self.log_k + a[:, None] + b
        moved = [0.0, 0.0]
        if self.rows is not None:
            sums = torch.logsumexp(log_p, 1)
            moved[0] = float(((sums + self.row_step(b) - a).exp() - sums.exp()).abs().sum())
        if self.columns is not None:
            sums = torch.logsumexp(log_p, 0)
            moved[1] = float(((sums + self.column_step(a) - b).exp() - sums.exp()).abs().sum())
        return moved[0], moved[1]

    def fixed_point(self, b: Tensor, most: int = 2000) -> Tensor | None:
        """log v that iterations no longer change, started from b; None if they still move it after `most`."""
        for _ in range(most):
            after = self.column_step(self.row_step(b))
            moved = after - b
            moved = moved - moved.mean() if self.balanced else moved  # balanced scalings have a free constant
            b = after
            if float(moved.abs().max()) < 1e-12:
                return b
        return None

    @property
    def balanced(self) -> bool:
        return all(side is not None and side.kind == "hard" for side in (self.rows, self.columns))

    # --- the loss ---------------------------------------------------------------------------------------------

    def per_row(self, log_p: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each row, and the size of its largest parts: sums of their absolute values."""
        t, terms, n = self.target, self.terms, len(log_p)
        p = log_p.exp()
        at = torch.where(t > 0, log_p, 0)  # P may be 0 where T is
        row_sums, column_sums = p.sum(1), p.sum(0)
        log_sums = torch.logsumexp(log_p, 1), torch.logsumexp(log_p, 0)  # finite where P itself underflows
        total, size = log_p.new_zeros(n), log_p.new_zeros(n)

        def add(weight: float, *parts: Tensor) -> None:
            nonlocal total, size
            for part in parts:
                total = total + weight * part
                size = size + weight * part.detach().abs()

        if terms.kl:
            w = terms.kl
            cross = (t * at).sum(1)
            log_rows = log_sums[0]
            mu = t.sum(1)
            if terms.normalized:
                add(w, -cross, mu * log_rows, -mu * mu.log())
            else:
                add(w, -cross)
                if terms.mass:
                    add(w, row_sums, -mu)
                if terms.penalties:
                    for side, sums, logs, mass, spread in (
                        (self.rows, row_sums, log_sums[0], mu, False),
                        (self.columns, column_sums, log_sums[1], t.sum(0), True),
                    ):
                        if side is not None and side.kind == "relaxed":
                            c = side.lam / self.eps
                            price = c * (torch.xlogy(mass, mass) - mass * logs - mass + sums)
                            parts = c * (mass * logs.abs() + mass + sums)
                            add(w, (price.sum() / n).expand(n) if spread else price)
                            size = size + w * ((parts.sum() / n).expand(n) if spread else parts).detach()
            if terms.entropy:
                add(w, torch.xlogy(t, t).sum(1))
        if terms.robust:
            # in score scale the loss has a factor e^{q/ε}, which may be ∞ beside a power that is 0
            shift = a + b.mean() - (1 / self.eps if terms.score else 0)
            log_q = log_p - shift[:, None]
            q = terms.q
            negatives = (q * torch.logsumexp(log_q, 1)).exp() if terms.lam else torch.zeros_like(a)
            positives = (t * torch.where(t > 0, q * log_q, -INF).exp()).sum(1)
            add(terms.robust, terms.lam**q * negatives / q, -positives / q)
        if terms.squared:
            add(terms.squared, (t - p).square().sum(1))
        if terms.uniformity:
            negative = t == 0
            if self.joint:
                negative = negative & ~torch.eye(n, dtype=torch.bool)
            count = negative.sum(1)
            mean = ((p * negative).sum() / negative.sum().clamp(min=1)).clamp(min=1e-300)
            logs = torch.where(negative & (log_p > -INF), log_p, 0).sum(1)
            add(terms.uniformity, count * mean * mean.log(), -mean * logs)
        return total, size

    def plan(self, a: Tensor, b: Tensor) -> Tensor:
        """log P = log K + a + b."""
        return self.log_k + a[:, None] + b

    def frozen(self, a: Tensor, b: Tensor) -> Tensor:  # []
        """A function whose gradient in log K is (P − T)/n: the envelope theorem for Fenchel–Young losses."""
        log_p = self.log_k + a[:, None] + b
        at = torch.where(self.target > 0, log_p, 0)
        return self.terms.kl * (log_p.exp().sum() - (self.target * at).sum()) / len(log_p)


def cosine(x: Tensor, y: Tensor, eps: Tensor | float) -> Tensor:
    """log K = −(1 − cos)/ε of directions; a row of zeros has cosine 0 with all."""
    return -(1 - x @ y.T) / eps


def squared_distance(x: Tensor, y: Tensor, eps: Tensor | float) -> Tensor:
    """log K = −‖x − y‖²/ε."""
    return -(x[:, None] - y).square().sum(2) / eps


def directions(z: Tensor, least: float) -> Tensor:
    """Rows of length 1; a row shorter than `least` counts as a row of zeros and stays."""
    norm = z.square().sum(1, keepdim=True)
    return z / torch.where((norm > 0) & (norm >= least**2), norm, 1).sqrt()


def implicit(problem: Dense, b: Tensor) -> Tensor | None:
    """A loss whose gradient in log K is that of the fixed point: dL/db (I − J)⁻¹ is solved as a dense system.

    None where that system is nearly singular.
    """
    point = b.detach().requires_grad_()
    a = problem.row_step(point)
    after = problem.column_step(a)
    m = len(b)
    jacobian = torch.stack([torch.autograd.grad(after[j], point, retain_graph=True)[0] for j in range(m)])
    total, _ = problem.per_row(problem.plan(a, point), a, point)
    (slope,) = torch.autograd.grad(total.mean(), point, retain_graph=True)
    system = torch.eye(m, dtype=b.dtype) - jacobian.detach()
    if problem.balanced:  # a constant added to b changes nothing: fixed by asking for a mean of 0
        system = system + 1 / m
    if not bool(torch.isfinite(system).all()) or not float(torch.linalg.cond(system)) <= 1e6:
        return None
    weights = torch.linalg.solve(system.T, slope)
    return total.mean() + (weights * (after - after.detach())).sum()
