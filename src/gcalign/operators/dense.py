"""log K stored once and used by every pass."""

from __future__ import annotations

from torch import Tensor

from gcalign.operators.base import Given, Operator, Scaled, Source

_BLOCK_ENTRIES = 1 << 20  # rows are taken some at a time, so that temporaries stay in the cache, not beside the matrix


class Dense(Operator):
    """One matrix [n, m]; with autograd on it carries its graph, which is what makes `unrolled` plain autograd."""

    def __init__(self, source: Source, block: int | None = None) -> None:
        super().__init__(source, block or max(1, _BLOCK_ENTRIES // source.shape[1]))
        self._log_k = source.rows(0, self.shape[0], source.tensors)

    def rows(self, start: int, stop: int) -> Tensor:
        return self._log_k if (start, stop) == (0, self.shape[0]) else self._log_k[start:stop]

    def frozen(self) -> Operator:
        # the rows were computed once; only a matrix given by the user may share its memory with him
        if isinstance(self.source, Given):
            return Dense(self.source.frozen())
        return self

    def kept(self, a: Tensor, b: Tensor) -> Scaled:
        return Scaled(self, a, b, store=True)
