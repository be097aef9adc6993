"""The batches of a run as a function of the step: nothing is remembered, so any step can be made again.

That is what makes a run resume bit for bit: order, mismatched pairs, renderings, augmentations and dropout at step s
follow from (seed, s) alone, whatever happened before in the process.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from gcalign.lab.data import splits
from gcalign.lab.data.sides import Samples
from gcalign.lab.training.config import Config


def seed_of(*parts: int | str) -> int:
    """A seed for each thing that is drawn: the same parts give the same seed on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


@dataclass
class Batch:
    """One step: the items of each side, and what is known of each item."""

    step: int
    index: Tensor  # [B] the sample of each row
    items: tuple[Any, ...]  # of each side; as its tower takes them if they were prepared here
    seeds: tuple[int, ...]  # of each side's augmentation
    known: dict[str, tuple[Tensor, ...]]  # by side: labels, domains, weights, and ids where they are needed


def exchanged(n: int, share: float, seed: int) -> Tensor:  # [n]
    """The partner of each of n: itself, but for a share that is mismatched among themselves."""
    partners, wrong = torch.arange(n), round(share * n)
    if wrong >= 2:
        where = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:wrong]
        partners[where] = where.roll(1)
    return partners


def mismatched(samples: Samples, noise: float, seed: int) -> Tensor:  # [N]
    """Whose other sides each sample has, if a share of the training pairs is mismatched once for all epochs."""
    partners, rows = torch.arange(len(samples)), samples.rows("train")
    partners[rows] = rows[exchanged(len(rows), noise, seed_of(seed, "pairs" if samples.are_views else "noise"))]
    return partners


class Stream(Dataset[Batch]):
    """Item s is the batch of step s, for one rank of `world`; incomplete batches at an epoch's end are dropped.

    Wrong pairs of a table are wrong in every epoch, and can be learnt by heart. Views are mismatched anew in each step,
    unless `fixed`.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        noise: float = 0.0,  # share of the pairs that are mismatched
        fixed: bool = False,  # the same pairs are mismatched in every epoch
        mislabelled: float = 0.0,  # share of the labels that are wrong
        views: str | None = None,  # given, items are prepared here, in the loader's workers
        weights: Tensor | None = None,  # [N] of each sample; 0 leaves it out
        members: Tensor | None = None,  # the samples to train on; None is the training split
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.members = samples.rows("train") if members is None else members
        if weights is not None:
            self.members = self.members[weights[self.members] > 0]
        if batch_size > len(self.members):
            training = "" if samples.are_views else "training "
            raise ValueError(
                f"batch_size={batch_size} must be at most the {len(self.members)} {training}{samples.name}; lower it, "
                "or raise data.limit"
            )
        self.samples, self.batch_size, self.seed, self.noise, self.views = samples, batch_size, seed, noise, views
        self.rank, self.world = rank, world
        self.steps_per_epoch = len(self.members) // batch_size
        self.total = self.steps_per_epoch * epochs
        self.fixed = mismatched(samples, noise, seed) if fixed or not samples.are_views else None
        labels = samples.labels
        if mislabelled and labels is not None:
            labels = splits.mislabelled(labels, mislabelled, seed_of(seed, "labels"))
        known = {"labels": labels, "domains": samples.domains, "weights": weights}
        self.known = {name: x for name, x in known.items() if x is not None}
        # with two views, positions say which belong together
        self.with_ids = (samples.are_views and len(samples.sides) > 2) or not all(s.single for s in samples.sides)

    @classmethod
    def of(cls, config: Config, samples: Samples, **more: Any) -> Stream:
        """The batches that a config asks for; `more` are rank, world and members."""
        weights = None
        if config.pairs.weights is not None:
            from gcalign.lab.training.weights import weights_of_pairs

            weights = weights_of_pairs(config.pairs, len(samples))
        return cls(
            samples,
            batch_size=config.batch_size,
            epochs=config.epochs,
            seed=config.seed,
            noise=config.pairs.noise,
            fixed=config.pairs.fixed,
            mislabelled=config.target.noise,
            views=config.view_name if config.augment_in == "workers" else None,
            weights=weights,
            **more,
        )

    def __len__(self) -> int:
        return self.total

    def indices(self, step: int) -> Tensor:  # [B]
        """The samples of the whole batch, over all ranks."""
        if not 0 <= step < self.total:
            raise IndexError(step)
        epoch, within = divmod(step, self.steps_per_epoch)
        generator = torch.Generator().manual_seed(seed_of(self.seed, "order", epoch))
        order = torch.randperm(len(self.members), generator=generator)
        return self.members[order[within * self.batch_size : (within + 1) * self.batch_size]]

    def partners(self, indices: Tensor, step: int) -> Tensor:  # [B]
        """What the other sides show: the sample itself, but for the share that is mismatched among themselves."""
        if self.fixed is not None:
            return self.fixed[indices]
        return indices[exchanged(len(indices), self.noise, seed_of(self.seed, "noise", step))]

    def __getitem__(self, step: int) -> Batch:
        share = self.batch_size // self.world
        mine = slice(self.rank * share, (self.rank + 1) * share)
        indices = self.indices(step)
        first, others = indices[mine], self.partners(indices, step)[mine]
        items, seeds, known = [], [], []
        for k, side in enumerate(self.samples.sides):
            places, which = side.of(first if k == 0 else others)
            # drawn per rank, so that two ranks do not render the same noise
            drawn: Any = side.take(places, seed_of(self.seed, "draw", step, k, self.rank))
            seed = seed_of(self.seed, "view", step, k, self.rank)
            items.append(drawn if self.views is None else side.preprocessing(drawn, self.views, seed))
            seeds.append(seed)
            known.append(self._known(first[which], others[which]))
        by_name = {name: tuple(each[name] for each in known) for name in known[0]}
        return Batch(step, first, tuple(items), tuple(seeds), by_name)

    def _known(self, first: Tensor, others: Tensor) -> dict[str, Tensor]:
        known = {name: x[first] for name, x in self.known.items()}
        if self.samples.groups is not None:
            known["domains"] = self.samples.groups[others]  # of the name that a pair has, right or wrong
        return known | ({"ids": first} if self.with_ids else {})
