"""Embeddings in two dimensions, by PCA."""

from __future__ import annotations

import torch
from torch import Tensor


def maps(h: Tensor) -> dict[str, Tensor]:  # [n, D] -> name: [n, 2] in [0, 1]
    """Each map by its name, which says how much of the variance the two directions of PCA hold."""
    points, share = principal(h)
    return {f"PCA ({share:.0%} of the variance)": fitted(points)}


def principal(h: Tensor) -> tuple[Tensor, float]:  # [n, D] -> [n, 2], share of the variance
    """Coordinates along the two directions of most variance; the entry of largest size of each direction is > 0."""
    centred = (h - h.mean(0)).double()
    u, s, vt = torch.linalg.svd(centred, full_matrices=False)
    signs = vt.gather(1, vt.abs().argmax(1, keepdim=True)).sign().flatten()
    points = (u * s * signs)[:, :2]
    if points.shape[1] < 2:  # one dimension, or one image
        points = torch.cat([points, points.new_zeros(len(h), 2 - points.shape[1])], 1)
    total = float(s.square().sum())
    return points, float(s[:2].square().sum()) / total if total else 1.0


def fitted(points: Tensor) -> Tensor:  # [n, 2]
    """Into the unit square, both axes by one factor."""
    low, high = points.min(0).values, points.max(0).values
    size = float((high - low).max()) or 1.0
    return 0.5 + (points - (low + high) / 2) / size
