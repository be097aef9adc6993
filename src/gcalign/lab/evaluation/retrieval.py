"""Retrieval between the sides of pairs: how often a partner is among the nearest, both ways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.errors import count

KS = (1, 5, 10)
BLOCK = 1 << 24  # entries of the similarity matrix that are held at once


@dataclass(frozen=True, eq=False)
class Gallery:
    """Embeddings of one side as unit rows, the pair of each, and a number that equal items share."""

    z: Tensor  # [M, D]
    owner: Tensor  # [M]
    code: Tensor  # [M]

    def __len__(self) -> int:
        return len(self.z)


def recall(queries: Gallery, gallery: Gallery, ks: Sequence[int] = KS) -> dict[int, float]:
    """R@k: the share of queries with a partner among their k nearest.

    A partner is any item of the query's pair, and any item equal to one: a name of two images is right for both. Of
    items that are as near as the partner, half count as nearer.
    """
    for k in ks:
        count("k", k, "how many of the nearest count")
    ranks = ranks_of(queries, gallery)
    return {k: (ranks < k).double().mean().item() for k in ks}


def ranks_of(queries: Gallery, gallery: Gallery) -> Tensor:  # [Q], from 0
    """How many items that are no partner are nearer than the nearest partner; NaN is never near."""
    if not len(queries) or not len(gallery):
        raise ValueError("there is nothing to retrieve; a split needs at least one pair")
    codes = gallery.code
    right = torch.zeros(
        (int(max(queries.owner.max(), gallery.owner.max())) + 1, int(codes.max()) + 1), dtype=torch.bool
    )
    right[gallery.owner, codes] = True  # which items are a partner of each pair
    ranks = []
    for start in range(0, len(queries), max(1, BLOCK // len(gallery))):
        stop = start + max(1, BLOCK // len(gallery))
        near = (queries.z[start:stop] @ gallery.z.T).nan_to_num(-torch.inf)
        partner = right[queries.owner[start:stop]][:, codes]
        best = near.masked_fill(~partner, -torch.inf).amax(1, keepdim=True)
        others = ~partner
        ahead = (others & (near > best)).sum(1) + (others & (near == best)).sum(1) / 2
        ranks.append(torch.where(partner.any(1), ahead, torch.inf))
    return torch.cat(ranks)


def nearest(queries: Gallery, gallery: Gallery, k: int) -> tuple[Tensor, Tensor]:  # [Q, k] cosines and places
    """The k nearest different items of each query, best first."""
    first = torch.unique(gallery.code, return_inverse=True)[1]
    places = torch.full((int(first.max()) + 1,), len(gallery)).scatter_reduce(
        0, first, torch.arange(len(gallery)), "amin"
    )  # each item once
    near, which = (queries.z @ gallery.z[places].T).topk(min(k, len(places)))
    return near, places[which]
