"""Images through a frozen encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.progress import track
from torch import Tensor, nn

from gcalign.errors import count
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
    count("batch_size", batch_size, "256 is the default")
    if len(images) == 0:
        raise ValueError(f"{images.name} ({images.split}) has no images; there is nothing to embed")
    encoder.to(device)
    starts: Sequence[int] = range(0, len(images), batch_size)
    parts = []
    with evaluating(encoder), torch.inference_mode():
        for start in track(starts, description=f"features of {images.name} ({images.split})", disable=not progress):
            indices = torch.arange(start, min(start + batch_size, len(images)))
            parts.append(encoder(pixels(images, indices, device)).float().cpu())
    features = torch.cat(parts)  # outside inference mode: an ordinary tensor, fit for training a probe on
    if finite and not features.isfinite().all():
        bad = int((~features.isfinite().all(1)).sum())
        raise ValueError(
            f"{bad} of {len(features)} feature vectors of {images.name} ({images.split}) are not finite; "
            "the encoder diverged: train it again with a smaller learning rate"
        )
    return features


def pixels(images: Images, indices: Tensor, device: str | torch.device = "cpu") -> Tensor:  # [B, C, H, W] float32
    """These images, un-augmented, normalised per channel as in training."""
    return normalise(images.get(indices).to(device), images.mean, images.std)
