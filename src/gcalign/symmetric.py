"""The mean of an alignment and of the same with its sides exchanged, as in CLIP."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gcalign.alignment import PARTS, Alignment
from gcalign.batch import Inputs, Sides, inputs_of
from gcalign.objective import Objective
from gcalign.plan import Plan
from gcalign.targets import Target, as_target
from gcalign.transport.gradients import Choice
from gcalign.transport.support import Support


class Symmetric(Objective):
    """Mean of a loss in both directions, L = ½ L(z1, z2) + ½ L(z2, z1). CLIP does this with InfoNCE.

    A call takes what every criterion takes; see `Objective`. Parts and options are set on it as on an `Alignment`. The
    directions have different columns, so they have different queues: `queue=(keys of first views, keys of second
    views)`. One queue holds keys of second views, and the second direction then has none.

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

    def __setattr__(self, name: str, value: Any) -> None:
        """Parts and options are those of the alignment."""
        if name in PARTS:
            setattr(self.alignment, name, value)
        else:
            super().__setattr__(name, value)

    def _loss(self, z1: Tensor, z2: Tensor | None, inputs: Inputs) -> Tensor:
        if z2 is None:  # the target of one tensor is symmetric
            return self.alignment._loss(z1, None, inputs)
        joint, memory = self.alignment.layout == "joint", self.alignment.memory
        there_queue, back_queue = self._queues(inputs, joint)
        there = self.alignment._loss(z1, z2, inputs._replace(queue=there_queue))
        target = Transposed(self.alignment.target if inputs.target is None else as_target(inputs.target))
        with nullcontext() if memory is None else memory.exchanged():
            if joint:
                back = self.alignment._loss(z1, z2, inputs._replace(target=target, queue=back_queue))
            else:
                turned = inputs.exchanged()._replace(target=target, queue=back_queue)
                back = self.alignment._loss(z2, z1, turned)
        if there.shape != back.shape:
            raise ValueError(
                f"reduction='none' has {len(there)} rows in one direction and {len(back)} in the other; "
                "use reduction='mean' if the sides differ in length"
            )
        return 0.5 * (there + back)

    def _queues(self, inputs: Inputs, joint: bool) -> tuple[Any, Any]:
        """The keys that are columns of each direction: those of second views, then those of first views."""
        queue = inputs.queue
        if joint:
            return queue, queue
        return (queue[1], queue[0]) if isinstance(queue, tuple) and len(queue) == 2 else (queue, None)

    def _jointly(self, views: Sequence[Tensor]) -> Tensor:
        """The mean over which view is along the rows."""
        turns = [self.alignment._jointly([*views[k:], *views[:k]]) for k in range(len(views))]
        return torch.stack(turns).mean(0)

    def plan(self, z1: Tensor, z2: Tensor | None = None, *, gather: bool = False, **inputs: Any) -> Plan:
        """P_θ of the first direction, z1 along the rows."""
        return self.alignment.plan(z1, z2, gather=gather, **self._first(inputs))

    def explain(self, z1: Tensor, z2: Tensor | None = None, **inputs: Any) -> Choice:
        """The gradient mode that is used for such a batch, how the plan is solved, and why."""
        return self.alignment.explain(z1, z2, **self._first(inputs))

    def _first(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs of the first direction."""
        return {**inputs, "queue": self._queues(inputs_of(inputs), self.alignment.layout == "joint")[0]}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.alignment!r})"


@dataclass(frozen=True, repr=False)
class Transposed(Target):
    """Tᵀ of another target, for exchanged sides."""

    base: Target
    rule: ClassVar[str] = "both directions need a positive for every row and column; drop the embeddings without one"

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]  # a property here
        return self.base.reads

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        # in the joint layout both sides hold all embeddings, so only T is transposed
        return self.base.on(sides if sides.joint else sides.exchanged(), dtype).transposed()
