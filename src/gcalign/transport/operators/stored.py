"""K̂ stored once and used by every pass."""

from __future__ import annotations

from torch import Tensor

from gcalign.transport.operators.blocked import Blocked, State
from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Source

BLOCK_ENTRIES = {"cpu": 1 << 20}  # some rows at a time, so that temporaries stay in the cache, not beside the matrix
_ELSEWHERE = 1 << 26


class Stored(Blocked):
    """One matrix [n, m]; the first pass makes it and uses each block while it is in the cache."""

    def __init__(self, source: Source, shard: Shard | None = None, state: State | None = None) -> None:
        entries = BLOCK_ENTRIES.get(source.tensors[0].device.type, _ELSEWHERE)
        super().__init__(source, max(1, entries // source.shape[1]), shard, state)
        kept = None if state is None or not len(state.kept) else state.kept
        self._matrix: Tensor | None = kept
        self._made = self.first if kept is None else self.last  # rows of it that are there

    def _take(self, start: int, stop: int) -> Tensor:
        if self._matrix is None:
            self._matrix = self.like.new_empty(self.last - self.first, self.shape[1])
            self._made = start
        out = self._matrix[start - self.first : stop - self.first]
        if stop > self._made:
            self._make(start, stop, out)
            self._made = stop
        return out

    def _kept(self) -> Tensor:
        if self._matrix is None or self._made < self.last:
            for _ in self.blocks():  # made by the way
                pass
        return self.like.new_empty(0, self.shape[1]) if self._matrix is None else self._matrix

    def release(self) -> None:
        self._matrix = None
