"""Pairs made by shifting one side: how well do random partners of an item fit, and does the pair fit better?"""

from __future__ import annotations

import torch
from torch import Tensor

from gcalign.auditing.embeddings import Embeddings, Pairs

SHIFTS = 200  # random partners of each item


def p_values(
    a: Embeddings, b: Embeddings, own: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:  # [n], [n]
    """For each pair the share of random partners of a_i, and of b_i, that are at least as similar; ties half.

    Every shift of a random order is one partner for each a_i and for each b_j.
    """
    n = len(a)
    shifts = min(SHIFTS, n - 1)
    order = torch.randperm(n, generator=generator).to(a.device)
    above_a, above_b = (torch.zeros(n, dtype=torch.float64, device=a.device) for _ in range(2))
    for shift in (torch.randperm(n - 1, generator=generator)[:shifts] + 1).tolist():
        partner = order.roll(shift)
        cosine = Pairs.of(a, b, order, partner).cosine
        above_a[order] += _at_least(cosine, own[order])
        above_b[partner] += _at_least(cosine, own[partner])
    return tuple((above + 0.5) / (shifts + 1) for above in (above_a, above_b))  # type: ignore[return-value]


def _at_least(x: Tensor, y: Tensor) -> Tensor:
    return (x > y).double() + 0.5 * (x == y).double()
