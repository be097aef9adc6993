"""The batches of all ranks as one: what makes a loss over many processes the loss of their joined batch."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from gcalign.operators.sharded import Shard, answering
from gcalign.plan import Side

_KNOWN = tuple(field.name for field in fields(Side))  # features first
_warned = False


def shard(gather: bool) -> Shard | None:  # the criterion's own flag
    """This rank's share of the work; None for one process, or where each rank is to be alone."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    if gather:
        return Shard()
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"gather=False on {dist.get_world_size()} ranks: each rank's loss sees its own batch only, with that many "
            "fewer negatives; gather=True is the loss of the joined batch",
            stacklevel=2,
        )
    return None


def agreed(shard: Shard, sides: tuple[Side, Side] | None, device: torch.device) -> list[list[int]]:
    """[rows of z1, rows of z2] of every rank, if all have batches that can be joined; None says mine is refused."""
    mine = [0] * (4 + 2 * len(_KNOWN))
    if sides is not None:
        first, second = sides
        mine = [1, len(first), len(second), first.features.shape[1], *_kinds(first), *_kinds(second)]
    header = torch.tensor(mine, dtype=torch.long, device=device)
    headers = [torch.empty_like(header) for _ in range(shard.world)]
    with answering():
        dist.all_gather(headers, header)
    found = [h.tolist() for h in headers]
    refused = [rank for rank, h in enumerate(found) if not h[0]]
    if sides is not None and refused:
        raise RuntimeError(f"rank {refused[0]} refused its batch, so there is none to join; its own error says why")
    for rank, h in enumerate(found):
        if sides is not None and h[3:] != found[0][3:]:
            raise ValueError(
                f"ranks 0 and {rank} have batches of different kinds (dimensions {found[0][3]} and {h[3]}, or other "
                "dtypes, or labels, domains, ids or weights on one of them only); give all ranks the same arguments"
            )
    return [h[1:3] for h in found]


def _kinds(side: Side) -> list[int]:
    """0 where something is not known, else a number for its dtype and dimensions."""
    values = (getattr(side, name) for name in _KNOWN)
    return [0 if x is None else 100 * x.dim() + 1 + _DTYPES.index(x.dtype) for x in values]


_DTYPES = (torch.float32, torch.float64, torch.int64)


def joined(shard: Shard, side: Side, sizes: list[int]) -> Side:
    """A side's rows over all ranks, rank by rank; ranks may have different numbers of rows, also none.

    The embeddings keep their gradient. What follows is computed by all ranks alike, its adjoint is whole on each, and
    the backward pass takes this rank's rows, times the number of ranks: DDP's mean over ranks then gives every
    parameter the gradient of one process with the joined batch.
    """

    def whole(x: Tensor) -> Tensor:
        found: Tensor = _AllGather.apply(x, shard, sizes)  # type: ignore[no-untyped-call]  # torch leaves `apply` untyped
        return found

    known = {name: getattr(side, name) for name in _KNOWN}
    return Side(**{name: whole(x) for name, x in known.items() if x is not None})


class _AllGather(torch.autograd.Function):
    """Everyone's rows in the order of the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shard: Shard, sizes: list[int]) -> Tensor:
        first = sum(sizes[: shard.rank])
        ctx.mine, ctx.world = slice(first, first + len(x)), shard.world
        most = max(sizes)
        padded = x.contiguous()
        if len(x) < most:
            padded = torch.cat([x, x.new_zeros(most - len(x), *x.shape[1:])])
        parts = [torch.empty_like(padded) for _ in sizes]
        with answering():
            dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.world * grad[ctx.mine], None, None
