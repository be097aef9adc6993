"""Pairs made by shifting one side: how well do random partners of an item fit, and does the pair fit better?"""

from __future__ import annotations

import torch
from torch import Tensor

from gcalign.auditing.embeddings import Embeddings, Pairs

SHIFTS = 200  # random partners of each item
EQUAL = 1e-6  # difference of cosines up to which a random partner is a copy of the own one


def p_values(
    a: Embeddings, b: Embeddings, own: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:  # [n], [n]
    """For each pair the share of random partners of a_i, and of b_i, that are more similar; copies do not count.

    Similarities are those beyond what an item has with all others on average: one that is similar to everything (a
    hub) is no better a partner for that. Every shift of a random order is one partner for each a_i and for each b_j.
    """
    n = len(a)
    popular_a, popular_b = a.along(b.mean().to(a.device)), b.along(a.mean().to(b.device)).to(a.device)
    own = own - popular_a - popular_b
    order = torch.randperm(n, generator=generator).to(a.device)
    above, counted = (torch.zeros(2, n, dtype=torch.float64, device=a.device) for _ in range(2))
    for shift in (torch.randperm(n - 1, generator=generator)[:SHIFTS] + 1).tolist():
        partner = order.roll(shift)
        cosine = Pairs.of(a, b, order, partner).cosine - popular_a[order] - popular_b[partner]
        for side, item in enumerate((order, partner)):
            more = cosine - own[item]
            above[side, item] += (more > EQUAL).double()
            counted[side, item] += (more.abs() > EQUAL).double()
    if not counted.any():
        raise ValueError(
            f"similarities of re-paired items differ by less than {EQUAL:g} from those of the pairs: all embeddings "
            "point the same way; audit embeddings that differ, e.g. after subtracting their mean"
        )
    p_a, p_b = (above + 0.5) / (counted + 1)
    return p_a, p_b
