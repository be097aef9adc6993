"""Which entries a plan has beyond those of a batch of pairs: more columns, such as a queue's, pairs left out, missing
partners."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import pad

from gcalign.batch import Side, Sides
from gcalign.constraints import Columns, Constraint, Hard, Rows
from gcalign.errors import count, positive
from gcalign.targets import Target
from gcalign.transport.distributed import exchange_headers, group_name, joined, shard
from gcalign.transport.operators.sources import Mask
from gcalign.transport.support import Full, Groups, Pairs, Support, check_rows, shared_codes, spans, values_readable

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


@dataclass(frozen=True)
class Entries:
    """Rows and columns of a plan, its target and constraints, and which of its entries exist."""

    sides: Sides
    support: Support
    constraints: tuple[Constraint, ...]
    own: Tensor | None = None  # [n, k, D]  columns that are other embeddings for each row; they come last
    mask: Mask | None = None  # pairs that are left out
    unpaired_rows: bool = False  # whether some rows have no positive

    def without(self, allowed: Tensor | None) -> Entries:  # [n, m]
        """Leave out the pairs that are not allowed, and those within a group that are not positives."""
        sides, support, mask = self.sides, self.support, None
        if allowed is not None:
            if sides.joint and isinstance(allowed, Tensor) and 2 * len(allowed) == len(sides.rows):
                within = allowed & allowed.T  # two views of one side
                allowed = torch.cat([torch.cat([within, allowed], 1), torch.cat([allowed.T, within], 1)])
            _check_allowed(allowed, support.shape)
            support = _only(support, allowed)
            mask = Mask(allowed)
        if sides.rows.groups is not None and sides.columns.groups is not None:
            codes = shared_codes(sides.rows.groups, sides.columns.groups)
            mask = Mask(allowed, *codes, support)
        return self if mask is None else replace(self, support=support, mask=mask)

    def with_queue(self, queue: Queue | tuple[Queue, Queue]) -> Entries:
        """The keys of a queue as more columns."""
        if not isinstance(queue, Queue):
            raise TypeError(
                f"queue is a {type(queue).__name__}; it must be a gcalign.Queue, which stores earlier embeddings (two "
                "for gcalign.Symmetric); to pass embeddings as more negatives, use negatives="
            )
        if not len(queue):
            return self
        rows, keys = self.sides.rows, queue()
        if keys.shape[1] != rows.features.shape[1]:
            raise ValueError(
                f"the keys of the queue have {keys.shape[1]} dimensions and the embeddings {rows.features.shape[1]}; "
                f"make it with gcalign.Queue(size, dim={rows.features.shape[1]})"
            )
        if rows.labels is not None or rows.domains is not None:
            raise ValueError(
                "labels or domains were given, but the keys of a queue have none, and would be negatives of their own "
                "class; leave out queue, or labels and domains"
            )
        balanced = any(isinstance(c, Columns) for c in self.constraints)
        if balanced and queue.in_batch is False:
            raise ValueError(
                "in_batch=False leaves one entry in each column of the batch, and a constraint on the columns then "
                "fixes it; leave in_batch out, or use a method that constrains rows only, such as 'ince'"
            )
        entries = self
        if not balanced and not queue.in_batch:  # all samples of the batch are one group
            n, m = self.support.shape
            allowed = None if self.mask is None else self.mask.allowed
            zeros = torch.zeros(max(n, m), dtype=torch.long, device=keys.device)
            entries = replace(self, mask=Mask(allowed, zeros[:n], zeros[:m], self.support))
        return entries._widened(keys.to(rows.features), queue.share)

    def with_negatives(self, negatives: Tensor) -> Entries:
        """More columns: [k, D] for all rows, or [n, k, D] with k for each row."""
        n, k = len(self.sides.rows), negatives.shape[-2]
        if negatives.dim() == 2:
            return self._widened(negatives, SHARE)
        if self.sides.joint and 2 * len(negatives) == n:  # both views of a sample have its negatives
            negatives = torch.cat([negatives, negatives])
        if len(negatives) != n:
            raise ValueError(
                f"negatives of shape {tuple(negatives.shape)} must have k embeddings for each of {n} rows, "
                f"[{n}, k, D], or be [k, D] for all rows"
            )
        wide = self._widened(self.sides.columns.features.new_zeros(k, negatives.shape[-1]), SHARE)
        return replace(wide, sides=self.sides, own=negatives)

    def _widened(self, features: Tensor, share: float) -> Entries:
        """More columns without a positive. A constraint on the columns gets masses for them."""
        k, mask, old = len(features), self.mask, self.sides.columns
        support = widened(self.support, k)
        if mask is not None:
            allowed = None if mask.allowed is None else pad(mask.allowed, (0, k), value=True)
            codes = None if mask.column_codes is None else pad(mask.column_codes, (0, k), value=-1)
            mask = Mask(allowed, mask.row_codes, codes, None if codes is None else support)
        sides = replace(self.sides, columns=Side(torch.cat([old.features, features])), partner=None)
        constraints = spread(self.constraints, support, share, mask=mask, joint=self.sides.joint)
        return replace(self, sides=sides, support=support, mask=mask, constraints=constraints)

    def checked(self, target: Target) -> Entries:
        """Masses for rows and columns without a positive if their side is relaxed; raises if it is not."""
        support = self.support
        if support.complete or not values_readable():
            return self
        empty = torch.stack([(support.mu == 0).any(), (support.nu == 0).any()]).tolist()
        kinds = (Rows, Columns)
        sides = [next((c for c in self.constraints if isinstance(c, kind)), None) for kind in kinds]
        lenient = [c is not None and (c.mass is not None or not isinstance(c.h, Hard)) for c in sides]
        if empty[0] and not (lenient[0] and bool(support.mu.any())):
            cut = self.mask is not None and self.mask.allowed is not None
            rule = "allowed= must keep a positive in every row, and " * cut + target.rule
            check_rows(support, rule, target.names(self.sides))
        if not any(empty):
            if isinstance(support, (Pairs, Groups)):
                support = replace(support, complete=True)
            return replace(self, support=support)
        relaxed = tuple(kind for kind, e, ok in zip(kinds, empty, lenient, strict=True) if e and ok)
        constraints = spread(self.constraints, support, SHARE, mask=self.mask, joint=self.sides.joint, sides=relaxed)
        return replace(self, constraints=constraints, unpaired_rows=empty[0])


def _check_allowed(allowed: Tensor, shape: tuple[int, int]) -> None:
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool or tuple(allowed.shape) != shape:
        got = f"{tuple(allowed.shape)}, {allowed.dtype}" if isinstance(allowed, Tensor) else type(allowed).__name__
        raise ValueError(
            f"allowed={got} must be a bool tensor {shape}, False for pairs that are left out; for codes, such as users "
            "or duplicates, use groups="
        )


def _only(support: Support, allowed: Tensor) -> Support:
    """T without the pairs that are not allowed."""
    if not isinstance(support, Pairs) or not values_readable():
        return Full(support.dense() * allowed)
    kept = allowed[support.i, support.j]
    if bool(kept.all()):
        return support
    i, j, weight = support.i[kept], support.j[kept], support.weight[kept]
    return Pairs(i, j, weight, support.shape, ordinary=support.ordinary, unit=support.unit)


def widened(target: Support, more: int) -> Support:
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
    mask: Mask | None = None,
    joint: bool = False,
    sides: tuple[type[Constraint], ...] = (Columns,),
) -> tuple[Constraint, ...]:
    """Constraints with masses for columns (rows) that have no positive.

    Each row keeps 1 − share of its mass on its positives, and spreads the rest evenly over its allowed columns. The
    column sums of this plan are the masses, so at least one plan has them. Rows: likewise, from the columns.
    """
    mu, nu, (n, m) = target.mu, target.nu, target.shape
    if mask is not None:
        even = torch.zeros_like(nu)
        for start, stop in spans((n, m)):
            allowed = (~mask.forbidden(start, stop)).to(mu)
            even = even + (mu[start:stop] / allowed.sum(1).clamp(min=1)) @ allowed
    else:  # in the joint layout, a row gives nothing to itself
        own = torch.cat([mu, mu.new_zeros(m - n)]) if joint else 0
        even = (mu.sum() - own) / (m - int(joint)) + torch.zeros_like(nu)
    masses: dict[type[Constraint], Tensor] = {
        Columns: (1 - share) * nu + share * even,
        Rows: (1 - share) * mu + share * mu.sum() / n,
    }
    return tuple(
        replace(c, mass=masses[type(c)]) if isinstance(c, sides) and isinstance(c, (Rows, Columns)) and c.mass is None
        else c
        for c in constraints
    )  # fmt: skip
