"""Pairs of texts as embeddings in one space, cross-fitted: no pair is embedded by encoders that were trained on it.

Each side has an encoder of its own: the mean of the embeddings of a text's character n-grams. It needs no vocabulary
and no language, and is trained in seconds on the very pairs that are audited, with InfoNCE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.progress import track
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

LENGTHS = (2, 3, 4)  # of the n-grams, in characters
LONGEST = 400  # characters of a text that are read
BUCKETS = 1 << 16  # embeddings of a side; n-grams share them by hash
EPS = 0.05  # of the softmax in training


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


def train(
    first: Bags, second: Bags, members: Tensor, *, width: int, epochs: int, batch: int, seed: int, label: str | None
) -> tuple[nn.EmbeddingBag, nn.EmbeddingBag]:
    """Two encoders, trained with InfoNCE in both directions on some of the pairs."""
    generator = torch.Generator().manual_seed(seed)
    sides = []
    for _ in range(2):
        weight = torch.randn(BUCKETS, width, generator=generator) / width**0.5
        sides.append(nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="mean"))
    optimiser = torch.optim.Adam([side.weight for side in sides], lr=0.01, fused=True)
    steps = [
        part
        for _ in range(epochs)
        for part in members[torch.randperm(len(members), generator=generator)].split(batch)
        if len(part) > 1
    ]
    for part in track(steps, description=label or "", disable=label is None):
        x, y = (normalize(side(*bag.take(part)), dim=1) for side, bag in zip(sides, (first, second), strict=True))
        logits = x @ y.T / EPS
        own = torch.arange(len(part))
        loss = cross_entropy(logits, own) + cross_entropy(logits.T, own)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return sides[0], sides[1]


def embed_texts(
    first: Sequence[str],
    second: Sequence[str],
    *,
    folds: int = 3,
    width: int = 128,
    epochs: int = 6,
    batch: int = 512,
    seed: int = 0,
    progress: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # [n, width], [n, width], [n]
    """Embeddings of both sides and the fold of each pair, for `gcalign.audit(a, b, folds=folds)`.

    Pairs that share a text stay in one fold, so that no encoder has seen what it embeds.

    Args:
        first, second: the texts of both sides; texts k of both are pair k.
        folds: each is embedded by encoders that were trained on the others.
        width: numbers of an embedding.
        epochs, batch: of the training; a batch is also the number of candidates in the softmax.
        seed: of folds and encoders.
        progress: show progress bars.
    """
    fold = split(groups(first, second), folds, seed)
    sides = bags(first), bags(second)
    out = [torch.empty(len(fold), width) for _ in range(2)]
    for k in range(folds):
        label = f"encoders, fold {k + 1} of {folds}" if progress else None
        members = (fold != k).nonzero().flatten()
        encoders = train(*sides, members, width=width, epochs=epochs, batch=batch, seed=seed + k, label=label)
        with torch.no_grad():
            for part in (fold == k).nonzero().flatten().split(4096):
                for z, bag, encoder in zip(out, sides, encoders, strict=True):
                    z[part] = normalize(encoder(*bag.take(part)), dim=1)
    return out[0], out[1], fold
