"""The one place where an image is opened: a list of formats, and a limit that is checked before memory is asked for."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from gcalign.lab import files
from gcalign.lab.limits import limit

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # not all of Pillow's: EPS would start Ghostscript
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def open_image(stored: bytes | Path) -> Image.Image:
    """An image whose header was read, of a known format and not too large; its pixels are not decoded yet."""
    content = files.read(stored, "IMAGE_BYTES") if isinstance(stored, Path) else stored
    if not content:
        raise ValueError("no bytes")
    most = limit("IMAGE_PIXELS")
    Image.MAX_IMAGE_PIXELS = max(most, Image.MAX_IMAGE_PIXELS or 0)  # where the user raised it above Pillow's own
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.DecompressionBombError:
        raise _too_large(most) from None
    except UnidentifiedImageError:
        raise ValueError("not an image of a known format") from None  # Pillow names a memory address instead
    if image.width * image.height > most:
        raise _too_large(most)
    return image


def _too_large(most: int) -> ValueError:
    return ValueError(f"more than {most:,} pixels, which are allowed; raise the limit with GCALIGN_IMAGE_PIXELS=…")
