"""Pairs whose mismatches are known: embeddings of several kinds, and ways to mismatch a share of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gcalign.auditing.embeddings import SAME


@dataclass(frozen=True)
class Clean:
    """Paired items as they belong together. `embed` sees the partners, because embeddings may be fitted to pairs."""

    name: str
    second: Tensor  # [n, D] features of the second side, from which near-duplicates are known
    group: Tensor  # [n] class, or base of a family of near-duplicates
    embed: Callable[[Tensor], tuple[Tensor, Tensor, Tensor | None]]  # partners -> a, b, folds

    def __len__(self) -> int:
        return len(self.second)


def fixed(name: str, a: Tensor, b: Tensor, group: Tensor) -> Clean:
    """Embeddings that were made without the pairs."""
    return Clean(name, normalize(b, dim=1), group, lambda partners: (a, b[partners], None))


# --- ways to mismatch -------------------------------------------------------------------------------------------


def spoil(clean: Clean, kind: str, share: float, seed: int) -> tuple[Tensor, Tensor]:  # [n], [n] bool
    """Partners of which a share is wrong, and which are: exchanged partners that are copies are not."""
    generator = torch.Generator().manual_seed(seed)
    n = len(clean)
    partners = WAYS[kind](clean, round(share * n), generator)
    same = (clean.second * clean.second[partners]).sum(1) > SAME
    return partners, (partners != torch.arange(n)) & ~same


def _at_random(clean: Clean, wrong: int, generator: torch.Generator) -> Tensor:
    partners = torch.arange(len(clean))
    where = torch.randperm(len(clean), generator=generator)[:wrong]
    partners[where] = where.roll(1)
    return partners


def _within_groups(clean: Clean, wrong: int, generator: torch.Generator) -> Tensor:
    """Among items of one group, in as many groups as it takes."""
    partners, share, done = torch.arange(len(clean)), wrong / len(clean), 0
    kinds = clean.group.unique()
    for kind in kinds[torch.randperm(len(kinds), generator=generator)]:
        members = (clean.group == kind).nonzero().flatten()
        size = min(max(2, round(share * len(members))), len(members), wrong - done)
        if size >= 2:
            where = members[torch.randperm(len(members), generator=generator)[:size]]
            partners[where] = where.roll(1)
            done += size
    return partners


def _near_duplicates(clean: Clean, wrong: int, generator: torch.Generator) -> Tensor:
    """Two items whose second sides are near exchange their partners."""
    s = clean.second @ clean.second.T
    s[s > SAME] = -2
    near = s.fill_diagonal_(-2).topk(min(30, len(s) - 1), dim=1).indices.tolist()
    partners, free, left = torch.arange(len(clean)), [True] * len(clean), wrong
    for i in torch.randperm(len(clean), generator=generator).tolist():
        other = next((j for j in near[i] if free[j]), None)
        if left >= 2 and free[i] and other is not None:
            partners[i], partners[other] = other, i
            free[i] = free[other] = False
            left -= 2
    return partners


WAYS: dict[str, Callable[[Clean, int, torch.Generator], Tensor]] = {
    "random": _at_random,
    "same group": _within_groups,
    "near-duplicate": _near_duplicates,
}


# --- embeddings -------------------------------------------------------------------------------------------------


def gaussians(n: int, seed: int, dim: int = 64, clusters: int = 20) -> Clean:
    """Clusters, noise on both sides, and a common direction that some items have much of: these are hubs."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    group = torch.randint(clusters, (n,), generator=generator)
    x = draw(clusters, dim)[group] + 0.6 * draw(n, dim)
    hub = draw(dim)
    a, b = (x + 0.9 * draw(n, dim) + 0.3 * draw(n, 1).square() * hub for _ in range(2))
    return fixed("Gaussian clusters with hubs", a, b, group)
