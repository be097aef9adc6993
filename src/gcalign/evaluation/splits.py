"""Which labels a protocol may see: checked, split by class, drawn a few at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from gcalign.errors import count


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
            f"test classes {_few(foreign)} are absent from the train labels, so they can never be predicted; "
            "add training samples of them, or leave them out of the test set"
        )
    return classes, torch.searchsorted(classes, train), torch.searchsorted(classes, test)


def stratified(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:  # indices of the rest, of the part
    """A random part with `fraction` of each class, at least one sample and never all; both sides in order."""
    if not 0 < fraction < 1:
        raise ValueError(f"fraction={fraction} must lie between 0 and 1; 0.1 is usual for validation")
    classes, sizes = torch.unique(labels, return_counts=True)
    lone = classes[sizes < 2].tolist()
    if lone:
        raise ValueError(
            f"classes {_few(lone)} have a single sample, and a split needs 2 of each class; "
            "give more labels, or fix the hyper-parameter instead of having it chosen"
        )
    generator = torch.Generator().manual_seed(seed)
    part = []
    for value, size in zip(classes.tolist(), sizes.tolist(), strict=True):
        members = (labels == value).nonzero().squeeze(1)
        share = min(max(1, round(size * fraction)), size - 1)
        part.append(members[torch.randperm(size, generator=generator)[:share]])
    inside = torch.zeros(len(labels), dtype=torch.bool)
    inside[torch.cat(part)] = True
    return (~inside).nonzero().squeeze(1), inside.nonzero().squeeze(1)


def drawn(labels: Tensor, *, shots: int | None, total: int | None, seed: int) -> Tensor:  # indices
    """`shots` random samples of each class, or `total` spread over the classes as evenly as it goes."""
    if (shots is None) == (total is None):
        raise ValueError(f"shots={shots} and labels={total}: give one, labels of each class or labels in all")
    classes, sizes = torch.unique(labels, return_counts=True)
    generator = torch.Generator().manual_seed(seed)
    wanted = torch.full_like(sizes, count("shots", shots, "labels of each class") if shots is not None else 0)
    if total is not None:
        count("labels", total, f"there are {len(classes)} classes, and each needs one", least=len(classes))
        wanted += total // len(classes)
        wanted[torch.randperm(len(classes), generator=generator)[: total % len(classes)]] += 1
    short = classes[sizes < wanted].tolist()
    if short:
        raise ValueError(
            f"classes {_few(short)} have fewer than {int(wanted.max())} samples (the smallest class has "
            f"{int(sizes.min())}); ask for fewer labels"
        )
    chosen = []
    for value, size, want in zip(classes.tolist(), sizes.tolist(), wanted.tolist(), strict=True):
        members = (labels == value).nonzero().squeeze(1)
        chosen.append(members[torch.randperm(size, generator=generator)[:want]])
    return torch.cat(chosen).sort().values


def _few(values: list[int]) -> str:
    return ", ".join(map(str, values[:5])) + (", …" if len(values) > 5 else "")
