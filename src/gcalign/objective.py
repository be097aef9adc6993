"""What every criterion is: a module that is called with views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from gcalign.batch import PER_SIDE, Inputs, PerSide, per_side, refuse_non_finite
from gcalign.constraints import Constraint
from gcalign.entries import Queue
from gcalign.errors import count, one_of
from gcalign.plan import Plan
from gcalign.targets import Target


class Objective(nn.Module):
    """A criterion: `criterion(z1, z2)` is the loss of two views.

    `criterion(views)` with a list of views is the mean of `criterion(z1, z2)` over their pairs.
    `criterion(z, labels=y)` is the loss of one tensor: embeddings with the same label belong together.

    Args:
        z1: embeddings of the first views [B, D]; they need not be normalised. Or a list of views; or all embeddings.
        z2: embeddings of the second views [B, D].
        ids: which embeddings come from one sample. Default: by position, z1[k] and z2[k] belong together. A sample
            without a partner is allowed if its side is relaxed or has a given mass; it has no term in the loss.
        labels: class of each sample, for targets such as `Labels`.
        domains: domain of each sample, for targets such as `Blocks`.
        weights: how much each sample counts.
        groups: samples of one group are not negatives of each other: duplicates, or items of one user.
        teacher: (t1, t2), other embeddings of the same samples, for the target `Teacher`.
        target: a matrix [n, m] or a `Target`, in place of the criterion's own for this call.
        queue: a `Queue`, whose keys are more negatives.
        negatives: embeddings of more negatives, with gradient: [k, D] for all rows, or [n, k, D] with k for each row.
        allowed: [n, m], bool. False leaves a pair out of the kernel: it is neither positive nor negative. In the joint
            layout, [B, B] holds for all views of two samples.
        rows: for a list of views, how many of them, from the first on, are rows of a plan. The others are only columns:
            pairs of them are left out, as for the small views of multi-crop. Default: all.
        multi: for a list of views, "pairwise" is a plan for each pair, and "joint" one plan over all views at once. Its
            cost is the sum over pairs; it needs memory n^(K − 1) for K views of n rows.

    ids, labels, domains, weights and groups are one value for all views or a tuple with one for each, (for z1, for z2).

    Returns:
        The loss, a 0-dim tensor; with `reduction="none"` the loss of each row, whose mean it is.

    Example:
        >>> import torch, gcalign
        >>> z1, z2 = torch.randn(8, 4), torch.randn(8, 4)
        >>> criterion = gcalign.method("gca-ince")
        >>> criterion(z1, z2).shape
        torch.Size([])
        >>> torch.equal(criterion([z1, z2]), criterion(z1, z2))
        True
        >>> criterion(z1, labels=[0, 0, 0, 0, 1, 1, 1, 1]).shape
        torch.Size([])
    """

    def forward(
        self,
        z1: Tensor | Sequence[Tensor],
        z2: Tensor | None = None,
        *,
        labels: PerSide | None = None,
        domains: PerSide | None = None,
        ids: PerSide | None = None,
        weights: PerSide | None = None,
        groups: PerSide | None = None,
        teacher: tuple[Tensor, Tensor] | None = None,
        target: Tensor | Target | None = None,
        queue: Queue | tuple[Queue, Queue] | None = None,
        negatives: Tensor | None = None,
        allowed: Tensor | None = None,
        rows: int | None = None,
        multi: str = "pairwise",
    ) -> Tensor:
        """The loss; see the class for what it takes."""
        inputs = Inputs(labels, domains, ids, weights, groups, teacher, target, queue, negatives, allowed)
        if not isinstance(z1, Tensor) or rows is not None:
            return self._several(z1 if z2 is None else [z1, z2], rows, multi, inputs)
        return self._loss(z1, z2, inputs)

    def _loss(self, z1: Tensor, z2: Tensor | None, inputs: Inputs) -> Tensor:
        """The loss of two views, or of one tensor."""
        raise NotImplementedError

    def _several(self, views: Any, rows: int | None, multi: str, inputs: Inputs) -> Tensor:
        """The mean loss over pairs of views, one plan for each pair; or the loss of one plan over all."""
        one_of("multi", multi, ("pairwise", "joint"))
        if not isinstance(views, (list, tuple)) or len(views) < 2:
            got = f"{len(views)} views" if isinstance(views, (list, tuple)) else f"a {type(views).__name__}"
            raise TypeError(f"views={got} must be a list of at least two tensors [B, D]; or call criterion(z1, z2)")
        for number, view in enumerate(views, start=1):
            if not isinstance(view, Tensor):
                raise TypeError(f"z{number} is a {type(view).__name__}; it must be a tensor [B, D] of embeddings")
        k = len(views)
        if count("rows", k if rows is None else rows, "the number of views that are rows") > k:
            raise ValueError(f"rows={rows} must be at most {k}, the number of views; leave it out to use all of them")

        if multi == "joint" and k > 2:
            for name, value in {"rows": rows, **inputs._asdict()}.items():
                if value is not None:
                    raise ValueError(
                        f"{name}= cannot go with multi='joint', where row i of all views is one sample; leave it out, "
                        "or use multi='pairwise'"
                    )
            return self._jointly(views)

        def of(value: Any, which: tuple[int, int]) -> Any:
            each = isinstance(value, tuple) and len(value) == k and not isinstance(value[0], (int, float))
            return tuple(value[view] for view in which) if each else value

        losses = []
        for i, j in combinations(range(k), 2):
            if rows is None or i < rows:
                own = {name: of(getattr(inputs, name), (i, j)) for name in PER_SIDE}
                losses.append(self._loss(views[i], views[j], inputs._replace(**own)))
        return torch.stack(losses).mean(0)

    def _jointly(self, views: Sequence[Tensor]) -> Tensor:
        """The loss of one plan over all views."""
        raise NotImplementedError

    def plan(self, z1: Tensor, z2: Tensor | None = None, *, gather: bool = False, **inputs: Any) -> Plan:
        """P_θ, without gradient; takes what the criterion takes."""
        raise NotImplementedError


def refuse_loss(criterion: Objective, loss: Tensor, z1: Tensor, z2: Tensor, inputs: Inputs = Inputs()) -> None:
    """Say why a loss is not finite."""
    given: dict[str, Any] = {"z1": z1, "z2": z2, "negatives": inputs.negatives}
    for name, teacher, queue in zip(("1", "2"), per_side(inputs.teacher), per_side(inputs.queue), strict=True):
        given |= {"teacher" + name: teacher, "queue" + name: queue and queue()}
    refuse_non_finite(**given)
    if bool(torch.isfinite(loss).all()):  # only their sum is not
        return
    bad = loss[~torch.isfinite(loss)][0] if loss.dim() else loss
    raise ValueError(
        f"the loss is {bad.item()} though the embeddings are finite: {criterion!r} leaves the range of "
        f"{str(loss.dtype).removeprefix('torch.')}; raise eps"
        + ("" if loss.dtype == torch.float64 else " or pass float64 embeddings")
    )


def refuse_unread(known: Mapping[str, Any], target: Target, constraints: Sequence[Constraint]) -> None:
    """Labels that nothing reads are a mistake: training would be unsupervised without anybody noticing."""
    readers = {"labels": "Labels()", "domains": "Blocks(alpha, beta)", "teacher": "Teacher(eps)"}
    for name, reader in readers.items():
        read = name in target.reads
        for constraint in constraints:  # no union of sets: torch 2.6 cannot trace one
            read = read or name in constraint.reads
        if name in known and not read:
            what = "embeddings of a teacher" if name == "teacher" else name
            raise ValueError(
                f"{what} were given, but the target {target!r} does not read them; "
                f"use target=gcalign.{reader}, or leave them out"
            )
