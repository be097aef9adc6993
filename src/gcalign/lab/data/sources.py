"""Data sets by name, from local files or the hub, as images of one size."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcalign.errors import count, one_of
from gcalign.lab.data import files, stores
from gcalign.lab.data.catalogue import SOURCES, WORDS, Found, Request, Source, find, names
from gcalign.lab.data.decode import OnDemand, decode, report, short_side, statistics
from gcalign.lab.data.encoded import Arrays, Encoded, Raw, Records, Rows, some
from gcalign.lab.data.images import Images, InMemory
from gcalign.lab.data.splits import labels_of, strata, stratified, subset
from gcalign.lab.limits import limit, within
from gcalign.lab.words import path_of

__all__ = ["SOURCES", "Source", "labels_of", "load", "names", "register"]

MEMORY = 2 * 2**30  # bytes of decoded images that are held; more stay on disk
MEASURED = 2000  # images from which mean and standard deviation are taken where none are published
SAMPLE = 100  # images from whose sizes one is chosen where nobody chose
SEEN = 1024  # among so many, where those far down a file cost reading it
LARGEST = 224  # side of images whose size is nobody's choice


class Corrupted(Encoded):
    """CIFAR-10 test images corrupted here, for want of the published ones."""

    def __init__(self, clean: Encoded, request: Request) -> None:
        self.clean, self.request = clean, request

    def __len__(self) -> int:
        return len(self.clean)

    def read(self, row: int) -> Raw:
        return next(self.stream(np.array([row])))

    def where(self, row: int) -> str:
        return self.clean.where(row)

    def stream(self, rows: Rows) -> Iterator[Raw]:
        from gcalign.lab.data.corruptions import corrupt

        pixels, wrong = decode(self.clean, rows, 32)
        made = corrupt(pixels, self.request.corruption, self.request.severity, self.request.seed)
        for k, image in enumerate(made):
            yield b"" if k in wrong else image.permute(1, 2, 0).numpy()

    def mapped(self) -> Encoded:
        # the noise of an image depends on the batch it is corrupted in, so all of it is drawn once
        return Arrays(list(self.stream(np.arange(len(self)))), f"cifar10c {self.request.corruption}")


def corrupted(source: Source, request: Request) -> Found:
    """CIFAR-10-C made from CIFAR-10, from wherever that is."""
    from gcalign.lab.data import corruptions

    one_of("corruption", request.corruption, corruptions.names())
    found = _first(SOURCES["cifar10"], request)
    return {"test": functools.partial(_corrupted_records, found["test"], request)} if "test" in found else {}


def _corrupted_records(read: Callable[[], Records], request: Request) -> Records:
    clean = read()
    return Records(Corrupted(clean.encoded, request), clean.labels, classes=clean.classes)


Store = Callable[[Source, Request], Found]
STORES: Mapping[str, tuple[Store, ...]] = {  # where to look, in this order
    "imagenet100": (stores.parquet, stores.saved, files.wnids, stores.hub),
    "fashion-mnist": (stores.parquet, stores.saved, files.idx, stores.hub),
    "cifar10c": (files.npy, corrupted),
    "folder": (files.folder,),
    "parquet": (stores.parquet, stores.saved),
}
USUAL: tuple[Store, ...] = (stores.parquet, stores.saved, stores.hub)
Maker = Callable[..., Images]
MAKERS: dict[str, Maker] = {}  # data sets that are made, or that users bring


def register(name: str) -> Callable[[Maker], Maker]:
    """Name a function (split, *, root, size, limit, seed) -> Images as a data set."""

    def add(make: Maker) -> Maker:
        if name in SOURCES:
            raise ValueError(f"data={name!r} is already registered; choose another name")
        SOURCES[name] = Source(name=name)
        MAKERS[name] = make
        return make

    return add


def load(
    name: str,
    split: str,
    *,
    root: str | Path | None = None,
    size: int | None = None,
    limit: int | None = None,
    on_error: str = "skip",
    seed: int = 0,
    split_seed: int = 0,
    columns: Mapping[str, str] | None = None,
    corruption: str | None = None,
    severity: int | None = None,
) -> Images:
    """A split of a data set as uint8 RGB squares of side `size`.

    `root` holds the files; without it, or without the data in it, the hub is asked. `limit` takes a class-balanced
    subset from `seed`. `on_error` says whether an image that cannot be read is skipped with a warning or fatal.
    `split_seed` divides a data set that comes undivided; it is apart from `seed`, so that a training set of one seed
    never meets a test set of another. `columns` names the columns "image", "label", "domain" of a table. `corruption`
    and `severity` choose from CIFAR-10-C.
    """
    source = find(name)
    one_of("split", split, source.splits)
    one_of("on_error", on_error, ("skip", "raise"))
    if size is not None:
        within("IMAGE_SIDE", count("size", size, "it is the side of the square images, 32 for CIFAR-10"), "size")
    if limit is not None:
        within("TABLE_ROWS", count("limit", limit, "leave it out to take every image"), "data.limit")
    for kind in columns or {}:
        one_of("columns", kind, ("image", "label", "domain"))
    place = None if root is None else path_of(root)
    if name in MAKERS:
        return MAKERS[name](split, root=place, size=size, limit=limit, seed=seed)
    if place is not None and not place.exists():
        raise ValueError(f"root={str(root)!r} does not exist; it must be a folder or file of images for data={name}")
    request = Request(place, columns or {}, **_corruption(name, corruption, severity), seed=seed)
    found = _first(source, request)
    if not found:
        raise ValueError(_absent(source, request))
    records, rows = _choose(found, source, split, split_seed)
    if not len(rows):
        raise ValueError(f"{name} ({split}) holds no images; at least one is needed: add some to root={root}")
    if limit is not None:
        if limit > len(rows):
            raise ValueError(f"limit={limit} must be at most {len(rows)}, the images of {name} ({split}); lower it")
        rows = rows[subset(_strata(records, rows), limit, seed).numpy()]
    side = size or source.size or _stored_size(*_trained(found, source, split, split_seed), name)
    mean, std = source.mean, source.std
    if mean is None or std is None:
        mean, std = _measured(found, source, split, split_seed, side)
    if len(rows) * 3 * side**2 > MEMORY:
        return OnDemand(records, rows, name=name, split=split, size=side, on_error=on_error, mean=mean, std=std)
    pixels, wrong = decode(records.encoded, rows, side)
    report(wrong, on_error, "skipped")
    if wrong:
        kept = np.setdiff1d(np.arange(len(rows)), list(wrong))
        if not len(kept):
            raise ValueError(f"{name} ({split}) has no readable image at all; is root={root} the right place?")
        pixels, rows = pixels[torch.from_numpy(kept)], rows[kept]
    return InMemory(
        pixels,
        name=name,
        split=split,
        labels=_taken(records.labels, rows),
        domains=_taken(records.domains, rows),
        classes=records.classes,
        domain_names=records.domain_names,
        mean=mean,
        std=std,
        places=[records.encoded.where(int(row)) for row in rows],
    )


@register("scenes")
def _scenes(split: str, *, root: Path | None, size: int | None, limit: int | None, seed: int) -> Images:
    """The embedded data set, which needs no files."""
    from gcalign.lab.data.scenes import SIDE, Scenes

    if size not in (None, SIDE):
        raise ValueError(f"size={size}: scenes are rendered at {SIDE}; leave size out")
    return Scenes(split, limit, seed)


def _corruption(name: str, corruption: str | None, severity: int | None) -> dict[str, Any]:
    if name != "cifar10c":
        if corruption is not None or severity is not None:
            raise ValueError(f"corruption={corruption!r}, severity={severity}: only data=cifar10c has them")
        return {}
    if corruption is None or severity not in range(1, 6):
        raise ValueError(
            f"corruption={corruption!r}, severity={severity}: cifar10c needs both, say corruption='fog' and a severity "
            "from 1 to 5"
        )
    return {"corruption": corruption, "severity": severity}


def _first(source: Source, request: Request) -> Found:
    for store in STORES.get(source.name, USUAL):
        if found := store(source, request):
            return {word: functools.cache(read) for word, read in found.items()}
    return {}


def _absent(source: Source, request: Request) -> str:
    """What to download, and where to put it."""
    looked = f"in root={str(request.root)!r}" if request.root is not None else "as no root= was given"
    if source.name == "parquet":
        return f"data=parquet found nothing {looked}; root= must be a parquet file or a folder of them"
    if source.name == "cifar10c":
        return (
            f"cifar10c was not found {looked}; unpack CIFAR-10-C.tar (https://zenodo.org/records/2535967) so that "
            f"<root>/{request.corruption}.npy and <root>/labels.npy exist, or give CIFAR-10 to make it from: "
            "<root>/cifar10/test.parquet of https://huggingface.co/datasets/uoft-cs/cifar10"
        )
    debian = ", or apt install dataset-fashion-mnist" if source.name == "fashion-mnist" else ""
    also = ", or an ImageNet folder <root>/train/<wnid>/*.JPEG" if source.name == "imagenet100" else ""
    return (
        f"{source.name} was not found {looked}, and the Hugging Face hub cannot be reached; download the parquet files "
        f"of https://huggingface.co/datasets/{source.hub} on a machine with a network and put them at "
        f"<root>/{source.name}/<split>.parquet (or <split>-*.parquet){also}{debian}"
    )


def _stored(found: Found, split: str) -> str | None:
    """The word under which this split is stored."""
    return next((word for word in WORDS[split] if word in found), None)


def _choose(found: Found, source: Source, split: str, split_seed: int) -> tuple[Records, Rows]:
    """The stored images of a split, or its part of a data set that comes undivided."""
    undivided = _stored(found, "all") or (_stored(found, "train") if _stored(found, "test") is None else None)
    word = _stored(found, split)
    if source.share is not None and undivided is not None and split != "validation":
        records = found[undivided]()
        rows: Rows = np.arange(len(records.encoded))
        if split == "all":
            return records, rows
        kept, held = stratified(_strata(records, rows), source.share, split_seed)
        return records, (held if split == "test" else kept).numpy()
    if word is None:
        raise ValueError(
            f"{source.name} has no split {split!r} here, only {', '.join(found)}; name one of those, or add its files"
        )
    records = found[word]()
    return records, np.arange(len(records.encoded))


def _taken(values: Tensor | None, rows: Rows) -> Tensor | None:
    return None if values is None else values[torch.from_numpy(rows)]


def _strata(records: Records, rows: Rows) -> Tensor:
    return strata(_taken(records.labels, rows), _taken(records.domains, rows), len(rows))


def _trained(found: Found, source: Source, split: str, split_seed: int) -> tuple[Records, Rows]:
    """The training images, whichever split is loaded: all must have one size and be normalised alike."""
    trained = _stored(found, "train") or _stored(found, "all")
    return _choose(found, source, "train" if trained else split, split_seed)


def _stored_size(records: Records, rows: Rows, name: str) -> int:
    """The middle of the short sides of a hundred images, at most `LARGEST`."""
    near = rows if records.encoded.scattered else rows[:SEEN]
    spread = near[np.unique(np.linspace(0, len(near) - 1, SAMPLE).astype(int))]
    sides, fault = [], ""
    for row, raw in zip(spread, records.encoded.stream(spread), strict=True):
        try:
            sides.append(short_side(raw))
        except Exception as error:  # noqa: PERF203 - Pillow's readers raise whatever damaged bytes lead them to
            fault = fault or f"{records.encoded.where(int(row))}: {error}"
    if not sides:
        raise ValueError(f"{name} has no readable image among {len(spread)} ({fault}); is root= the right place?")
    sides.sort()
    side = min(LARGEST, sides[len(sides) // 2])
    if sides[0] != sides[-1]:
        warnings.warn(
            f"{name}: images of {sides[0]} to {sides[-1]} pixels are all brought to {side}; data.size= chooses another",
            stacklevel=3,
        )
    return side


def _measured(
    found: Found, source: Source, split: str, split_seed: int, size: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel."""
    records, rows = _trained(found, source, split, split_seed)
    most = max(1, min(MEASURED, limit("ARRAY_BYTES") // (3 * size**2)))
    rows = rows[subset(torch.zeros(len(rows), dtype=torch.int64), most, seed=0).numpy()]
    pixels, wrong = decode(records.encoded, rows, size)
    if len(wrong) == len(rows):
        raise ValueError(f"{source.name} has no readable image among {len(rows)}: {some(wrong.values(), 1)}")
    return statistics(pixels[[k for k in range(len(rows)) if k not in wrong]])
