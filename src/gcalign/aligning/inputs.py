"""What is aligned: the rows of each side, and which belong together. All is checked before anything is fitted."""

from __future__ import annotations

import mmap
from typing import Any

import torch
from torch import Tensor

from gcalign.kernels import normalize

LEAST_PAIRS = 5
SHARED = 3  # pairs of a group, in the mean, from which their items count as classes
SAME = 1e-6  # by which unit rows of different items differ
CHECKED = 1 << 22  # numbers that are read together
GATHERED = 1 << 10  # single rows of a mapped file: each brings its neighbours into memory


class Items:
    """The embeddings [n, D] of one side: a tensor, an array or a memory-mapped file, read row by row."""

    def __init__(self, name: str, values: Any) -> None:
        if not isinstance(values, Tensor) and not hasattr(values, "__array__"):
            raise TypeError(f"{name} of type {type(values).__name__} must be a tensor or an array [n, D] of numbers")
        if not hasattr(values, "dtype"):  # a data frame
            values = values.__array__()
        kind = "f" if isinstance(values, Tensor) else str(getattr(values.dtype, "kind", "O"))
        if kind not in "fiu" or (isinstance(values, Tensor) and values.is_complex()):
            raise TypeError(f"{name} of dtype {values.dtype} must hold real numbers; convert it to float32")
        if len(values.shape) != 2 or 0 in values.shape:
            raise ValueError(
                f"{name} of shape {tuple(values.shape)} must be [n, D], one embedding in each row, and not empty"
            )
        self.name, self.values = name, values
        self.n, self.dim = int(values.shape[0]), int(values.shape[1])

    def __len__(self) -> int:
        return self.n

    def rows(self, which: Any) -> Tensor:  # [k, D] float32
        """Unit rows at a slice or at indices; a row of zeros stays zero."""
        return normalize(self._read(which))

    def _read(self, which: Any) -> Tensor:
        if isinstance(self.values, Tensor):
            return self.values[which].detach().cpu().float()
        if isinstance(which, Tensor):
            numbers = torch.empty(len(which), self.dim)  # filled in place: parts that are kept would split the heap
            for start in range(0, len(which), GATHERED):
                numbers[start : start + GATHERED] = self._numbers(which[start : start + GATHERED].numpy())
            return numbers
        return self._numbers(which)

    def _numbers(self, which: Any) -> Tensor:
        """Rows of an array; the pages of a mapped file are given back at once."""
        # numpy converts numbers that torch cannot hold, such as those of another byte order
        numbers = torch.tensor(self.values[which].astype("float32"))  # a copy: arrays on disk are read-only
        pages = getattr(self.values, "_mmap", None)
        if isinstance(pages, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            pages.madvise(mmap.MADV_DONTNEED)
        return numbers

    def blocks(self) -> Any:
        """(start, unit rows) over all rows."""
        step = max(1, CHECKED // self.dim)
        for start in range(0, self.n, step):
            yield start, self.rows(slice(start, start + step))

    def empty_rows(self) -> Tensor:  # indices
        """The rows that are all zero. Rows that are not finite are refused."""
        empty = torch.zeros(self.n, dtype=torch.bool)
        step = max(1, CHECKED // self.dim)
        for start in range(0, self.n, step):
            part = self._read(slice(start, start + step))
            bad = ~part.isfinite().all(1)
            if bad.any():
                raise ValueError(
                    f"{self.name}[{start + int(bad.nonzero()[0])}] has values that are not finite ({int(bad.sum())} "
                    f"rows of {start} to {start + len(part) - 1}); every embedding must be finite: embed these items "
                    "again, or leave them out"
                )
            empty[start : start + len(part)] = ~part.any(1)
        return empty.nonzero().flatten()


def checked_pairs(pairs: Any, a: Items, b: Items) -> Tensor:  # [P, 2]
    """Which rows belong together: two index columns, or row i with row i for None. An item may be in several pairs."""
    if pairs is None:
        if len(a) != len(b):
            raise ValueError(
                f"a has {len(a)} rows and b has {len(b)}, and pairs=None means row i with row i; give pairs as two "
                "columns of row numbers"
            )
        return enough(torch.arange(len(a))[:, None].expand(-1, 2).contiguous())
    found = pairs if isinstance(pairs, Tensor) else torch.as_tensor(_plain(pairs))
    if found.dim() != 2 or found.shape[1] != 2 or found.is_floating_point() or found.is_complex():
        raise ValueError(
            f"pairs of shape {tuple(found.shape)} and {found.dtype} must be [P, 2] whole numbers: a row of a and a row "
            "of b, counted from 0"
        )
    found = found.cpu().long()
    for k, side in enumerate((a, b)):
        wrong = (found[:, k] < 0) | (found[:, k] >= len(side))
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ValueError(_out_of_range(found, row, k, a, b, int(wrong.sum())))
    return enough(torch.unique(found, dim=0, return_inverse=False))


def enough(pairs: Tensor) -> Tensor:
    """These pairs, if heads can be fitted to so many."""
    if len(pairs) < LEAST_PAIRS:
        raise ValueError(
            f"there are {len(pairs)} different pairs; heads cannot be fitted to fewer than {LEAST_PAIRS}: give more "
            "(100 are a start, and with 1,000 most encoders align well)"
        )
    return pairs


def check_different(name: str, rows: Tensor) -> None:
    """That the items of the pairs differ."""
    if float((rows - rows[0]).abs().max()) < SAME:
        raise ValueError(
            f"the rows of {name} that are paired all point the same way; heads need items that differ: check the "
            "embeddings, and that the pairs name different rows"
        )


def _plain(pairs: Any) -> Any:
    """Two columns (i, j) as rows, and anything that numpy knows as its array."""
    if isinstance(pairs, tuple) and len(pairs) == 2 and all(hasattr(column, "__len__") for column in pairs):
        left, right = (torch.as_tensor(column) for column in pairs)
        if left.shape != right.shape:
            raise ValueError(f"pairs has columns of {len(left)} and {len(right)} rows; give a row of b for each of a")
        return torch.stack((left, right), 1)
    return pairs.__array__() if hasattr(pairs, "__array__") else pairs


def _out_of_range(pairs: Tensor, row: int, side: int, a: Items, b: Items, wrong: int) -> str:
    name, there = (a.name, len(a)) if side == 0 else (b.name, len(b))
    message = (
        f"pairs[{row}] names row {int(pairs[row, side])} of {name}, which has rows 0 to {there - 1} ({wrong} of "
        f"{len(pairs)} pairs are out of range)"
    )
    if pairs.min() >= 0 and pairs[:, 0].max() < len(b) and pairs[:, 1].max() < len(a):
        return f"{message}; with its columns exchanged all pairs are in range: exchange a and b, or the columns"
    return f"{message}; rows are counted from 0: correct the pairs"


def groups_of(pairs: Tensor) -> Tensor:  # [P]
    """A number that pairs share if they are joined by an item, so that they can be kept in one fold."""
    offset = int(pairs[:, 0].max()) + 1
    parent: dict[int, int] = {}

    def root(item: int) -> int:
        while parent.setdefault(item, item) != item:
            parent[item] = item = parent[parent[item]]
        return item

    for i, j in pairs.tolist():
        parent[root(i)] = root(offset + j)
    return torch.unique(torch.tensor([root(i) for i in pairs[:, 0].tolist()]), return_inverse=True)[1]


def kept_together(pairs: Tensor, group: Tensor) -> Tensor:  # [P]
    """A number that pairs share if they must be in one fold: no item is seen in training and sought in a test.

    Where many pairs share the items of one side, such as the captions of a few classes, whole groups would leave a fold
    without its classes. There, the items of the other side are kept together.
    """
    if len(group.unique()) >= len(pairs) / SHARED:
        return group
    sides = [torch.unique(pairs[:, k], return_inverse=True)[1] for k in (0, 1)]
    return max(sides, key=lambda side: int(side.max()))


def folds_of(group: Tensor, number: int, generator: torch.Generator) -> Tensor:  # [P]
    """A fold for each pair, of about equal sizes; pairs of one group are in one fold."""
    _, code = torch.unique(group, return_inverse=True)
    order = torch.randperm(int(code.max()) + 1, generator=generator)
    return (order % number)[code]
