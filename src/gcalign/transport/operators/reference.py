"""The oracle: log K whole, every product a log-sum-exp, which autograd can follow."""

from __future__ import annotations

import torch
from torch import Tensor

from gcalign.transport.operators.sources import Source


class Reference:
    """Products with K in log space."""

    def __init__(self, source: Source) -> None:
        self.log_k = source.rows(0, source.shape[0])

    def log_matvec(self, b: Tensor) -> Tensor:  # [m] -> [n]
        return torch.logsumexp(self.log_k + b, 1)

    def log_rmatvec(self, a: Tensor) -> Tensor:  # [n] -> [m]
        return torch.logsumexp(self.log_k + a[:, None], 0)
