"""Images as they are stored, by row, before any is decoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

Raw = Path | bytes | npt.NDArray[np.uint8]  # a file, its bytes, or pixels [H, W] or [H, W, 3]
Rows = npt.NDArray[np.int64]


class Encoded(ABC):
    """Stored images, read by row."""

    scattered = True  # whether any row costs the same to read

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, row: int) -> Raw: ...

    @abstractmethod
    def where(self, row: int) -> str:
        """The name of an image in a report: its file, or its row in one."""

    def stream(self, rows: Rows) -> Iterator[Raw]:
        """These images, in this order; ascending rows are read fastest."""
        return (self.read(int(row)) for row in rows)

    def mapped(self) -> Encoded:
        """The same for reading in any order without holding them all in memory."""
        return self


class Files(Encoded):
    """One file for each image."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, row: int) -> Raw:
        return self.paths[row]  # opened where it is decoded: by many threads, and its faults are reported there

    def where(self, row: int) -> str:
        return str(self.paths[row])


class Arrays(Encoded):
    """Pixels in one array [N, H, W] or [N, H, W, 3], which may be mapped from disk."""

    def __init__(self, pixels: Any, origin: str, first: int = 0) -> None:
        self.pixels, self.origin, self.first = pixels, origin, first

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, row: int) -> Raw:
        return np.asarray(self.pixels[row])

    def where(self, row: int) -> str:
        return f"{self.origin} image {self.first + row}"


@dataclass(frozen=True)
class Records:
    """Stored images with what is known of each."""

    encoded: Encoded
    labels: Tensor | None = None  # [N] int64
    domains: Tensor | None = None  # [N] int64
    classes: tuple[str, ...] = ()
    domain_names: tuple[str, ...] = ()


def some(items: Iterable[Any], n: int = 3) -> str:
    """The first few, for a message."""
    items = list(items)
    return ", ".join(map(str, items[:n])) + (f", … ({len(items)} in all)" if len(items) > n else "")
