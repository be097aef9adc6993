"""Pairs that are surely mismatched, because they were re-paired here: at random, or with a neighbour of the partner."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.auditing.embeddings import Embeddings, Pairs, nearest

SAMPLE = 4096  # items whose neighbours are looked up
POOL = 100_000  # items among which they are looked up
NULL = 50_000  # re-paired items
NEAREST = 5  # neighbours of each


@dataclass(frozen=True)
class Paired:
    """The pairs to audit, and re-paired items from which their scores are judged."""

    a: Embeddings
    b: Embeddings
    pairs: Pairs
    random: Pairs
    near: Pairs
    spread: float  # standard deviation of random similarities

    @staticmethod
    def of(a: Embeddings, b: Embeddings, generator: torch.Generator) -> Paired:
        everyone = torch.arange(len(a), device=a.device)
        random = Pairs.of(a, b, *_random(len(a), generator, a.device))
        spread = float(random.cosine.std())
        if spread < 1e-6:
            raise ValueError(
                f"similarities of re-paired items have a standard deviation of {spread:.1e}: all embeddings point the "
                "same way; audit embeddings that differ, e.g. after subtracting their mean"
            )
        return Paired(a, b, Pairs.of(a, b, everyone, everyone), random, _near(a, b, generator), spread)

    def sample(self, size: int, generator: torch.Generator) -> Paired:
        """Some of the pairs, re-paired among themselves; all of them if they are no more."""
        if size >= len(self.a):
            return self
        part = torch.randperm(len(self.a), generator=generator)[:size].to(self.a.device)
        return Paired.of(self.a.take(part), self.b.take(part), generator)


def _random(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """(i, j) with i ≠ j, every item about equally often."""
    i = torch.arange(n).repeat(min(50, -(-NULL // n)))
    if len(i) > NULL:
        i = i[torch.randperm(len(i), generator=generator)[:NULL]]
    j = (i + torch.randint(1, n, (len(i),), generator=generator)) % n
    return i.to(device), j.to(device)


def _near(a: Embeddings, b: Embeddings, generator: torch.Generator) -> Pairs:
    """One item is exchanged for one of its nearest on its own side: b in one half of the pairs, a in the other."""
    n = len(a)
    asked = torch.randperm(n, generator=generator)[:SAMPLE].to(a.device)
    pool = torch.randperm(n, generator=generator)[:POOL].to(a.device)
    k = min(NEAREST, n - 1)
    other_a, other_b = (nearest(x, asked, k, pool).flatten() for x in (a, b))
    kept = asked.repeat_interleave(k)
    return Pairs.of(a, b, torch.cat([kept, other_a]), torch.cat([other_b, kept]))
