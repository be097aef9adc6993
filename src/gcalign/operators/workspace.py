"""Large CPU matrices, kept for the next batch: fresh ones cost a page fault every 4 KiB, a third of a small loss."""

from __future__ import annotations

import torch
from torch import Tensor

_spare: dict[torch.dtype, Tensor] = {}


def take(n: int, m: int, like: Tensor) -> Tensor:
    """A matrix [n, m] with anything in it."""
    if like.device.type != "cpu" or torch.is_inference_mode_enabled():  # other devices have caching allocators
        return like.new_empty(n, m)
    spare = _spare.pop(like.dtype, None)
    if spare is None or not n * m <= spare.numel() <= 2 * n * m:
        return like.new_empty(n, m)
    return spare[: n * m].view(n, m)


def give(matrix: Tensor) -> None:
    """Let the next `take` have it; at most one is kept for each dtype."""
    if matrix.device.type == "cpu" and not matrix.is_inference():
        base = matrix if matrix._base is None else matrix._base
        _spare[matrix.dtype] = base.view(-1)


def clear() -> None:
    """Free what is kept."""
    _spare.clear()
