"""K̂ never stored in full: each pass makes its row blocks again from the embeddings, or from a half-precision copy."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from gcalign.transport.operators.blocked import Block, Blocked, Frame
from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Source

_HALF = 10.5  # e^±10.5 is in the range of float16


class Streamed(Blocked):
    """Memory of `block` rows, whatever n; each pass costs the kernel once more."""

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

    def __init__(
        self,
        source: Source,
        block: int,
        shard: Shard | None = None,
        frame: Frame | None = None,
        kept: Tensor | None = None,
        *,
        exact: bool = False,
    ) -> None:
        super().__init__(source, block, shard, frame, kept, exact=exact)
        self._least = math.log(max(self.shape)) + math.log(6e-8) + math.log(1e4)
        self._copy = kept if kept is not None and len(kept) else None

    def blocks(self) -> Iterable[Block]:
        return self._new_blocks(self._make) if self._copy is None else self._copied(self._copy)

    def _copied(self, copy: Tensor) -> Iterator[Block]:
        scratch = self.like.new_empty(self.block, self.shape[1])
        for start, stop in self.spans:
            yield start, stop, scratch[: stop - start].copy_(copy[start - self.first : stop - self.first])

    def _new_blocks(self, fill: Callable[[int, int, Tensor], None]) -> Iterator[Block]:
        scratch = self.like.new_empty(self.block, self.shape[1])
        copy = _room(self.last - self.first, self.shape[1], self.like.device)
        for start, stop in self.spans:
            rows, half = scratch[: stop - start], copy[start - self.first : stop - self.first]
            fill(start, stop, rows)
            yield start, stop, rows.copy_(half.copy_(rows))
        self._copy = copy

    def saved(self) -> tuple[Frame, Tensor]:
        frame, _ = super().saved()
        if self._copy is None and not self.exact:
            for _ in self.blocks():  # which makes the copy
                pass
        if self._copy is None:  # an exact operator makes no use of it
            return frame, self.like.new_empty(self.last - self.first, self.shape[1], dtype=torch.float16)
        return frame, self._copy

    def _release(self) -> None:
        self._copy = None


def _room(n: int, m: int, device: torch.device) -> Tensor:  # [n, m] float16
    """In large pages where the system has them: gigabytes of small ones cost more time to get than to fill."""
    if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(n, m, dtype=torch.float16, device=device)
    memory = mmap.mmap(-1, 2 * n * m)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float16).view(n, m)
