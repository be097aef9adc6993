"""Pairs whose mismatches are known: embeddings of several kinds, and ways to mismatch a share of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from gcalign.auditing.embeddings import SAME
from gcalign.lab.models.state import seeded
from gcalign.methods import method
from gcalign.symmetric import Symmetric

FOLDS, WIDTH, EPOCHS, BATCH = 2, 64, 15, 128  # of the cross-fitted image–text embeddings


@dataclass(frozen=True)
class Clean:
    """Paired items as they belong together. `embed` sees the partners, because embeddings may be fitted to pairs."""

    name: str
    second: Tensor  # [n, D] features of the second side, from which near-duplicates are known
    group: Tensor  # [n] class, or base of a family of near-duplicates
    embed: Callable[[Tensor], tuple[Tensor, Tensor, Tensor | None]]  # partners -> a, b, folds

    def __len__(self) -> int:
        return len(self.second)


def fixed(name: str, a: Tensor, b: Tensor, group: Tensor) -> Clean:
    """Embeddings that were made without the pairs."""
    return Clean(name, normalize(b, dim=1), group, lambda partners: (a, b[partners], None))


# --- ways to mismatch -------------------------------------------------------------------------------------------


def mismatch(clean: Clean, kind: str, share: float, seed: int) -> tuple[Tensor, Tensor]:  # [n], [n] bool
    """Partners of which a share is wrong, and which are: exchanged partners that are copies are not."""
    generator = torch.Generator().manual_seed(seed)
    n = len(clean)
    partners = WAYS[kind](clean, round(share * n), generator)
    same = (clean.second * clean.second[partners]).sum(1) > SAME
    return partners, (partners != torch.arange(n)) & ~same


def _at_random(clean: Clean, wrong: int, generator: torch.Generator) -> Tensor:
    partners = torch.arange(len(clean))
    where = torch.randperm(len(clean), generator=generator)[:wrong]
    partners[where] = where.roll(1)
    return partners


def _within_groups(clean: Clean, wrong: int, generator: torch.Generator) -> Tensor:
    """Among items of one group, in as many groups as it takes."""
    partners, share, done = torch.arange(len(clean)), wrong / len(clean), 0
    kinds = clean.group.unique()
    for kind in kinds[torch.randperm(len(kinds), generator=generator)]:
        members = (clean.group == kind).nonzero().flatten()
        size = min(max(2, round(share * len(members))), len(members), wrong - done)
        if size >= 2:
            where = members[torch.randperm(len(members), generator=generator)[:size]]
            partners[where] = where.roll(1)
            done += size
    return partners


def _near_duplicates(clean: Clean, wrong: int, generator: torch.Generator) -> Tensor:
    """Two items whose second sides are near exchange their partners."""
    s = clean.second @ clean.second.T
    s[s > SAME] = -2
    near = s.fill_diagonal_(-2).topk(min(30, len(s) - 1), dim=1).indices.tolist()
    partners, free, left = torch.arange(len(clean)), [True] * len(clean), wrong
    for i in torch.randperm(len(clean), generator=generator).tolist():
        other = next((j for j in near[i] if free[j]), None)
        if left >= 2 and free[i] and other is not None:
            partners[i], partners[other] = other, i
            free[i] = free[other] = False
            left -= 2
    return partners


WAYS: dict[str, Callable[[Clean, int, torch.Generator], Tensor]] = {
    "random": _at_random,
    "same group": _within_groups,
    "near-duplicate": _near_duplicates,
}


# --- embeddings -------------------------------------------------------------------------------------------------


def gaussians(n: int, seed: int, dim: int = 64, clusters: int = 20) -> Clean:
    """Clusters, noise on both sides, and a common direction that some items have much of: these are hubs."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    group = torch.randint(clusters, (n,), generator=generator)
    x = draw(clusters, dim)[group] + 0.6 * draw(n, dim)
    hub = draw(dim)
    a, b = (x + 0.9 * draw(n, dim) + 0.3 * draw(n, 1).square() * hub for _ in range(2))
    return fixed("Gaussian clusters with hubs", a, b, group)


def emoji_names(table: Path, first: str, second: str, n: int, seed: int) -> Clean:
    """Names in two languages, by TF-IDF of their character n-grams; no model, nothing is fitted to pairs."""
    columns = _emoji(table, ["emoji", f"name_{first}", f"name_{second}"], n, seed)
    a, b = (_ngrams(columns[f"name_{language}"]) for language in (first, second))
    return fixed(f"emoji names, {first}–{second}", a, b, _bases(columns["emoji"]))


def emoji_images(table: Path, language: str, n: int, seed: int) -> Clean:
    """Pictures and names, by two small networks trained as CLIP is, cross-fitted by families of emoji."""
    from gcalign.lab.data.decode import pixels_of

    columns = _emoji(table, ["emoji", "image", f"name_{language}"], n, seed)
    pixels = torch.stack([torch.tensor(pixels_of(image["bytes"], 24)) for image in columns["image"]])
    x = pixels.flatten(1).float() / 255
    names = normalize(_ngrams(columns[f"name_{language}"]), dim=1)
    group = _bases(columns["emoji"])
    fold = group % FOLDS

    def embed(partners: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shown = names[partners]
        sides = [torch.empty(len(x), WIDTH) for _ in range(2)]
        for k in range(FOLDS):
            here, others = fold == k, fold != k
            centre = x[others].mean(0)
            networks = _trained(x[others] - centre, shown[others], seed)
            with torch.no_grad():
                for side, network, items in zip(sides, networks, (x - centre, shown), strict=True):
                    side[here] = network(items[here])
        return sides[0], sides[1], fold

    return Clean(f"emoji pictures and names ({language}), cross-fitted", names, group, embed)


def _trained(x: Tensor, y: Tensor, seed: int) -> tuple[nn.Module, nn.Module]:
    """An encoder of each side, trained on these pairs with InfoNCE both ways, as CLIP is."""
    with torch.enable_grad(), seeded(seed):
        first = nn.Sequential(nn.Dropout(0.2), nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, WIDTH))
        second = nn.Sequential(nn.Dropout(0.2), nn.Linear(y.shape[1], WIDTH))
        criterion = Symmetric(method("ince", eps=0.1))
        optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], weight_decay=0.1)
        for _ in range(EPOCHS):
            order = torch.randperm(len(x))
            for rows in order[: len(x) // BATCH * BATCH].split(BATCH):
                optimizer.zero_grad()
                criterion(first(x[rows]), second(y[rows])).backward()
                optimizer.step()
    return first.eval(), second.eval()


def _emoji(table: Path, names: list[str], n: int, seed: int) -> dict[str, list[Any]]:
    import pyarrow.parquet as pq

    rows = pq.read_table(table, columns=names)
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:n]
    return {name: rows[name].take(chosen.numpy()).to_pylist() for name in names}


def _bases(emoji: list[str]) -> Tensor:
    """The family of each emoji: its first character, so that variants of skin tone and gender are together."""
    known: dict[str, int] = {}
    return torch.tensor([known.setdefault(e[0], len(known)) for e in emoji])


def _ngrams(texts: list[str], width: int = 1024) -> Tensor:
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

    hashed = HashingVectorizer(
        analyzer="char_wb", ngram_range=(1, 4), n_features=width, norm=None, strip_accents="unicode"
    ).transform(texts)
    return torch.from_numpy(TfidfTransformer().fit_transform(hashed).toarray()).float()
