"""The supervised contrastive loss of pytorch-metric-learning, for any method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gcalign.alignment import Alignment
from gcalign.batch import check_embeddings
from gcalign.entries import spread
from gcalign.methods import method as named
from gcalign.transport.operators.sources import Mask
from gcalign.transport.support import Full


class SupConLoss(nn.Module):
    """`pytorch_metric_learning.losses.SupConLoss` for any method: rows are anchors, columns references.

    It has the call of the original and, with the default method, its loss and gradients. It works in
    `SelfSupervisedLoss` and `CrossBatchMemory`, which accept losses by the name of their class, and takes the tuples of
    miners. A pair that such a tuple leaves out is not part of the plan. As there, joining the batches of several
    processes is the work of `DistributedLossWrapper`.

    Args:
        temperature: ε.
        reducer: a reducer of the library, which gets the loss of each anchor. Default: the mean over the anchors whose
            loss is not 0, as its `AvgNonZeroReducer`.
        method: the name of a method, e.g. "gca-uot".
        share: the part of the mass that is spread over all columns if some have no positive; see `Queue`.
        options: options of the method other than `eps`, `layout` and `target`.

    Example:
        >>> import torch
        >>> from gcalign.interop.metric_learning import SupConLoss
        >>> embeddings = torch.randn(6, 3, requires_grad=True)
        >>> SupConLoss(method="gca-uot")(embeddings, torch.tensor([0, 0, 1, 1, 2, 3])).shape
        torch.Size([])
    """

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        reducer: Callable[..., Tensor] | None = None,
        method: str = "supcon",
        share: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__()
        for word in ("eps", "layout", "target", "gather", "reduction", "warm_start"):
            if word in options:
                right = "write temperature=" if word == "eps" else "leave it out"
                raise TypeError(f"{word}={options[word]!r} cannot be chosen here; {right}")
        criterion = named(method, eps=temperature, layout="cross", reduction="none", gather=False, **options)
        if not isinstance(criterion, Alignment):
            raise ValueError(f"method={method!r} has two directions, but anchors are rows alone; try 'ince'")
        self.temperature, self.reducer, self.share, self.criterion = temperature, reducer, share, criterion

    def forward(
        self,
        embeddings: Tensor,  # [n, D]
        labels: Tensor | None = None,  # [n]
        indices_tuple: Sequence[Tensor] | None = None,
        ref_emb: Tensor | None = None,  # [m, D]
        ref_labels: Tensor | None = None,  # [m]
    ) -> Tensor:
        """The loss of anchors and references, which belong together by their labels or by a miner's tuple.

        Args:
            embeddings: the anchors.
            labels: their classes.
            indices_tuple: (anchors, positives, negatives) or (anchors, positives, anchors, negatives); default: all
                pairs, none of an embedding with itself.
            ref_emb: the references; default: the anchors.
            ref_labels: the classes of the references.
        """
        references = embeddings if ref_emb is None else ref_emb
        check_embeddings(embeddings, references, alone=True)
        positive, negative = _pairs(embeddings, references, labels, ref_labels, indices_tuple)
        losses = embeddings.new_zeros(len(embeddings), dtype=torch.promote_types(embeddings.dtype, torch.float32))
        if not (bool(positive.any()) and bool(negative.any())):
            return embeddings.sum() * 0
        anchors = positive.any(1)
        allowed = (positive | negative)[anchors]
        used = allowed.any(0)
        own = self._per_row(embeddings[anchors], references[used], positive[anchors][:, used], allowed[:, used])
        losses = losses.index_put((anchors.nonzero()[:, 0],), own)
        if self.reducer is not None:
            indices = torch.arange(len(losses), device=losses.device)
            info = {"losses": losses, "indices": indices, "reduction_type": "element"}
            return self.reducer({"loss": info}, embeddings, None if labels is None else labels.to(losses.device))
        counted = losses != 0
        return losses.sum() / counted.sum().clamp(min=1)

    def _per_row(self, z1: Tensor, z2: Tensor, positive: Tensor, allowed: Tensor) -> Tensor:
        """The loss of each anchor; every anchor has a positive, and every column an anchor."""
        criterion, dtype = self.criterion, torch.promote_types(z1.dtype, torch.float32)
        target = positive / positive.sum(1, keepdim=True).to(dtype)
        constraints = criterion.constraints
        try:
            if bool((target.sum(0) == 0).any()):
                criterion.constraints = spread(constraints, Full(target), self.share, mask=Mask(allowed))
            losses: Tensor = criterion(z1, z2, target=target, allowed=allowed)
        finally:
            criterion.constraints = constraints
        return torch.where(allowed.sum(1) > 1, losses, 0)  # exactly 0 for one column, since zeros are not counted

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"


def _pairs(
    embeddings: Tensor,
    references: Tensor,
    labels: Tensor | None,
    ref_labels: Tensor | None,
    indices_tuple: Sequence[Tensor] | None,
) -> tuple[Tensor, Tensor]:  # [n, m], [n, m]
    """Which pairs are positive, and which negative."""
    device, shape = embeddings.device, (len(embeddings), len(references))
    if indices_tuple is not None:
        if len(indices_tuple) not in (3, 4):
            raise ValueError(f"indices_tuple has {len(indices_tuple)} tensors; a miner gives 3 or 4 of them")
        i, p, *rest = (torch.as_tensor(index, device=device) for index in indices_tuple)
        k, n = rest if len(rest) == 2 else (i, rest[0])
        masks = torch.zeros(2, *shape, dtype=torch.bool, device=device)
        masks[0, i, p], masks[1, k, n] = True, True
        if bool((masks[0] & masks[1]).any()):
            raise ValueError("indices_tuple has a pair that is positive and negative; it must be one of the two")
        return masks[0], masks[1]
    if labels is None or (ref_labels is None and references is not embeddings):
        raise ValueError("nothing says which pairs belong together; pass labels (and ref_labels), or indices_tuple")
    own = labels.to(device)
    others = own if references is embeddings else torch.as_tensor(ref_labels, device=device)
    if own.shape != (shape[0],) or others.shape != (shape[1],):
        raise ValueError(
            f"labels of shapes {tuple(own.shape)} and {tuple(others.shape)} must have one for each of {shape[0]} "
            f"embeddings and {shape[1]} references"
        )
    positive = own[:, None] == others
    negative = ~positive
    if references is embeddings:
        positive = positive & ~torch.eye(shape[0], dtype=torch.bool, device=device)
    return positive, negative
