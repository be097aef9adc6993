"""K̂ stored once and used by every pass."""

from __future__ import annotations

from torch import Tensor

from gcalign.operators import workspace
from gcalign.operators.blocked import Blocked
from gcalign.operators.sharded import Shard
from gcalign.operators.sources import Source

BLOCK_ENTRIES = {"cpu": 1 << 20}  # some rows at a time, so that temporaries stay in the cache, not beside the matrix
_ELSEWHERE = 1 << 26


class Dense(Blocked):
    """One matrix [n, m]; the first pass makes it and uses each block while it is in the cache."""

    def __init__(self, source: Source, shard: Shard | None = None) -> None:
        entries = BLOCK_ENTRIES.get(source.tensors[0].device.type, _ELSEWHERE)
        super().__init__(source, max(1, entries // source.shape[1]), shard)
        self._matrix: Tensor | None = None
        self._made = 0  # rows of it that are there
        self._first = self.spans[0][0] if self.spans else 0

    def _take(self, start: int, stop: int) -> Tensor:
        if self._matrix is None:
            self._matrix = workspace.take(self.spans[-1][1] - self._first, self.shape[1], self.like)
            self._made = start
        out = self._matrix[start - self._first : stop - self._first]
        if stop > self._made:
            self._make(start, stop, out)
            self._made = stop
        return out

    def release(self) -> None:
        if self._matrix is not None:
            workspace.give(self._matrix)
            self._matrix = None

    def __del__(self) -> None:
        self.release()
