"""Stored images, read by row, and their decoding to uint8 pixels of one size."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from gcalign.lab.pictures import opened
from gcalign.lab.words import some

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")  # of image files
CHUNK = 128  # images for each task: the pool's own work is as long as decoding a few small images
Raw = Path | bytes | npt.NDArray[np.uint8]  # a file, its bytes, or pixels [H, W] or [H, W, 3]
Index = npt.NDArray[np.int64]


class Encoded(ABC):
    """Stored images, read by row."""

    scattered = True  # whether any row costs the same to read

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def where(self, row: int) -> str:
        """The name of an image in a report: its file, or its row in one."""

    @abstractmethod
    def stream(self, rows: Index) -> Iterator[Raw]:
        """These images, in this order; ascending rows are read fastest."""

    def mapped(self) -> Encoded:
        """The same for reading in any order without holding them all in memory."""
        return self


class Files(Encoded):
    """One file for each image. Names are one array: a million cost tens of megabytes, also in a loader's workers."""

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self.folder, self.names = str(folder), np.array([os.fsencode(name) for name in names], dtype=bytes)

    def __len__(self) -> int:
        return len(self.names)

    def where(self, row: int) -> str:
        return os.path.join(self.folder, os.fsdecode(bytes(self.names[row])))

    def stream(self, rows: Index) -> Iterator[Raw]:
        # opened where it is decoded: by many threads, and its faults are reported there
        return (Path(self.where(row)) for row in rows.tolist())


class Arrays(Encoded):
    """Pixels in one array [N, H, W] or [N, H, W, 3], which may be mapped from disk."""

    def __init__(self, pixels: Any, origin: str, first: int = 0) -> None:
        self.pixels, self.origin, self.first = pixels, origin, first

    def __len__(self) -> int:
        return len(self.pixels)

    def where(self, row: int) -> str:
        return f"{self.origin} image {self.first + row}"

    def stream(self, rows: Index) -> Iterator[Raw]:
        return (np.asarray(self.pixels[row]) for row in rows)


@dataclass(frozen=True)
class Records:
    """Stored images with what is known of each."""

    encoded: Encoded
    labels: Tensor | None = None  # [N] int64
    domains: Tensor | None = None  # [N] int64
    classes: tuple[str, ...] = ()
    domain_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # for the user: what became labels, what was passed over


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
    flat = pixels.movedim(1, 0).flatten(1)
    # images of one colour have no spread; a grey level's width keeps normalisation finite
    mean = [channel.double().mean().item() / 255 for channel in flat]
    std = [max(channel.double().std(correction=0).item(), 1.0) / 255 for channel in flat]
    return tuple(mean), tuple(std)
