"""Retrieval between the sides of pairs: how often a partner is among the nearest, both ways."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcalign.errors import count
from gcalign.lab.data.sides import ColumnSide, Samples, coded

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


# --- of the columns of a table ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retrieved:
    """R@k between two sides, each way, and examples where they were asked for."""

    protocol: str
    split: str
    accuracy: float  # R@1, mean of both ways
    recall: dict[str, dict[str, float]]  # "image → name_en" -> {"1": …}
    n_test: int  # pairs that were asked about
    gallery: int  # items among which the partner was sought
    examples: list[dict[str, Any]]
    seed: int = 0

    def __str__(self) -> str:
        lines = [
            f"{self.protocol} on {self.split}: {self.n_test} pairs that training never saw, {self.gallery} candidates"
        ]
        for way, by in self.recall.items():
            shares = ", ".join(f"R@{k} {100 * v:.1f} %" for k, v in by.items())
            lines.append(f"  {way}: {shares} (chance {100 / self.gallery:.2f} %)")
        for example in self.examples:
            names = "; ".join(f"{name} {near:.2f}" for name, near in example["found"])
            lines.append(f"  {'✓' if example['right'] else ' '} {example['is']}: {names}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class EmbeddedColumns:
    """The columns of samples, each embedded once by its encoder, when it is first asked for."""

    def __init__(self, encoders: Any, samples: Samples) -> None:  # as `gcalign.load` gives those of a run on columns
        self.encoders, self.samples = encoders, samples
        self.sides = [side for side in samples.sides if isinstance(side, ColumnSide)]
        self._z: dict[str, Tensor] = {}
        self._codes = {side.name: _codes(side) for side in self.sides}

    def gallery(self, side: ColumnSide, rows: Tensor) -> Gallery:
        """The items of these samples on one side."""
        if side.name not in self._z:
            self._z[side.name] = self.encoders[side.name].embed_items(side.items)
        places, which = side.of(rows)
        return Gallery(self._z[side.name][places], rows[which], self._codes[side.name][places])


def _codes(side: ColumnSide) -> Tensor:
    """A number for each item; equal texts share one."""
    return torch.arange(len(side)) if isinstance(side.items, Tensor) else coded(side.items)


def retrieval(of: EmbeddedColumns, split: str, ks: Sequence[int] = KS) -> Retrieved:
    """R@k among the pairs of a split, between the first side and each other, both ways."""
    rows, ways = of.samples.rows(split), {}
    first, *others = of.sides
    for other in others:
        for a, b in ((first, other), (other, first)):
            ways[f"{a.name} → {b.name}"] = recall(of.gallery(a, rows), of.gallery(b, rows), ks)
    shown = {way: {str(k): v for k, v in by.items()} for way, by in ways.items()}
    accuracy = statistics.fmean(by[min(ks)] for by in ways.values())
    return Retrieved("retrieval", split, accuracy, shown, len(rows), len(rows), [])


def zeroshot(of: EmbeddedColumns, split: str, *, top: int = 3, show: int = 10) -> Retrieved:
    """Name items that training never saw: the nearest of all texts of the table, those of training included."""
    first, other = of.sides[:2]
    if first.kind == "text" and other.kind != "text":
        first, other = other, first
    if other.kind != "text":
        raise ValueError(f"protocol=zeroshot names items, and {other.name} holds no texts; use protocol=retrieval")
    rows, everything = of.samples.rows(split), of.gallery(other, of.samples.rows("all"))
    queries = of.gallery(first, rows)
    by_k = recall(queries, everything)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(queries), generator=generator)[: count("show", show, "examples", least=0)]
    some = Gallery(queries.z[chosen], queries.owner[chosen], queries.code[chosen])
    examples = []
    near, places = nearest(some, everything, count("top", top, "names for each item"))
    assert isinstance(other.items, tuple)
    for k, row in enumerate(some.owner.tolist()):
        own = [other.items[p] for p in other.of(torch.tensor([row]))[0].tolist()]
        names = [(other.items[p], round(float(c), 3)) for p, c in zip(places[k].tolist(), near[k], strict=True)]
        examples.append({"is": " / ".join(own), "found": names, "right": names[0][0] in own, "row": row})
    way = f"{first.name} → {other.name}"
    many = int(torch.unique(everything.code).numel())
    shown = {way: {str(k): v for k, v in by_k.items()}}
    return Retrieved("zeroshot", split, by_k[1], shown, len(rows), many, examples)
