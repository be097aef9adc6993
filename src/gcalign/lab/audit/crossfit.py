"""A run's own pairs, cross-fitted: each fold is embedded by a model that was trained on the other folds alone."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcalign.lab.data.images import Images
from gcalign.lab.data.views import make_views
from gcalign.lab.models import Factory
from gcalign.lab.models.state import evaluating
from gcalign.lab.training.config import Config
from gcalign.lab.training.runs import Run, load_whole
from gcalign.lab.training.stream import mismatched, seed_of
from gcalign.lab.training.train import images_of, train

CHUNK = 500  # images embedded at once


@dataclass(frozen=True)
class CrossFitted:
    """Training pairs with embeddings from models that never saw them."""

    title: str
    a: Tensor  # [n, D]
    b: Tensor  # [n, D]
    folds: Tensor  # [n]
    partners: Tensor  # [n] the pair whose second side each has
    names: Sequence[str] | None
    first: Sequence[Any]  # what the sides show
    second: Sequence[Any]

    @property
    def folds_made(self) -> int:
        return int(self.folds.max()) + 1

    @property
    def wrong(self) -> Tensor:  # [n] bool
        """The pairs that were mismatched on purpose."""
        return self.partners != torch.arange(len(self.partners))


@dataclass(frozen=True)
class _Shown(Sequence[Any]):
    pool: Images
    shown: Tensor

    def __len__(self) -> int:
        return len(self.shown)

    def __getitem__(self, k: Any) -> Any:  # [H, W, 3] uint8
        pixels = self.pool.get(self.shown[k : k + 1])[0]
        return pixels.expand(3, *pixels.shape[1:]).permute(1, 2, 0).numpy()


def crossfit(
    config: Config, run: Run, *, folds: int, views: int, encoder: str | Factory | None = None, progress: bool = False
) -> CrossFitted:
    """Cross-fit the pairs of a config, all alike; the models of the folds are kept in the run's folder."""
    config = alike(config)
    images = images_of(config.data, "train")
    n = len(images)
    if n < 10 * folds:
        raise ValueError(f"folds={folds} must be at most {n // 10}: a fold of the {n} pairs needs at least 10")
    partners = mismatched(n, config.pairs.noise, config.seed) if config.pairs.fixed else torch.arange(n)
    generator = torch.Generator().manual_seed(seed_of(config.seed, "folds", folds))
    fold = torch.empty(n, dtype=torch.int64)
    fold[torch.randperm(n, generator=generator)] = torch.arange(n) % folds
    sides: list[Tensor | None] = [None, None]
    for k in range(folds):
        if progress:
            print(f"fold {k + 1} of {folds}", file=sys.stderr, flush=True)
        part = part_of(config, run, k, folds)
        trained = train(
            part,
            images=images,
            members=(fold != k).nonzero().flatten(),
            encoder=encoder,
            quiet=not progress,
            announce=False,
        )
        mine = (fold == k).nonzero().flatten()
        for side, shown in enumerate((mine, partners[mine])):
            z = projected(trained, config, images, shown, side, views, encoder)
            whole = sides[side]
            if whole is None:
                whole = sides[side] = z.new_empty(n, z.shape[1])
            whole[mine] = z
    a, b = sides
    assert a is not None
    assert b is not None
    items = _Shown(images, torch.arange(n)), _Shown(images, partners)
    return CrossFitted(f"Pairs of {run.path.name}", a, b, fold, partners, list(images.places) or None, *items)


def alike(config: Config) -> Config:
    """Without weights: an audit judges every pair."""
    return dataclasses.replace(config, pairs=dataclasses.replace(config.pairs, weights=None, digest=None))


def part_of(config: Config, run: Run, k: int, folds: int) -> Config:
    """The run that is trained without fold k; it is kept in the folder of the run that is audited."""
    return dataclasses.replace(config, name=f"fold{k + 1}of{folds}", runs=str(run.path / "audit"), knn_every=0)


@torch.inference_mode()
def projected(
    run: Run,
    config: Config,
    images: Images,
    index: Tensor,  # [n]
    side: int,
    views: int,
    encoder: str | Factory | None = None,
) -> Tensor:  # [n, D]
    """The mean over views of the unit projections of these images."""
    network = load_whole(run.path, encoder=encoder)
    augment = make_views(config.view_name, images.shape, images.mean, images.std)
    parts = []
    with evaluating(network):
        for some in index.split(CHUNK):
            seeds = [seed_of(config.seed, "audit", side, view, int(some[0])) for view in range(views)]
            z = [network(augment(images.draw(some, seed), seed)).float() for seed in seeds]
            parts.append(torch.stack([torch.nn.functional.normalize(x, dim=1) for x in z]).mean(0))
    return torch.cat(parts).clone()
