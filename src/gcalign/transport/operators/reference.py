"""The oracle: log K whole, every product a log-sum-exp, which autograd can follow."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gcalign.transport.operators.sources import Source


class Reference:
    """Products with K in log space."""

    def __init__(self, source: Source) -> None:
        self.shape = source.shape
        self.log_k = source.rows(0, source.shape[0])

    def log_matvec(self, b: Tensor) -> Tensor:  # [m] -> [n]
        """log(K eᵇ)."""
        return torch.logsumexp(self.log_k + b, 1)

    def log_rmatvec(self, a: Tensor) -> Tensor:  # [n] -> [m]
        """log(Kᵀ eᵃ)."""
        return torch.logsumexp(self.log_k + a[:, None], 0)

    def sweep(self, b: Tensor, step: Callable[[Tensor, slice], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """log(K eᵇ), the a that `step` makes of it, and log(Kᵀ eᵃ)."""
        log_kv = self.log_matvec(b)
        a = step(log_kv, slice(None))
        return log_kv, a, self.log_rmatvec(a)

    def shift(self) -> float:
        """Nothing is taken off logarithms."""
        return 0.0
