"""A run's own pairs, cross-fitted: each fold is embedded by a model that was trained on the other folds alone."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gcalign.errors import count
from gcalign.lab import files
from gcalign.lab.audit.inputs import AuditedPairs
from gcalign.lab.data.images import Images
from gcalign.lab.data.sides import Samples, SampleSide, ViewSide, views_of
from gcalign.lab.models import Factory
from gcalign.lab.models.state import evaluating
from gcalign.lab.training.config import Config
from gcalign.lab.training.load import builds_of, weights_of
from gcalign.lab.training.module import encoder_names, preprocessing_of
from gcalign.lab.training.owner import check_links
from gcalign.lab.training.places import check_known
from gcalign.lab.training.probe import words
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import samples_of
from gcalign.lab.training.stream import mismatched, seed_of
from gcalign.lab.training.train import train

FOLDS, VIEWS = 5, 4
CHUNK = 500  # items embedded at once
NOTE = "Cross-fitted: the embeddings of each of {} folds come from a model that was not trained on its pairs."


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
    if not config.pairs.noise and not config.data.paired:
        raise ValueError(
            f"{run.path} was trained on views of single images, and two views of one image are never a wrong pair; "
            "audit a run on pairs (data=pairs data.columns=[a,b]), or give gcalign audit a table with two columns"
        )
    if given.get("data", config.data.name) != config.data.name:
        raise ValueError(
            f"data={given['data']} is not the data of {run.path}, which is {config.data.name}; leave it out"
        )
    check_known(config.data, given, f"run={run.path}")
    if "data.root" in given:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, root=given["data.root"]))
    # nothing of the run's own watching: a logger can be a name to be imported
    config = dataclasses.replace(config, logger="none", logger_args={}, wait=False)
    config.check()
    return crossfit(config, run, **numbers, encoder=given.get("encoder"), progress=progress)


def crossfit(
    config: Config, run: Run, *, folds: int, views: int = VIEWS, encoder: Any = None, progress: bool = False
) -> AuditedPairs:
    """Cross-fit all pairs of a config, those held out included; the models of the folds are kept in the run's folder.

    Weights of pairs are left out: an audit judges every pair.
    """
    config = dataclasses.replace(config, pairs=dataclasses.replace(config.pairs, weights=None, digest=None))
    samples = samples_of(config)
    _check(samples, run, folds)
    check_links(run.path)
    every = samples.rows("all")
    fixed = config.pairs.fixed or not samples.are_views
    partner = mismatched(samples, config.pairs.noise, config.seed) if fixed else every
    fold = folds_of(samples.groups, len(samples), folds, seed_of(config.seed, "folds", folds))
    builds = builds_of(encoder_names(config, preprocessing_of(samples)), encoder, f"run={run.path}")
    known = {"images": samples.sides[0].images} if isinstance(samples.sides[0], ViewSide) else {}

    order, embeddings = [], ([], [])  # type: tuple[list[Tensor], tuple[list[Tensor], list[Tensor]]]
    for k in range(folds):
        if progress:
            print(f"fold {k + 1} of {folds}", file=sys.stderr, flush=True)
        runs = files.own_folder(run.path / "audit")
        part = dataclasses.replace(config, name=f"fold{k + 1}of{folds}", runs=str(runs), knn_every=0)
        files.own_folder(runs / part.folder)
        members = (fold != k).nonzero().flatten()
        trained = train(part, members=members, encoder=builds, quiet=not progress, announce=False, **known)
        mine = (fold == k).nonzero().flatten()
        order.append(mine)
        for side, shown in enumerate((mine, partner[mine])):
            embeddings[side].append(embedded(trained, config, samples, side, shown, views, builds))
    back = torch.cat(order).argsort()
    first, second = (torch.cat(parts)[back] for parts in embeddings)
    return AuditedPairs(
        f"Audit of the pairs of {run.path.name}",
        first,
        second,
        NOTE.format(folds),
        fold,
        _names(samples),
        _Shown(samples.sides[0], every),
        _Shown(samples.sides[1], partner),
        partner != every,
    )


@torch.inference_mode()
def embedded(
    run: Run, config: Config, samples: Samples, side: int, rows: Tensor, views: int, encoder: Any = None
) -> Tensor:  # [n, D]
    """Unit embeddings of these samples on one side; of images with views, the mean over so many."""
    towers = weights_of(run).towers(encoder)
    network, of = towers[0 if samples.are_views else side], samples.sides[side]
    parts = []
    with evaluating(network):
        for some in rows.split(CHUNK):
            if samples.are_views:
                seeds = [seed_of(config.seed, "audit", side, view, int(some[0])) for view in range(views)]
                z = [network(of.preprocessing(of.take(some, s), config.view_name, s)) for s in seeds]
            else:
                z = [network(of.preprocessing(of.take(some)))]
            parts.append(torch.stack([normalize(x.float(), dim=1) for x in z]).mean(0))
    return torch.cat(parts).clone()


def projected(
    run: Run, config: Config, images: Images, index: Tensor, side: int, views: int, encoder: str | Factory | None = None
) -> Tensor:  # [n, D]
    """The mean over views of the unit projections of these images."""
    return embedded(run, config, views_of(images), side, index, views, encoder)


def _check(samples: Samples, run: Run, folds: int) -> None:
    if not samples.are_views and (len(samples.sides) != 2 or not all(side.single for side in samples.sides)):
        raise ValueError(
            f"{run.path} was trained on {', '.join(side.name for side in samples.sides)}; an audit compares two "
            "columns with one item for each pair: train a run on two with data.columns="
        )
    n = len(samples)
    groups = n if samples.groups is None else len(samples.groups.unique())
    if n < 10 * folds or groups < folds:
        raise ValueError(
            f"folds={folds} must be at most {min(n // 10, groups)}: a fold of the {n} pairs in {groups} groups needs "
            "at least 10 pairs, and a group is never divided"
        )


def folds_of(groups: Tensor | None, n: int, folds: int, seed: int) -> Tensor:  # [n]
    """The fold of each pair: at random, or whole groups, the largest first, each where the fewest pairs are."""
    generator = torch.Generator().manual_seed(seed)
    if groups is None:
        fold = torch.empty(n, dtype=torch.int64)
        fold[torch.randperm(n, generator=generator)] = torch.arange(n) % folds
        return fold
    known, member = groups.unique(return_inverse=True)
    sizes = torch.bincount(member)
    order = torch.randperm(len(known), generator=generator)
    order = order[sizes[order].argsort(descending=True, stable=True)]
    have, place = [0] * folds, torch.empty(len(known), dtype=torch.int64)
    for group in order.tolist():
        least = have.index(min(have))
        place[group] = least
        have[least] += int(sizes[group])
    return place[member]


def _names(samples: Samples) -> list[str] | None:
    first = samples.sides[0]
    if isinstance(first, ViewSide):
        return list(first.images.places) or None
    return [f"row {row}" for row in range(len(samples))]


@dataclass(frozen=True)
class _Shown(Sequence[Any]):
    """What a page shows of one side: texts, pixels [H, W, 3], or numbers as a text."""

    side: SampleSide
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, k: Any) -> Any:
        row = self.rows[k : k + 1]
        item = self.side.images.get(row)[0] if isinstance(self.side, ViewSide) else self.side.take(row)[0]
        if isinstance(item, str):
            return item
        if self.side.kind == "image":
            return item.expand(3, *item.shape[1:]).permute(1, 2, 0).numpy()
        return ", ".join(f"{x:.3g}" for x in item[:8].tolist()) + (" …" if len(item) > 8 else "")
