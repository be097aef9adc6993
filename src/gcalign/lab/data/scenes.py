"""The built-in data set: handwritten digits rendered as small colour scenes in four styles, the domains.

A digit is the sample; its views are renderings, each with its own place, size, turn, slant, colours, polarity, pattern
and noise. Cropping and jittering one fixed rendering would teach a network the background instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate, pad

from gcalign.lab.data.images import Images

SIDE = 24
TEST_DIGITS = 500  # of the 1797 that scikit-learn ships
PIECE = 256  # renderings at a time: about what a CPU's cache holds


@dataclass(frozen=True)
class Style:
    """One domain, as the ranges that its renderings are drawn from. Lightness is that of the darker polarity."""

    ground_from: float  # lightness of the background
    ground_to: float
    inverted: float  # share of the renderings with dark ink on a light ground
    contrast: float  # least lightness between ground and ink; up to 0.25 more
    chroma: float  # strength of the colours
    relief: float  # lightness of the background's pattern: away from the ink, or towards it if negative
    cycles_from: float  # waves of the pattern across the image
    cycles_to: float
    edge: float  # of the pattern: 0.5 is a smooth gradient, 10 is flat patches
    hatched: float  # how much the pattern crosses the ink, too
    stroke: float  # level of the digit at which ink begins: higher is thinner
    sharpness: float  # of the stroke's edge: low is blurred
    outline: float  # width of the contour, in levels
    noise: float  # standard deviation


STYLES = {
    "photo": Style(0.05, 0.40, 0.5, 0.35, 0.25, 0.15, 0.3, 1.2, 0.5, 0.0, 0.45, 2.5, 0.0, 0.05),
    "art": Style(0.05, 0.40, 0.5, 0.35, 0.90, 0.15, 1.0, 3.0, 2.0, 0.4, 0.40, 5.0, 0.0, 0.03),
    "cartoon": Style(0.05, 0.40, 0.5, 0.35, 0.70, 0.12, 0.4, 1.0, 10.0, 0.0, 0.42, 12.0, 0.25, 0.0),
    "sketch": Style(0.00, 0.12, 1.0, 0.55, 0.06, -0.25, 4.0, 7.0, 1.0, 0.4, 0.55, 6.0, 0.0, 0.03),
}


class Scenes(Images):
    """Digits as scenes [3, 24, 24] in the styles photo, art, cartoon and sketch.

    A sample past the end of the pool is a digit again, rendered otherwise. `get` renders a sample in the style that is
    its domain; `draw` in a style of the seed's choice, so that views have only the digit in common. A rendering depends
    on the seeds and the index alone, not on the rest of the batch.
    """

    name = "scenes"
    shape = (3, SIDE, SIDE)
    labels: Tensor
    domains: Tensor
    classes = tuple(str(digit) for digit in range(10))
    domain_names = tuple(STYLES)
    mean = (0.58, 0.58, 0.58)  # of the training split
    std = (0.32, 0.32, 0.32)

    def __init__(self, split: str = "train", size: int | None = None, seed: int = 0) -> None:
        self.split = split
        digits, labels = _digits()
        # the split is the same for every seed: a training set of one never meets a test set of another
        pool = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
        pool = pool[:TEST_DIGITS] if split == "test" else pool[TEST_DIGITS:]
        self.size = size or len(pool)
        self.seed = seed
        order = pool[torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))]
        self.digits = order.repeat(math.ceil(self.size / len(order)))[: self.size]  # [N], which digit a sample is
        self.labels = labels[self.digits]
        self._index = torch.arange(self.size)
        self._keys = _mix(_mix(self._index + 2**40 * (split == "test")) + seed)
        self.domains = _Stream(_mix(self._keys)).choice(len(STYLES))

    def __len__(self) -> int:
        return self.size

    def get(self, indices: Sequence[int] | Tensor) -> Tensor:
        chosen = self._index[torch.as_tensor(indices, dtype=torch.long)]
        return self._render(chosen, _Stream(self._keys[chosen]), self.domains[chosen])

    def draw(self, indices: Sequence[int] | Tensor, seed: int) -> Tensor:
        chosen = self._index[torch.as_tensor(indices, dtype=torch.long)]
        stream = _Stream(_mix(self._keys[chosen] ^ _mix(torch.tensor(seed + 1))))
        return self._render(chosen, stream, stream.choice(len(STYLES)))

    def _render(self, chosen: Tensor, stream: _Stream, style: Tensor) -> Tensor:
        digits, _ = _digits()
        images = torch.empty(len(chosen), *self.shape, dtype=torch.uint8)
        for start in range(0, len(chosen), PIECE):
            piece = slice(start, start + PIECE)
            part = _Stream(stream.keys[piece], stream.drawn)
            images[piece] = _render(digits[self.digits[chosen[piece]]], part, style[piece])
        return images


@functools.cache
def _digits() -> tuple[Tensor, Tensor]:  # [1797, 1, 20, 20] in [0, 1], [1797]
    """The digits of scikit-learn, 8×8, enlarged once to 16×16 with a margin for what is drawn around them."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
    large = interpolate(small, scale_factor=2, mode="bicubic", align_corners=False).clamp(0, 1)
    return pad(large, (2, 2, 2, 2)), torch.from_numpy(bunch.target).long()


def _render(digits: Tensor, stream: _Stream, style: Tensor) -> Tensor:  # [B, 1, 20, 20], [B] -> [B, 3, 24, 24] uint8
    """Ground, its pattern, the contour, the ink and the noise, laid over each other."""
    columns = torch.tensor([astuple(each) for each in STYLES.values()])[style].unbind(1)
    s = Style(*(column.view(-1, 1, 1, 1) for column in columns))  # type: ignore[arg-type]  # a style per rendering
    level = _place(digits, stream)
    pattern = _waves(stream, s.cycles_from, s.cycles_to, s.edge)

    inverted = (stream.uniform() < s.inverted).float()
    ground = stream.uniform(s.ground_from, s.ground_to)
    ink = ground + stream.uniform(s.contrast, s.contrast + 0.25)
    strength = stream.uniform(0.2, 1.0)  # of the pattern

    def colour(lightness: Tensor) -> Tensor:  # [B, 1, 1, 1] -> [B, 3, 1, 1]
        hue = stream.uniform(width=3)
        flipped = inverted + (1 - 2 * inverted) * lightness
        return flipped + s.chroma * (hue - hue.mean(dim=1, keepdim=True)) * 0.6

    first, second = colour(ground), colour(ground - s.relief)
    third = colour(ink)
    image = first + pattern * strength * (second - first)
    contour = _ramp(level, s.stroke - s.outline, s.sharpness) * (s.outline > 0)
    image = image + contour * ((inverted + (1 - 2 * inverted) * 0.02) - image)
    coverage = _ramp(level, s.stroke, s.sharpness) * (1 - s.hatched * pattern * strength)
    image = image + coverage * (third - image)
    image = image + s.noise * stream.normal((3, SIDE, SIDE))
    return (image.clamp(0, 1) * 255).round().to(torch.uint8)


def _ramp(level: Tensor, start: Tensor | float, sharpness: Tensor | float) -> Tensor:
    """0 below `start`, 1 above, with a slope between."""
    return ((level - start) * sharpness + 0.5).clamp(0, 1)


def _place(digits: Tensor, stream: _Stream) -> Tensor:  # [B, 1, 20, 20] -> [B, 1, 24, 24]
    """Each digit turned, slanted, stretched and moved, in one resampling."""
    turn = stream.uniform(-0.35, 0.35)
    slant = stream.uniform(-0.25, 0.25)
    width, height = stream.uniform(0.7, 1.0), stream.uniform(0.7, 1.0)
    x = _AXIS.view(1, 1, 1, -1) - stream.uniform(-0.3, 0.3)
    y = _AXIS.view(1, 1, -1, 1) - stream.uniform(-0.2, 0.2)
    cos, sin = turn.cos(), turn.sin()
    across, down = cos * x + sin * y, cos * y - sin * x
    grid = torch.cat(((across + slant * down) / width, down / height), dim=1)
    return grid_sample(digits, grid.permute(0, 2, 3, 1), mode="bilinear", padding_mode="zeros", align_corners=False)


def _waves(stream: _Stream, low: Tensor | float, high: Tensor | float, edge: Tensor | float) -> Tensor:
    """A bent wave across the image, from a smooth gradient to flat patches, in [0, 1]; [B, 1, 24, 24]."""
    direction = stream.uniform(0.0, math.pi)
    rate = math.pi * stream.uniform(low, high)
    x, y = _AXIS.view(1, 1, 1, -1), _AXIS.view(1, 1, -1, 1)
    along = direction.cos() * x + direction.sin() * y
    across = direction.cos() * y - direction.sin() * x
    bend = stream.uniform(0.0, 1.0) * across * across
    phase = stream.uniform(0.0, 2 * math.pi)
    return ((rate * (along + bend * 0.5) + phase).sin() * edge + 0.5).clamp(0, 1)


_AXIS = (torch.arange(SIDE) + 0.5) * (2 / SIDE) - 1  # of the pixels' centres


class _Stream:
    """Random numbers for each key on its own: the k-th number of a key is a hash of the two."""

    def __init__(self, keys: Tensor, drawn: int = 0) -> None:
        self.keys, self.drawn = keys, drawn

    def bits(self, width: int = 1) -> Tensor:  # -> [B, width], each in [0, 2^31)
        counters = torch.arange(self.drawn, self.drawn + width)
        self.drawn += width
        return _mix(self.keys.unsqueeze(1) + counters * -0x61C8864680B583EB) & 0x7FFFFFFF

    def uniform(self, low: Tensor | float = 0.0, high: Tensor | float = 1.0, width: int = 1) -> Tensor:
        """[B, width, 1, 1] in [low, high]."""
        share = self.bits(width).double().mul_(2.0**-31).float().view(-1, width, 1, 1)
        return low + (high - low) * share

    def choice(self, n: int) -> Tensor:  # -> [B] in 0 … n − 1
        return self.bits().squeeze(1) % n

    def normal(self, shape: tuple[int, ...]) -> Tensor:  # -> [B, *shape]
        """A stretch of a fixed roll of normal numbers, from a random place: as good as fresh for noise, and cheap."""
        start = self.bits() % (len(_ROLL) - math.prod(shape))
        return _ROLL[start + torch.arange(math.prod(shape))].view(-1, *shape)


_ROLL = torch.randn(2**16, generator=torch.Generator().manual_seed(0))


def _mix(x: Tensor) -> Tensor:
    """A bijection of 64-bit numbers that leaves no trace of their order (the finaliser of splitmix64)."""
    for shift, factor in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return x ^ ((x >> 31) & ((1 << 33) - 1))
