"""Which entries of two integer vectors are equal."""

from __future__ import annotations

import torch
from torch import Tensor


def shared_codes(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:  # [n], [m] -> [n], [m]
    """Numbers below n + m that are equal if and only if the values are. Shapes do not depend on the values."""
    both = torch.cat([left, right])
    codes = torch.searchsorted(both.sort().values, both)
    return codes[: len(left)], codes[len(left) :]


def join(left: Tensor, right: Tensor, distinct: bool) -> tuple[Tensor, Tensor]:
    """Every (i, j) with left_i = right_j, sorted by i; `distinct` leaves out i = j. It never makes an n × m matrix."""
    order = torch.argsort(right, stable=True)
    ranked = right[order]
    first, last = torch.searchsorted(ranked, left), torch.searchsorted(ranked, left, right=True)
    many = last - first
    i = torch.repeat_interleave(torch.arange(len(left), device=left.device), many)
    within = torch.arange(len(i), device=left.device) - (many.cumsum(0) - many)[i]
    j = order[first[i] + within]
    if not distinct:
        return i, j
    other = j != i
    return i[other], j[other]
