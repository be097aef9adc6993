"""The one place where a stored image is opened: the formats that are read, and how large an image may be."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab import files
from gcalign.lab.limits import limit

if TYPE_CHECKING:
    from PIL.Image import Image

SMALLEST = 4  # pixels on each side; what is smaller is a spacer or a mistake
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # not all of Pillow's: EPS would start Ghostscript


def opened(raw: Any) -> Image:
    """An image from bytes, a path or an array [H, W, C]: its header was read, and its pixels are few enough to be."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(raw, Image.Image):
        return raw
    if isinstance(raw, Path):
        raw = files.read(raw, "IMAGE_BYTES")
    if not isinstance(raw, bytes):
        return _sized(Image.fromarray(raw))
    if not raw:
        raise ValueError("no bytes")
    most = limit("IMAGE_PIXELS")
    Image.MAX_IMAGE_PIXELS = max(most, Image.MAX_IMAGE_PIXELS or 0)  # where the user raised it above Pillow's own
    try:
        return _sized(Image.open(io.BytesIO(raw), formats=FORMATS))
    except Image.DecompressionBombError:
        raise _too_large(most) from None
    except UnidentifiedImageError:
        raise ValueError("not an image of a known format") from None  # Pillow names a memory address instead


def _sized(image: Image) -> Image:
    width, height = image.size
    if min(width, height) < SMALLEST:
        raise ValueError(f"{width}×{height} pixels; at least {SMALLEST} on each side are needed")
    if width * height > (most := limit("IMAGE_PIXELS")):
        raise _too_large(most)
    return image


def _too_large(most: int) -> ValueError:
    return ValueError(f"more than {most:,} pixels, which are allowed; raise the limit with GCALIGN_IMAGE_PIXELS=…")
