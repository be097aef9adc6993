"""Which images: balanced subsets, stratified splits and draws of labels, each the same whenever the seed is."""

from __future__ import annotations

import torch
from torch import Tensor

from gcalign.errors import count
from gcalign.lab.data.images import Images
from gcalign.lab.words import some


def strata(labels: Tensor | None, domains: Tensor | None, n: int) -> Tensor:  # -> [n] int64
    """The group of each image: its class within its domain, as far as they are known."""
    group = torch.zeros(n, dtype=torch.int64)
    for part in (domains, labels):
        if part is not None and n:
            group = group * (int(part.max()) + 1) + part
    return torch.unique(group, return_inverse=True)[1]


def subset(group: Tensor, limit: int, seed: int) -> Tensor:  # -> [limit] ascending
    """`limit` images with the groups as even as they can be; a smaller limit gives a part of a larger one."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(group), generator=generator)
    order = order[torch.argsort(group[order], stable=True)]
    sizes = torch.bincount(group)
    ranks = torch.empty_like(group)  # a random place 0, 1, … for each image among those of its group
    ranks[order] = torch.arange(len(group)) - torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    # every group's first, then every group's second, …; an exhausted group leaves its places to the others
    turn = torch.randperm(len(sizes), generator=generator)
    return torch.argsort(ranks * len(turn) + turn[group])[:limit].sort().values


def long_tailed(labels: Tensor, tail: float, limit: int | None, seed: int) -> Tensor:  # -> indices, ascending
    """Classes of geometrically falling size, the first `tail` times the last; `limit` images, or as many as it goes."""
    classes, sizes = torch.unique(labels, return_counts=True)
    share = tail ** -torch.linspace(0, 1, len(classes), dtype=torch.float64)
    most = float((sizes / share).min())  # images of the first class, if no class is to run out
    first = most if limit is None else limit / float(share.sum())
    if first > most:
        raise ValueError(
            f"limit={limit} must be at most {int(most * float(share.sum()))} with tail={tail:g}: a class has no more "
            "images than that; lower one of them"
        )
    wanted = (first * share).long().clamp(min=1)
    return _members(labels, classes, wanted, torch.Generator().manual_seed(seed)).sort().values


def mislabelled(labels: Tensor, share: float, seed: int) -> Tensor:  # -> [N]
    """A share of the labels replaced by those of other classes, each as likely."""
    generator = torch.Generator().manual_seed(seed)
    classes, codes = torch.unique(labels, return_inverse=True)
    wrong = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    if len(wrong) and len(classes) < 2:
        raise ValueError(f"a share of {share} of the labels cannot be wrong where all are {classes.tolist()}; use 0")
    step = torch.randint(1, max(2, len(classes)), (len(wrong),), generator=generator)
    codes[wrong] = (codes[wrong] + step) % len(classes)
    return classes[codes]


def stratified(group: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:  # indices kept, indices held out
    """Holds out a random `share` of each group, ascending: of two or more images at least one and never all."""
    if not 0 < share < 1:
        raise ValueError(f"share={share} must lie between 0 and 1; 0.1 is usual for validation")
    groups, sizes = torch.unique(group, return_counts=True)
    wanted = (sizes.double() * share).round().long().clamp(min=1).minimum(sizes - 1)
    if not wanted.sum():
        raise ValueError(
            f"{len(group)} image(s) in {len(groups)} group(s) leave none to hold out; a group of one stays whole: take "
            "more images of each"
        )
    held = torch.zeros(len(group), dtype=torch.bool)
    held[_members(group, groups, wanted, torch.Generator().manual_seed(seed))] = True
    return (~held).nonzero().squeeze(1), held.nonzero().squeeze(1)


def drawn(labels: Tensor, *, shots: int | None, total: int | None, seed: int) -> Tensor:  # indices, ascending
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
            f"classes {some(short)} have fewer than {int(wanted.max())} samples (the smallest class has "
            f"{int(sizes.min())}); ask for fewer labels"
        )
    return _members(labels, classes, wanted, generator).sort().values


def _members(group: Tensor, groups: Tensor, wanted: Tensor, generator: torch.Generator) -> Tensor:
    """So many random members of each group."""
    chosen = []
    for value, want in zip(groups.tolist(), wanted.tolist(), strict=True):
        members = (group == value).nonzero().squeeze(1)
        chosen.append(members[torch.randperm(len(members), generator=generator)[:want]])
    return torch.cat(chosen)


def labels_of(images: Images, purpose: str) -> Tensor:  # -> [N] int64
    """The labels, or an error that says how to supply them."""
    if images.labels is None:
        raise ValueError(
            f"{images.name} ({images.split}) has no labels, which {purpose} needs; put the images in one folder per "
            "class, add a label column to the parquet file, or name labelled data with data="
        )
    return images.labels
