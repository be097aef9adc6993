"""What corruptions are made of: blurs, zooms and fractals of whole batches [B, C, H, W]."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn.functional import conv2d, interpolate, pad


def gaussian(images: Tensor, sigma: float, *, truncate: float = 4.0, mode: str = "replicate") -> Tensor:
    """A Gaussian cut at `truncate` standard deviations, rows then columns."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return images
    offsets = torch.arange(-radius, radius + 1, dtype=images.dtype)
    weights = (-0.5 * (offsets / sigma) ** 2).exp()
    weights /= weights.sum()
    return convolve(convolve(images, weights.view(-1, 1), mode), weights.view(1, -1), mode)


def convolve(images: Tensor, kernel: Tensor, mode: str = "reflect") -> Tensor:
    """Correlation of every channel with one odd-sided kernel; the border is mirrored or repeated."""
    height, width = kernel.shape
    flat = images.reshape(-1, 1, *images.shape[2:])
    flat = pad(flat, (width // 2, width // 2, height // 2, height // 2), mode=mode)
    return conv2d(flat, kernel.view(1, 1, height, width)).view_as(images)


def box(images: Tensor) -> Tensor:
    """The mean of the 3×3 neighbourhood."""
    return convolve(images, torch.full((3, 3), 1 / 9, dtype=images.dtype))


def defocus(images: Tensor, radius: float, alias_blur: float) -> Tensor:
    """A disk of this radius, its edge softened by a 3×3 Gaussian."""
    reach = math.ceil(radius) + 1  # one more for the softened edge
    x = torch.arange(-reach, reach + 1)
    disk = (x.view(-1, 1) ** 2 + x.view(1, -1) ** 2 <= radius**2).to(images.dtype)
    disk = pad(disk / disk.sum(), (1, 1, 1, 1))[None, None]
    edge = math.exp(-0.5 / alias_blur**2)
    soft = torch.tensor([edge, 1.0, edge], dtype=images.dtype) / (1 + 2 * edge)
    kernel = convolve(disk, soft.view(-1, 1) * soft.view(1, -1), "constant")[0, 0]
    return convolve(images, kernel)


def motion(images: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:  # degrees [B]
    """ImageMagick's motion blur: half a Gaussian along whole pixels in one direction, the border repeated."""
    steps = torch.arange(2 * radius + 1)
    weights = (-0.5 * (steps / sigma) ** 2).exp()
    weights /= weights.sum()
    angle = torch.deg2rad(degrees).view(-1, 1)
    right = torch.ceil(steps * angle.cos() - 0.5).long()  # [B, steps]
    down = torch.ceil(steps * angle.sin() - 0.5).long()
    blurred = torch.zeros_like(images)
    for k, weight in enumerate(weights.tolist()):
        blurred += weight * moved(images, down[:, k].view(-1, 1, 1), right[:, k].view(-1, 1, 1))
    return blurred


def moved(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """The pixel that lies `down` and `right` ([B, H, W], or what broadcasts to it), the border repeated."""
    n, _, height, width = images.shape
    rows = (torch.arange(height).view(1, -1, 1) + down).clamp(0, height - 1)
    columns = (torch.arange(width).view(1, 1, -1) + right).clamp(0, width - 1)
    batch = torch.arange(n).view(-1, 1, 1)
    return images.permute(0, 2, 3, 1)[batch, rows, columns].permute(0, 3, 1, 2)


def zoomed(images: Tensor, factor: float) -> Tensor:
    """The middle of the image, enlarged to its size."""
    height, width = images.shape[2:]
    cut = [math.ceil(side / factor) for side in (height, width)]
    top, left = (height - cut[0]) // 2, (width - cut[1]) // 2
    middle = images[:, :, top : top + cut[0], left : left + cut[1]]
    size = [round(side * factor) for side in cut]
    large = interpolate(middle, size=size, mode="bilinear", align_corners=True)
    top, left = (large.shape[2] - height) // 2, (large.shape[3] - width) // 2
    return large[:, :, top : top + height, left : left + width]


def plasma(n: int, height: int, width: int, decay: float, generator: Generator) -> Tensor:  # -> [n, 1, H, W] in [0, 1]
    """The diamond-square fractal on a torus, each octave weaker by `decay`²."""
    side = 2 ** math.ceil(math.log2(max(height, width, 2)))
    field = torch.zeros(n, side, side)
    step, wibble = side, 100.0

    def around(total: Tensor) -> Tensor:
        return total / 4 + wibble**2 * (2 * torch.rand(total.shape, generator=generator) - 1)

    while step >= 2:
        half = step // 2
        corners = field[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        field[:, half::step, half::step] = around(pairs + pairs.roll(-1, 2))
        middles, corners = field[:, half::step, half::step], field[:, ::step, ::step]
        field[:, ::step, half::step] = around(middles + middles.roll(1, 1) + corners + corners.roll(-1, 2))
        field[:, half::step, ::step] = around(middles + middles.roll(1, 2) + corners + corners.roll(-1, 1))
        step, wibble = half, wibble / decay
    low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
    return ((field - low) / (high - low))[:, None, :height, :width]


def distance(marked: Tensor) -> Tensor:  # [B, H, W] bool -> [B, H, W]
    """How far each pixel is from the nearest marked one; the image's own size where none is marked."""
    _, height, width = marked.shape
    far = float((height + width) ** 2)
    y, x = torch.arange(height).float(), torch.arange(width).float()
    squares = torch.where(marked, 0.0, far)
    vertical = ((y.view(-1, 1) - y.view(1, -1)) ** 2).view(1, height, height, 1)
    squares = (squares.unsqueeze(1) + vertical).amin(dim=2)  # over the rows of the column
    horizontal = ((x.view(-1, 1) - x.view(1, -1)) ** 2).view(1, 1, width, width)
    return (squares.unsqueeze(2) + horizontal).amin(dim=3).clamp(max=far).sqrt()


def equalised(levels: Tensor, bins: int) -> Tensor:  # [B, H, W] whole numbers < bins -> [B, H, W] in 0 … 255
    """Histogram equalisation of each image."""
    flat = levels.long().flatten(1)
    counts = torch.zeros(len(flat), bins, dtype=torch.long).scatter_add_(1, flat, torch.ones_like(flat))
    below = counts.cumsum(1)
    first = below.gather(1, (counts > 0).long().argmax(1, keepdim=True))
    table = ((below - first).clamp_min(0) * 255.0 / (flat.shape[1] - first).clamp_min(1)).round()
    return table.gather(1, flat).view_as(levels)
