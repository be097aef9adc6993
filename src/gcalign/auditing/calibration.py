"""Which pairs are wrong, without a label: share, probability of each, and how far they can be trusted.

A pair can be wrong in three ways, and each has a witness.

* Its items fit no better than items that were paired at random: exchanged with anybody, partner missing, one caption
  for many. Each pair has a p-value among random partners of one of its items. Pairs of this kind have uniform
  p-values, true pairs small ones: hence their share (Storey, 2002) and, from the density of the p-values, a probability
  for each (Efron, 2001).
* Its items fit well, but a neighbour of one of them fits better: exchanged with a similar item. In the plan between
  all pairs, P_ii is then small and P_ij large for a neighbour j. Their share maximises a likelihood.
* Its items fit, but worse than others, though the right partner is not there: the translation of an older text. If most
  pairs fit better than the nearest others, those that fit worse stand out. How many right pairs would do so is read off
  the other half of the distribution, which has no wrong ones (an empirical null: Efron, 2004).

The first two can be evident. The third never is: right pairs that are hard to embed stand out, too, and without a label
nobody can tell how many. Such pairs are suspects, with a probability below one half.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FLAT = 0.3  # a p-value above which no pair is right, as the estimate of the share assumes
FEW = 3.0  # pairs; fewer are an accident
BINS = 200  # of the density of p-values
EVIDENCE = (5.0, 0.01)  # gain of the likelihood that exchanges with neighbours must have: in all, and per pair
ODD = 0.03  # share of right pairs that fit worse than others all the same, beyond what the other half shows
SUSPECTED = 0.4  # probability of a pair that only stands out, at most: nothing shows how odd right pairs are
TAIL = 0.7  # right pairs with p > 0.3 for each one with p between 0.1 and 0.3
GAP = 0.6  # what must be left without this tail; else the audit cannot tell
GRID, BIN = 200, 25  # points where the density of margins is computed; margins of a bin
SURE = 0.9  # probability from which an exchange counts for the lower end of the share


def share_of(p: Tensor) -> float:
    """The share of uniform p-values, mean of mean(p > λ)/(1 − λ) over λ = 0.3 … 0.7."""
    return min(1.0, sum(float((p > k / 20).double().mean()) / (1 - k / 20) for k in range(6, 15)) / 9)


def fitting_at_random(p: Tensor) -> tuple[float, Tensor]:
    """The share of pairs that fit no better than random ones, and the probability of each."""
    share = share_of(p)
    if share * len(p) < FEW:
        return 0.0, torch.zeros_like(p)
    density = torch.where(p > FLAT, share, _density(p))
    return share, (share / density).clamp(max=1.0)


def without_tail(p: Tensor) -> float:
    """Of the pairs that seem to fit at random, the share that is not the tail of right pairs that are hard to embed.

    Random pairs have flat p-values. What is denser between 0.1 and 0.3 than above is this tail, and it goes on.
    """
    near, far = int(((p > 0.1) & (p <= 0.3)).sum()), int((p > 0.3).sum())
    return min(1.0, max(0.0, 1 - TAIL * (near - far * 0.2 / 0.7) / far)) if far else 0.0


def exchanged_with_neighbours(own: Tensor, near: Tensor, weight: Tensor) -> tuple[Tensor, float]:
    """The probability of each pair that its item was exchanged with a neighbour, and the gain of the log-likelihood.

    The log-likelihood is Σ_i w_i log Σ_k c_k ((1 − Σ_r π_r) own_ik + Σ_r π_r near_ikr), maximised over π and c.

    Args:
        own: P_ii [n, K], of plans with K values of ε: several, because errors of true pairs have heavy tails.
        near: mean of P_ij over neighbours j [n, K, R], of R neighbourhoods.
        weight: probability that the pair is not one of those that fit at random [n].
    """
    parts = torch.cat([own[:, :, None], near], 2).double().clamp(1e-12, 1.0)  # [n, K, 1 + R]
    weight = weight.double() / weight.sum()
    mixture = parts.new_full(parts.shape[1:2], 1 / parts.shape[1])
    shares = parts.new_tensor([0.9] + [0.1 / near.shape[2]] * near.shape[2])
    for _ in range(200):
        posterior = mixture[:, None] * shares * parts
        posterior *= (weight / posterior.sum((1, 2)))[:, None, None]
        mixture, shares = posterior.sum((0, 2)), posterior.sum((0, 1))
    kinds = torch.einsum("k,nkr->nr", mixture, parts)
    gain = weight @ ((kinds @ shares) / kinds[:, 0]).log()
    return 1 - shares[0] * kinds[:, 0] / (kinds @ shares), float(gain) * len(own)


def is_evident(gain: float, n: float) -> bool:
    """Whether exchanges with neighbours explain so much that they are not an accident of heavy tails."""
    return gain > max(EVIDENCE[0], EVIDENCE[1] * n)


def outlying(margin: Tensor) -> tuple[float, Tensor]:
    """The share of pairs beyond a symmetric bulk of margins, and the probability of each that fits worse than others.

    Args:
        margin: by how much a pair fits better than the nearest others [n].
    """
    m, n = margin.double(), len(margin)
    nothing = torch.zeros_like(margin)
    width = 1.06 * float(m.std()) * n**-0.2
    if not width > 0 or not float(m.max()) > 0:
        return 0.0, nothing
    grid = torch.linspace(0, float(m.max()), GRID, dtype=m.dtype, device=m.device)
    density = torch.stack([(-0.5 * ((m - x) / width).square()).exp().sum() for x in grid])
    peak = grid[density.argmax()]
    above = m[m > peak] - peak
    worse = int((m < 0).sum())
    if len(above) < BIN or not float(peak) >= float(above.square().mean().sqrt()) or worse == 0:
        return 0.0, nothing  # right pairs may well fit worse than others
    right = min(1.0, 2 * len(above) / n)
    below = m[m < peak].sort().values
    edges = below[:: max(1, min(BIN, len(below) // 4))]
    edges = torch.cat([edges.new_tensor([-math.inf]), edges[1:], peak.view(1)]).unique()
    place = (torch.searchsorted(edges, below) - 1).clamp(0, len(edges) - 2)
    counts = torch.bincount(place, minlength=len(edges) - 1).double().clamp(min=1)
    mirrored = (torch.searchsorted(edges, peak - above) - 1).clamp(0, len(edges) - 2)
    expected = torch.bincount(mirrored, minlength=len(edges) - 1).double()
    kept = ((expected + expected.sqrt() + 0.5) / counts + ODD * right * n / worse).clamp(max=1)
    wrong = m.new_tensor(_decreasing((1 - kept).tolist(), counts.tolist()))
    where = (torch.searchsorted(edges, m) - 1).clamp(0, len(edges) - 2)
    return 1 - right, torch.where(m < 0, wrong[where].clamp(max=SUSPECTED), 0).to(margin.dtype)


def monotone(probability: Tensor, suspicion: Tensor) -> Tensor:
    """The nearest probabilities that do not decrease with suspicion; equal suspicions have equal ones."""
    values, place, counts = suspicion.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(values), dtype=torch.float64).index_add_(0, place, probability.double())
    falling = _decreasing((sums / counts).flip(0).tolist(), counts.flip(0).tolist())
    return torch.tensor(falling, dtype=probability.dtype).flip(0)[place]


def expected_auroc(probability: Tensor, suspicion: Tensor) -> float:
    """The AUROC of the suspicion if the probabilities hold, ties half; at least 0.5 if they grow with it."""
    order = suspicion.argsort()
    wrong = probability[order].double()
    right = 1 - wrong
    below = right.cumsum(0) - right / 2
    total = float(wrong.sum() * right.sum())
    return min(1.0, max(0.5, float((wrong * below).sum()) / total)) if total > 0 else math.nan


def separation(fit: Tensor, null: Tensor) -> float:
    """P(a pair fits better than one of the null), ties half: the AUROC between them."""
    ordered, fit = null.sort().values, fit.contiguous()
    below = torch.searchsorted(ordered, fit).double() + torch.searchsorted(ordered, fit, right=True).double()
    return float(below.mean()) / (2 * len(null))


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
