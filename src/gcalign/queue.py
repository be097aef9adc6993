"""A queue of earlier embeddings as more columns of a plan (MoCo), and plans in which columns have no positive."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch import distributed as dist

from gcalign.batch import Side, Sides
from gcalign.constraints import Columns, Constraint
from gcalign.errors import count, positive
from gcalign.transport.distributed import exchange_headers, group_name, joined, shard
from gcalign.transport.support import Full, Groups, Pairs, Support


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
        share: float = 0.1,
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
        share = shard(self.gather, self.group)
        if share is not None:
            mine = joined(share, mine, [k for k, _ in exchange_headers(share, (mine, mine), mine.features.device)])
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


def beside(
    queue: Queue, sides: Sides, target: Support, constraints: tuple[Constraint, ...], accelerated: bool
) -> tuple[Sides, Support, tuple[Constraint, ...], Tensor | None]:
    """A batch with the keys as more columns, and which pairs are allowed [n, m] (None: all)."""
    if not len(queue):
        return sides, target, constraints, None
    rows, keys = sides.rows.features, queue()
    if keys.shape[1] != rows.shape[1]:
        raise ValueError(
            f"the keys of the queue have {keys.shape[1]} dimensions and the embeddings {rows.shape[1]}; "
            f"make it with gcalign.Queue(size, dim={rows.shape[1]})"
        )
    if sides.rows.labels is not None or sides.rows.domains is not None:
        raise ValueError(
            "labels or domains were given, but the keys of a queue have none, and would be negatives of their own "
            "class; leave out queue, or labels and domains"
        )
    balanced = any(isinstance(c, Columns) for c in constraints)
    if balanced and queue.in_batch is False:
        raise ValueError(
            "in_batch=False leaves one entry in each column of the batch, and a constraint on the columns then fixes "
            "it; leave in_batch out, or use a method that constrains rows only, such as 'ince'"
        )
    wide, allowed = _widened(target, len(keys)), None
    if balanced and accelerated and isinstance(wide, Pairs):
        wide = Full(wide.dense())  # acceleration by pairs needs a pair in every column
    if not balanced and not queue.in_batch:
        allowed = wide.dense() > 0
        allowed[:, target.shape[1] :] = True
    columns = Side(torch.cat([sides.columns.features, keys.to(rows)]))
    return (
        replace(sides, columns=columns, partner=None),
        wide,
        spread(constraints, wide, queue.share, joint=sides.joint),
        allowed,
    )


def _widened(target: Support, more: int) -> Support:
    """T with more columns, all of them empty."""
    n, m = target.shape
    shape = (n, m + more)
    if isinstance(target, Pairs):
        return replace(target, shape=shape, complete=False, shift=None)
    if isinstance(target, Groups):
        pairs = replace(target.pairs, shape=shape, complete=False, shift=None)
        codes = torch.cat([target.column_codes, target.column_codes.new_zeros(len(target.column_codes), more)], 1)
        right = torch.cat([target.right, target.right.new_zeros(more)])
        return replace(target, column_codes=codes, pairs=pairs, right=right, shape=shape, complete=False)
    dense = target.dense()
    return Full(torch.cat([dense, dense.new_zeros(n, more)], 1))


def spread(
    constraints: tuple[Constraint, ...],
    target: Support,
    share: float,
    *,
    allowed: Tensor | None = None,
    joint: bool = False,
) -> tuple[Constraint, ...]:
    """Constraints on the columns with masses for columns that have no positive.

    Each row keeps 1 − share of its mass on its positives, and spreads the rest evenly over its allowed columns. The
    column sums of this plan are the masses, so at least one plan has them.
    """
    mu, (n, m) = target.mu, target.shape
    if allowed is not None:
        even = (mu / allowed.sum(1)) @ allowed.to(mu)
    else:  # in the joint layout, a row gives nothing to itself
        own = torch.cat([mu, mu.new_zeros(m - n)]) if joint else 0
        even = (mu.sum() - own) / (m - int(joint)) + torch.zeros_like(target.nu)
    nu = (1 - share) * target.nu + share * even
    return tuple(replace(c, mass=nu) if isinstance(c, Columns) and c.mass is None else c for c in constraints)
