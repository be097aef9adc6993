"""An encoder for each kind of items: images, texts and arrays of numbers."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gcalign.errors import count, did_you_mean
from gcalign.lab.models.encoders import NAMES, Custom, Factory, _scaled, encoder, module_of
from gcalign.lab.models.state import seeded

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
        self.layers = _two_layers(inner, self.features)

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


def _two_layers(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs), nn.ReLU())


class Numbers(nn.Module):
    """Arrays [B, D] → features: two layers."""

    def __init__(self, inputs: int, width: float = 1.0) -> None:
        super().__init__()
        self.features = _scaled(FEATURES, width)
        self.layers = _two_layers(inputs, self.features)

    def forward(self, x: Tensor) -> Tensor:  # [B, D] -> [B, features]
        return self.layers(x)


def side_encoder(
    name: str | Factory,
    kind: str,
    shape: tuple[int, ...],
    *,
    width: float = 1.0,
    stem: str = "auto",
    seed: int = 0,
) -> nn.Module:
    """The encoder of one side: items of this kind and shape → [B, features], initialised from `seed`."""
    if kind == "image":
        if isinstance(name, str) and name in ("ngrams", "mlp"):
            raise ValueError(f"the encoder {name!r} is not for images; {did_you_mean(name, NAMES)}")
        return encoder(name, shape=(shape[0], shape[1], shape[2]), width=width, stem=stem, seed=seed)
    with seeded(seed):
        if isinstance(name, str):
            if name != USUAL[kind]:
                raise ValueError(
                    f"the encoder {name!r} is not for a side of kind {kind}; use {USUAL[kind]!r}, or your own: "
                    "module:function, named in the command"
                )
            return NGrams(width=width) if kind == "text" else Numbers(shape[0], width)
        module = module_of(name, shape=shape, width=width)
        return Custom(module, ["a", "b"] if kind == "text" else torch.zeros(2, *shape))
