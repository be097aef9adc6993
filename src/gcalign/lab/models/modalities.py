"""An encoder for each kind of items: images, texts and arrays of numbers."""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gcalign.errors import count, did_you_mean
from gcalign.lab.models.encoders import NAMES, Factory, _scaled, encoder
from gcalign.lab.models.state import evaluating, seeded

USUAL = {"image": "small", "text": "ngrams", "array": "mlp"}
BUCKETS = 2**15
LENGTHS = (1, 2, 3, 4)  # of the n-grams, in characters
LONGEST = 2000  # characters of a text that are read
FEATURES = 256


class NGrams(nn.Module):
    """Texts → features: the mean embedding of their character n-grams, by hash, then two layers.

    It needs no vocabulary and no language. A word that training never saw shares n-grams with those it did.

    Args:
        buckets: number of embeddings; n-grams share them by hash.
        width: times 128 is the size of an embedding, times 256 that of the features.

    Example:
        >>> NGrams(buckets=64)(["red heart", "赤いハート"]).shape
        torch.Size([2, 256])
    """

    def __init__(self, buckets: int = BUCKETS, width: float = 1.0) -> None:
        super().__init__()
        self.buckets = count("buckets", buckets, f"{BUCKETS} is usual")
        inner, self.features = _scaled(128, width), _scaled(FEATURES, width)
        self.embedding = nn.EmbeddingBag(buckets, inner, mode="mean")
        self.layers = nn.Sequential(
            nn.Linear(inner, self.features), nn.ReLU(), nn.Linear(self.features, self.features), nn.ReLU()
        )

    def forward(self, texts: Sequence[str]) -> Tensor:  # B texts -> [B, features]
        if isinstance(texts, str):
            raise TypeError(f"texts={texts!r} must be a list of texts; write [{texts!r}]")
        codes = [hashed(text) for text in texts]
        offsets = torch.tensor([0, *(len(code) for code in codes[:-1])]).cumsum(0)
        device = self.embedding.weight.device
        flat = torch.from_numpy(np.concatenate(codes) % self.buckets)
        return self.layers(self.embedding(flat.to(device), offsets.to(device)))


@functools.lru_cache(maxsize=2**16)
def hashed(text: str) -> npt.NDArray[np.int64]:
    """A number for each n-gram of a text, the same on every machine; words begin and end with a space."""
    padded = f" {' '.join(text.lower()[:LONGEST].split())} "
    codes = [
        zlib.crc32(f"{n}{padded[k : k + n]}".encode("utf-8", "surrogatepass"))
        for n in LENGTHS
        for k in range(len(padded) - n + 1)
    ]
    return np.array(codes, np.int64)


class Numbers(nn.Module):
    """Arrays [B, D] → features: two layers."""

    def __init__(self, inputs: int, width: float = 1.0) -> None:
        super().__init__()
        self.features = _scaled(FEATURES, width)
        self.layers = nn.Sequential(
            nn.Linear(inputs, self.features), nn.ReLU(), nn.Linear(self.features, self.features), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:  # [B, D] -> [B, features]
        return self.layers(x)


class Own(nn.Module):
    """A module of the user's for texts or arrays, with the number of its features."""

    def __init__(self, module: nn.Module, sample: Any) -> None:
        super().__init__()
        self.module = module
        with evaluating(self), torch.no_grad():
            out = module(sample)
        if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != 2:
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"{type(module).__name__} maps two items to {got}; it must give features [2, D]")
        self.features = out.shape[1]

    def forward(self, x: Any) -> Tensor:
        return self.module(x)


def side_encoder(
    name: str | Factory, kind: str, shape: tuple[int, ...], *, width: float = 1.0, seed: int = 0
) -> nn.Module:
    """The encoder of one side: items of this kind and shape → [B, features], initialised from `seed`."""
    if kind == "image":
        if isinstance(name, str) and name in ("ngrams", "mlp"):
            raise ValueError(f"the encoder {name!r} is not for images; {did_you_mean(name, NAMES)}")
        return encoder(name, shape=(shape[0], shape[1], shape[2]), width=width, seed=seed)
    with seeded(seed):
        if isinstance(name, str):
            if name != USUAL[kind]:
                raise ValueError(
                    f"the encoder {name!r} is not for a side of kind {kind}; use {USUAL[kind]!r}, or your own: "
                    "module:function, named in the command"
                )
            return NGrams(width=width) if kind == "text" else Numbers(shape[0], width)
        taken = inspect.signature(name).parameters
        offered: dict[str, Any] = {"shape": shape, "width": width}
        module = name(**{key: value for key, value in offered.items() if key in taken})
        if not isinstance(module, nn.Module):
            raise TypeError(f"{getattr(name, '__name__', name)} returned {type(module).__name__}, not an nn.Module")
        return Own(module, ["a", "b"] if kind == "text" else torch.zeros(2, *shape))
