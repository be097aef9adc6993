"""Join the batches of all ranks, so that the loss over many processes is the loss of the joined batch."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from gcalign.batch import Side
from gcalign.transport.operators.sharded import Shard, answering, name_of

_KNOWN = tuple(field.name for field in fields(Side))  # features first
_warned = False


def shard(gather: bool, group: str = "") -> Shard | None:
    """This rank's share of the work; None for one process, or where each rank is to be alone."""
    if not gather or not (dist.is_available() and dist.is_initialized()):
        return None
    found = Shard(group)
    return None if found.world == 1 else found


def warn_alone() -> None:
    """Say once that each rank's loss sees its own batch only."""
    global _warned
    if _warned or torch.compiler.is_compiling() or not (dist.is_available() and dist.is_initialized()):
        return
    if dist.get_world_size() > 1:
        _warned = True
        warnings.warn(
            f"gather=False on {dist.get_world_size()} ranks: each rank's loss sees its own batch only, with that many "
            "fewer negatives; gather=True is the loss of the joined batch",
            stacklevel=3,
        )


def group_name(gather: bool | dist.ProcessGroup) -> str:
    """The name of the process group whose batches are joined; "" is the default group."""
    return "" if isinstance(gather, bool) else name_of(gather)


def exchange_headers(shard: Shard, sides: tuple[Side, Side] | None, device: torch.device) -> list[list[int]]:
    """[rows of z1, rows of z2] of every rank; raises if batches cannot be joined. sides=None: this rank failed."""
    mine = [0] * (4 + 2 * len(_KNOWN))
    if sides is not None:
        first, second = sides
        if torch.compiler.is_compiling():  # sizes cannot be read; `gcalign::join` checks that they agree
            return [[len(first), len(second)]] * shard.world
        mine = [1, len(first), len(second), first.features.shape[1], *_kinds(first), *_kinds(second)]
    header = torch.tensor(mine, dtype=torch.long, device=device)
    headers = [torch.empty_like(header) for _ in range(shard.world)]
    with answering():
        dist.all_gather(headers, header, group=shard.group)
    rows = [h.tolist() for h in headers]
    refused = [rank for rank, h in enumerate(rows) if not h[0]]
    if sides is not None and refused:
        raise RuntimeError(
            f"rank {refused[0]} refused its batch, so no batch can be joined; see the error of that rank"
        )
    for rank, h in enumerate(rows):
        if sides is not None and h[3:] != rows[0][3:]:
            raise ValueError(
                f"ranks 0 and {rank} have batches of different kinds (dimensions {rows[0][3]} and {h[3]}, or other "
                "dtypes, or labels, domains, ids or weights on one of them only); give all ranks the same arguments"
            )
    return [h[1:3] for h in rows]


def _kinds(side: Side) -> list[int]:
    """A number for dtype and dimensions of each field; 0 if the field is None."""
    values = (getattr(side, name) for name in _KNOWN)
    return [0 if x is None else 100 * x.dim() + 1 + _DTYPES.index(x.dtype) for x in values]


_DTYPES = (torch.float32, torch.float64, torch.int64)


def joined(shard: Shard, side: Side, sizes: list[int]) -> Side:
    """The rows of a side from all ranks, in the order of the ranks. A rank may have any number of rows, also 0.

    The embeddings keep their gradient. All ranks compute the same loss from the joined batch, so each rank has the
    whole adjoint. The backward pass takes this rank's rows, times the number of ranks. DDP averages over ranks, so
    every parameter gets the gradient of one process with the joined batch.
    """

    known = {name: getattr(side, name) for name in _KNOWN}
    check = torch.compiler.is_compiling()
    return Side(
        **{
            name: torch.ops.gcalign.join(x, sizes, shard.rank, check, shard.name)
            for name, x in known.items()
            if x is not None
        }
    )


_library = torch.library.Library("gcalign", "FRAGMENT")
_library.define("join(Tensor x, SymInt[] sizes, int rank, bool check, str group) -> Tensor")


def _join(x: Tensor, sizes: list[int], rank: int, check: bool, group: str) -> Tensor:
    """The rows of all ranks, in the order of the ranks."""
    shard = Shard(group)
    if check:
        mine = torch.tensor([len(x)], device=x.device)
        lengths = [torch.empty_like(mine) for _ in sizes]
        with answering():
            dist.all_gather(lengths, mine, group=shard.group)
        if {int(length) for length in lengths} != {len(x)}:
            raise RuntimeError(
                f"ranks have batches of {[int(length) for length in lengths]} rows; under torch.compile all must be "
                "equally long: drop the last batch of an epoch, or do not compile the criterion"
            )
    most = max(sizes)
    padded = x.contiguous()
    if len(x) < most:
        padded = torch.cat([x, x.new_zeros(most - len(x), *x.shape[1:])])
    parts = [torch.empty_like(padded) for _ in sizes]
    with answering():
        dist.all_gather(parts, padded, group=shard.group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, sizes, rank, _, _ = inputs
    first = sum(sizes[:rank])
    ctx.first, ctx.last, ctx.world = first, first + len(x), len(sizes)


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    return ctx.world * grad[ctx.first : ctx.last], None, None, None, None


_library.impl("join", _join, "CompositeExplicitAutograd")
torch.library.register_fake(
    "gcalign::join", lambda x, sizes, rank, check, group: x.new_empty(sum(sizes), *x.shape[1:]), lib=_library
)
torch.library.register_autograd("gcalign::join", _differentiate, setup_context=_setup, lib=_library)
