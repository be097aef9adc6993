"""Views of a batch of images: the paper's augmentations C0 to C3 and DomainBed's, for the whole batch at once, on its
device.

Every parameter comes from a generator made of the seed, on the CPU: the same seed gives the same parameters on any
device, and the global random state is neither read nor changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor
from torch.nn.functional import grid_sample

Step = Callable[[Tensor, Generator], Tensor]  # images [B, C, H, W] in [0, 1] -> the same


def normalise(batch: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:  # -> [B, C, H, W] float32
    """Bytes to [0, 1], then (x − mean) / std per channel."""
    return _standardise(_unit(batch), mean, std)


@dataclass(frozen=True)
class Views:
    """`views(batch, seed)` is one view of each image: the steps in turn, each image with its own parameters."""

    name: str
    steps: tuple[Step, ...]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, batch: Tensor, seed: int) -> Tensor:  # [B, C, H, W] uint8 -> float32, normalised
        generator = torch.Generator().manual_seed(seed)
        images = _unit(batch)
        for step in self.steps:
            images = step(images, generator)
        return _standardise(images, self.mean, self.std)

    def __repr__(self) -> str:
        return f"Views({self.name!r}, shape={self.shape})"


def names() -> tuple[str, ...]:
    """What `make_views` knows."""
    return tuple(POLICIES)


def make_views(name: str, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]) -> Views:
    """The policy of this name, for images of this shape [C, H, W] and these statistics of the data set."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(f"shape={tuple(shape)} must be [C, H, W] with C = 1 or 3; convert the images to RGB")
    if not len(mean) == len(std) == shape[0]:
        raise ValueError(f"mean={tuple(mean)} and std={tuple(std)} must have a value for each of {shape[0]} channels")
    return Views(name, POLICIES[name], (shape[0], shape[1], shape[2]), tuple(mean), tuple(std))


def resized_crop_and_flip(images: Tensor, generator: Generator, least: float = 0.2) -> Tensor:
    """A box of a share `least` to 1 of the area, resized to the image; mirrored half the time; in one resampling."""
    top, left, height, width = boxes(images, generator, scale=(least, 1.0), ratio=(3 / 4, 4 / 3))
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return _resample(images, top, left, height, width, mirrored)


def colour_jitter(
    images: Tensor,
    generator: Generator,
    most: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1),  # SimCLR's 0.8, 0.8, 0.8, 0.2 at strength 0.5
    share: float = 0.8,
) -> Tensor:
    """Brightness, contrast, saturation and hue, each by at most so much, for a share of the images, in a random order.

    The order is drawn once per batch (as kornia does; Pillow pipelines draw it per image), the amounts per image.
    """
    n, pixels = len(images), images.shape[2] * images.shape[3]
    applied = (torch.rand(n, generator=generator) < share).float()
    # the images that stay as they are take the neutral amounts: cheaper than cutting the batch in two
    amounts = applied * (2 * torch.rand(4, n, generator=generator) - 1)
    amounts = amounts.mul_(torch.tensor(most).unsqueeze(1)).to(images.device)
    order = torch.randperm(4, generator=generator).tolist()
    # a CPU does this 3 times as fast in pieces that its cache holds
    size = max(1, 2**17 // pixels) if images.device.type == "cpu" else max(1, n)
    pieces = zip(images.split(size), amounts.split(size, dim=1), strict=True)
    return torch.cat([_jitter(piece, amount, order) for piece, amount in pieces])


def _jitter(images: Tensor, amounts: Tensor, order: Sequence[int]) -> Tensor:  # [B, C, H, W], [4, B] -> [B, C, H, W]
    from kornia import enhance  # a quarter of a second that `--help` need not pay

    for k in order:
        if k == 0:
            images = enhance.adjust_brightness_accumulative(images, 1 + amounts[0])
        elif k == 1:
            images = enhance.adjust_contrast_with_mean_subtraction(images, 1 + amounts[1])
        elif k == 2:
            images = enhance.adjust_saturation_with_gray_subtraction(images, 1 + amounts[2])
        elif images.shape[1] == 3:
            images = shift_hue(images, amounts[3])
    return images


def greyscale(images: Tensor, generator: Generator, share: float = 0.2) -> Tensor:
    """A share of the images lose their colour."""
    from kornia.color import rgb_to_grayscale

    chosen = (torch.rand(len(images), generator=generator) < share).to(images.device)
    if images.shape[1] == 1:
        return images
    return torch.where(chosen.view(-1, 1, 1, 1), rgb_to_grayscale(images), images)


def large_erase(images: Tensor, generator: Generator) -> Tensor:
    """A box of 10 to 33 % of the area made black, in every image."""
    top, left, height, width = boxes(images, generator, scale=(0.10, 0.33), ratio=(0.3, 3.3))
    y = torch.arange(images.shape[2]).view(1, -1, 1)
    x = torch.arange(images.shape[3]).view(1, 1, -1)
    top, left, height, width = (side.view(-1, 1, 1) for side in (top, left, height, width))
    erased = (y >= top) & (y < top + height) & (x >= left) & (x < left + width)
    return images.masked_fill(erased.unsqueeze(1).to(images.device), 0.0)


def strong_crop(images: Tensor, generator: Generator) -> Tensor:
    """A box of 160/224 of each side, anywhere, resized to the image: level 3 of 224, 192, 160, 128, 96."""
    n, full = len(images), images.shape[2:]
    height, width = (max(1, round(side * 160 / 224)) for side in full)
    top = torch.randint(full[0] - height + 1, (n,), generator=generator)
    left = torch.randint(full[1] - width + 1, (n,), generator=generator)
    sizes = torch.full((n,), height), torch.full((n,), width)
    return _resample(images, top, left, *sizes, mirrored=torch.zeros(n, dtype=torch.bool))


def brighten(images: Tensor, generator: Generator) -> Tensor:
    """The value channel + 0.3: level 5 of the paper's levels .05 to .3."""
    return add_value(images, 0.3)


# --- changes in HSV without the round trip: a colour is v − chroma · (a wave of its hue) ---------------------------


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


def _hue(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, chroma and hue [B, 1, H, W], the hue in sixths of the circle."""
    red, green, blue = images.split(1, dim=1)
    value = images.amax(dim=1, keepdim=True)
    chroma = value - images.amin(dim=1, keepdim=True)
    sector = torch.where(
        value == red, green - blue, torch.where(value == green, blue - red + 2 * chroma, red - green + 4 * chroma)
    )
    return value, chroma, sector / chroma.clamp_min(1e-8)


# --- policies ---------------------------------------------------------------------------------------------------

_STANDARD: tuple[Step, ...] = (resized_crop_and_flip, colour_jitter, greyscale)
# app:corruptset says of C1 that it comes after C0 and leaves it open for C2 and C3. They come after C0 here, too:
# alone, C3 would make both views the same image, and C2 (half the area) would be milder than the crop of C0.
POLICIES: dict[str, tuple[Step, ...]] = {
    "plain": (),
    "C0": _STANDARD,
    "C1": (*_STANDARD, large_erase),
    "C2": (*_STANDARD, strong_crop),
    "C3": (*_STANDARD, brighten),
    # the augmentation of DomainBed, by whose protocol PACS is evaluated; milder, so that a domain can still be told
    "domainbed": (
        partial(resized_crop_and_flip, least=0.7),
        partial(colour_jitter, most=(0.3, 0.3, 0.3, 0.3), share=1.0),
        partial(greyscale, share=0.1),
    ),
}


def _unit(batch: Tensor) -> Tensor:
    return batch.float() / 255


def _standardise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    per_channel = images.new_tensor([mean, std]).view(2, 1, -1, 1, 1)
    return (images - per_channel[0]) / per_channel[1]


def boxes(
    images: Tensor, generator: Generator, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Top, left, height and width [B] of a box of a random share of the area and a random, log-uniform shape.

    Of ten tries the first that fits is taken, and else the last, cut to the image: drawn as torchvision draws them.
    """
    n, (full_height, full_width) = len(images), images.shape[2:]
    draws = torch.rand(2, n, 10, generator=generator)
    area = full_height * full_width * (scale[0] + (scale[1] - scale[0]) * draws[0])
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    shape = (log_low + (log_high - log_low) * draws[1]).exp()
    heights, widths = (area / shape).sqrt().round(), (area * shape).sqrt().round()
    fits = (heights <= full_height) & (widths <= full_width)
    fits[:, -1] = True
    first = fits.float().argmax(dim=1, keepdim=True)
    height = heights.gather(1, first).squeeze(1).clamp(1, full_height).long()
    width = widths.gather(1, first).squeeze(1).clamp(1, full_width).long()
    place = torch.rand(2, n, generator=generator, dtype=torch.float64)  # float32 could round up to the excluded end
    top, left = (place[0] * (full_height - height + 1)).long(), (place[1] * (full_width - width + 1)).long()
    return top, left, height, width


def _resample(images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, mirrored: Tensor) -> Tensor:
    """Bilinear resize of each box to the full image, as if it had been cut out first."""
    rows = _positions(top, height, images.shape[2])
    columns = _positions(left, width, images.shape[3])
    columns = torch.where(mirrored.view(-1, 1), columns.flip(1), columns)
    shape = (len(images), images.shape[2], images.shape[3])
    grid = torch.stack((columns.unsqueeze(1).expand(shape), rows.unsqueeze(2).expand(shape)), dim=-1)
    grid = grid.to(images.device)
    return grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _positions(start: Tensor, length: Tensor, full: int) -> Tensor:  # [B], [B] -> [B, full] in [−1, 1]
    """Where each output pixel lies along one side, never outside the first and last pixel of the box."""
    start, length = start.view(-1, 1).float(), length.view(-1, 1).float()
    pixel = start + (torch.arange(full) + 0.5) * length / full - 0.5
    pixel = torch.minimum(torch.maximum(pixel, start), start + length - 1)
    return (2 * pixel + 1) / full - 1
