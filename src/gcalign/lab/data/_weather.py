"""Snow, frost, fog and spatter on images [B, 3, H, W] in [0, 1]; `level` is the published row of parameters."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from gcalign.lab.data._filters import box, convolve, distance, equalised, gaussian, motion, plasma, zoomed


def snow(images: Tensor, level: tuple[float, ...], generator: Generator) -> Tensor:
    """Flakes, blurred as they fall, over a whitened image."""
    mean, std, zoom, threshold, radius, sigma, kept = level
    n, _, height, width = images.shape
    flakes = mean + std * torch.randn(n, 1, height, width, generator=generator)
    flakes = zoomed(flakes, zoom)
    flakes = torch.where(flakes < threshold, 0.0, flakes).clamp(0, 1)
    degrees = -135 + 90 * torch.rand(n, generator=generator)
    flakes = motion(flakes, int(radius), sigma, degrees)
    grey = (images * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    whitened = kept * images + (1 - kept) * torch.maximum(images, grey * 1.5 + 0.5)
    return whitened + flakes + flakes.flip(2, 3)


def frost(images: Tensor, level: tuple[float, ...], generator: Generator) -> Tensor:
    """The image under ice. The published textures are photographs that we do not ship: these ridges stand in."""
    kept, ice = level
    n, _, height, width = images.shape
    needles = 1 - (2 * plasma(n, height, width, 1.4, generator) - 1).abs()
    sheet = plasma(n, height, width, 2.0, generator)
    texture = 0.25 + 0.45 * sheet + 0.5 * needles**4
    blue = torch.tensor([0.85, 0.95, 1.0]).view(1, 3, 1, 1)
    return kept * images + ice * (texture * blue).clamp(0, 1)


def fog(images: Tensor, level: tuple[float, ...], generator: Generator) -> Tensor:
    """A fractal haze; the brightest value stays the brightest."""
    amount, decay = level
    n, _, height, width = images.shape
    brightest = images.amax((1, 2, 3), keepdim=True)
    hazy = images + amount * plasma(n, height, width, decay, generator)
    return hazy * brightest / (brightest + amount)


def spatter(images: Tensor, level: tuple[float, ...], generator: Generator) -> Tensor:
    """Drops of water (severities 1 to 3) or of mud (4 and 5)."""
    mean, std, sigma, threshold, strength, mud = level
    n, _, height, width = images.shape
    liquid = gaussian(mean + std * torch.randn(n, 1, height, width, generator=generator), sigma)
    liquid = torch.where(liquid < threshold, 0.0, liquid)
    if mud:
        cover = gaussian((liquid > threshold).float(), strength)
        cover = torch.where(cover < 0.8, 0.0, cover)
        brown = torch.tensor([63.0, 42.0, 20.0]).view(1, 3, 1, 1) / 255
        return images * (1 - cover) + brown * cover
    relief = liquid * _refraction(liquid > 0)
    relief = strength * relief / relief.amax((1, 2, 3), keepdim=True).clamp_min(1e-8)
    turquoise = torch.tensor([175.0, 238.0, 238.0]).view(1, 3, 1, 1) / 255
    return images + relief * turquoise


def _refraction(wet: Tensor) -> Tensor:  # [B, 1, H, W] bool -> [B, 1, H, W]
    """Light on the drops, from the distance to their rim.

    The rim is the drops' outermost pixels: the published code finds it with Canny's detector, which on such a mask
    marks the same contour up to a pixel.
    """
    dry = pad(~wet, (1, 1, 1, 1), value=False)
    beside = dry[:, :, :-2, 1:-1] | dry[:, :, 2:, 1:-1] | dry[:, :, 1:-1, :-2] | dry[:, :, 1:-1, 2:]
    depth = distance((wet & beside).squeeze(1)).clamp(max=20).unsqueeze(1)
    levels = equalised(box(depth).floor().squeeze(1), 21).unsqueeze(1)
    slope = torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])
    return box(convolve(levels, slope).clamp(0, 255))
