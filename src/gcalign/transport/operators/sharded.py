"""Each rank holds some rows of K̂; sums over rows are sums over ranks, one all-reduce of a vector an iteration.

Any operator on blocks takes a `Shard`: its blocks are then those of its own rows, and the vectors it gives are whole
and the same on every rank, so solvers, divergences and gradients need not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch import distributed as dist

_GROUPS: dict[str, dist.ProcessGroup] = {}


def name_of(group: dist.ProcessGroup | None) -> str:
    """A name under which a process group is found again; "" is the default group."""
    if group is None:
        return ""
    name = f"group {id(group)}"
    _GROUPS[name] = group
    return name


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
        """Each tensor summed over the ranks; vectors go together in one exchange."""
        if any(part.dim() > 1 for part in parts):
            whole = tuple(part.contiguous() for part in parts)
            with explain_collective_errors():
                for part in whole:
                    dist.all_reduce(part, group=self.group)
            return whole
        joined = torch.cat(parts)
        with explain_collective_errors():
            dist.all_reduce(joined, group=self.group)
        return joined.split([len(part) for part in parts])

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
