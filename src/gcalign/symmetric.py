"""Both directions of an alignment, as CLIP's loss has them."""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor

from gcalign.alignment import Alignment
from gcalign.batch import PerSide, per_side
from gcalign.objective import Objective
from gcalign.plan import Plan
from gcalign.targets import Target, Transposed, as_target
from gcalign.transport.problem import Choice


class Symmetric(Objective):
    """Half of an alignment and half of the same with its sides exchanged, as CLIP's loss is for InfoNCE."""

    def __init__(self, alignment: Alignment) -> None:
        super().__init__()
        self.alignment = alignment

    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
        *,
        labels: PerSide | None = None,
        domains: PerSide | None = None,
        ids: PerSide | None = None,
        weights: PerSide | None = None,
        target: Tensor | Target | None = None,
    ) -> Tensor:
        known = {"labels": labels, "domains": domains, "ids": ids, "weights": weights}
        there = self.alignment(z1, z2, target=target, **known)
        transposed = Transposed(self.alignment.target if target is None else as_target(target))
        memory = self.alignment.memory
        with nullcontext() if memory is None else memory.exchanged():
            if self.alignment.layout == "joint":
                back = self.alignment(z1, z2, target=transposed, **known)
            else:
                exchanged = {name: per_side(value)[::-1] for name, value in known.items() if value is not None}
                back = self.alignment(z2, z1, target=transposed, **exchanged)
        if there.shape != back.shape:
            raise ValueError(
                f"reduction='none' has {len(there)} rows one way and {len(back)} the other; use reduction='mean' where "
                "the sides differ in length"
            )
        return 0.5 * (there + back)

    def plan(
        self,
        z1: Tensor,
        z2: Tensor,
        *,
        target: Tensor | Target | None = None,
        gather: bool = False,
        **known: PerSide | None,
    ) -> Plan:
        """P_θ of the first half, z1 along the rows."""
        return self.alignment.plan(z1, z2, target=target, gather=gather, **known)

    def explain(
        self, z1: Tensor, z2: Tensor, *, target: Tensor | Target | None = None, **known: PerSide | None
    ) -> Choice:
        """Which gradient mode runs on such a batch, and why."""
        return self.alignment.explain(z1, z2, target=target, **known)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.alignment!r})"
