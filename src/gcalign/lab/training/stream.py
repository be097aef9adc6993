"""The batches of a run as a function of the step: nothing is remembered, so any step can be made again.

That is what makes a run resume bit for bit: order, mismatched pairs, renderings, augmentations and dropout at step s
follow from (seed, s) alone, whatever happened before in the process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Batch:
    """One step: the sample of each row, and for every view the images it starts from."""

    step: int
    index: Tensor  # [B]
    bases: tuple[Tensor, ...]  # each [B, C, H, W] uint8; float and augmented already where workers do it
    seeds: tuple[int, ...]  # of each view's augmentation
    known: dict[str, Tensor]  # labels and domains [B], where the data set has them

    def to(self, device: torch.device) -> Batch:
        known = {name: value.to(device) for name, value in self.known.items()}
        bases = tuple(base.to(device) for base in self.bases)
        return Batch(self.step, self.index.to(device), bases, self.seeds, known)


def mismatched(n: int, noise: float, seed: int) -> Tensor:  # [n]
    """The partner of each image if a share of the pairs is mismatched once for all epochs, among themselves."""
    partners, wrong = torch.arange(n), round(noise * n)
    if wrong >= 2:
        generator = torch.Generator().manual_seed(seed_of(seed, "pairs"))
        where = torch.randperm(n, generator=generator)[:wrong]
        partners[where] = where.roll(1)
    return partners


class Stream(Dataset[Batch]):
    """Item s is the batch of step s, for one rank of `world`; incomplete batches at an epoch's end are dropped."""

    def __init__(
        self,
        images: Images,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        noise: float,
        views: int,
        mislabelled: float = 0.0,  # share of the labels that are wrong
        rank: int = 0,
        world: int = 1,
        augment: Augment | None = None,  # given, it runs here, in the loader's workers
        fixed: bool = False,  # the same pairs are mismatched in every epoch
        weights: Tensor | None = None,  # [N] of each pair; 0 leaves it out
        members: Tensor | None = None,  # the pairs to train on; None is all
    ) -> None:
        self.members = torch.arange(len(images)) if members is None else members
        if weights is not None:
            self.members = self.members[weights[self.members] > 0]
        if batch_size > len(self.members):
            raise ValueError(
                f"batch_size={batch_size} must be at most the {len(self.members)} images of {images.name} "
                f"({images.split}); lower batch_size or raise data.limit"
            )
        self.images, self.batch_size, self.seed, self.noise, self.views = images, batch_size, seed, noise, views
        self.rank, self.world, self.augment = rank, world, augment
        self.fixed = mismatched(len(images), noise, seed) if fixed else None
        labels = images.labels
        if mislabelled and labels is not None:
            labels = splits.mislabelled(labels, mislabelled, seed_of(seed, "labels"))
        known = {"labels": labels, "domains": images.domains, "weights": weights}
        self.known = {name: x for name, x in known.items() if x is not None}
        self.steps_per_epoch = len(self.members) // batch_size
        self.total = self.steps_per_epoch * epochs

    @classmethod
    def of(
        cls, config: Config, images: Images, augment: Augment, *, rank: int, world: int, members: Tensor | None = None
    ) -> Stream:
        """The batches that a config asks for."""
        return cls(
            images,
            batch_size=config.batch_size,
            epochs=config.epochs,
            seed=config.seed,
            noise=config.pairs.noise,
            views=config.pairs.views,
            mislabelled=config.target.noise,
            rank=rank,
            world=world,
            augment=augment if config.augment_in == "workers" else None,
            fixed=config.pairs.fixed,
            weights=weights_of_pairs(config.pairs, len(images)),
            members=members,
        )

    def __len__(self) -> int:
        return self.total

    def indices(self, step: int) -> Tensor:  # [B]
        """The samples of the whole batch, over all ranks."""
        epoch, within = divmod(step, self.steps_per_epoch)
        generator = torch.Generator().manual_seed(seed_of(self.seed, "order", epoch))
        order = torch.randperm(len(self.members), generator=generator)
        return self.members[order[within * self.batch_size : (within + 1) * self.batch_size]]

    def partners(self, indices: Tensor, step: int) -> Tensor:  # [B]
        """What the other views show: the sample itself, but for the share that is mismatched among themselves."""
        if self.fixed is not None:
            return self.fixed[indices]
        wrong = round(self.noise * len(indices))
        if wrong < 2:
            return indices
        generator = torch.Generator().manual_seed(seed_of(self.seed, "noise", step))
        where = torch.randperm(len(indices), generator=generator)[:wrong]
        partners = indices.clone()
        partners[where] = indices[where.roll(1)]
        return partners

    def __getitem__(self, step: int) -> Batch:
        if not 0 <= step < self.total:
            raise IndexError(step)
        indices = self.indices(step)
        partners = self.partners(indices, step)
        share = self.batch_size // self.world
        mine = slice(self.rank * share, (self.rank + 1) * share)
        bases, seeds = [], []
        for view in range(self.views):
            shown = indices if view == 0 else partners
            # drawn per rank, so that two ranks do not render the same noise
            base = self.images.draw(shown[mine], seed_of(self.seed, "draw", step, view, self.rank))
            seed = seed_of(self.seed, "view", step, view, self.rank)
            bases.append(base if self.augment is None else self.augment(base, seed))
            seeds.append(seed)
        here = indices[mine]
        return Batch(step, here, tuple(bases), tuple(seeds), {name: x[here] for name, x in self.known.items()})
