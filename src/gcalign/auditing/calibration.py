"""What the scores of re-paired items say about the pairs: share of mismatches, probability of each, threshold.

A pair that was made by shuffling is a mismatch, so its score is a draw from the null. Against the null each pair has
a p-value: the share of re-paired items that fit at least as well. Mismatched pairs have uniform p-values, true pairs
small ones. Hence the share (Storey, 2002) and, from the density of the p-values, a probability for each pair (Efron,
2001).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 200  # of the density of p-values
TAIL = 50


@dataclass(frozen=True)
class Calibration:
    """What is expected of the pairs, without a label."""

    share: float  # of mismatches
    auroc: float  # with which the scores tell true pairs from re-paired ones; nan if all are mismatches
    probability: Tensor  # [n] that a pair is a mismatch


def p_values(fit: Tensor, null: Tensor) -> Tensor:  # [n], [k] -> [n] float64
    """The share of the null that fits at least as well, counting the pair itself."""
    below = torch.searchsorted(null.sort().values, fit.contiguous())
    return (len(null) - below + 1).double() / (len(null) + 1)


def share_of(p: Tensor) -> float:
    """The smallest of the estimates mean(p > λ)/(1 − λ), λ = 0, 0.1 … 0.9: true pairs can only make them larger.

    With few pairs λ stops earlier, where `TAIL` mismatched pairs would still leave a p-value above it.
    """
    largest = max(5, min(9, int(10 * (1 - TAIL / len(p)))))
    return min(float((p > k / 10).double().mean()) / (1 - k / 10) for k in range(largest + 1))


def separation(fit: Tensor, null: Tensor) -> float:
    """P(a pair fits better than a re-paired one), ties half: the AUROC between them."""
    ordered, fit = null.sort().values, fit.contiguous()
    below = torch.searchsorted(ordered, fit).double() + torch.searchsorted(ordered, fit, right=True).double()
    return float(below.mean()) / (2 * len(null))


def calibrated(fit: Tensor, null: Tensor) -> Calibration:
    """Share, expected AUROC and probabilities from the fits of the pairs [n] and of re-paired items [k]."""
    p = p_values(fit, null)
    share = share_of(p)
    # a share π of the pairs is itself drawn from the null: separation = (1 − π) AUROC + π/2
    auroc = min(1.0, (separation(fit, null) - share / 2) / (1 - share)) if share < 1 else float("nan")
    return Calibration(share, auroc, (share / _density(p)).clamp(max=1.0).to(fit.dtype))


def _density(p: Tensor) -> Tensor:  # [n]
    """The density of p-values at each of them, decreasing: Grenander's estimate on bins of equal counts."""
    inner = torch.linspace(0, 1, BINS + 1, dtype=p.dtype, device=p.device)[1:-1]
    ordered = p.sort().values
    edges = ordered[(inner * (len(p) - 1)).long()].unique()
    edges = torch.cat([edges.new_zeros(1), edges[edges < 1], edges.new_ones(1)])
    counts = torch.searchsorted(ordered, edges[1:], right=True).diff(prepend=edges.new_zeros(1).long())
    widths = edges.diff()
    heights = _decreasing((counts / (len(p) * widths)).tolist(), widths.tolist())
    where = (torch.searchsorted(edges, p) - 1).clamp(0, len(widths) - 1)
    return p.new_tensor(heights).clamp(min=torch.finfo(p.dtype).tiny)[where]


def _decreasing(values: list[float], weights: list[float]) -> list[float]:
    """The nearest decreasing sequence in weighted least squares: neighbours in the wrong order are pooled."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight in zip(values, weights, strict=True):
        mean, total, size = value, weight, 1
        while pools and pools[-1][0] < mean:
            before, more, many = pools.pop()
            mean, total, size = (mean * total + before * more) / (total + more), total + more, size + many
        pools.append((mean, total, size))
    return [mean for mean, _, size in pools for _ in range(size)]
