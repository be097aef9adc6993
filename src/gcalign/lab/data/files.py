"""Images in plain files: folders, IDX files, and the arrays of CIFAR-10-C."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gcalign.lab.data.catalogue import STORED, Found, Request, Source, places
from gcalign.lab.data.encoded import Arrays, Files, Records, some
from gcalign.lab.limits import limit, within

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist


def _images_under(folder: Path) -> Iterator[Path]:
    for top, _, files in os.walk(folder):
        for name in files:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield Path(top) / name


def _subfolders(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")}


def _divided(root: Path) -> dict[str, Path]:
    """The folders of the splits, or the root itself where it is not divided."""
    inside = _subfolders(root)
    splits = {word: inside[word] for word in STORED if word in inside}
    # a lone `train` among other folders is a class of vehicles
    return splits if len(splits) > 1 or (splits and splits.keys() == inside.keys()) else {"all": root}


def _folder_records(folder: Path, classes: tuple[str, ...]) -> Records:
    """The images of one split: loose and unlabelled, or in the folders of these classes."""
    loose = sorted(
        p for p in folder.iterdir() if p.is_file() and p.name.lower().endswith(SUFFIXES) and p.name[0] != "."
    )
    paths, labels = [], []
    for k, name in enumerate(classes):
        inside = sorted(_images_under(folder / name))
        paths += inside
        labels += [k] * len(inside)
    if loose and paths:
        raise ValueError(
            f"{folder} holds {len(loose)} image(s), {some(p.name for p in loose)}, beside its class folders; either "
            "all images are in folders or none: move them"
        )
    if not loose and not paths:
        raise ValueError(f"{folder} holds no images; files ending in {' '.join(SUFFIXES)} are read: put some there")
    return Records(Files(paths), torch.tensor(labels), classes=classes) if paths else Records(Files(loose))


def folder(source: Source, request: Request) -> Found:
    """Image files, in class folders or loose (then unlabelled), in folders of splits or undivided."""
    if request.root is None or not request.root.is_dir():
        raise ValueError(f"root={request.root} is no folder; data=folder needs the one that holds the images")
    splits = _divided(request.root)
    # the classes of all splits together, so that one absent from a split does not shift the numbers of the others
    folders = [item for top in splits.values() for item in _subfolders(top).items()]
    classes = tuple(sorted({name for name, path in folders if next(_images_under(path), None)}))
    return {word: partial(_folder_records, top, classes) for word, top in splits.items()}


def _wnid_records(folder: Path, classes: tuple[str, ...]) -> Records:
    if absent := [name for name in classes if not (folder / name).is_dir()]:
        raise ValueError(
            f"{folder} lacks {len(absent)} of the {len(classes)} class folders: {some(absent)}; ImageNet-100 needs "
            "each (ImageNet's validation images come loose: sort them into class folders first)"
        )
    return _folder_records(folder, classes)


def wnids(source: Source, request: Request) -> Found:
    """A local ImageNet, `<split>/<wnid>/*.JPEG`, of which the classes of the data set are taken."""
    for place in places(source, request):
        splits = {word: place / word for word in STORED if (place / word).is_dir()}
        if any(next(top.glob("n*/"), None) for top in splits.values()):
            return {word: partial(_wnid_records, top, source.classes) for word, top in splits.items()}
    return {}


def _read_idx(path: Path) -> Any:
    """An array of bytes in the IDX format: two zeros, the type 8, the rank, the sizes, the data."""
    most = limit("ARRAY_BYTES")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged ({error}); download it again") from error
    within("ARRAY_BYTES", len(data), f"the number of bytes in {path}, as far as they were read,")
    rank = data[3] if data[:3] == b"\0\0\x08" and len(data) > 3 else 0
    shape = np.frombuffer(data, ">u4", rank, 4) if rank and len(data) >= 4 + 4 * rank else np.zeros(0, ">u4")
    if not rank or len(data) != 4 + 4 * rank + int(shape.astype(np.int64).prod()):
        raise ValueError(f"{path} is no whole IDX file of bytes ({len(data)} bytes); download it again")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape.astype(int))


def _idx_records(images: Path, labels: Path, classes: tuple[str, ...]) -> Records:
    pixels, codes = _read_idx(images), _read_idx(labels)
    if len(pixels) != len(codes):
        raise ValueError(
            f"{images} holds {len(pixels)} images and {labels.name} {len(codes)} labels; download both again"
        )
    return Records(Arrays(pixels, str(images)), torch.from_numpy(codes.astype(np.int64)), classes=classes)


def idx(source: Source, request: Request) -> Found:
    """The IDX files of MNIST's form, gzipped or not, in the root or where Debian's package puts them."""
    for place in [*places(source, request), DEBIAN]:
        found: dict[str, Any] = {}
        for word, stem in (("train", "train"), ("test", "t10k")):
            images, labels = (
                next((p for end in ("", ".gz") if (p := place / f"{stem}-{part}-ubyte{end}").is_file()), None)
                for part in ("images-idx3", "labels-idx1")
            )
            if images and labels:
                found[word] = partial(_idx_records, images, labels, source.classes)
        if found:
            return found
    return {}


def _load_npy(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a readable .npy file ({error}); download it again") from error


def _npy_records(images: Path, labels: Path, severity: int, classes: tuple[str, ...]) -> Records:
    pixels, codes = _load_npy(images), _load_npy(labels)
    n = len(pixels) // 5 if pixels.ndim == 4 else 0
    fits = n and pixels.shape[3] == 3 and pixels.dtype == np.uint8 and n * 5 == len(pixels)
    if not fits or codes.shape != (5 * n,) or codes.dtype.kind not in "iu":
        raise ValueError(
            f"{images} {pixels.shape} {pixels.dtype} with labels {codes.shape} {codes.dtype} must be five severities "
            "of [N, 32, 32, 3] uint8 and as many labels, as published; download both again"
        )
    part = slice((severity - 1) * n, severity * n)
    return Records(
        Arrays(pixels[part], str(images), first=part.start),
        torch.from_numpy(codes[part].astype(np.int64)),
        classes=classes,
    )


def npy(source: Source, request: Request) -> Found:
    """The published CIFAR-10-C: `<corruption>.npy`, five severities one after the other, and `labels.npy`."""
    for place in places(source, request, "CIFAR-10-C"):
        images, labels = place / f"{request.corruption}.npy", place / "labels.npy"
        if images.is_file() and labels.is_file():
            return {"test": partial(_npy_records, images, labels, request.severity, source.classes)}
    return {}
