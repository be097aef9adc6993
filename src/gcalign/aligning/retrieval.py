"""How well one side finds its partners on the other: ranks, R@k, and intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

ENTRIES = 1 << 22  # of the similarity matrix that are held at once
Z95 = 1.959963984540054


@dataclass(frozen=True)
class Recall:
    """R@1 and R@10 in percent, mean of both ways, with a 95 % interval (Wilson) for the number of pairs."""

    at_1: float
    at_10: float
    interval_1: tuple[float, float]
    interval_10: tuple[float, float]
    pairs: int
    gallery: int

    def __str__(self) -> str:
        low, high = self.interval_1
        return (
            f"R@1 {self.at_1:.1f} % ({low:.1f} to {high:.1f}), R@10 {self.at_10:.1f} % of {self.pairs:,} held-out "
            f"pairs among {self.gallery:,} candidates"
        )


def ranks(queries: Tensor, gallery: Tensor, own: Tensor, group: Tensor, groups: Tensor) -> Tensor:  # [Q], from 0
    """How many of the gallery are nearer to each query than its own partner; of equally near ones, half.

    Args:
        queries, gallery: unit rows [Q, D] and [G, D].
        own: the place of each query's partner in the gallery [Q].
        group, groups: of queries and gallery; items of a query's group are right, too, and do not count.
    """
    result = []
    step = max(1, ENTRIES // len(gallery))
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        near = queries[part] @ gallery.T
        best = near.gather(1, own[part, None])
        other = group[part, None] != groups
        result.append((other & (near > best)).sum(1) + (other & (near == best)).sum(1) / 2)
    return torch.cat(result)


def both_ways(za: Tensor, zb: Tensor, group: Tensor, others: tuple[Tensor, Tensor]) -> Tensor:  # [2, P]
    """Ranks of the pairs (za_k, zb_k) from a to b and from b to a, among the items of all pairs and some more.

    Args:
        za, zb: unit rows [P, D] of pairs.
        group: pairs that are joined by an item share a number [P]; they do not count against each other.
        others: unit rows of items without a partner here, of side a and of side b.
    """
    own = torch.arange(len(za))
    ways = []
    for z, w, more in ((za, zb, others[1]), (zb, za, others[0])):
        same = torch.cat((group, group.new_full((len(more),), -1)))
        ways.append(ranks(z, torch.cat((w, more)), own, group, same))
    return torch.stack(ways)


def score(found: Tensor, weights: Tensor) -> float:
    """The mean reciprocal rank of pairs that are probably right. A wrong one is near chance and adds little."""
    return float(((1 / (1 + found)).mean(0) * weights).sum() / weights.sum())


def recall(found: Tensor, gallery: int) -> Recall:
    """R@k with intervals from ranks [2, P]."""
    pairs = found.shape[1]
    at_1, at_10 = (float((found < k).double().mean()) for k in (1, 10))
    return Recall(100 * at_1, 100 * at_10, wilson(at_1, pairs), wilson(at_10, pairs), pairs, gallery)


def wilson(share: float, n: int) -> tuple[float, float]:
    """A 95 % interval for a share of n, in percent (Wilson 1927)."""
    z2 = Z95**2 / n
    centre, half = share + z2 / 2, Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n))
    return 100 * max(0.0, (centre - half) / (1 + z2)), 100 * min(1.0, (centre + half) / (1 + z2))


def nearest(queries: Tensor, gallery: Iterable[Tensor], k: int) -> tuple[Tensor, Tensor]:  # [Q, k] places, cosines
    """The k nearest of a gallery that is given in parts."""
    best, where, seen = queries.new_empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.long), 0
    for part in gallery:
        kept, places = [], []
        step = max(1, ENTRIES // len(part))
        for start in range(0, len(queries), step):
            rows = slice(start, start + step)
            near = torch.cat((best[rows], queries[rows] @ part.T), 1)
            values, which = near.topk(min(k, near.shape[1]))
            old = torch.cat((where[rows], torch.arange(seen, seen + len(part)).expand(len(values), -1)), 1)
            kept.append(values)
            places.append(old.gather(1, which))
        best, where, seen = torch.cat(kept), torch.cat(places), seen + len(part)
    return where, best
