"""The mean of an alignment and of the same with its sides exchanged, as in CLIP."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.alignment import Alignment
from gcalign.batch import PerSide, Sides, per_side
from gcalign.objective import Objective
from gcalign.plan import Plan
from gcalign.queue import Queue
from gcalign.targets import Target, as_target
from gcalign.transport.problem import Choice
from gcalign.transport.refusals import full_rows
from gcalign.transport.support import Support


class Symmetric(Objective):
    """Mean of a loss in both directions, L = ½ L(z1, z2) + ½ L(z2, z1). CLIP does this with InfoNCE.

    A call takes what every criterion takes; see `Objective`.

    Args:
        alignment: the alignment that is evaluated in both directions.

    Raises:
        ValueError: when it is called, if a row or a column has no positive.

    Example:
        >>> import torch, gcalign
        >>> one_way = gcalign.method("ince")
        >>> both_ways = gcalign.Symmetric(one_way)
        >>> z1, z2 = torch.eye(4), torch.eye(4).flip(0)
        >>> torch.allclose(both_ways(z1, z2), (one_way(z1, z2) + one_way(z2, z1)) / 2)
        True
    """

    def __init__(self, alignment: Alignment) -> None:
        super().__init__()
        self.alignment = alignment

    def forward(
        self,
        z1: Tensor | Sequence[Tensor],
        z2: Tensor | None = None,
        *,
        labels: PerSide | None = None,
        domains: PerSide | None = None,
        ids: PerSide | None = None,
        weights: PerSide | None = None,
        target: Tensor | Target | None = None,
        queue: Queue | None = None,
        rows: int | None = None,
        multi: str = "pairwise",
    ) -> Tensor:
        known = {"labels": labels, "domains": domains, "ids": ids, "weights": weights}
        if not isinstance(z1, Tensor) or rows is not None:
            return self._several(z1 if z2 is None else [z1, z2], rows, multi, known, target=target, queue=queue)
        if z2 is None:  # the target of one tensor is symmetric
            return self.alignment(z1, target=target, queue=queue, **known)
        there = self.alignment(z1, z2, target=target, queue=queue, **known)
        transposed = Transposed(self.alignment.target if target is None else as_target(target))
        memory = self.alignment.memory
        with nullcontext() if memory is None else memory.exchanged():
            if self.alignment.layout == "joint":
                back = self.alignment(z1, z2, target=transposed, queue=queue, **known)
            else:
                exchanged = {name: per_side(value)[::-1] for name, value in known.items() if value is not None}
                back = self.alignment(z2, z1, target=transposed, queue=queue, **exchanged)
        if there.shape != back.shape:
            raise ValueError(
                f"reduction='none' has {len(there)} rows in one direction and {len(back)} in the other; "
                "use reduction='mean' if the sides differ in length"
            )
        return 0.5 * (there + back)

    def _jointly(self, views: Sequence[Tensor]) -> Tensor:
        """The mean over which view is along the rows."""
        turns = [self.alignment._jointly([*views[k:], *views[:k]]) for k in range(len(views))]
        return torch.stack(turns).mean(0)

    def plan(
        self,
        z1: Tensor,
        z2: Tensor | None = None,
        *,
        target: Tensor | Target | None = None,
        queue: Queue | None = None,
        gather: bool = False,
        **known: PerSide | None,
    ) -> Plan:
        """P_θ of the first half, z1 along the rows."""
        return self.alignment.plan(z1, z2, target=target, queue=queue, gather=gather, **known)

    def explain(
        self,
        z1: Tensor,
        z2: Tensor | None = None,
        *,
        target: Tensor | Target | None = None,
        queue: Queue | None = None,
        **known: PerSide | None,
    ) -> Choice:
        """The gradient mode that is used for such a batch, and the reason."""
        return self.alignment.explain(z1, z2, target=target, queue=queue, **known)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.alignment!r})"


@dataclass(frozen=True, repr=False)
class Transposed(Target):
    """Tᵀ of another target, for exchanged sides."""

    base: Target

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]  # a property here
        return self.base.reads

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        # in the joint layout both sides hold all embeddings, so only T is transposed
        support = self.base.on(sides if sides.joint else sides.exchanged(), dtype).transposed()
        remedy = "both directions need a positive for every row and column; drop the embeddings without one"
        return support if support.complete else full_rows(support, remedy)
