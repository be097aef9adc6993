"""K̂ never stored in full: each pass makes its row blocks again from the embeddings, or from a half-precision copy."""

from __future__ import annotations

import math
import mmap
from typing import ClassVar

import torch
from torch import Tensor

from gcalign.transport.operators.blocked import Blocked, State
from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Source

_HALF = 10.5  # e^±10.5 is in the range of float16


class Streamed(Blocked):
    """Memory of `block` rows, whatever n; each pass costs the kernel once more."""

    def __init__(self, source: Source, block: int, shard: Shard | None = None, state: State | None = None) -> None:
        super().__init__(source, block, shard, state)
        self._scratch: Tensor | None = None

    def _take(self, start: int, stop: int) -> Tensor:
        if self._scratch is None:
            self._scratch = self.like.new_empty(self.block, self.shape[1])
        return self._make(start, stop, self._scratch[: stop - start])

    def release(self) -> None:
        self._scratch = None


class Cached(Streamed):
    """A float16 copy of K̂, half the memory of `Dense` and nearly its speed; the copy is then the kernel.

    Its entries are rounded by at most 5e-4 of their size, which averages out in sums: potentials are off by about
    5e-4/√m. A kernel within the range of float16, as with ε ≥ 0.1, is copied as it is (its smallest entries are
    rounded by up to 1e-3); rows of any other are scaled to a largest entry of 2¹⁴, so that what is lost below is
    1e-12 of it.
    """

    most_raw: ClassVar[float] = _HALF

    def __init__(self, source: Source, block: int, shard: Shard | None = None, state: State | None = None) -> None:
        super().__init__(source, block, shard, state)
        self._unit = 14 * math.log(2)
        self._least = math.log(max(self.shape)) + math.log(6e-8) + math.log(1e4)
        kept = None if state is None or not len(state.kept) else state.kept
        self._copy: Tensor | None = kept
        self._made = self.first if kept is None else self.last  # rows of it that are there

    def _take(self, start: int, stop: int) -> Tensor:
        if self._copy is None:
            self._copy, self._made = _room(self.last - self.first, self.shape[1], self.like.device), start
        if self._scratch is None:
            self._scratch = self.like.new_empty(self.block, self.shape[1])
        out = self._scratch[: stop - start]
        copy = self._copy[start - self.first : stop - self.first]
        if stop > self._made:
            copy.copy_(self._make(start, stop, out))
            self._made = stop
        return out.copy_(copy)

    def _kept(self) -> Tensor:
        if self._copy is None or self._made < self.last:
            for _ in self.blocks():  # which makes them
                pass
        return torch.empty(0, self.shape[1], dtype=torch.float16) if self._copy is None else self._copy

    def _absorb(self, alpha: Tensor | None, beta: Tensor) -> None:
        super()._absorb(None if alpha is None else alpha + self._unit, beta)

    def release(self) -> None:
        super().release()
        self._copy = None


def _room(n: int, m: int, device: torch.device) -> Tensor:  # [n, m] float16
    """In large pages where the system has them: gigabytes of small ones cost more time to get than to fill."""
    if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(n, m, dtype=torch.float16, device=device)
    memory = mmap.mmap(-1, 2 * n * m)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.float16).view(n, m)
