"""Images as they are stored, by row, before any is decoded."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Raw = Path | bytes | npt.NDArray[np.uint8]  # a file, its bytes, or pixels [H, W] or [H, W, 3]
Index = npt.NDArray[np.int64]


class Encoded(ABC):
    """Stored images, read by row."""

    scattered = True  # whether any row costs the same to read

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def where(self, row: int) -> str:
        """The name of an image in a report: its file, or its row in one."""

    @abstractmethod
    def stream(self, rows: Index) -> Iterator[Raw]:
        """These images, in this order; ascending rows are read fastest."""

    def mapped(self) -> Encoded:
        """The same for reading in any order without holding them all in memory."""
        return self


class Files(Encoded):
    """One file for each image. Names are packed: a million cost tens of megabytes, also in a loader's workers."""

    def __init__(self, folder: Path, names: Iterable[str] = ()) -> None:
        self.folder, self._text, self._ends = str(folder), bytearray(), array("q", [0])
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        """Further names, relative to the folder."""
        for name in names:
            self._text += os.fsencode(name)
            self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def where(self, row: int) -> str:
        return os.path.join(self.folder, os.fsdecode(bytes(self._text[self._ends[row] : self._ends[row + 1]])))

    def stream(self, rows: Index) -> Iterator[Raw]:
        # opened where it is decoded: by many threads, and its faults are reported there
        return (Path(self.where(row)) for row in rows.tolist())


class Arrays(Encoded):
    """Pixels in one array [N, H, W] or [N, H, W, 3], which may be mapped from disk."""

    def __init__(self, pixels: Any, origin: str, first: int = 0) -> None:
        self.pixels, self.origin, self.first = pixels, origin, first

    def __len__(self) -> int:
        return len(self.pixels)

    def where(self, row: int) -> str:
        return f"{self.origin} image {self.first + row}"

    def stream(self, rows: Index) -> Iterator[Raw]:
        return (np.asarray(self.pixels[row]) for row in rows)


@dataclass(frozen=True)
class Records:
    """Stored images with what is known of each."""

    encoded: Encoded
    labels: Tensor | None = None  # [N] int64
    domains: Tensor | None = None  # [N] int64
    classes: tuple[str, ...] = ()
    domain_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # for the user: what became labels, what was passed over


def some(items: Iterable[Any], n: int = 3) -> str:
    """The first few, for a message."""
    items = list(items)
    return ", ".join(map(str, items[:n])) + (f", … ({len(items)} in all)" if len(items) > n else "")
