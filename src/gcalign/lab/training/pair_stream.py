"""The batches of a run on pairs, as a function of the step, so that any step can be made again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gcalign.lab.data.paired import PairedData
from gcalign.lab.training.stream import Steps, exchanged, seed_of

Items = Tensor | tuple[str, ...]


@dataclass
class PairBatch:
    """One step: the items of each side, and what is known of each item."""

    step: int
    items: tuple[Items, ...]
    seeds: tuple[int, ...]  # of each side's augmentation
    known: dict[str, tuple[Tensor, ...]]  # domains: the group; ids: the pair, if some have several items; weights


class PairStream(Steps):
    """The batches of a run on pairs.

    A share `noise` of the training pairs is mismatched among themselves, once for the whole run: wrong pairs of a table
    are wrong in every epoch, and can be learnt by heart.
    """

    def __init__(self, pairs: PairedData, *, noise: float, **steps: Any) -> None:
        self.pairs, self.rows = pairs, pairs.rows("train")
        super().__init__(len(self.rows), f"training pairs of {pairs.name}", **steps)
        self.partner = partners(pairs, noise, self.seed)
        self.single = all(side.single for side in pairs.sides)

    def __getitem__(self, step: int) -> PairBatch:
        mine = self.indices(step)[self.mine]
        first, others = self.rows[mine], self.rows[self.partner[mine]]
        items, seeds, owners, groups, weights = [], [], [], [], []
        for k, side in enumerate(self.pairs.sides):
            places, which = side.of(first if k == 0 else others)
            items.append(side.take(places))
            seeds.append(seed_of(self.seed, "view", step, k, self.rank))
            owners.append(mine[which])
            groups.append(self.pairs.groups[others][which])  # of the name that a pair has, right or wrong
            weights += [] if self.weights is None else [self.weights[mine][which]]
        known = {"domains": groups, "ids": [] if self.single else owners, "weights": weights}
        return PairBatch(step, tuple(items), tuple(seeds), {name: tuple(x) for name, x in known.items() if x})


def partners(pairs: PairedData, noise: float, seed: int) -> Tensor:  # [N]
    """Whose other sides each training pair of a run has."""
    return exchanged(len(pairs.rows("train")), noise, seed_of(seed, "noise"))
