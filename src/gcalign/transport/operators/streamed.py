"""K̂ never stored in full: each pass makes its row blocks again from the embeddings, or from a half-precision copy."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from gcalign.transport.operators.blocked import Block, Blocked

_HALF = 10.5  # e^±10.5 is in the range of float16


class Streamed(Blocked):
    """Memory of `block` rows, whatever n; each pass costs the kernel once more."""

    stores: ClassVar[bool] = False

    def blocks(self) -> Iterable[Block]:
        return self._new_blocks(self._make)

    def _new_blocks(self, fill: Callable[[int, int, Tensor], None]) -> Iterator[Block]:
        scratch = self.like.new_empty(self.block, self.shape[1])
        for start, stop in self.spans:
            rows = scratch[: stop - start]
            fill(start, stop, rows)
            yield start, stop, rows


class Cached(Blocked):
    """A float16 copy of K̂, half the memory of `Stored` and nearly its speed; the copy is then the kernel.

    Its entries are rounded by at most 5e-4 of their size, which averages out in sums: potentials are off by about
    5e-4/√m. A kernel within the range of float16, as with ε ≥ 0.1, is copied as it is (its smallest entries are
    rounded by up to 1e-3); rows of any other are scaled to a largest entry of 2¹⁴, so that what is lost below is
    1e-12 of it.
    """

    largest_plain: ClassVar[float] = _HALF
    unit: ClassVar[float] = 14 * math.log(2)

    def blocks(self) -> Iterable[Block]:
        return self._new_blocks(self._make) if self.kept is None else self._copied(self.kept)

    def _copied(self, copy: Tensor) -> Iterator[Block]:
        scratch = self.like.new_empty(self.block, self.shape[1])
        for start, stop in self.spans:
            yield start, stop, scratch[: stop - start].copy_(copy[start - self.first : stop - self.first])

    def _new_blocks(self, fill: Callable[[int, int, Tensor], None]) -> Iterator[Block]:
        scratch = self.like.new_empty(self.block, self.shape[1])
        copy = self._room()
        for start, stop in self.spans:
            rows, half = scratch[: stop - start], copy[start - self.first : stop - self.first]
            fill(start, stop, rows)
            yield start, stop, rows.copy_(half.copy_(rows))
        self.kept = copy

    def _lost(self) -> float:
        return math.log(6e-8) - math.log(1e-4)

    def _room(self) -> Tensor:
        """In large pages where the system has them: gigabytes of small ones cost more time to get than to fill."""
        n, m, device = self.last - self.first, self.shape[1], self.like.device
        if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(n, m, dtype=torch.float16, device=device)
        memory = mmap.mmap(-1, 2 * n * m)
        memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.float16).view(n, m)
