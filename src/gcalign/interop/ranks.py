"""Losses over several processes whose value is that of this rank's own rows, as other libraries report it."""

from __future__ import annotations

from torch import Tensor
from torch import distributed as dist


def world(group: dist.ProcessGroup | None = None) -> int:
    """The number of processes; 1 without a process group."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def with_own_value(losses: Tensor, batch: int) -> Tensor:  # [n] -> []
    """The gradient of the mean over all rows of the joined batch, with the mean over this rank's rows as its value.

    `losses` are those of all rows, in the order of the ranks; in the joint layout first all z1, then all z2. Each rank
    has `batch` samples.
    """
    ranks = world()
    if len(losses) % (ranks * batch):
        raise ValueError(
            f"{len(losses)} rows of {ranks} ranks, of which this one has {batch} samples: the loss of each rank needs "
            "batches of one size; drop the last batch of an epoch (drop_last=True)"
        )
    whole = losses.mean()
    if ranks == 1:
        return whole
    own = losses.view(-1, ranks, batch)[:, dist.get_rank()].mean()
    return whole + (own - whole).detach()
