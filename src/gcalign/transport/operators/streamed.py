"""K̂ never stored in full: each pass makes its row blocks again from the embeddings, or from a half-precision copy.

`block_rows` says how many rows are held at once: all while there is room.
"""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from gcalign.transport.distributed import Shard
from gcalign.transport.operators.blocked import Block, Blocked
from gcalign.transport.operators.sources import Source

_HALF = 10.5  # e^±10.5 is in the range of float16
_SMALL = 1 << 28  # bytes that nobody misses
_ENTRIES = 1 << 22  # of a block, where its rows are ours to choose
_warned = False


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
        if self.kept is None:
            return self._new_blocks(self._make)
        scratch, copy = self.like.new_empty(self.block, self.shape[1]), self.kept
        return ((i, j, scratch[: j - i].copy_(copy[i - self.first : j - self.first])) for i, j in self.spans)

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


def block_rows(source: Source, block: int | str | None, cache: str | None, shard: Shard | None) -> int:
    """How many rows are held at once; 0 stores them all, which "auto" does where half of the free memory is enough."""
    global _warned
    n, m = source.shape
    if isinstance(block, int):
        return block
    if cache is not None:
        return max(1, _ENTRIES // m)
    if block == "auto":
        like = source.tensors[0]
        size = (n if shard is None else n // shard.world + 1) * m * like.element_size()
        if size > _SMALL and size > _free(like.device) // 2:
            rows = max(1, _ENTRIES // m)
            if not _warned:
                _warned = True
                warnings.warn(
                    f"a kernel of {size / 2**30:.1f} GiB does not fit in half of the free memory, so block='auto' "
                    f"streams it, {rows} rows at a time; block={rows} does the same without this warning, block=None "
                    "stores it",
                    stacklevel=2,
                )
            return rows
    return 0


def _free(device: torch.device) -> int:
    """Bytes that can still be had."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 << 30  # nobody says: a modest machine
