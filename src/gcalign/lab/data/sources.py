"""Data sets by name, from local files or the hub, as images of one size."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gcalign.errors import count, one_of
from gcalign.lab.data.catalogue import DATA_SETS, OF_USERS, WORDS, DataSet, Normalisation, find, local, names
from gcalign.lab.data.decode import Arrays, Encoded, Index, Records, decode, report, short_side, statistics
from gcalign.lab.data.images import Images, InMemory, OnDemand, Places
from gcalign.lab.data.splits import labels_of, strata, stratified, subset
from gcalign.lab.limits import limit as allowed
from gcalign.lab.limits import within
from gcalign.lab.words import some

if TYPE_CHECKING:
    from gcalign.lab.data.stores import StoredSplits

__all__ = ["DATA_SETS", "DataSet", "labels_of", "load", "names", "register"]

MEMORY = 2 * 2**30  # bytes of decoded images that are held; more stay on disk
MEASURED = 2000  # images from which mean and standard deviation are taken where none are published
SAMPLE = 100  # images from whose sizes one is chosen where nobody chose
SEEN = 1024  # among so many, where those far down a file cost reading it
LARGEST = 224  # side of images whose size is nobody's choice
TABLES = ("pairs", "shapes")  # data sets whose columns are the sides: `table_sides`

Maker = Callable[..., Images]
MAKERS: dict[str, Maker] = {}  # data sets that are made, or that users bring


def register(name: str) -> Callable[[Maker], Maker]:
    """Name a function (split, *, root, size, limit, seed) -> Images as a data set."""

    def add(make: Maker) -> Maker:
        if name in DATA_SETS:
            raise ValueError(f"data={name!r} is already registered; choose another name")
        DATA_SETS[name] = DataSet(name)
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
    at_most: bool = False,
    on_error: str = "skip",
    seed: int = 0,
    corruption: str | None = None,
    severity: int | None = None,
) -> Images:
    """A split of a data set as uint8 RGB squares of side `size`.

    `root` holds the files; without it, or without the data in it, the hub is asked. `limit` takes a class-balanced
    subset from `seed`; more than there are is an error, or all of them if it is what to take `at_most`. `on_error` says
    whether an image that cannot be read is skipped with a warning or fatal. A data set that comes undivided is divided
    alike for every seed, so that a training set of one never meets a test set of another. `corruption` and `severity`
    choose from CIFAR-10-C.
    """
    data_set = find(name)
    one_of("split", split, data_set.splits)
    one_of("on_error", on_error, ("skip", "raise"))
    if size is not None:
        within("IMAGE_SIDE", count("size", size, "it is the side of the square images, 32 for CIFAR-10"), "size")
    if limit is not None:
        within("TABLE_ROWS", count("limit", limit, "leave it out to take every image"), "data.limit")
    place = _place(name, root)
    if name in MAKERS:
        return MAKERS[name](split, root=place, size=size, limit=limit, seed=seed)
    _check_exists(name, place)
    if name != "cifar10c" and (corruption is not None or severity is not None):
        raise ValueError(f"corruption={corruption!r}, severity={severity}: only data=cifar10c has them")
    if name == "cifar10c":
        if corruption is None or severity is None or not 1 <= severity <= 5:
            raise ValueError(f"corruption={corruption!r}, severity={severity}: cifar10c needs both, e.g. 'fog' and 3")
        from gcalign.lab.data.stores import npy

        stored = npy(data_set, place, corruption, severity)
        if not stored:
            about: dict[str, Any] = {"root": root, "limit": limit, "at_most": at_most, "on_error": on_error}
            return _corrupted(place, corruption, severity, size or 32, {**about, "seed": seed})
    else:
        stored = _stored(data_set, place)
    if not stored:
        raise ValueError(_absent(data_set, place))
    whole = Whole(data_set, stored)
    records, rows, divided = whole.part(split)
    if not len(rows):
        raise ValueError(f"{name} ({split}) holds no images; at least one is needed: add some to root={root}")
    if limit is not None and (limit < len(rows) or not at_most):
        if limit > len(rows):
            raise ValueError(f"limit={limit} must be at most {len(rows)}, the images of {name} ({split}); lower it")
        rows = rows[subset(_strata(records, rows), limit, seed).numpy()]
    side = size or data_set.size or _stored_size(*whole.training(split), name)
    large = len(rows) * 3 * side**2 > MEMORY
    encoded = records.encoded.mapped() if large else records.encoded
    mean, std = data_set.normalisation or _measured(whole, split, side, records, encoded)
    if not large:
        pixels, wrong = decode(encoded, rows, side)
        report(wrong, on_error, "skipped")
        kept = np.setdiff1d(np.arange(len(rows)), list(wrong)) if wrong else slice(None)
        pixels, rows = pixels[kept], rows[kept]
        if not len(rows):
            raise ValueError(f"{name} ({split}) has no readable image at all; is root={root} the right place?")
    known: dict[str, Any] = {
        "labels": _taken(records.labels, rows),
        "domains": _taken(records.domains, rows),
        "places": Places(records.encoded.where, rows),
        "notes": (*records.notes, *divided),
    }
    known |= {"name": name, "split": split, "mean": mean, "std": std}
    known |= {"classes": records.classes, "domain_names": records.domain_names}
    return OnDemand(encoded, rows, side, on_error, **known) if large else InMemory(pixels, **known)


@register("scenes")
def _scenes(split: str, *, root: Path | None, size: int | None, limit: int | None, seed: int) -> Images:
    """The built-in data set, which needs no files."""
    from gcalign.lab.data.scenes import SIDE, Scenes

    if size not in (None, SIDE):
        raise ValueError(f"size={size}: scenes are rendered at {SIDE}; leave size out")
    return Scenes(split, limit, seed)


def _corrupted(root: Path | None, corruption: str, severity: int, size: int, about: dict[str, Any]) -> Images:
    """CIFAR-10-C made from CIFAR-10, from wherever that is, for want of the published one."""
    from gcalign.lab.data import corruptions

    one_of("corruption", corruption, corruptions.names())
    if "test" not in _stored(find("cifar10"), root):
        raise ValueError(_absent(find("cifar10c"), root, corruption))
    clean = load("cifar10", "test", **about)
    pixels = corruptions.corrupt(clean.get(torch.arange(len(clean))), corruption, severity, about["seed"])
    if size != 32:
        stored = Arrays(pixels.permute(0, 2, 3, 1).numpy(), f"cifar10c {corruption}")
        pixels, _ = decode(stored, np.arange(len(clean)), size)
    known = {key: getattr(clean, key) for key in ("split", "labels", "classes", "mean", "std", "places")}
    return InMemory(pixels, name="cifar10c", **known)


def _stored(data_set: DataSet, root: Path | None) -> StoredSplits:
    """What the first store that has the data set has of it."""
    from gcalign.lab.data.stores import STORES, USUAL  # pyarrow, which data that are made do not need

    return next((stored for store in STORES.get(data_set.name, USUAL) if (stored := store(data_set, root))), {})


def check_place(name: str, root: str | Path | None) -> None:
    """Refuse what `load` would refuse before it reads an image: no place for a user's own files, or one without any."""
    if name in MAKERS:
        return
    place = _place(name, root)
    _check_exists(name, place)
    if name in ("folder", "parquet"):
        stored = _stored(find(name), place)
        if not stored:
            raise ValueError(_absent(find(name), place))
        if name == "folder":  # a list of its files costs little
            Whole(find(name), stored).part("train")


def _place(name: str, root: str | Path | None) -> Path | None:
    """Where local files are; a user's own are where they say."""
    return None if root is None and name in OF_USERS else local(root)


def _check_exists(name: str, place: Path | None) -> None:
    if place is not None and not place.exists():
        raise ValueError(f"root={str(place)!r} does not exist; it must be a folder or file of images for data={name}")


def _absent(data_set: DataSet, root: Path | None, corruption: str = "") -> str:
    """What to download, and where to put it."""
    looked = f"in root={str(root)!r}" if root is not None else "as no root= was given"
    if data_set.name == "parquet":
        return f"data=parquet found nothing {looked}; root= must be a parquet file or a folder of them"
    if data_set.name == "cifar10c":
        return (
            f"cifar10c was not found {looked}; unpack CIFAR-10-C.tar (https://zenodo.org/records/2535967) so that "
            f"<root>/{corruption}.npy and <root>/labels.npy exist, or give CIFAR-10 to make it from: "
            "<root>/cifar10/test.parquet of https://huggingface.co/datasets/uoft-cs/cifar10"
        )
    also = ", or an ImageNet folder <root>/train/<wnid>/*.JPEG" if data_set.name == "imagenet100" else ""
    return (
        f"{data_set.name} was not found {looked}, and the Hugging Face hub cannot be reached; download the parquet "
        f"files of https://huggingface.co/datasets/{data_set.hub} on a machine with a network and put them at "
        f"<root>/{data_set.name}/<split>.parquet (or <split>-*.parquet){also}"
    )


class Whole:
    """A data set as it is stored: in splits, or undivided and to be divided here."""

    def __init__(self, data_set: DataSet, stored: StoredSplits) -> None:
        self.data_set, self.stored = data_set, {word: cache(read) for word, read in stored.items()}

    def word(self, split: str) -> str | None:
        """The word under which this split is stored."""
        return next((word for word in WORDS[split] if word in self.stored), None)

    def part(self, split: str) -> tuple[Records, Index, tuple[str, ...]]:
        """The stored images of a split, or its part of all of them; and a note on how they were divided."""
        undivided = self.word("all") or (self.word("train") if self.word("test") is None else None)
        word, share = self.word(split), self.data_set.share
        if share is not None and undivided is not None and split != "validation":
            records = self.stored[undivided]()
            rows: Index = np.arange(len(records.encoded))
            if split == "all":
                return records, rows, ()
            kept, held = stratified(_strata(records, rows), share, seed=0)
            each = "of them" if records.labels is None and records.domains is None else "of each class"
            note = f"split: {len(kept):,} of {len(rows):,} images are for training; {share:.0%} {each} for testing"
            return records, (held if split == "test" else kept).numpy(), (note,)
        if word is None:
            have = ", ".join(self.stored)
            raise ValueError(f"{self.data_set.name} has no split {split!r}, only {have}; name one, or add its files")
        records = self.stored[word]()
        note = f"split: what is stored as {word!r}"
        return records, np.arange(len(records.encoded)), (note,) if share is not None else ()

    def training(self, split: str) -> tuple[Records, Index]:
        """The training images, whichever split is loaded: all must have one size and be normalised alike."""
        records, rows, _ = self.part("train" if self.word("train") or self.word("all") else split)
        return records, rows


def _taken(values: Tensor | None, rows: Index) -> Tensor | None:
    return None if values is None else values[torch.from_numpy(rows)]


def _strata(records: Records, rows: Index) -> Tensor:
    return strata(_taken(records.labels, rows), _taken(records.domains, rows), len(rows))


def _stored_size(records: Records, rows: Index, name: str) -> int:
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


def _measured(whole: Whole, split: str, size: int, loaded: Records, encoded: Encoded) -> Normalisation:
    """Mean and deviation of each channel; from `encoded` if that is where the training images of `loaded` are."""
    records, rows = whole.training(split)
    most = max(1, min(MEASURED, allowed("ARRAY_BYTES") // (3 * size**2)))
    rows = rows[subset(torch.zeros(len(rows), dtype=torch.int64), most, seed=0).numpy()]
    pixels, wrong = decode(encoded if records is loaded else records.encoded, rows, size)
    if len(wrong) == len(rows):
        raise ValueError(f"{whole.data_set.name} has no readable image among {len(rows)}: {some(wrong.values(), 1)}")
    return statistics(pixels[[k for k in range(len(rows)) if k not in wrong]])
