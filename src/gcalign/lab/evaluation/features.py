"""Images through a frozen encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

from gcalign.lab.data.images import Images
from gcalign.lab.data.views import normalise
from gcalign.lab.models.state import evaluating


def extract(
    encoder: nn.Module,
    images: Images,
    *,
    batch_size: int = 256,
    device: str | torch.device = "cpu",
    progress: bool = False,
    finite: bool = True,
) -> Tensor:  # [N, D] float32 on the CPU
    """Features of each image, un-augmented, finite unless `finite` is false; the encoder moves to `device`."""
    encoder.to(device)
    shown = f"features of {images.name} ({images.split})" if progress else ""
    features = in_batches(encoder, len(images), lambda rows: pixels(images, rows, device), batch_size, shown)
    if finite and not features.isfinite().all():
        bad = int((~features.isfinite().all(1)).sum())
        raise ValueError(
            f"{bad} of {len(features)} feature vectors of {images.name} ({images.split}) are not finite; "
            "the encoder diverged: train it again with a smaller learning rate"
        )
    return features


def in_batches(
    network: nn.Module, n: int, take: Callable[[Tensor], Any], batch_size: int = 256, shown: str = ""
) -> Tensor:  # [n, D] float32 on the CPU
    """What a network in eval mode gives of `n` items, some at a time; `take` prepares those of these rows."""
    batches = track(torch.arange(n).split(batch_size), description=shown, disable=not shown)
    with evaluating(network), torch.inference_mode():
        parts = [network(take(rows)).float().cpu() for rows in batches]
    return torch.cat(parts)  # outside inference mode: an ordinary tensor, fit for training a probe on


def pixels(images: Images, indices: Tensor, device: str | torch.device = "cpu") -> Tensor:  # [B, C, H, W] float32
    """These images, un-augmented, normalised per channel as in training."""
    return normalise(images.get(indices).to(device), images.mean, images.std)
