"""Labels fit for a protocol: one for each sample, coded by the classes of the training set."""

from __future__ import annotations

import torch
from torch import Tensor

from gcalign.lab.data.encoded import some


def checked_labels(labels: Tensor | None, n: int, what: str) -> Tensor:  # [N] int64 on the CPU
    """The labels if there is one, not negative, for each of `n` samples."""
    if labels is None:
        raise ValueError(
            f"the {what} samples have no labels, and a protocol needs them; "
            "give labelled data, or only embed it (gcalign embed)"
        )
    if labels.shape != (n,) or labels.is_floating_point():
        raise ValueError(
            f"{what} labels of shape {tuple(labels.shape)} and dtype {labels.dtype} must be ({n},) whole numbers: "
            "one for each sample"
        )
    labels = labels.cpu().long()
    if n and int(labels.min()) < 0:
        raise ValueError(
            f"{int((labels < 0).sum())} {what} labels are negative, which means unknown; leave those samples out"
        )
    return labels


def encoded(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # classes [K], codes [N], codes [M]
    """The classes of `train` in order, and both sets of labels as positions among them."""
    classes = torch.unique(train)
    if len(classes) < 2:
        raise ValueError(f"the train labels hold {len(classes)} class; a classifier needs at least 2")
    foreign = torch.unique(test[~torch.isin(test, classes)]).tolist()
    if foreign:
        raise ValueError(
            f"test classes {some(foreign, 5)} are absent from the train labels, so they can never be predicted; "
            "add training samples of them, or leave them out of the test set"
        )
    return classes, torch.searchsorted(classes, train), torch.searchsorted(classes, test)
