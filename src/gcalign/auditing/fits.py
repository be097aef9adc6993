"""How well a_i and b_j fit, in the ways that people score pairs: plan, softmax, CSLS, cosine, neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gcalign.auditing.embeddings import GATHERED, Embeddings, Pairs, blocks, nearest

LOOKED_UP = 4096  # items of a side whose cosines are kept

ROUNDED = 1e-5  # cosines that differ by less are those of copies


class Fit(Protocol):
    """How well the items of some pairs fit; higher is better."""

    def of(self, pairs: Pairs) -> Tensor:  # [k]
        """The fit of each pair."""


@dataclass(frozen=True)
class Potentials:
    """scale · cos(a_i, b_j) + f_i + g_j. Every score but that of the neighbours has this form."""

    a: Embeddings
    b: Embeddings
    scale: float
    f: Tensor  # [n]
    g: Tensor  # [n]

    def of(self, pairs: Pairs) -> Tensor:
        return self.scale * pairs.cosine + self.f[pairs.i] + self.g[pairs.j]


def averaged(fits: Sequence[Potentials]) -> Potentials:
    """The mean of several fits in units of the cosine, given in units of the first."""
    first = fits[0]
    f, g = (
        torch.stack([getattr(fit, side) * (first.scale / fit.scale) for fit in fits]).mean(0) for side in ("f", "g")
    )
    return Potentials(first.a, first.b, first.scale, f, g)


def cosine(a: Embeddings, b: Embeddings) -> Potentials:
    """cos(a_i, b_j)."""
    zero = torch.zeros(len(a), dtype=a.dtype, device=a.device)
    return Potentials(a, b, 1.0, zero, zero)


def csls(a: Embeddings, b: Embeddings, k: int = 10, label: str | None = None) -> Potentials:
    """2 cos(a_i, b_j) less the mean cosine of each with its k nearest of the other side (Conneau et al., 2018)."""
    k = min(k, len(a))
    rows, top = [], torch.full((0, len(b)), -2.0, dtype=a.dtype, device=a.device)
    for _, _, s in blocks(a, b, label):
        rows.append(s.topk(k, dim=1).values.mean(1))
        joined = torch.cat([top, s])
        top = joined.topk(min(k, len(joined)), dim=0).values
    return Potentials(a, b, 2.0, -torch.cat(rows), -top.mean(0))


def margins(a: Embeddings, b: Embeddings, batch: int, generator: torch.Generator, k: int = 4) -> Tensor:  # [n]
    """By how much each pair fits better than the k nearest others of both items, copies aside, in random batches."""
    n, parts = len(a), max(1, math.ceil(len(a) / batch))
    result = torch.empty(n, dtype=a.dtype, device=a.device)
    for part in torch.randperm(n, generator=generator).to(a.device).chunk(parts):
        s = a.rows(part) @ b.rows(part).to(a.device).T
        own = s.diagonal().clone()
        copies = ((s - own).abs() < ROUNDED) | ((s - own[:, None]).abs() < ROUNDED)
        s.masked_fill_(copies, -1)
        near = [s.topk(min(k, len(part)), dim=side).values.mean(side) for side in (0, 1)]
        result[part] = own - (near[0] + near[1]) / 2
    return result


def softmax(a: Embeddings, b: Embeddings, eps: float, label: str | None = None) -> Potentials:
    """log p(b_j | a_i) + log p(a_i | b_j), each a softmax of cos/ε."""
    rows = []
    columns = torch.full((len(b),), -math.inf, dtype=a.dtype, device=a.device)
    for _, _, s in blocks(a, b, label):
        s.div_(eps)
        rows.append(torch.logsumexp(s, 1))
        columns = torch.logaddexp(columns, torch.logsumexp(s, 0))
    return Potentials(a, b, 2 / eps, -torch.cat(rows), -columns)


class Neighbours:
    """Agreement of neighbours, as in LEMoN (Zhang et al., ICML 2025) with the settings its authors fix in advance.

    The distance of a pair is d(a_i, b_j) + β s_n + γ s_m. s_n is the mean of d(b_j, b_m) over the k nearest a_m of a_i,
    with weights exp(−τ₁ d(a_i, a_m) − τ₂ d(a_m, b_m)); s_m is the same with the sides exchanged; d is 1 − cosine.
    """

    def __init__(
        self,
        a: Embeddings,
        b: Embeddings,
        k: int = 30,
        weight: float = 5.0,
        tau: tuple[float, float] = (0.1, 5.0),
    ) -> None:
        self.a, self.b, self.weight, self.tau = a, b, weight, tau
        everyone = torch.arange(len(a), device=a.device)
        self.apart = 1 - Pairs.of(a, b, everyone, everyone).cosine  # [n]
        k = min(k, len(a) - 1)
        self.near = [_others(x, k) for x in (a, b)]
        # all cosines of a side, where they are few enough to look them up
        self.within = [x.rows(slice(None)) @ x.rows(slice(None)).T if len(x) <= LOOKED_UP else None for x in (a, b)]

    def of(self, pairs: Pairs) -> Tensor:
        step = max(1, GATHERED // (self.a.dim * self.near[0].shape[1]))
        parts = zip(pairs.i.split(step), pairs.j.split(step), strict=True)
        return pairs.cosine - 1 - self.weight * torch.cat([self._disagreement(i, j) for i, j in parts])

    def _disagreement(self, i: Tensor, j: Tensor) -> Tensor:
        """s_n + s_m."""
        total = self.apart.new_zeros(len(i))
        for side, (here, there) in enumerate(((i, j), (j, i))):
            near = self.near[side][here]  # [q, k]
            own = 1 - self._against(side, near, here)
            weight = (-self.tau[0] * own - self.tau[1] * self.apart[near]).exp()
            total += (weight * (1 - self._against(1 - side, near, there))).mean(1)
        return total

    def _against(self, side: int, many: Tensor, one: Tensor) -> Tensor:  # [q, k], [q] -> [q, k]
        """Cosines of the items of each row with one item, all of one side."""
        known = self.within[side]
        if known is not None:
            return known[one[:, None], many]
        x = self.b if side else self.a
        return torch.linalg.vecdot(x.rows(many.flatten()).view(*many.shape, -1), x.rows(one)[:, None])


def _others(x: Embeddings, k: int) -> Tensor:  # [n, k]
    """The k nearest of each item on its own side, copies among them."""
    everyone = torch.arange(len(x), device=x.device)
    return nearest(x, everyone, k, everyone, copies=True)


def best_others(fit: Potentials, label: str | None = None) -> Tensor:  # [n]
    """For each a_i the b_j, j ≠ i, that fits best."""
    best = []
    for start, stop, s in blocks(fit.a, fit.b, label):
        s.mul_(fit.scale).add_(fit.g)
        own = torch.arange(start, stop, device=s.device)
        s[own - start, own] = -math.inf
        best.append(s.argmax(1))
    return torch.cat(best)
