"""Join the batches of all ranks, so that the loss over many processes is the loss of the joined batch."""

from __future__ import annotations

import hashlib
import struct
import warnings
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from gcalign.batch import Side
from gcalign.transport.operators.sharded import Shard, explain_collective_errors, name_of

_KNOWN = tuple(field.name for field in fields(Side))  # features first
_warned = False


def shard(group: str = "") -> Shard | None:
    """This rank's share of the work; None for one process."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    mine = Shard(group)
    return None if mine.world == 1 else mine


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


def exchange_headers(
    shard: Shard,
    sides: tuple[Side, Side] | None,
    device: torch.device,
    *,
    negatives: Tensor | None = None,
    criterion: str = "",
    eps: float = 0.0,
) -> list[list[int]]:
    """[rows of z1, rows of z2, rows of negatives] of every rank; raises if batches cannot be joined.

    `criterion` is the loss in words and ε its temperature, which must be those of all ranks. sides=None: this rank has
    refused its batch.
    """
    mine = [0] * (8 + 2 * len(_KNOWN))
    if sides is not None:
        first, second = sides
        rows = [len(first), len(second), 0 if negatives is None else len(negatives)]
        if torch.compiler.is_compiling():  # sizes cannot be read; `gcalign::join` checks that they agree
            return [rows] * shard.world
        kinds = [first.features.shape[1], _kind(negatives), *_kinds(first), *_kinds(second)]
        mine = [1, *rows, digest(criterion), *struct.unpack("q", struct.pack("d", eps)), *kinds]
    header = torch.tensor(mine, dtype=torch.long, device=device)
    headers = [torch.empty_like(header) for _ in range(shard.world)]
    with explain_collective_errors():
        dist.all_gather(headers, header, group=shard.group)
    ranks = [h.tolist() for h in headers]
    refused = [rank for rank, h in enumerate(ranks) if not h[0]]
    if sides is not None and refused:
        raise RuntimeError(
            f"rank {refused[0]} has an error in its batch, so no batch can be joined; see the error of that rank"
        )
    if sides is not None:
        _check_same_criterion(shard, [h[4:6] for h in ranks], criterion, eps)
    for rank, h in enumerate(ranks):
        if sides is not None and h[6:] != ranks[0][6:]:
            raise ValueError(
                f"ranks 0 and {rank} have batches of different kinds (dimensions {ranks[0][6]} and {h[6]}, or other "
                "dtypes, or labels, domains, ids, weights or negatives on one of them only); give all ranks the same "
                "arguments"
            )
    return [h[1:4] for h in ranks]


def digest(text: str) -> int:
    """A number for a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def _check_same_criterion(shard: Shard, ranks: list[list[int]], criterion: str, eps: float) -> None:
    """Raise if ranks have different criteria; all ranks then exchange them in words, to name both."""
    other = next((rank for rank, header in enumerate(ranks) if header != ranks[0]), None)
    if other is None:
        return
    words: list[Any] = [None] * shard.world
    dist.all_gather_object(words, f"{criterion} at eps={eps:g}", group=shard.group)
    raise ValueError(
        f"ranks 0 and {other} have different criteria, so their losses are not those of one batch: "
        f"{words[0]} and {words[other]}; make the criterion with the same settings on every rank, and start a learnt "
        "eps from the same value (DistributedDataParallel around a module that holds the criterion keeps it equal)"
    )


def _kinds(side: Side) -> list[int]:
    """A number for dtype and dimensions of each field."""
    return [_kind(getattr(side, name)) for name in _KNOWN]


def _kind(x: Tensor | None) -> int:
    """A number for dtype and dimensions; 0 for None. Rows of all ranks must agree in all sizes but the first."""
    if x is None:
        return 0
    width = 0
    for size in x.shape[1:]:
        width = width * 1_000_003 + size
    return (width * 10 + x.dim()) * 10 + 1 + _DTYPES.index(x.dtype)


_DTYPES = (torch.float32, torch.float64, torch.int64)


def joined(shard: Shard, side: Side, sizes: list[int]) -> Side:
    """The rows of a side from all ranks, in the order of the ranks. A rank may have any number of rows, also 0.

    The embeddings keep their gradient. All ranks compute the same loss from the joined batch, so each rank has the
    whole adjoint. The backward pass takes this rank's rows, times the number of ranks. DDP averages over ranks, so
    every parameter gets the gradient of one process with the joined batch.
    """

    known = {name: getattr(side, name) for name in _KNOWN}
    return Side(**{name: gathered(shard, x, sizes) for name, x in known.items() if x is not None})


def gathered(shard: Shard, x: Tensor, sizes: list[int]) -> Tensor:
    """The rows of a tensor from all ranks, with their gradient."""
    return torch.ops.gcalign.join(x, sizes, shard.rank, torch.compiler.is_compiling(), shard.name)


_library = torch.library.Library("gcalign", "FRAGMENT")
_library.define("join(Tensor x, SymInt[] sizes, int rank, bool check, str group) -> Tensor")


def _join(x: Tensor, sizes: list[int], rank: int, check: bool, group: str) -> Tensor:
    """The rows of all ranks, in the order of the ranks."""
    shard = Shard(group)
    if check:
        mine = torch.tensor([len(x)], device=x.device)
        lengths = [torch.empty_like(mine) for _ in sizes]
        with explain_collective_errors():
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
    with explain_collective_errors():
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
