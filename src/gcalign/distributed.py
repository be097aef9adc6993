"""The batches of all ranks as one: what makes a loss over many processes the loss of their joined batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from gcalign.plan import Side


class Gather:
    """Joins a side's rows over all ranks, rank by rank; does nothing without a process group.

    The embeddings keep their gradient: each rank computes the whole loss, and the gathering's backward pass sums over
    ranks, so DDP's mean over ranks gives every parameter the gradient of one process with the joined batch.
    """

    def __init__(self) -> None:
        self.world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    def __call__(self, side: Side) -> Side:
        if self.world == 1:
            return side
        return Side(
            self._joined(side.features),
            *(None if x is None else self._joined(x) for x in (side.ids, side.labels, side.domains, side.weights)),
        )

    def _joined(self, x: Tensor) -> Tensor:
        joined: Tensor = _AllGather.apply(x)  # type: ignore[no-untyped-call]  # torch's own
        return joined


class _AllGather(torch.autograd.Function):
    """Everyone's rows in the order of the ranks; backward sums over ranks what each says of mine."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mine = slice(dist.get_rank() * len(x), (dist.get_rank() + 1) * len(x))
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad[ctx.mine]
