"""Pairs of columns: what each side holds, which rows are near-duplicates, and a split that keeps groups together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

KINDS = ("image", "text", "array")
SPLITS = ("train", "validation", "test", "all")
_PEOPLE = str.maketrans({"👨": "🧑", "👩": "🧑", "👦": "🧒", "👧": "🧒"} | dict.fromkeys("🏻🏼🏽🏾🏿\ufe0f"))
_WHOLE = {"👫": "🧑🤝🧑", "👬": "🧑🤝🧑", "👭": "🧑🤝🧑", "💏": "🧑❤💋🧑", "💑": "🧑❤🧑"}
_ATTRIBUTES = frozenset("♀♂🦰🦱🦲🦳➡")  # gender, hair, direction: parts that a joiner adds to a base


@dataclass(frozen=True, eq=False)
class PairedSide:
    """One side of the pairs: items of one kind, and the pair that each belongs to. A pair may have several."""

    name: str  # the column, or several joined with +
    kind: str
    items: Tensor | tuple[str, ...]  # [M, 3, H, W] uint8, M texts, or [M, D] float32
    owner: Tensor  # [M] int64, ascending: the pair of each item
    mean: tuple[float, ...] = ()  # of each channel in [0, 1], or of each number of an array
    std: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one item; () for texts."""
        return tuple(self.items.shape[1:]) if isinstance(self.items, Tensor) else ()

    def take(self, places: Tensor) -> Tensor | tuple[str, ...]:
        """The items at these places."""
        if isinstance(self.items, Tensor):
            return self.items[places]
        return tuple(self.items[k] for k in places.tolist())

    def of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The places of the items of these pairs, pair by pair, and for each item which of `rows` it belongs to."""
        first = torch.searchsorted(self.owner, rows)
        many = torch.searchsorted(self.owner, rows, right=True) - first
        which = torch.arange(len(rows)).repeat_interleave(many)
        within = torch.arange(len(which)) - (many.cumsum(0) - many).repeat_interleave(many)
        return first[which] + within, which

    def kept(self, rows: Tensor) -> PairedSide:
        """The side of these pairs, which are numbered anew."""
        places, which = self.of(rows)
        return replace(self, items=self.take(places), owner=which)

    @property
    def single(self) -> bool:
        """Whether every pair has exactly one item on this side."""
        return len(self) == int(self.owner[-1]) + 1 and bool((self.owner == torch.arange(len(self))).all())


@dataclass(frozen=True, eq=False)
class PairedData:
    """Rows of a table with an item, or several, on each side."""

    name: str
    sides: tuple[PairedSide, ...]
    groups: Tensor  # [N] int64; pairs of one group are near-duplicates, and are on one side of a split
    grouped: bool  # whether the table says so; else every pair is a group
    split: Tensor  # [N] int64: place in SPLITS

    def __len__(self) -> int:
        return len(self.groups)

    def rows(self, split: str) -> Tensor:  # ascending
        """The pairs of a split."""
        if split == "all":
            return torch.arange(len(self))
        return (self.split == SPLITS.index(split)).nonzero()[:, 0]

    def kept(self, rows: Tensor) -> PairedData:
        """Some of the pairs, with the split that they had."""
        sides = tuple(side.kept(rows) for side in self.sides)
        return PairedData(self.name, sides, self.groups[rows], self.grouped, self.split[rows])


def divided(groups: Tensor, shares: Sequence[float], fold: int, what: str) -> Tensor:  # -> [N] places in SPLITS
    """Whole groups for validation and for testing, drawn from `fold`, until each has its share of the pairs."""
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


def base_emoji(text: str) -> str:
    """An emoji without skin tone, gender, hair and direction: what its variants have in common."""
    plain = _WHOLE.get(text.translate(_PEOPLE), text.translate(_PEOPLE))
    parts = re.split("\u200d", plain)
    return "".join([part for part in parts if part not in _ATTRIBUTES] or parts)


RULES = {"base": base_emoji}
