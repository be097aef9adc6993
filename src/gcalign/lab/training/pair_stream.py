"""The batches of a run on pairs, as a function of the step, so that any step can be made again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from gcalign.lab.data.paired import Pairs
from gcalign.lab.training.stream import seed_of

Items = Tensor | tuple[str, ...]


@dataclass(frozen=True)
class PairBatch:
    """One step: the items of each side and the pair that each belongs to."""

    step: int
    items: tuple[Items, ...]
    owners: tuple[Tensor, ...] | None  # of each item, where a pair has several on a side
    groups: tuple[Tensor, ...]  # of each item
    seeds: tuple[int, ...]  # of each side's augmentation
    weights: tuple[Tensor, ...] | None = None  # of each item

    def to(self, device: torch.device) -> PairBatch:
        items = tuple(x.to(device) if isinstance(x, Tensor) else x for x in self.items)
        owners = None if self.owners is None else tuple(x.to(device) for x in self.owners)
        weights = None if self.weights is None else tuple(x.to(device) for x in self.weights)
        return PairBatch(self.step, items, owners, tuple(x.to(device) for x in self.groups), self.seeds, weights)


class PairStream(Dataset[PairBatch]):
    """Item s is the batch of step s, for one rank of `world`; incomplete batches at an epoch's end are dropped.

    A share `noise` of the training pairs is mismatched among themselves, once for the whole run: wrong pairs of a table
    are wrong in every epoch, and can be learnt by heart.
    """

    def __init__(
        self,
        pairs: Pairs,
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        noise: float,
        rank: int = 0,
        world: int = 1,
        weights: Tensor | None = None,  # [N] of each training pair; 0 leaves it out
        members: Tensor | None = None,  # the training pairs to use; None is all
    ) -> None:
        self.pairs, self.rows, self.weights = pairs, pairs.rows("train"), weights
        self.members = torch.arange(len(self.rows)) if members is None else members
        if weights is not None:
            self.members = self.members[weights[self.members] > 0]
        if batch_size > len(self.members):
            raise ValueError(
                f"batch_size={batch_size} must be at most the {len(self.members)} training pairs of {pairs.name}; "
                "lower batch_size"
            )
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.partner = partners(pairs, noise, seed)
        self.single = all(side.single for side in pairs.sides)
        self.steps_per_epoch = len(self.members) // batch_size
        self.total = self.steps_per_epoch * epochs

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, step: int) -> PairBatch:
        if not 0 <= step < self.total:
            raise IndexError(step)
        epoch, within = divmod(step, self.steps_per_epoch)
        generator = torch.Generator().manual_seed(seed_of(self.seed, "order", epoch))
        order = torch.randperm(len(self.members), generator=generator)
        share = self.batch_size // self.world
        start = within * self.batch_size + self.rank * share
        mine = self.members[order[start : start + share]]
        first, others = self.rows[mine], self.rows[self.partner[mine]]
        items, owners, groups, seeds, weights = [], [], [], [], []
        for k, side in enumerate(self.pairs.sides):
            places, which = side.of(first if k == 0 else others)
            items.append(side.take(places))
            owners.append(mine[which])
            groups.append(self.pairs.groups[others][which])  # of the name that a pair has, right or wrong
            seeds.append(seed_of(self.seed, "view", step, k, self.rank))
            weights += [] if self.weights is None else [self.weights[mine][which]]
        known = None if self.single else tuple(owners)
        return PairBatch(step, tuple(items), known, tuple(groups), tuple(seeds), tuple(weights) or None)


def partners(pairs: Pairs, noise: float, seed: int) -> Tensor:  # [N]
    """Whose other sides each training pair of a run has."""
    return mismatched(len(pairs.rows("train")), noise, seed_of(seed, "noise"))


def mismatched(n: int, share: float, seed: int) -> Tensor:  # [n]
    """Whose other sides each pair has: its own, but for a share that is exchanged among themselves."""
    partner, wrong = torch.arange(n), round(share * n)
    if wrong > 1:
        where = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:wrong]
        partner[where] = where.roll(1)
    return partner
