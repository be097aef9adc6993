"""The loss over many processes is the loss of the joined batch: what ranks exchange.

Each rank holds some rows of K̂. Any operator on blocks takes a `Shard`: its blocks are then those of its own rows. Sums
over rows are sums over ranks, one all-reduce of a vector an iteration. So the vectors that an operator gives are whole
and the same on every rank, and solvers, divergences and gradients need not know.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from gcalign.batch import Side

_KNOWN = tuple(field.name for field in fields(Side))  # features first
_GROUPS: dict[str, dist.ProcessGroup] = {}
_warned = False


class Shard:
    """This rank among those of a process group."""

    def __init__(self, group: str = "") -> None:
        self.name = group
        self.group = _GROUPS.get(group)  # None is torch's own default
        self.rank, self.world = dist.get_rank(self.group), dist.get_world_size(self.group)

    def rows(self, n: int) -> tuple[int, int]:
        """First and last row of mine; some ranks have one more than others, or none."""
        return self.rank * n // self.world, (self.rank + 1) * n // self.world

    def sum(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Each tensor summed over the ranks, in one exchange."""
        joined = torch.cat([part.flatten() for part in parts])
        with explain_collective_errors():
            dist.all_reduce(joined, group=self.group)
        sums = joined.split([part.numel() for part in parts])
        return tuple(total.view_as(part) for total, part in zip(sums, parts, strict=True))

    def logsumexp(self, part: Tensor) -> Tensor:
        """log Σ e^part over the ranks, entry by entry."""
        top = part.clone()
        with explain_collective_errors():
            dist.all_reduce(top, dist.ReduceOp.MAX, group=self.group)
            unit = torch.where(torch.isfinite(top), top, 0)
            total = (part - unit).exp()
            dist.all_reduce(total, group=self.group)
        return total.log() + unit


@contextmanager
def explain_collective_errors() -> Iterator[None]:
    """Say what a failed exchange means."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"rank {dist.get_rank()} lost another rank ({str(error).splitlines()[0]}); all ranks must call the "
            "criterion equally often: look for the first error among their logs, and start all of them again"
        ) from error


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
    """A name under which the group whose batches are joined is found again; "" is the default group."""
    if gather is None or isinstance(gather, bool):
        return ""
    if not dist.is_available() or not isinstance(gather, dist.ProcessGroup):
        raise TypeError(f"gather={gather!r} must be True, False or a process group")
    name = f"group {id(gather)}"
    _GROUPS[name] = gather
    return name


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
    mine = [0] * 7
    if sides is not None:
        rows = [*map(len, sides), 0 if negatives is None else len(negatives)]
        if torch.compiler.is_compiling():  # sizes cannot be read; `gcalign::join` checks that they agree
            return [rows] * shard.world
        known = [negatives, *(getattr(side, name) for side in sides for name in _KNOWN)]
        kinds = [None if x is None else (x.dtype, x.shape[1:]) for x in known]  # all sizes but the first
        mine = [1, *rows, digest(f"{criterion} {eps!r}"), digest(repr(kinds)), sides[0].features.shape[1]]
    header = torch.tensor(mine, dtype=torch.long, device=device)
    headers = [torch.empty_like(header) for _ in range(shard.world)]
    with explain_collective_errors():
        dist.all_gather(headers, header, group=shard.group)
    ranks = [h.tolist() for h in headers]
    if sides is None:
        return []
    for rank, (accepted, *_) in enumerate(ranks):
        if not accepted:
            raise RuntimeError(
                f"rank {rank} has an error in its batch, so no batch can be joined; see the error of that rank"
            )
    other = next((rank for rank, h in enumerate(ranks) if h[4] != ranks[0][4]), None)
    if other is not None:  # all ranks find this, and tell each other their criterion
        words: list[Any] = [None] * shard.world
        dist.all_gather_object(words, f"{criterion} at eps={eps:g}", group=shard.group)
        raise ValueError(
            f"ranks 0 and {other} have different criteria, so their losses are not those of one batch: "
            f"{words[0]} and {words[other]}; make the criterion with the same settings on every rank, and start a "
            "learnt eps from the same value (DistributedDataParallel around a module that holds the criterion keeps it "
            "equal)"
        )
    for rank, h in enumerate(ranks):
        if h[5] != ranks[0][5]:
            raise ValueError(
                f"ranks 0 and {rank} have batches of different kinds (dimensions {ranks[0][6]} and {h[6]}, or other "
                "dtypes, or labels, domains, ids, weights or negatives on one of them only); give all ranks the same "
                "arguments"
            )
    return [h[1:4] for h in ranks]


def digest(text: str) -> int:
    """A number for a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


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
