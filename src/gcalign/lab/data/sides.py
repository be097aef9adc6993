"""What a run trains on: samples with several sides. Each side has a source, a preprocessing and a tower.

Views of an image are sides that draw from the same images and share a tower. Columns of a table are sides with a tower
each. Everything above this module knows samples and sides alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gcalign.lab.data import images as pictures
from gcalign.lab.data.images import Images
from gcalign.lab.data.views import make_views

KINDS = ("image", "text", "array")
SPLITS = ("train", "validation", "test", "all")
Items = Tensor | tuple[str, ...]  # [M, 3, H, W] uint8, [M, D] float32, or M texts


@dataclass(frozen=True)
class Preprocessing:
    """What a tower is given of one side: the kind and shape of its items, and how they are normalised."""

    name: str  # of the side: a column, several joined with +, or "image"
    kind: str
    shape: tuple[int, ...]  # of one item: [C, H, W], [D], or () for a text
    mean: tuple[float, ...] = ()  # of each channel in [0, 1], or of each number of an array
    std: tuple[float, ...] = ()

    def __call__(self, items: Items, views: str = "plain", seed: int = 0) -> Any:
        """Items as an encoder takes them: augmented and normalised images, texts, standardised arrays."""
        if not isinstance(items, Tensor):
            return items
        if self.kind == "image":
            return make_views(views, self.shape, self.mean, self.std)(items, seed)
        mean, std = (torch.tensor(x, device=items.device, dtype=items.dtype) for x in (self.mean, self.std))
        return (items - mean) / std


class SampleSide(ABC):
    """One side of the samples: items of one kind, and the sample that each belongs to."""

    preprocessing: Preprocessing
    single = True  # whether every sample has exactly one item on this side

    @property
    def name(self) -> str:
        return self.preprocessing.name

    @property
    def kind(self) -> str:
        return self.preprocessing.kind

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one item; () for texts."""
        return self.preprocessing.shape

    def of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The places of the items of these samples, one by one, and for each item which of `rows` it belongs to."""
        return rows, torch.arange(len(rows))

    @abstractmethod
    def take(self, places: Tensor, seed: int = 0) -> Items:
        """The items at these places; of images that are drawn anew, those of the seed."""


class ViewSide(SampleSide):
    """A view of each image, which starts from a drawing of the seed's choice where the data set can make one."""

    def __init__(self, images: Images) -> None:
        self.images = images
        self.preprocessing = Preprocessing("image", "image", images.shape, images.mean, images.std)

    def take(self, places: Tensor, seed: int = 0) -> Tensor:
        return self.images.draw(places, seed)


class ColumnSide(SampleSide):
    """The items of a column, or of several. A sample may have more than one: all are right answers."""

    def __init__(self, preprocessing: Preprocessing, items: Items, owner: Tensor) -> None:
        self.preprocessing, self.items = preprocessing, items
        self.owner = owner  # [M] int64, ascending: the sample of each item
        self.single = torch.equal(owner, torch.arange(len(owner)))

    def __len__(self) -> int:
        return len(self.owner)

    def of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.searchsorted(self.owner, rows)
        many = torch.searchsorted(self.owner, rows, right=True) - first
        which = torch.arange(len(rows)).repeat_interleave(many)
        within = torch.arange(len(which)) - (many.cumsum(0) - many).repeat_interleave(many)
        return first[which] + within, which

    def take(self, places: Tensor, seed: int = 0) -> Items:
        if isinstance(self.items, Tensor):
            return self.items[places]
        return tuple(self.items[k] for k in places.tolist())

    def kept(self, rows: Tensor) -> ColumnSide:
        """The column of these samples, which are numbered anew."""
        places, which = self.of(rows)
        return ColumnSide(self.preprocessing, self.take(places), which)


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of a run: their sides, their split, and what else is known of each."""

    name: str
    sides: tuple[SampleSide, ...]
    split: Tensor  # [N] int64: place in SPLITS
    labels: Tensor | None = None  # [N] int64
    domains: Tensor | None = None  # [N] int64
    groups: Tensor | None = None  # [N] int64: near-duplicates in a table, which a split keeps together
    grouped: bool = False  # whether the table says so; else every sample is a group

    def __len__(self) -> int:
        return len(self.split)

    @property
    def are_views(self) -> bool:
        """Whether the sides are views of one image, which share a tower."""
        return isinstance(self.sides[0], ViewSide)

    @property
    def towers(self) -> tuple[tuple[int, ...], ...]:
        """For each tower, the sides that it encodes."""
        every = range(len(self.sides))
        return (tuple(every),) if self.are_views else tuple((k,) for k in every)

    def rows(self, split: str) -> Tensor:  # ascending
        """The samples of a split."""
        if split == "all":
            return torch.arange(len(self))
        return (self.split == SPLITS.index(split)).nonzero()[:, 0]

    def kept(self, rows: Tensor) -> Samples:
        """Some samples of a table, with the split that they had."""
        assert self.groups is not None
        sides = tuple(side.kept(rows) for side in self.sides if isinstance(side, ColumnSide))
        return replace(self, sides=sides, split=self.split[rows], groups=self.groups[rows])


def views_of(images: Images, views: int = 2) -> Samples:
    """Images as samples with so many views; all of them are for training."""
    return Samples(
        f"images of {images.name} ({images.split})",
        (ViewSide(images),) * views,
        torch.zeros(len(images), dtype=torch.int64),
        images.labels,
        images.domains,
    )


def divided(groups: Tensor, shares: Sequence[float], fold: int, what: str) -> Tensor:  # -> [N] places in SPLITS
    """Whole groups for validation and for testing, drawn from `fold`, until each has its share of the samples."""
    sizes = torch.bincount(groups)
    if len(sizes) < 1 + len(shares):
        raise ValueError(
            f"{what} has {len(sizes)} group(s) in {len(groups)} pairs; training, validation and testing need one each, "
            "and a group is never divided: name another column with data.group=, or leave it out to divide by pairs"
        )
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(fold))
    part, start = torch.zeros(len(sizes), dtype=torch.int64), 0
    for place, share in reversed(list(enumerate(shares, 1))):  # test first: its groups do not depend on the other share
        wanted, have, stop = share * len(groups), 0, start
        while stop < len(order) - place and (stop == start or have < wanted):  # one group at least for each of the rest
            have += int(sizes[order[stop]])
            stop += 1
        part[order[start:stop]] = place
        start = stop
    return part[groups]


def coded(values: Sequence[object]) -> Tensor:  # [N]
    """Equal values as equal numbers, in the order in which they first occur."""
    codes: dict[object, int] = {}
    return torch.tensor([codes.setdefault(value, len(codes)) for value in values], dtype=torch.int64)


def described(samples: Samples) -> str:
    """What a run trains on, for a person."""
    first = samples.sides[0]
    if isinstance(first, ViewSide):
        return pictures.described(first.images)
    train, validation, test = (f"{len(samples.rows(split)):,}" for split in ("train", "validation", "test"))
    sides = ", ".join(f"{side.name} ({side.kind})" for side in samples.sides)
    return f"{samples.name}, {train} for training, {validation} for validation, {test} for testing: {sides}"
