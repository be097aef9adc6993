"""A queue of earlier embeddings, as more columns of a plan (MoCo)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch import distributed as dist

from gcalign.batch import Side
from gcalign.errors import count, positive
from gcalign.transport.distributed import exchange_headers, group_name, joined, shard

SHARE = 0.1  # of the mass, spread evenly so that columns without a positive get some


class Queue(nn.Module):
    """The last `size` embeddings that were pushed, as more negatives for `criterion(z1, z2, queue=queue)`, as in MoCo.

    The criterion reads the queue and does not change it. Push the keys after the loss. In a process group, `push`
    stores the keys of all ranks, so that the queues of all ranks stay equal. The keys are buffers: they move with
    `.to`, and are part of the `state_dict`. They have no gradient.

    With a constraint on the columns (GCA methods), a share of the mass is spread evenly over all columns, so that the
    keys get mass and the plan stays possible. The other samples of the batch are negatives, too. Without such a
    constraint (INCE, RINCE) only the keys are, as in MoCo. An empty queue changes nothing.

    Args:
        size: the number of keys.
        dim: the dimension of a key.
        share: the part of the mass that is spread over all columns, in (0, 1]. The positives keep at least the rest.
        in_batch: whether the other samples of the batch are negatives too. Default: as described.
        gather: whether `push` stores the keys of all processes; a process group stores those of its ranks.

    Example:
        >>> import torch, gcalign
        >>> criterion, queue = gcalign.method("gca-ince", eps=0.2), gcalign.Queue(size=6, dim=3)
        >>> for _ in range(3):
        ...     query, key = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
        ...     loss = criterion(query, key, queue=queue)
        ...     queue.push(key)
        >>> len(queue), criterion.plan(query, key, queue=queue).shape
        (6, (4, 10))
    """

    keys: Tensor  # [size, dim]
    pushed: Tensor  # []

    def __init__(
        self,
        size: int,
        dim: int,
        *,
        share: float = SHARE,
        in_batch: bool | None = None,
        gather: bool | dist.ProcessGroup = True,
    ) -> None:
        super().__init__()
        count("size", size, "the number of keys; MoCo uses 65536")
        count("dim", dim, "the dimension of the embeddings")
        self.share = positive("share", share, "the part of the mass that all columns share, e.g. 0.1")
        if share > 1:
            raise ValueError(f"share={share:g} must be at most 1; it is a part of the mass, e.g. 0.1")
        self.in_batch, self.gather, self.group = in_batch, bool(gather), group_name(gather)
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.long))

    def __len__(self) -> int:
        """How many keys are stored."""
        return min(int(self.pushed), len(self.keys))

    @torch.no_grad()
    def push(self, z: Tensor) -> None:  # [B, dim]
        """Store embeddings in place of the oldest ones."""
        if not isinstance(z, Tensor) or z.dim() != 2 or z.shape[1] != self.keys.shape[1]:
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(f"keys={got} must be a tensor [B, {self.keys.shape[1]}]; the queue was made with that dim")
        mine = Side(z.detach().to(self.keys))
        share = shard(self.group) if self.gather else None
        if share is not None:
            mine = joined(share, mine, [k for k, *_ in exchange_headers(share, (mine, mine), mine.features.device)])
        size, first = len(self.keys), int(self.pushed)
        kept = mine.features[-size:]
        first += len(mine) - len(kept)
        self.keys[torch.arange(first, first + len(kept), device=kept.device) % size] = kept
        self.pushed += len(mine)

    def forward(self) -> Tensor:  # [len, dim]
        """The stored keys, without order."""
        return self.keys[: len(self)]

    def extra_repr(self) -> str:
        size, dim = self.keys.shape
        return f"size={size}, dim={dim}, share={self.share:g}, in_batch={self.in_batch}"
