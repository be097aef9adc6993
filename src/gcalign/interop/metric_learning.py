"""The supervised contrastive and the NT-Xent loss of pytorch-metric-learning, for any method.

Where the library is installed, both are subclasses of its base class, so that its wrappers, reducers, regularisers and
distances work. Without it, they have the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gcalign.alignment import Alignment
from gcalign.batch import check_embeddings
from gcalign.entries import spread
from gcalign.kernels import Cosine, Kernel
from gcalign.methods import method as named
from gcalign.transport.operators.sources import Mask
from gcalign.transport.support import Full

try:
    from pytorch_metric_learning.losses import BaseMetricLossFunction
except ImportError:

    class BaseMetricLossFunction(nn.Module):  # type: ignore[no-redef]  # its place, if it is missing
        """Stands in for the library's base class: it keeps a reducer and a distance."""

        def __init__(self, *, reducer: Callable[..., Tensor], distance: Any = None) -> None:
            super().__init__()
            self.reducer, self.distance = reducer, distance


_LIBRARY = ("embedding_regularizer", "embedding_reg_weight", "collect_stats")  # arguments of its base class
Info = dict[str, Any]  # what a reducer gets of a loss: losses, indices and what they are indices of


class _PairLoss(BaseMetricLossFunction):  # type: ignore[misc]  # the library has no types
    """What both losses share: which pairs are in the plan, and the loss of each of its rows."""

    def __init__(
        self,
        temperature: float,
        reducer: Callable[..., Tensor],
        distance: Any,
        method: str,
        share: float,
        options: dict[str, Any],
    ) -> None:
        for word in ("eps", "layout", "target", "gather", "reduction", "warm_start"):
            if word in options:
                right = "write temperature=" if word == "eps" else "leave it out"
                raise TypeError(f"{word}={options[word]!r} cannot be chosen here; {right}")
        library = {word: options.pop(word) for word in _LIBRARY if word in options}
        super().__init__(reducer=reducer, distance=distance, **library)
        criterion = named(method, eps=temperature, layout="cross", reduction="none", gather=False, **options)
        if not isinstance(criterion, Alignment):
            raise ValueError(f"method={method!r} has two directions, but anchors are rows alone; try 'ince'")
        if distance is not None and type(distance).__name__ != "CosineSimilarity":
            if not isinstance(criterion.kernel, Cosine):
                raise ValueError(f"method={method!r} has a kernel of its own; leave out distance, or try 'ince'")
            criterion.kernel = _Distance(temperature, distance)
        self.temperature, self.share, self.criterion = temperature, share, criterion

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
        labels = None if labels is None else torch.as_tensor(labels, device=embeddings.device)
        losses = {"loss": self._info(embeddings, references, labels, ref_labels, indices_tuple)}
        if hasattr(self, "add_embedding_regularization_to_loss_dict"):  # the library's base class has it
            self.reset_stats()
            self.add_embedding_regularization_to_loss_dict(losses, embeddings)
        return self.reducer(losses, embeddings, labels)

    def _info(
        self,
        embeddings: Tensor,
        references: Tensor,
        labels: Tensor | None,
        ref_labels: Tensor | None,
        indices_tuple: Sequence[Tensor] | None,
    ) -> Info:
        positive, negative = _pairs(embeddings, references, labels, ref_labels, indices_tuple)
        if not (bool(positive.any()) and bool(negative.any())):
            return {"losses": 0, "indices": None, "reduction_type": "already_reduced"}
        return self._losses(embeddings, references, positive, negative)

    def _losses(self, embeddings: Tensor, references: Tensor, positive: Tensor, negative: Tensor) -> Info:
        raise NotImplementedError

    def _per_row(self, z1: Tensor, references: Tensor, positive: Tensor, allowed: Tensor) -> Tensor:
        """The loss of each row; every row has a positive. Columns that no row may use are left out."""
        criterion, dtype, used = self.criterion, torch.promote_types(z1.dtype, torch.float32), allowed.any(0)
        z2, positive, allowed = references[used], positive[:, used], allowed[:, used]
        target = positive / positive.sum(1, keepdim=True).to(dtype)
        constraints = criterion.constraints
        try:
            if bool((target.sum(0) == 0).any()):
                criterion.constraints = spread(constraints, Full(target), self.share, mask=Mask(allowed))
            losses: Tensor = criterion(z1, z2, target=target, allowed=allowed)
        finally:
            criterion.constraints = constraints
        losses = torch.where(allowed.sum(1) > 1, losses, 0)  # exactly 0 for one column, since zeros are not counted
        return losses.to(z1.dtype)

    def get_default_distance(self) -> Any:
        """For the library's base class."""
        from pytorch_metric_learning.distances import CosineSimilarity

        return CosineSimilarity()

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"


class SupConLoss(_PairLoss):
    """`pytorch_metric_learning.losses.SupConLoss` for any method: rows are anchors, columns references.

    It has the call of the original and, with the default method, its loss and gradients. It works in
    `SelfSupervisedLoss`, `CrossBatchMemory` and `DistributedLossWrapper`, which joins the batches of several processes,
    and takes the tuples of miners. A pair that such a tuple leaves out is not part of the plan.

    Args:
        temperature: ε.
        reducer: a reducer of the library, which gets the loss of each anchor. Default: the mean over the anchors whose
            loss is not 0, as its `AvgNonZeroReducer`.
        distance: a distance of the library; log K is −distance / ε. Default: the cosine similarity.
        method: the name of a method, e.g. "gca-uot".
        share: the part of the mass that is spread over all columns if some have no positive; see `Queue`.
        options: options of the method other than `eps`, `layout` and `target`, and of the library's base class, e.g.
            `embedding_regularizer`.

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
        distance: Any = None,
        method: str = "supcon",
        share: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(
            temperature, _Mean(zeros=False) if reducer is None else reducer, distance, method, share, options
        )

    def _losses(self, embeddings: Tensor, references: Tensor, positive: Tensor, negative: Tensor) -> Info:
        anchors = positive.any(1)
        allowed = (positive | negative)[anchors]
        own = self._per_row(embeddings[anchors], references, positive[anchors], allowed)
        losses = embeddings.new_zeros(len(embeddings)).index_put((anchors.nonzero()[:, 0],), own)
        indices = torch.arange(len(losses), device=losses.device)
        return {"losses": losses, "indices": indices, "reduction_type": "element"}


class NTXentLoss(_PairLoss):
    """`pytorch_metric_learning.losses.NTXentLoss` for any method: a row is a positive pair, columns are references.

    Each row has its anchor's negatives and its own positive alone, so that other positives of the anchor do not count
    against it. It has the call of the original and, with the default method, its loss and gradients.

    Args:
        temperature: ε.
        reducer: a reducer of the library, which gets the loss of each positive pair. Default: their mean.
        distance, method, share, options: as for `SupConLoss`.

    Example:
        >>> import torch
        >>> from gcalign.interop.metric_learning import NTXentLoss
        >>> embeddings = torch.randn(6, 3, requires_grad=True)
        >>> NTXentLoss(method="gca-ince")(embeddings, torch.tensor([0, 0, 1, 1, 2, 3])).shape
        torch.Size([])
    """

    def __init__(
        self,
        temperature: float = 0.07,
        *,
        reducer: Callable[..., Tensor] | None = None,
        distance: Any = None,
        method: str = "ince",
        share: float = 0.1,
        **options: Any,
    ) -> None:
        reducer = _Mean(zeros=True) if reducer is None else reducer
        super().__init__(temperature, reducer, distance, method, share, options)

    def _losses(self, embeddings: Tensor, references: Tensor, positive: Tensor, negative: Tensor) -> Info:
        i, j = positive.nonzero(as_tuple=True)
        own = torch.zeros(len(i), len(references), dtype=torch.bool, device=i.device)
        own[torch.arange(len(i), device=i.device), j] = True
        losses = self._per_row(embeddings[i], references, own, own | negative[i])
        return {"losses": losses, "indices": (i, j), "reduction_type": "pos_pair"}


class _Distance(Kernel):
    """log K = −d(x, y)/ε for a distance of the library, and s(x, y)/ε for a similarity."""

    def __init__(self, eps: float, distance: Any) -> None:
        super().__init__(eps)
        self.distance = distance

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        values: Tensor = self.distance(x, y)
        return -values if getattr(self.distance, "is_inverted", False) else values

    def extra_repr(self) -> str:
        return f"{type(self.distance).__name__}, {super().extra_repr()}"


class _Mean(nn.Module):
    """The mean of all losses, or of those that are not 0."""

    def __init__(self, *, zeros: bool) -> None:
        super().__init__()
        self.zeros = zeros

    def forward(self, loss_dict: dict[str, Info], embeddings: Tensor, labels: Tensor | None) -> Tensor:
        (info,) = loss_dict.values()
        losses = info["losses"]
        if not isinstance(losses, Tensor):  # there were no pairs
            return embeddings.sum() * 0
        return losses.mean() if self.zeros else losses.sum() / (losses != 0).sum().clamp(min=1)


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
