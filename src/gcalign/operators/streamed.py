"""log K never stored: each pass makes its row blocks again from the embeddings."""

from __future__ import annotations

from torch import Tensor

from gcalign.operators.base import Operator, Source


class Streamed(Operator):
    """Memory of `block` rows, whatever n; each pass costs the kernel once more."""

    def __init__(self, source: Source, block: int) -> None:
        super().__init__(source, block)
        self.block = block

    def rows(self, start: int, stop: int) -> Tensor:
        return self.source.rows(start, stop, self.source.tensors)

    def frozen(self) -> Operator:
        return Streamed(self.source.frozen(), self.block)
