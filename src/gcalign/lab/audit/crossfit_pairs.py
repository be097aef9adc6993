"""The pairs of columns that a run was trained on, cross-fitted: a fold never divides a group of near-duplicates."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gcalign.lab.audit.crossfit import CrossFitted, alike, part_of
from gcalign.lab.data.paired import Pairs, Side
from gcalign.lab.training.config import Config
from gcalign.lab.training.pair_module import encoder_names
from gcalign.lab.training.pair_rules import encoders_of
from gcalign.lab.training.pair_runs import builds_of, load_encoders, pairs_of
from gcalign.lab.training.pair_stream import partners
from gcalign.lab.training.runs import Run
from gcalign.lab.training.stream import seed_of
from gcalign.lab.training.train import train


def crossfit_pairs(config: Config, run: Run, *, folds: int, encoder: Any = None, progress: bool = False) -> CrossFitted:
    """Embed each fold of the training pairs with encoders that were trained on the others."""
    config = alike(config)
    pairs = pairs_of(config.data)
    _check(pairs, run, folds)
    rows = pairs.rows("train")
    others = partners(pairs, config.pairs.noise, config.seed)
    fold = folds_of(pairs.groups[rows], folds, seed_of(config.seed, "folds", folds))
    builds = builds_of(encoder_names(pairs.sides, encoders_of(config)), encoder, run)
    sides: list[Tensor | None] = [None, None]
    for k in range(folds):
        if progress:
            print(f"fold {k + 1} of {folds}", file=sys.stderr, flush=True)
        members = (fold != k).nonzero().flatten()
        trained = train(
            part_of(config, run, k, folds), members=members, encoder=builds, quiet=not progress, announce=False
        )
        encoders, mine = load_encoders(trained, builds), (fold == k).nonzero().flatten()
        for place, (side, shown) in enumerate(zip(pairs.sides, (rows[mine], rows[others[mine]]), strict=True)):
            z = encoders[side.name].embed_items(side.take(shown))
            whole = sides[place]
            if whole is None:
                whole = sides[place] = z.new_empty(len(rows), z.shape[1])
            whole[mine] = z
    a, b = sides
    assert a is not None
    assert b is not None
    items = _shown(pairs.sides[0], rows), _shown(pairs.sides[1], rows[others])
    names = [f"row {row}" for row in rows.tolist()]
    return CrossFitted(f"Training pairs of {run.path.name}", a, b, fold, others, names, *items)


def _check(pairs: Pairs, run: Run, folds: int) -> None:
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


def _shown(side: Side, rows: Tensor) -> Sequence[Any]:
    """Texts, pixels [H, W, C], or numbers as a text."""
    items = side.take(rows)
    if not isinstance(items, Tensor):
        return items
    if side.kind == "image":
        return [image.permute(1, 2, 0).numpy() for image in items]
    return [", ".join(f"{x:.3g}" for x in row[:8].tolist()) + (" …" if len(row) > 8 else "") for row in items]
