"""The head of one side: unit rows of its encoder → unit rows of the common space."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, normalize

HEADS = ("linear", "mlp")


class SideHead(nn.Module):
    """z = normalise(W(x − mean)), and for a hidden layer + V gelu(U(x − mean)), which starts at zero."""

    mean: Tensor

    def __init__(self, mean: Tensor, start: Tensor, hidden: int = 0, generator: torch.Generator | None = None) -> None:
        super().__init__()
        inputs, dim = start.shape
        self.register_buffer("mean", mean.clone())
        self.weight = nn.Parameter(start.clone())  # [D, dim]
        self.hidden = hidden
        if hidden:
            self.inner = nn.Parameter(torch.randn(inputs, hidden, generator=generator))
            self.outer = nn.Parameter(torch.zeros(hidden, dim))

    def forward(self, x: Tensor) -> Tensor:  # [n, D] unit rows -> [n, dim] unit rows
        x = x - self.mean
        z = x @ self.weight
        if self.hidden:
            z = z + gelu(x @ self.inner) @ self.outer
        return normalize(z, dim=1)
