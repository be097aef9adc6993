"""What a solver, a divergence and a gradient may ask of log K: its sums over rows and columns, its row blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gcalign.operators.sources import Source
from gcalign.support import Support

RowStep = Callable[[Tensor, slice], Tensor]  # (log(K v) of some rows, which) -> log u of those rows


class Operator(ABC):
    """K, asked only through sums over its rows and columns."""

    def __init__(self, source: Source, block: int) -> None:
        self.source = source
        self.shape = source.shape
        n = self.shape[0]
        self.everything = [(start, min(start + block, n)) for start in range(0, n, block)]
        self.spans = self.everything  # the rows that are mine

    @abstractmethod
    def log_matvec(self, b: Tensor) -> Tensor:  # [m] -> [n]
        """log(K eᵇ)."""

    @abstractmethod
    def log_rmatvec(self, a: Tensor) -> Tensor:  # [n] -> [m]
        """log(Kᵀ eᵃ)."""

    def sweep(self, b: Tensor, step: RowStep) -> tuple[Tensor, Tensor, Tensor]:
        """log(K eᵇ), the a that `step` makes of it, and log(Kᵀ eᵃ): one iteration of any scaling algorithm."""
        log_kv = self.log_matvec(b)
        a = step(log_kv, slice(None))
        return log_kv, a, self.log_rmatvec(a)

    def shift(self) -> Tensor | float:
        """The size of what is taken off logarithms inside, and rounds them."""
        return 0.0

    def gather(self, support: Support) -> Tensor:
        """log K on a target's support."""
        return self.source.on(support, self.spans)

    def by_rows(self, parts: list[Tensor], width: int) -> Tensor:
        """[n, width] from a part for each block."""
        return torch.cat(parts)

    def log_blocks(self) -> Iterator[tuple[int, int, Tensor]]:
        """log K, some rows at a time."""
        for start, stop in self.spans:
            yield start, stop, self.source.rows(start, stop, self.source.tensors)


class Reference(Operator):
    """log K whole, every product a log-sum-exp: the oracle, and what autograd can follow."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, source.shape[0])
        self.log_k = source.rows(0, self.shape[0], source.tensors)

    def log_matvec(self, b: Tensor) -> Tensor:
        return torch.logsumexp(self.log_k + b, 1)

    def log_rmatvec(self, a: Tensor) -> Tensor:
        return torch.logsumexp(self.log_k + a[:, None], 0)

    def gather(self, support: Support) -> Tensor:
        return support.gather(self.log_k, 0, self.shape[0])

    def log_blocks(self) -> Iterator[tuple[int, int, Tensor]]:
        yield 0, self.shape[0], self.log_k
