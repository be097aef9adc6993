"""Stored images to uint8 pixels of one size."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from gcalign.lab.data.encoded import Encoded, Index, Raw, some
from gcalign.lab.pictures import opened

CHUNK = 128  # images for each task: the pool's own work is as long as decoding a few small images


def short_side(raw: Raw) -> int:
    """Of the image as it is stored."""
    return min(opened(raw).size)


def pixels_of(raw: Raw | Image.Image, size: int) -> npt.NDArray[np.uint8]:  # -> [size, size, 3]
    """RGB, the shorter side brought to `size`, the square in the middle."""
    image = opened(raw)
    if "exif" in image.info:  # cameras store a photo as the sensor saw it, and how to turn it
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # Pillow would clip 16-bit grey at 255, which is white
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"32-bit pixels (mode {image.mode}) have no known range; store 8 or 16 bits")
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode != "RGB":
        image = image.convert("RGB")
    width, height = image.size
    if (width, height) != (size, size):
        short = min(width, height)
        left, top = (width - short) / 2, (height - short) / 2
        # cropping and resizing in one step; bilinear with antialiasing, as the field's evaluation crops do
        image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + short, top + short))
    return np.frombuffer(image.tobytes(), np.uint8).reshape(size, size, 3)


def decode(encoded: Encoded, rows: Index, size: int) -> tuple[Tensor, dict[int, str]]:
    """Pixels [N, 3, size, size] of these rows, and by position what was wrong with those that could not be read."""
    pixels = np.zeros((len(rows), 3, size, size), np.uint8)
    wrong: dict[int, str] = {}

    def work(chunk: Sequence[tuple[int, Raw]]) -> None:
        for k, raw in chunk:
            try:
                pixels[k] = pixels_of(raw, size).transpose(2, 0, 1)
            except Exception as error:  # noqa: PERF203 - Pillow's readers raise whatever damaged bytes lead them to
                wrong[k] = f"{encoded.where(int(rows[k]))}: {str(error) or type(error).__name__}"

    # torch's own count: it is one in a data loader's worker, so that workers do not multiply threads
    threads = torch.get_num_threads()
    stream = enumerate(encoded.stream(rows))
    step = max(1, min(CHUNK, len(rows) // threads))
    with ThreadPoolExecutor(threads) as pool:
        run = pool.map if threads > 1 else map
        # a few chunks for each thread at a time, so that the stored bytes are never all in memory
        while chunks := [chunk for _ in range(4 * threads) if (chunk := list(islice(stream, step)))]:
            list(run(work, chunks))
    return torch.from_numpy(pixels), dict(sorted(wrong.items()))


def report(wrong: dict[int, str], on_error: str, consequence: str) -> None:
    """A warning that lists unreadable images, or an error if they are to be fatal."""
    if not wrong:
        return
    found = f"{len(wrong)} unreadable image(s): {some(wrong.values())}"
    if on_error == "raise":
        raise ValueError(f"{found}; every image must be readable: repair or remove them, or pass on_error='skip'")
    warnings.warn(f"{found}; {consequence}", stacklevel=3)


def statistics(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of [N, C, H, W], in [0, 1]."""
    if not pixels.numel():
        raise ValueError("statistics of no images; at least one is needed")
    flat = pixels.movedim(1, 0).flatten(1)
    # images of one colour have no spread; a grey level's width keeps normalisation finite
    mean = [channel.double().mean().item() / 255 for channel in flat]
    std = [max(channel.double().std(correction=0).item(), 1.0) / 255 for channel in flat]
    return tuple(mean), tuple(std)
