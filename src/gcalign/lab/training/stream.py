"""The batches of a run as a function of the step: nothing is remembered, so any step can be made again.

That is what makes a run resume bit for bit: order, mismatched pairs, renderings, augmentations and dropout at step s
follow from (seed, s) alone, whatever happened before in the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from gcalign.lab.data import splits
from gcalign.lab.data.images import Images
from gcalign.lab.data.views import make_views
from gcalign.lab.training.config import Config
from gcalign.lab.training.weights import weights_of_pairs

Augment = Callable[[Tensor, int], Tensor]


def augment_of(config: Config, images: Images) -> Augment:
    """What makes a view of each image of a batch."""
    return make_views(config.view_name, images.shape, images.mean, images.std)


def seed_of(*parts: int | str) -> int:
    """A seed for each thing that is drawn: the same parts give the same seed on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


@dataclass
class Batch:
    """One step: the sample of each row, and for every view the images it starts from."""

    step: int
    index: Tensor  # [B]
    bases: tuple[Tensor, ...]  # each [B, C, H, W] uint8; float and augmented already where workers do it
    seeds: tuple[int, ...]  # of each view's augmentation
    known: dict[str, Tensor]  # labels and domains [B], where the data set has them


def exchanged(n: int, share: float, seed: int) -> Tensor:  # [n]
    """The partner of each of n: itself, but for a share that is mismatched among themselves."""
    partners, wrong = torch.arange(n), round(share * n)
    if wrong >= 2:
        where = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:wrong]
        partners[where] = where.roll(1)
    return partners


def mismatched(n: int, noise: float, seed: int) -> Tensor:  # [n]
    """The partner of each image if a share of the pairs is mismatched once for all epochs."""
    return exchanged(n, noise, seed_of(seed, "pairs"))


class Steps(Dataset[Any]):
    """Item s is the batch of step s, for one rank of `world`; incomplete batches at an epoch's end are dropped."""

    def __init__(
        self,
        n: int,  # pairs in all
        what: str,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        weights: Tensor | None = None,  # [n] of each pair; 0 leaves it out
        members: Tensor | None = None,  # the pairs to train on; None is all
    ) -> None:
        self.members = torch.arange(n) if members is None else members
        if weights is not None:
            self.members = self.members[weights[self.members] > 0]
        if batch_size > len(self.members):
            raise ValueError(
                f"batch_size={batch_size} must be at most the {len(self.members)} {what}; lower it, or raise data.limit"
            )
        self.batch_size, self.seed, self.rank, self.world, self.weights = batch_size, seed, rank, world, weights
        self.steps_per_epoch = len(self.members) // batch_size
        self.total = self.steps_per_epoch * epochs

    @staticmethod
    def settings(config: Config, n: int) -> dict[str, Any]:
        """What a config says of the steps on n pairs."""
        weights = weights_of_pairs(config.pairs, n)
        about = {name: getattr(config, name) for name in ("batch_size", "epochs", "seed")}
        return {**about, "noise": config.pairs.noise, "weights": weights}

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

    @property
    def mine(self) -> slice:
        """This rank's part of a batch."""
        share = self.batch_size // self.world
        return slice(self.rank * share, (self.rank + 1) * share)


class Stream(Steps):
    """The batches of a run on images."""

    def __init__(
        self,
        images: Images,
        *,
        noise: float,
        views: int,
        mislabelled: float = 0.0,  # share of the labels that are wrong
        augment: Augment | None = None,  # given, it runs here, in the loader's workers
        fixed: bool = False,  # the same pairs are mismatched in every epoch
        **steps: Any,
    ) -> None:
        super().__init__(len(images), f"images of {images.name} ({images.split})", **steps)
        self.images, self.noise, self.views, self.augment = images, noise, views, augment
        self.fixed = mismatched(len(images), noise, self.seed) if fixed else None
        labels = images.labels
        if mislabelled and labels is not None:
            labels = splits.mislabelled(labels, mislabelled, seed_of(self.seed, "labels"))
        known = {"labels": labels, "domains": images.domains, "weights": self.weights}
        self.known = {name: x for name, x in known.items() if x is not None}

    @classmethod
    def of(cls, config: Config, images: Images, augment: Augment, **more: Any) -> Stream:
        """The batches that a config asks for; `more` are rank, world and members."""
        return cls(
            images,
            views=config.pairs.views,
            mislabelled=config.target.noise,
            augment=augment if config.augment_in == "workers" else None,
            fixed=config.pairs.fixed,
            **cls.settings(config, len(images)),
            **more,
        )

    def partners(self, indices: Tensor, step: int) -> Tensor:  # [B]
        """What the other views show: the sample itself, but for the share that is mismatched among themselves."""
        if self.fixed is not None:
            return self.fixed[indices]
        return indices[exchanged(len(indices), self.noise, seed_of(self.seed, "noise", step))]

    def __getitem__(self, step: int) -> Batch:
        indices = self.indices(step)
        partners = self.partners(indices, step)
        bases, seeds = [], []
        for view in range(self.views):
            shown = indices if view == 0 else partners
            # drawn per rank, so that two ranks do not render the same noise
            base = self.images.draw(shown[self.mine], seed_of(self.seed, "draw", step, view, self.rank))
            seed = seed_of(self.seed, "view", step, view, self.rank)
            bases.append(base if self.augment is None else self.augment(base, seed))
            seeds.append(seed)
        here = indices[self.mine]
        return Batch(step, here, tuple(bases), tuple(seeds), {name: x[here] for name, x in self.known.items()})
