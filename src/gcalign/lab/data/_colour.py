"""Changes in HSV, for whole batches and without the round trip: a colour is v − chroma · (a wave of its hue)."""

from __future__ import annotations

import torch
from torch import Tensor


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:  # [B, 3, H, W] in [0, 1], [B] -> [B, 3, H, W]
    """The hue of each image moved by a share of the colour circle; kornia's `adjust_hue` in less than half the time."""
    value, chroma, hue = _hue(images)
    red_green_blue = images.new_tensor([5.0, 3.0, 1.0]).view(1, 3, 1, 1)
    k = (hue + 6 * turns.view(-1, 1, 1, 1) + red_green_blue).remainder(6)
    return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)


def add_value(images: Tensor, amount: float) -> Tensor:  # [B, C, H, W] in [0, 1]
    """The value channel (the largest of a pixel's colours) raised, hue and saturation kept."""
    value = images.amax(dim=1, keepdim=True)
    raised = (value + amount).clamp(0, 1)
    return torch.where(value > 0, images * (raised / value.clamp_min(1e-8)), raised)


def scale_saturation(images: Tensor, factor: float, offset: float) -> Tensor:  # [B, 3, H, W] in [0, 1]
    """Saturation times `factor` plus `offset`, hue and value kept; greys count as red, as everywhere in HSV."""
    value = images.amax(dim=1, keepdim=True)
    depth = value - images  # how far each colour lies below the value: chroma where it is lowest
    chroma = depth.amax(dim=1, keepdim=True)
    red = images.new_tensor([0.0, 1.0, 1.0]).view(1, 3, 1, 1)
    wave = torch.where(chroma > 0, depth / chroma.clamp_min(1e-8), red)
    saturation = (chroma / value.clamp_min(1e-8) * factor + offset).clamp(0, 1)
    return value - value * saturation * wave


def _hue(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, chroma and hue [B, 1, H, W], the hue in sixths of the circle."""
    red, green, blue = images.split(1, dim=1)
    value = images.amax(dim=1, keepdim=True)
    chroma = value - images.amin(dim=1, keepdim=True)
    sector = torch.where(
        value == red, green - blue, torch.where(value == green, blue - red + 2 * chroma, red - green + 4 * chroma)
    )
    return value, chroma, sector / chroma.clamp_min(1e-8)
