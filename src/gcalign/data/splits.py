"""Which images: balanced subsets and stratified splits, each the same whenever the seed is."""

from __future__ import annotations

import torch
from torch import Tensor

from gcalign.data.images import Images


def strata(labels: Tensor | None, domains: Tensor | None, n: int) -> Tensor:  # -> [n] int64
    """The group of each image: its class within its domain, as far as they are known."""
    group = torch.zeros(n, dtype=torch.int64)
    for part in (domains, labels):
        if part is not None and n:
            group = group * (int(part.max()) + 1) + part
    return torch.unique(group, return_inverse=True)[1]


def _shuffled_ranks(group: Tensor, generator: torch.Generator) -> Tensor:
    """A random place 0, 1, … for each image among those of its group."""
    order = torch.randperm(len(group), generator=generator)
    order = order[torch.argsort(group[order], stable=True)]
    sizes = torch.bincount(group)
    starts = torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
    ranks = torch.empty_like(group)
    ranks[order] = torch.arange(len(group)) - starts
    return ranks


def subset(group: Tensor, limit: int, seed: int) -> Tensor:  # -> [limit] ascending
    """`limit` images with the groups as even as they can be; a smaller limit gives a part of a larger one."""
    generator = torch.Generator().manual_seed(seed)
    ranks = _shuffled_ranks(group, generator)
    # every group's first, then every group's second, …; an exhausted group leaves its places to the others
    turn = torch.randperm(int(group.max()) + 1, generator=generator)
    order = torch.argsort(ranks * len(turn) + turn[group])
    return order[:limit].sort().values


def holdout(group: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices kept and indices held out, ascending: `share` of the whole, and of each group to within one image."""
    generator = torch.Generator().manual_seed(seed)
    ranks = _shuffled_ranks(group, generator).double()
    sizes = torch.bincount(group)
    # an offset for each group, so that groups of a single image are not all held out or all kept
    offset = torch.rand(len(sizes), generator=generator, dtype=torch.float64)
    order = torch.argsort((ranks + offset[group]) / sizes[group])
    held = round(share * len(group))
    return order[held:].sort().values, order[:held].sort().values


def split_validation(images: Images, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices to train on and to validate on, the latter `share` of the images; stratified where there are labels."""
    if not 0 < share < 1:
        raise ValueError(f"share={share} must lie between 0 and 1; 0.1 keeps a tenth for validation")
    kept, held = holdout(strata(images.labels, images.domains, len(images)), share, seed)
    if not len(kept) or not len(held):
        raise ValueError(
            f"share={share} of {len(images)} images leaves {len(kept)} to train and {len(held)} to validate on; "
            "both need at least one: take more images or another share"
        )
    return kept, held


def labels_of(images: Images, purpose: str) -> Tensor:  # -> [N] int64
    """The labels, or an error that says how to supply them."""
    if images.labels is None:
        raise ValueError(
            f"{images.name} ({images.split}) has no labels, which {purpose} needs; put the images in one folder per "
            "class, or add a label column to the parquet file"
        )
    return images.labels
