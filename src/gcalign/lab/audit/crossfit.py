"""A run's own pairs, cross-fitted: each fold is embedded by a model that was trained on the other folds alone."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcalign.errors import count
from gcalign.lab import files
from gcalign.lab.audit.inputs import AuditedPairs
from gcalign.lab.data.images import Images
from gcalign.lab.data.paired import PairedData, PairedSide
from gcalign.lab.data.views import make_views
from gcalign.lab.models import Factory
from gcalign.lab.models.state import evaluating
from gcalign.lab.training.config import Config
from gcalign.lab.training.pair_module import encoder_names
from gcalign.lab.training.pair_runs import builds_of, load_encoders, pairs_of
from gcalign.lab.training.pair_stream import partners
from gcalign.lab.training.rules import encoders_of
from gcalign.lab.training.runs import Run, factory_of, load_whole
from gcalign.lab.training.stream import mismatched, seed_of
from gcalign.lab.training.train import images_of, train
from gcalign.lab.training.use import check_trusted, words

FOLDS, VIEWS = 5, 4
CHUNK = 500  # images embedded at once
NOTE = "Cross-fitted: each of {} folds was embedded by a model that never saw its pairs."


def crossfitted(overrides: Sequence[str], *, progress: bool = False) -> AuditedPairs:
    """`run=… folds=5 views=4 data.root=…`: train on the other folds, embed each. Finished folds are not done again."""
    given = words(overrides, ("run", "encoder", "folds", "views", "data", "data.root"), ("run",))
    numbers = {}
    for key, default in (("folds", FOLDS), ("views", VIEWS)):
        text = given.get(key, str(default))
        if not text.isdecimal():
            raise ValueError(f"{key}={text!r} must be a whole number; {default} is the default")
        numbers[key] = count(key, int(text), f"{default} is the default", least=2 if key == "folds" else 1)
    run = Run.at(given["run"])
    config = run.config()
    if config.pairs.noise and not config.pairs.fixed and not config.data.paired:
        raise ValueError(
            f"{run.path} mismatches other pairs in each step (pairs.noise={config.pairs.noise:g}), so it has "
            "no pairs to audit; train it with pairs.fixed=true"
        )
    if given.get("data", config.data.name) != config.data.name:
        raise ValueError(
            f"data={given['data']} is not the data of {run.path}, which is {config.data.name}; leave it out"
        )
    check_trusted(run, config.data, given)
    if "data.root" in given:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, root=given["data.root"]))
    # nothing of the run's own watching: a logger can be a name to be imported
    config = dataclasses.replace(config, logger="none", logger_args={}, wait=False)
    config.check()
    if config.data.paired:
        return crossfit_pairs(config, run, folds=numbers["folds"], encoder=given.get("encoder"), progress=progress)
    encoder = factory_of(config.model.encoder, given.get("encoder"), f"run={run.path}")
    return crossfit(config, run, **numbers, encoder=encoder, progress=progress)


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
) -> AuditedPairs:
    """Cross-fit the pairs of a config, all alike; the models of the folds are kept in the run's folder."""
    config = alike(config)
    images = images_of(config.data, "train")
    n = len(images)
    if n < 10 * folds:
        raise ValueError(f"folds={folds} must be at most {n // 10}: a fold of the {n} pairs needs at least 10")
    partner = mismatched(n, config.pairs.noise, config.seed) if config.pairs.fixed else torch.arange(n)
    generator = torch.Generator().manual_seed(seed_of(config.seed, "folds", folds))
    fold = torch.empty(n, dtype=torch.int64)
    fold[torch.randperm(n, generator=generator)] = torch.arange(n) % folds

    def embed(trained: Run, side: int, shown: Tensor) -> Tensor:
        return projected(trained, config, images, shown, side, views, encoder)

    title, names = f"Pairs of {run.path.name}", list(images.places) or None
    items = _Shown(images, torch.arange(n)), _Shown(images, partner)
    fitted = folded(config, run, fold, partner, embed, progress, images=images, encoder=encoder)
    return AuditedPairs(title, *fitted, NOTE.format(folds), fold, names, *items, partner != torch.arange(n))


def alike(config: Config) -> Config:
    """Without weights: an audit judges every pair."""
    return dataclasses.replace(config, pairs=dataclasses.replace(config.pairs, weights=None, digest=None))


def folded(
    config: Config,
    run: Run,
    fold: Tensor,  # [n]
    partner: Tensor,  # [n] the pair whose second side each has
    embed: Callable[[Run, int, Tensor], Tensor],  # a trained run, a side and pairs [m] -> [m, D]
    progress: bool,
    **known: Any,  # what `train` need not find again
) -> tuple[Tensor, Tensor]:  # [n, D] each
    """Both sides of the pairs: each fold by a run that was trained without it, kept in the folder of `run`."""
    folds = int(fold.max()) + 1
    order, first, second = [], [], []
    for k in range(folds):
        if progress:
            print(f"fold {k + 1} of {folds}", file=sys.stderr, flush=True)
        runs = files.own_folder(run.path / "audit")
        part = dataclasses.replace(config, name=f"fold{k + 1}of{folds}", runs=str(runs), knn_every=0)
        files.own_folder(runs / part.folder)
        members = (fold != k).nonzero().flatten()
        trained = train(part, members=members, quiet=not progress, announce=False, **known)
        mine = (fold == k).nonzero().flatten()
        order.append(mine)
        first.append(embed(trained, 0, mine))
        second.append(embed(trained, 1, partner[mine]))
    back = torch.cat(order).argsort()
    return torch.cat(first)[back], torch.cat(second)[back]


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


# --- pairs of columns: a fold never divides a group of near-duplicates ----------------------------------------------


def crossfit_pairs(
    config: Config, run: Run, *, folds: int, encoder: Any = None, progress: bool = False
) -> AuditedPairs:
    """Embed each fold of the training pairs with encoders that were trained on the others."""
    config = alike(config)
    pairs = pairs_of(config.data)
    _check(pairs, run, folds)
    rows = pairs.rows("train")
    others = partners(pairs, config.pairs.noise, config.seed)
    fold = folds_of(pairs.groups[rows], folds, seed_of(config.seed, "folds", folds))
    builds = builds_of(encoder_names(pairs.sides, encoders_of(config)), encoder, run)

    def embed(trained: Run, side: int, shown: Tensor) -> Tensor:
        column = pairs.sides[side]
        return load_encoders(trained, builds)[column.name].embed_items(column.take(rows[shown]))

    title, names = f"Training pairs of {run.path.name}", [f"row {row}" for row in rows.tolist()]
    items = _texts_or_pixels(pairs.sides[0], rows), _texts_or_pixels(pairs.sides[1], rows[others])
    fitted = folded(config, run, fold, others, embed, progress, encoder=builds)
    return AuditedPairs(title, *fitted, NOTE.format(folds), fold, names, *items, others != torch.arange(len(rows)))


def _check(pairs: PairedData, run: Run, folds: int) -> None:
    if len(pairs.sides) != 2 or not all(side.single for side in pairs.sides):
        raise ValueError(
            f"{run.path} was trained on {', '.join(side.name for side in pairs.sides)}; an audit compares two columns "
            "with one item for each pair: train a run on two with data.columns="
        )
    n, groups = len(pairs.rows("train")), len(pairs.groups[pairs.rows("train")].unique())
    if n < 10 * folds or groups < folds:
        raise ValueError(
            f"folds={folds} is too many for {n} training pairs in {groups} groups: a fold needs at least 10 pairs, and "
            "a group is never divided; use fewer folds"
        )


def folds_of(groups: Tensor, folds: int, seed: int) -> Tensor:  # [n]
    """The fold of each pair: whole groups, the largest first, each where the fewest pairs are."""
    known, member = groups.unique(return_inverse=True)
    sizes = torch.bincount(member)
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
    order = order[sizes[order].argsort(descending=True, stable=True)]
    have, place = [0] * folds, torch.empty(len(known), dtype=torch.int64)
    for group in order.tolist():
        least = have.index(min(have))
        place[group] = least
        have[least] += int(sizes[group])
    return place[member]


def _texts_or_pixels(side: PairedSide, rows: Tensor) -> Sequence[Any]:
    """Texts, pixels [H, W, C], or numbers as a text."""
    items = side.take(rows)
    if not isinstance(items, Tensor):
        return items
    if side.kind == "image":
        return [image.permute(1, 2, 0).numpy() for image in items]
    return [", ".join(f"{x:.3g}" for x in row[:8].tolist()) + (" …" if len(row) > 8 else "") for row in items]
