"""K̂ never stored: each pass makes its row blocks again from the embeddings."""

from __future__ import annotations

from torch import Tensor

from gcalign.operators.blocked import Blocked, Shard
from gcalign.operators.sources import Source


class Streamed(Blocked):
    """Memory of `block` rows, whatever n; each pass costs the kernel once more."""

    def __init__(self, source: Source, block: int, shard: Shard | None = None) -> None:
        super().__init__(source, block, shard)
        self._scratch: Tensor | None = None

    def _take(self, start: int, stop: int) -> Tensor:
        if self._scratch is None:
            self._scratch = self.like.new_empty(self.block, self.shape[1])
        return self._make(start, stop, self._scratch[: stop - start])

    def release(self) -> None:
        self._scratch = None
