"""Numbers and pictures small enough to travel inside a page."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from gcalign.lab.pictures import opened

THUMBNAIL = 48  # pixels of a side, at most
WIDEST = 1200  # pixels of a figure


@dataclass(frozen=True)
class Sprite:
    """Thumbnails in one picture, row by row."""

    url: str
    n: int
    columns: int
    rows: int


def pixels(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:  # [n, C, H, W] normalised -> uint8
    """What a network was shown, as an image."""
    m, s = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    return (255 * (x * s + m)).round().clamp(0, 255).byte()


def sprite(images: Tensor, most: int = THUMBNAIL) -> Sprite:  # [n, C, H, W] uint8
    """A JPEG of them all, each at most so many pixels wide."""
    from PIL import Image

    n, channels, side = images.shape[:3]
    if side > most:
        images = interpolate(images.float(), (most, most), mode="area").round().byte()
        side = most
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    tiles = torch.zeros(rows * columns, 3, side, side, dtype=torch.uint8)
    tiles[:n] = images.expand(n, 3, side, side) if channels == 1 else images
    whole = tiles.view(rows, columns, 3, side, side).permute(0, 3, 1, 4, 2).reshape(rows * side, columns * side, 3)
    buffer = io.BytesIO()
    Image.fromarray(whole.numpy()).save(buffer, "JPEG", quality=82)
    return Sprite(_url("image/jpeg", buffer.getvalue()), n, columns, rows)


def figure(picture: bytes) -> str:
    """A drawing as a data URL, no wider than a page needs."""
    image, buffer = opened(picture), io.BytesIO()
    try:
        image = image.convert("RGB")
    except Exception as error:  # Pillow's readers raise whatever damaged bytes lead them to
        raise ValueError(f"an image that cannot be decoded ({error})") from error
    image.thumbnail((WIDEST, 4 * WIDEST))
    image.save(buffer, "WEBP", quality=82, method=4)
    return _url("image/webp", buffer.getvalue())


def halves(x: Tensor) -> str:
    """float16, little-endian, in base64."""
    return base64.b64encode(x.contiguous().numpy().astype("<f2").tobytes()).decode()


def whole(x: Tensor) -> str:
    """uint16, little-endian, in base64."""
    return base64.b64encode(x.contiguous().numpy().astype("<u2").tobytes()).decode()


def _url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
