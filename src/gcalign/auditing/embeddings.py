"""One side of the pairs: checked once, unit rows on request, by blocks where they are many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcalign.kernels import normalize

KEPT = 1 << 30  # bytes of unit rows that are kept in memory; more are made again from the array
CHECKED = 1 << 24  # numbers that are looked at together
GATHERED = 1 << 20  # numbers of single rows that are gathered at once: what a cache holds
ENTRIES = 1 << 25  # of the similarity matrix that are held at once
LEVEL = 1e-5  # by which the coordinates of different items differ
SAME = 0.999  # a cosine from which two items are copies, so that one is no wrong partner of the other


class Embeddings:
    """Embeddings [n, D] of one side, as unit rows. An array on disk stays there if it is large."""

    def __init__(self, name: str, values: Any, dtype: torch.dtype = torch.float32) -> None:
        self.name, self.values, self.dtype = name, values, dtype
        self.device = values.device if isinstance(values, Tensor) else torch.device("cpu")
        self.n, self.dim = int(values.shape[0]), int(values.shape[1])
        self._unit: Tensor | None = None
        if self.n * self.dim * dtype.itemsize <= KEPT:
            self._unit = normalize(self._read(slice(None)))

    def __len__(self) -> int:
        return self.n

    def _read(self, which: Any) -> Tensor:
        """These rows as they are, in the dtype of the computation."""
        if isinstance(self.values, Tensor):
            return self.values[which].detach().to(self.dtype)
        if isinstance(which, Tensor):
            which = which.numpy()
        # numpy converts numbers that torch cannot hold, such as those of another byte order
        part = self.values[which].astype(str(self.dtype).removeprefix("torch."), copy=False)
        return torch.tensor(part)  # a copy: arrays on disk are read-only

    def rows(self, which: Any) -> Tensor:  # [k, D]
        """Unit rows at a slice or at indices."""
        return normalize(self._read(which)) if self._unit is None else self._unit[which]

    def mean(self) -> Tensor:  # [D]
        """The mean of all unit rows."""
        step = max(1, CHECKED // self.dim)
        return (
            sum((self.rows(slice(k, k + step)).sum(0) for k in range(0, self.n, step)), start=torch.zeros(())) / self.n
        )

    def along(self, direction: Tensor) -> Tensor:  # [n]
        """Inner products of all unit rows with a direction."""
        step = max(1, CHECKED // self.dim)
        return torch.cat([self.rows(slice(k, k + step)) @ direction for k in range(0, self.n, step)])

    def take(self, which: Tensor) -> Embeddings:
        """A part, in memory."""
        return Embeddings(self.name, self.rows(which), self.dtype)

    def check(self) -> None:
        """Refuse rows that have no direction."""
        step = max(1, CHECKED // self.dim)
        for start in range(0, self.n, step):
            part = self._read(slice(start, start + step))
            good = part.isfinite().all(1)
            if not good.all():
                worst = start + int((~good).nonzero()[0])
                more = int((~good).sum())
                raise ValueError(
                    f"{self.name}[{worst}] has values that are not finite ({more} rows of {start} to "
                    f"{start + len(part) - 1}); every embedding must be finite: embed these items again, or leave "
                    "their pairs out on both sides"
                )
            zero = ~part.any(1)
            if zero.any():
                raise ValueError(
                    f"{self.name}[{start + int(zero.nonzero()[0])}] is zero, so it has no direction to compare; "
                    "every embedding must have a length > 0: leave its pair out on both sides"
                )


def as_embeddings(a: Any, b: Any, least: int) -> tuple[Embeddings, Embeddings]:
    """Both sides, checked: numbers, two dimensions, one length, one width, finite rows that are not zero."""
    a, b = _matrix("a", a), _matrix("b", b)
    if len(a) != len(b):
        raise ValueError(
            f"a has {len(a)} rows and b has {len(b)}; row i of both must be one pair: give arrays of the same length"
        )
    if a.shape[1] != b.shape[1]:
        raise ValueError(
            f"a has {a.shape[1]} columns and b has {b.shape[1]}; both must be embeddings in one space: "
            "take the projected features of both encoders"
        )
    if len(a) < least:
        raise ValueError(f"there are {len(a)} pairs; an audit compares each with the others and needs at least {least}")
    sides = Embeddings("a", a), Embeddings("b", b)
    for side in sides:
        side.check()
    return sides


def _matrix(name: str, values: Any) -> Any:
    """A tensor or array of two dimensions that holds numbers."""
    if not isinstance(values, Tensor) and not hasattr(values, "__array__"):
        raise TypeError(f"{name} of type {type(values).__name__} must be a tensor or an array [n, D] of numbers")
    kind = "f" if isinstance(values, Tensor) else str(getattr(values.dtype, "kind", "O"))
    if kind not in "fiu" or (isinstance(values, Tensor) and values.is_complex()):
        raise TypeError(f"{name} of dtype {values.dtype} must hold real numbers; convert it to float32")
    if len(values.shape) != 2 or 0 in values.shape:
        raise ValueError(
            f"{name} of shape {tuple(values.shape)} must be [n, D], one embedding in each row, and not empty"
        )
    return values


@dataclass(frozen=True)
class Pairs:
    """Pairs (a_i, b_j) with their cosines."""

    i: Tensor  # [k]
    j: Tensor  # [k]
    cosine: Tensor  # [k]

    @staticmethod
    def of(a: Embeddings, b: Embeddings, i: Tensor, j: Tensor) -> Pairs:
        step = max(1, GATHERED // a.dim)
        parts = zip(i.split(step), j.split(step), strict=True)
        return Pairs(i, j, torch.cat([torch.linalg.vecdot(a.rows(p), b.rows(q).to(a.device)) for p, q in parts]))


def blocks(a: Embeddings, b: Embeddings, label: str | None = None) -> Iterator[tuple[int, int, Tensor]]:
    """Rows of the matrix of cosines [k, n], block by block, with a progress bar under a label if there is one.

    The tensor is used again for the next block, so it may be changed in place.
    """
    step = max(1, min(len(a), ENTRIES // len(b)))
    columns = b.rows(slice(None)).to(a.device).T
    room = torch.empty(step, len(b), dtype=a.dtype, device=a.device)
    from rich.progress import track  # slow to import

    for start in track(range(0, len(a), step), description=label or "", disable=label is None):
        stop = min(start + step, len(a))
        yield start, stop, torch.mm(a.rows(slice(start, stop)), columns, out=room[: stop - start])


def copies(x: Embeddings) -> Tensor:  # [n]
    """How often each item occurs, up to rounding: by its coordinate on one random line."""
    direction = torch.randn(x.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    line, order = x.along(direction.to(x.device, x.dtype)).sort()
    item = torch.zeros_like(order)
    item[order[1:]] = (line.diff() > LEVEL).cumsum(0)
    return item.bincount()[item].to(x.dtype)


def nearest(x: Embeddings, asked: Tensor, k: int, pool: Tensor, *, copies: bool = False) -> Tensor:  # [q, k] indices
    """For each item asked for, the k most similar others of `pool` on its own side, with or without its copies."""
    found = []
    others = x.rows(pool).T
    for part in asked.split(max(1, ENTRIES // len(pool))):
        s = x.rows(part) @ others
        s[part[:, None] == pool] = -2
        if not copies:
            s[s > SAME] = -2
        found.append(pool[s.topk(min(k, len(pool)), dim=1).indices])
    return torch.cat(found)
