"""Emoji as pairs: names in two languages, and pictures with names, embedded by two small networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from gcalign.lab.audit.cells import Clean, fixed
from gcalign.lab.data.decode import pixels_of
from gcalign.lab.models.state import seeded
from gcalign.methods import method

FOLDS, WIDTH, EPOCHS, BATCH = 2, 64, 15, 128
SIDE = 24  # pixels of a picture


def emoji_names(table: Path, first: str, second: str, n: int, seed: int) -> Clean:
    """Names in two languages, by TF-IDF of their character n-grams; no model, nothing is fitted to pairs."""
    columns = _columns(table, ["emoji", f"name_{first}", f"name_{second}"], n, seed)
    a, b = (_ngrams(columns[f"name_{language}"]) for language in (first, second))
    return fixed(f"emoji names, {first}–{second}", a, b, _families(columns["emoji"]))


@dataclass(frozen=True)
class Emoji:
    """Pictures and names as features, and the family of each: variants of skin tone and gender are together."""

    pictures: Tensor  # [n, D] pixels
    names: Tensor  # [n, E] unit rows of n-grams
    family: Tensor  # [n]

    @staticmethod
    def read(table: Path, language: str, n: int, seed: int) -> Emoji:
        """n of the emoji, drawn by the seed."""
        columns = _columns(table, ["emoji", "image", f"name_{language}"], n, seed)
        pixels = torch.stack([torch.tensor(pixels_of(image["bytes"], SIDE)) for image in columns["image"]])
        names = normalize(_ngrams(columns[f"name_{language}"]), dim=1)
        return Emoji(pixels.flatten(1).float() / 255, names, _families(columns["emoji"]))

    def __len__(self) -> int:
        return len(self.names)

    def take(self, which: Tensor) -> Emoji:
        return Emoji(self.pictures[which], self.names[which], self.family[which])

    def paired(self, partners: Tensor) -> Emoji:
        """Picture i with the name of `partners[i]`."""
        return Emoji(self.pictures, self.names[partners], self.family)


class EmojiModel:
    """An encoder of each side, trained with a method both ways; with InfoNCE this is CLIP."""

    def __init__(self, pairs: Emoji, name: str, seed: int, weights: Tensor | None = None) -> None:
        self.centre = pairs.pictures.mean(0)
        x, y = pairs.pictures - self.centre, pairs.names
        with torch.enable_grad(), seeded(seed):
            self.first = nn.Sequential(nn.Dropout(0.2), nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, WIDTH))
            self.second = nn.Sequential(nn.Dropout(0.2), nn.Linear(y.shape[1], WIDTH))
            criterion = method(name, eps=0.1)
            optimizer = torch.optim.AdamW([*self.first.parameters(), *self.second.parameters()], weight_decay=0.1)
            for _ in range(EPOCHS):
                order = torch.randperm(len(x))
                for rows in order[: len(x) // BATCH * BATCH].split(BATCH):
                    optimizer.zero_grad()
                    a, b = self.first(x[rows]), self.second(y[rows])
                    w = None if weights is None else weights[rows]
                    ((criterion(a, b, weights=w) + criterion(b, a, weights=w)) / 2).backward()
                    optimizer.step()
        self.first.eval()
        self.second.eval()

    @torch.no_grad()
    def embed(self, pairs: Emoji) -> tuple[Tensor, Tensor]:  # [n, WIDTH] each
        return self.first(pairs.pictures - self.centre), self.second(pairs.names)


def crossfitted(pairs: Emoji, name: str, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Both sides, each fold of families embedded by a model that was trained on the others; and the folds."""
    fold = pairs.family % FOLDS
    a, b = torch.empty(len(pairs), WIDTH), torch.empty(len(pairs), WIDTH)
    for k in range(FOLDS):
        here = fold == k
        a[here], b[here] = EmojiModel(pairs.take(~here), name, seed).embed(pairs.take(here))
    return a, b, fold


def emoji_images(table: Path, language: str, n: int, seed: int) -> Clean:
    """Pictures and names, by two small networks trained as CLIP is, cross-fitted by families of emoji."""
    emoji = Emoji.read(table, language, n, seed)
    about = f"emoji pictures and names ({language}), cross-fitted"
    return Clean(about, emoji.names, emoji.family, lambda partners: crossfitted(emoji.paired(partners), "ince", seed))


def _columns(table: Path, names: list[str], n: int, seed: int) -> dict[str, list[Any]]:
    import pyarrow.parquet as pq

    rows = pq.read_table(table, columns=names)
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:n]
    return {name: rows[name].take(chosen.numpy()).to_pylist() for name in names}


def _families(emoji: list[str]) -> Tensor:
    """By the first character."""
    known: dict[str, int] = {}
    return torch.tensor([known.setdefault(e[0], len(known)) for e in emoji])


def _ngrams(texts: list[str], width: int = 1024) -> Tensor:
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    hashed = HashingVectorizer(
        analyzer="char_wb", ngram_range=(1, 4), n_features=width, norm=None, strip_accents="unicode"
    ).transform(texts)
    return torch.from_numpy(TfidfTransformer().fit_transform(hashed).toarray()).float()
