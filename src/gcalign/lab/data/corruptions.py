"""The 19 corruptions of CIFAR-10-C at five severities, with the parameters Hendrycks & Dietterich published for CIFAR.

`corrupt(images, name, severity, seed)` makes them anew: same distributions, other random numbers than the published
files. Two differ in kind: frost uses a procedural texture, as the published photographs are not shipped, and spatter
finds the rim of a drop without Canny's detector.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import conv2d, grid_sample, interpolate, pad

from gcalign.lab.data.views import add_value

Level = Any  # a number or a tuple of them: one severity's parameters
Corruption = Callable[[Tensor, Level, Generator], Tensor]  # images [B, 3, H, W] in [0, 1] -> the same, not yet clipped


def names() -> tuple[str, ...]:
    """The corruptions, in the order of the published benchmark and its extra four at the end."""
    return tuple(_TABLE)


def corrupt(images: Tensor, name: str, severity: int, seed: int) -> Tensor:  # [B, 3, H, W] uint8 -> the same
    """The images under one corruption; the same for the same batch and seed."""
    corruption, levels = _TABLE[name]
    generator = torch.Generator().manual_seed(seed)
    corrupted = corruption(images.float() / 255, levels[severity - 1], generator)
    # the published files were cut to bytes, not rounded; the margin keeps a byte that nothing has changed
    return (corrupted.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)


def gaussian_noise(images: Tensor, level: Level, generator: Generator) -> Tensor:
    return images + level * torch.randn(images.shape, generator=generator)


def shot_noise(images: Tensor, level: Level, generator: Generator) -> Tensor:
    return torch.poisson(images * level, generator=generator) / level


def impulse_noise(images: Tensor, level: Level, generator: Generator) -> Tensor:
    hit = torch.rand(images.shape, generator=generator) < level
    salt = (torch.rand(images.shape, generator=generator) < 0.5).float()
    return torch.where(hit, salt, images)


def speckle_noise(images: Tensor, level: Level, generator: Generator) -> Tensor:
    return images + images * level * torch.randn(images.shape, generator=generator)


def glass_blur(images: Tensor, level: Level, generator: Generator) -> Tensor:
    """Blur, neighbours taken at random, blur.

    The published loop means to swap two pixels, but copies the second over the first, as NumPy's views do. It runs
    from the far corner and, with the only reach used for CIFAR, looks one back: so it never reads what it has written,
    and is one gather.
    """
    sigma, passes = level
    n, _, height, width = images.shape
    images = _bytes(gaussian(images, sigma))
    inside = torch.zeros(height, width, dtype=torch.long)
    inside[2:, 2:] = 1  # the published loop stops there
    for _ in range(passes):
        back = -torch.randint(2, (2, n, height, width), generator=generator) * inside
        images = moved(images, back[0], back[1])
    return gaussian(images, sigma)


def motion_blur(images: Tensor, level: Level, generator: Generator) -> Tensor:
    radius, sigma = level
    return motion(images, radius, sigma, -45 + 90 * torch.rand(len(images), generator=generator))


def zoom_blur(images: Tensor, level: Level, generator: Generator) -> Tensor:
    """The mean of the image and of `level` enlargements, each a hundredth larger than the last."""
    total = images.clone()
    for k in range(level):
        total += zoomed(images, 1 + 0.01 * k)
    return total / (level + 1)


def contrast(images: Tensor, level: Level, generator: Generator) -> Tensor:
    mean = images.mean((2, 3), keepdim=True)
    return (images - mean) * level + mean


def elastic_transform(images: Tensor, level: Level, generator: Generator) -> Tensor:
    """A random affine map, then a smooth random displacement; lengths are shares of the image's side."""
    n, _, height, width = images.shape
    side = min(height, width)
    strength, smoothness, shift = (side * share for share in level)
    third = side // 3
    x, y = width // 2, height // 2
    corners = torch.tensor([[x + third, y + third], [x + third, y - third], [x - third, y - third]]).float()
    targets = corners + shift * (2 * torch.rand(n, 3, 2, generator=generator) - 1)
    ones = torch.ones(n, 3, 1)
    # where each output pixel comes from: the map that takes the moved corners back
    back = torch.linalg.solve(torch.cat((targets, ones), 2), corners.expand(n, 3, 2))  # [n, 3, 2]
    rows, columns = torch.meshgrid(torch.arange(height).float(), torch.arange(width).float(), indexing="ij")
    pixels = torch.stack((columns, rows, torch.ones_like(rows)), dim=-1)
    images = _read(images, torch.einsum("hwk,nkc->nhwc", pixels, back), mirror_on_centres=True)
    if strength == 0:
        return images
    noise = 2 * torch.rand(n, 2, height, width, generator=generator) - 1
    # the widest of these Gaussians is wider than a reflection may be: the border is repeated instead
    displacement = gaussian(noise, smoothness, truncate=3.0) * strength
    return _read(images, pixels[..., :2] + displacement.permute(0, 2, 3, 1), mirror_on_centres=False)


def scale_saturation(images: Tensor, factor: float, offset: float) -> Tensor:  # [B, 3, H, W] in [0, 1]
    """Saturation times `factor` plus `offset`, hue and value kept; greys count as red, as everywhere in HSV."""
    value = images.amax(dim=1, keepdim=True)
    depth = value - images  # how far each colour lies below the value: chroma where it is lowest
    chroma = depth.amax(dim=1, keepdim=True)
    red = images.new_tensor([0.0, 1.0, 1.0]).view(1, 3, 1, 1)
    wave = torch.where(chroma > 0, depth / chroma.clamp_min(1e-8), red)
    saturation = (chroma / value.clamp_min(1e-8) * factor + offset).clamp(0, 1)
    return value - value * saturation * wave


def pixelate(images: Tensor, level: Level, generator: Generator) -> Tensor:
    from PIL import Image

    height, width = images.shape[2:]
    small = int(width * level), int(height * level)
    box = Image.Resampling.BOX
    return _each(images, lambda image: image.resize(small, box).resize((width, height), box))


def jpeg_compression(images: Tensor, level: Level, generator: Generator) -> Tensor:
    from PIL import Image

    def recompress(image: Any) -> Any:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=level)
        return Image.open(file)

    return _each(images, recompress)


def _each(images: Tensor, change: Callable[[Any], Any]) -> Tensor:
    """A change of one Pillow image, made to each: for what is defined by Pillow's own code."""
    from PIL import Image

    pixels = (images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    changed = [np.asarray(change(Image.fromarray(image))) for image in pixels]
    stacked = np.stack(changed) if changed else pixels
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).float() / 255


def _bytes(images: Tensor) -> Tensor:
    """Cut to multiples of 1/255, as a detour over bytes does."""
    return (images * 255 + 1e-3).floor() / 255


def _read(images: Tensor, places: Tensor, *, mirror_on_centres: bool) -> Tensor:  # places [B, H, W, (x, y)] in pixels
    """The images at these places, bilinear; mirrored on the outer pixels' centres or on their edges."""
    size = torch.tensor([images.shape[3], images.shape[2]])
    grid = 2 * places / (size - 1) - 1 if mirror_on_centres else (2 * places + 1) / size - 1
    return grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=mirror_on_centres)


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


# --- what corruptions are made of: blurs, zooms and fractals of whole batches [B, C, H, W] -------------------------


def gaussian(images: Tensor, sigma: float, *, truncate: float = 4.0) -> Tensor:
    """A Gaussian cut at `truncate` standard deviations, rows then columns."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return images
    offsets = torch.arange(-radius, radius + 1, dtype=images.dtype)
    weights = (-0.5 * (offsets / sigma) ** 2).exp()
    weights /= weights.sum()
    return convolve(convolve(images, weights.view(-1, 1), "replicate"), weights.view(1, -1), "replicate")


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


_TABLE: dict[str, tuple[Corruption, tuple[Level, ...]]] = {
    "gaussian_noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": (
        lambda x, level, _: defocus(x, *level),
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    ),
    "glass_blur": (glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "motion_blur": (motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (zoom_blur, (7, 12, 16, 21, 26)),  # what np.arange(1, 1.06, 0.01), …, np.arange(1, 1.26, 0.01) count
    "snow": (
        snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": (frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": (fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (lambda x, level, _: add_value(x, level), (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": (
        elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": (jpeg_compression, (80, 65, 58, 50, 40)),
    "speckle_noise": (speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "gaussian_blur": (lambda x, level, _: gaussian(x, level), (0.4, 0.6, 0.7, 0.8, 1)),
    "spatter": (
        spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    ),
    "saturate": (lambda x, level, _: scale_saturation(x, *level), ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
}
