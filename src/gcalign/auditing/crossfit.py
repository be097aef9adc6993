"""Pairs of anything as embeddings in one space, cross-fitted: no pair is embedded by encoders that were trained on it.

Each side has an encoder of its own, small enough to be trained in seconds on the very pairs that are audited: for texts
the mean of the embeddings of their character n-grams, for numbers a linear map, for images a few convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from gcalign.auditing.texts import Bags, bags, groups, split
from gcalign.methods import method

FOLDS = 3
WIDTH = 128
BATCH = 512
EPOCHS = 6
STEPS = 120  # at least, for small tables
EPS = 0.05  # of the softmax in training
FEWEST = 30  # pairs from which encoders can be trained on two folds and used on the third


class Items(Protocol):
    """The items of one side."""

    rate: float  # of learning

    def __len__(self) -> int: ...

    def take(self, which: Tensor) -> tuple[Tensor, ...]:
        """What the encoder takes for some of them."""

    def encoder(self, members: Tensor) -> nn.Module:
        """A new encoder, given the items that it will be trained on."""


class TextItems:
    """TextItems, as the n-grams of their characters."""

    rate = 0.01

    def __init__(self, texts: Sequence[str]) -> None:
        made = bags(texts)
        used, codes = made.codes.unique(return_inverse=True)  # few texts have few n-grams
        self.bags, self.size = Bags(codes, made.starts), max(1, len(used))

    def __len__(self) -> int:
        return len(self.bags.starts) - 1

    def take(self, which: Tensor) -> tuple[Tensor, ...]:
        return self.bags.take(which)

    def encoder(self, members: Tensor) -> nn.Module:
        weight = torch.randn(self.size, WIDTH) / WIDTH**0.5
        return nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="mean")


class NumberItems:
    """Embeddings of a space of their own [n, D]; memory-mapped arrays stay on disk."""

    rate = 0.002

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def take(self, which: Tensor) -> tuple[Tensor, ...]:
        if isinstance(self.values, Tensor):
            return (self.values[which].detach().float().cpu(),)
        return (torch.tensor(self.values[which.numpy()], dtype=torch.float32),)

    def encoder(self, members: Tensor) -> nn.Module:
        (some,) = self.take(members[:20_000])
        return nn.Sequential(_Standardized(some), nn.Linear(some.shape[1], WIDTH))


class ImageItems:
    """Small images [n, 3, H, W], bytes."""

    rate = 0.002

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, which: Tensor) -> tuple[Tensor, ...]:
        return (self.pixels[which].float() / 255,)

    def encoder(self, members: Tensor) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(8, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, WIDTH))


class _Standardized(nn.Module):
    """Each number minus its mean, all of them divided by their common deviation."""

    def __init__(self, some: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", some.mean(0))
        self.register_buffer("scale", (some - some.mean(0)).std().clamp(min=1e-12))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale  # type: ignore[operator]  # buffers, which torch types as modules too


def crossfitted(
    first: Items, second: Items, fold: Tensor, *, seed: int = 0, progress: bool = False
) -> tuple[Tensor, Tensor]:  # [n, WIDTH] each
    """Embeddings of both sides, each fold by encoders that were trained on the others."""
    a, b = torch.empty(len(fold), WIDTH), torch.empty(len(fold), WIDTH)
    folds = fold.unique().tolist()
    for number, k in enumerate(folds, start=1):
        label = f"encoders, fold {number} of {len(folds)}" if progress else None
        members, mine = (fold != k).nonzero().flatten(), (fold == k).nonzero().flatten()
        encode = _trained(first, second, members, seed + number, label)
        with torch.no_grad():
            for part in mine.split(4096):
                a[part], b[part] = encode(part)
    return a, b


def _trained(
    first: Items, second: Items, members: Tensor, seed: int, label: str | None
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """What embeds pairs, trained with InfoNCE in both directions on some of them."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        encoders = [side.encoder(members) for side in (first, second)]

        def encode(part: Tensor) -> tuple[Tensor, Tensor]:
            x, y = (
                normalize(encoder(*side.take(part)), dim=1)
                for encoder, side in zip(encoders, (first, second), strict=True)
            )
            return x, y

        rates = [
            {"params": encoder.parameters(), "lr": side.rate}
            for encoder, side in zip(encoders, (first, second), strict=True)
        ]
        optimizer = torch.optim.Adam(rates, fused=True)
        criterion = method("clip", eps=EPS, learnable=False)
        per_epoch = max(1, len(members) // BATCH)
        from rich.progress import track  # slow to import

        for _ in track(
            range(max(EPOCHS, math.ceil(STEPS / per_epoch))), description=label or "", disable=label is None
        ):
            for part in members[torch.randperm(len(members))].tensor_split(per_epoch):
                optimizer.zero_grad()
                criterion(*encode(part)).backward()
                optimizer.step()
        for encoder in encoders:
            encoder.eval()
    return encode


def folds_of(first: Any, second: Any, *, folds: int = FOLDS, seed: int = 0) -> Tensor:  # [n]
    """The fold of each pair. Pairs that share a text are in one, so that no encoder has seen what it embeds."""
    n = len(first)
    if n < FEWEST:
        raise ValueError(
            f"there are {n} pairs; encoders are trained on some of them to judge the others, which needs at least "
            f"{FEWEST}: give embeddings of a pretrained model instead"
        )
    texts = [side for side in (first, second) if isinstance(side, (list, tuple)) and isinstance(side[0], str)]
    group = groups(texts[0], texts[-1]) if texts else torch.arange(n)
    largest = int(torch.bincount(group).max())
    if largest > n * (folds - 1) // folds:
        raise ValueError(
            f"{largest} of {n} pairs share texts with each other, and pairs that do must not be divided between "
            "training and audit; leave repeated texts out, or give embeddings of a pretrained model"
        )
    return split(group, folds, seed)
