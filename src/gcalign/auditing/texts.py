"""Texts as the n-grams of their characters, which need no vocabulary and no language; and which pairs share a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LENGTHS = (2, 3, 4)  # of the n-grams, in characters
LONGEST = 400  # characters of a text that are read
BUCKETS = 1 << 16  # embeddings of a side; n-grams share them by hash


@dataclass(frozen=True)
class Bags:
    """The n-grams of many texts: those of text k are codes[starts[k] : starts[k + 1]]."""

    codes: Tensor  # int64
    starts: Tensor  # [n + 1]

    def take(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Codes and offsets of some texts, as `EmbeddingBag` takes them."""
        sizes = self.starts[which + 1] - self.starts[which]
        offsets = sizes.cumsum(0) - sizes
        inside = torch.arange(int(sizes.sum())) - offsets.repeat_interleave(sizes)
        return self.codes[self.starts[which].repeat_interleave(sizes) + inside], offsets


def bags(texts: Sequence[str], buckets: int = BUCKETS) -> Bags:
    """Character n-grams by hash, the same on every machine; words begin and end with a space.

    >>> bags(["red heart", "赤いハート"]).starts.tolist()
    [0, 27, 42]
    """
    padded = [f" {' '.join(text.lower().split())[:LONGEST]} " for text in texts]
    sizes = torch.tensor([len(text) for text in padded])
    letters = torch.frombuffer(bytearray("".join(padded).encode("utf-32-le", "surrogatepass")), dtype=torch.int32)
    owner = torch.arange(len(padded)).repeat_interleave(sizes)
    codes, owners = [], []
    code = torch.zeros(len(letters), dtype=torch.int64)
    for n in range(1, max(LENGTHS) + 1):
        code = (code[: len(letters) - n + 1] * 1_000_003 + letters[n - 1 :].long() + 1) & ((1 << 42) - 1)
        inside = owner[: len(code)] == owner[n - 1 :]  # an n-gram belongs to one text
        if n in LENGTHS:
            mixed = (code[inside] ^ (code[inside] >> 17)) * 0x9E3779B1 + n
            codes.append((mixed >> 9) % buckets)
            owners.append(owner[: len(code)][inside])
    order = torch.cat(owners).argsort(stable=True)
    counts = torch.bincount(torch.cat(owners), minlength=len(padded))
    return Bags(torch.cat(codes)[order], torch.cat([counts.new_zeros(1), counts.cumsum(0)]))


def groups(first: Sequence[str], second: Sequence[str]) -> Tensor:  # [n]
    """A number for each pair: pairs that share a text of either side have the same one.

    >>> groups(["a", "b", "A ", "c"], ["x", "y", "y", "z"]).tolist()
    [0, 0, 0, 3]
    """
    parent = list(range(len(first)))

    def root(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    for side in (first, second):
        seen: dict[str, int] = {}
        for k, text in enumerate(side):
            i, j = root(seen.setdefault(" ".join(text.lower().split()), k)), root(k)
            parent[max(i, j)] = min(i, j)
    return torch.tensor([root(k) for k in range(len(first))])


def split(group: Tensor, folds: int, seed: int = 0) -> Tensor:  # [n]
    """The fold of each pair: whole groups, at random, the largest first, each where the fewest pairs are."""
    generator = torch.Generator().manual_seed(seed)
    _, member = group.unique(return_inverse=True)
    sizes = torch.bincount(member)
    order = torch.randperm(len(sizes), generator=generator)
    order = order[sizes[order].argsort(descending=True, stable=True)]
    place, have = [0] * len(sizes), [0] * folds
    for one, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        place[one] = have.index(min(have))
        have[place[one]] += size
    return torch.tensor(place)[member]
