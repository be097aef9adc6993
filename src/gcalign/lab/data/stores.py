"""Where the images of a data set may lie: tables on disk or on the hub, folders, arrays of CIFAR-10-C.

A store gives, for each split that it has, how to read its records: the images, with labels and domains where they have
some.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcalign.lab.data.catalogue import STORED, DataSet, places
from gcalign.lab.data.decode import SUFFIXES, Arrays, Files, Records
from gcalign.lab.data.tables import ArrowTable, Mapped, Parquet
from gcalign.lab.words import explained, some

PATIENCE = 5.0  # seconds for the hub to answer at all
Tables = Mapping[str, Callable[[], ArrowTable]]
StoredSplits = Mapping[str, Callable[[], Records]]  # by the word a split is stored under, how to read it


def _of_tables(tables: Tables, data_set: DataSet) -> StoredSplits:
    opened = {word: cache(read) for word, read in tables.items()}
    return {word: partial(records, opened, word, data_set) for word in opened}


def parquet(data_set: DataSet, root: Path | None) -> StoredSplits:
    """`<split>.parquet`, `<split>-*.parquet` or `<split>/*.parquet`; or, where a split can be made, any such file."""
    if root is not None and root.is_file():
        return _of_tables({"all": partial(Parquet, [root])}, data_set)
    for place in places(data_set, root):
        layouts = ("{}.parquet", "{}-*.parquet", "{}/*.parquet")
        stored = {w: sorted({p for layout in layouts for p in place.glob(layout.format(w))}) for w in STORED}
        if data_set.share is not None and not any(stored.values()):
            stored = {"all": sorted(place.glob("*.parquet"))}
        if any(stored.values()):
            return _of_tables({word: partial(Parquet, paths) for word, paths in stored.items() if paths}, data_set)
    return {}


def hub(data_set: DataSet, root: Path | None) -> StoredSplits:
    """The data set on the Hugging Face hub, or what an earlier download left in its cache."""
    assert data_set.hub is not None
    import datasets

    answers = reachable()
    cache = Path(datasets.config.HF_DATASETS_CACHE) / data_set.hub.replace("/", "___")
    if not answers and not cache.is_dir():
        return {}
    try:
        loaded = datasets.load_dataset(data_set.hub, data_set.config)
    except Exception as error:  # a dozen kinds, from connection refused to no such repository
        if answers:
            raise ValueError(f"{data_set.hub} could not be loaded from the hub: {error}") from error
        return {}
    tables = {
        str(word): partial(Mapped, rows.data, rows.features.arrow_schema, f"{data_set.hub} {word}")
        for word, rows in loaded.items()
    }
    return _of_tables(tables, data_set)


def reachable() -> bool:
    """Whether the hub answers within `PATIENCE`; `datasets` alone retries for half a minute, to find nothing."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    url = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PATIENCE).close()
    except urllib.error.HTTPError:
        return True  # an answer, if not a welcome
    except (OSError, ValueError):
        return False
    return True


# --- folders ----------------------------------------------------------------------------------------------------


def _chosen(names: list[str], others: Counter[str]) -> list[str]:
    """Those of images; the endings of the rest are counted, but for hidden files."""
    shown = [name for name in names if not name.startswith(".")]
    others.update(Path(name).suffix or name for name in shown if not name.lower().endswith(SUFFIXES))
    return [name for name in shown if name.lower().endswith(SUFFIXES)]


def _under(folder: Path, inside: str, others: Counter[str]) -> list[str]:
    """The images anywhere within `folder/inside`, by their names relative to `folder`, in order."""
    paths = []
    for top, _, names in os.walk(folder / inside):
        here = os.path.relpath(top, folder)
        paths += [os.path.join(here, name) for name in _chosen(names, others)]
    return sorted(paths, key=lambda name: name.split(os.sep))


def _subfolders(folder: Path, root: Path) -> dict[str, Path]:
    """The folders in a folder; a link that leads out of the root, which is what the user named, is not followed."""
    folders = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")}
    for path in folders.values():
        if path.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
            raise ValueError(
                f"{path} links to {path.resolve()}, which is outside {root}; only what is within it is read: move the "
                "images there, or remove the link"
            )
    return folders


def _divided(root: Path) -> dict[str, Path]:
    """The folders of the splits, or the root itself where it is not divided."""
    inside = _subfolders(root, root)
    splits = {word: inside[word] for word in STORED if word in inside}
    # a lone `train` among other folders is a class of vehicles
    return splits if len(splits) > 1 or (splits and splits.keys() == inside.keys()) else {"all": root}


def _listed(folder: Path, classes: tuple[str, ...]) -> Records:
    """The images of one split: loose and unlabelled, or in the folders of these classes."""
    others: Counter[str] = Counter()
    _, _, inside_it = next(os.walk(folder), ("", [], []))  # all that is no folder: its reader says if it is no file
    loose = sorted(_chosen(inside_it, others))
    names, labels = [], []
    for k, name in enumerate(classes):
        names += (inside := _under(folder, name, others))
        labels += [k] * len(inside)
    if loose and labels:
        raise ValueError(
            f"{folder} holds {len(loose)} image(s), {some(loose)}, next to its class folders; either "
            "all images are in folders or none: move them"
        )
    if not loose and not labels:
        raise ValueError(f"{folder} holds no images; files ending in {' '.join(SUFFIXES)} are read: put some there")
    files = Files(folder, names + loose)
    passed = (f"passed over: {others.total()} file(s) with other endings ({some(others)})",) if others else ()
    if len(classes) < 2 or loose:
        why = "the images are in one folder" if classes else "the images are not in folders of classes"
        return Records(files, notes=(f"no labels: {why}", *passed))
    notes = ("labels: the folder that an image is in", *passed)
    return Records(files, torch.tensor(labels), classes=classes, notes=notes)


def folder(data_set: DataSet, root: Path | None) -> StoredSplits:
    """Image files, in class folders or loose (then unlabelled), in folders of splits or undivided."""
    if root is None or not root.is_dir():
        raise ValueError(f"data.root={root} is not a folder; data=folder needs data.root=, the folder of the images")
    splits = _divided(root)
    # the classes of all splits together, so that one absent from a split does not shift the numbers of the others
    folders = [item for top in splits.values() for item in _subfolders(top, root).items()]
    classes = tuple(
        sorted({name for name, path in folders if any(_chosen(inside, Counter()) for _, _, inside in os.walk(path))})
    )
    return {word: partial(_listed, top, classes) for word, top in splits.items()}


def _wnids(folder: Path, classes: tuple[str, ...]) -> Records:
    if absent := [name for name in classes if not (folder / name).is_dir()]:
        raise ValueError(
            f"{folder} lacks {len(absent)} of the {len(classes)} class folders: {some(absent)}; ImageNet-100 needs "
            "each (ImageNet's validation images come loose: sort them into class folders first)"
        )
    return _listed(folder, classes)


def wnids(data_set: DataSet, root: Path | None) -> StoredSplits:
    """A local ImageNet, `<split>/<wnid>/*.JPEG`, of which the classes of the data set are taken."""
    for place in places(data_set, root):
        splits = {word: place / word for word in STORED if (place / word).is_dir()}
        if any(next(top.glob("n*/"), None) for top in splits.values()):
            return {word: partial(_wnids, top, data_set.classes) for word, top in splits.items()}
    return {}


# --- arrays -----------------------------------------------------------------------------------------------------


def _load_npy(path: Path) -> Any:
    with explained(f"{path} is not a readable .npy file", "download it again", OSError, ValueError, EOFError):
        return np.load(path, mmap_mode="r", allow_pickle=False)


def _npy(images: Path, labels: Path, severity: int, classes: tuple[str, ...]) -> Records:
    pixels, codes = _load_npy(images), _load_npy(labels)
    n = len(pixels) // 5 if pixels.ndim == 4 else 0
    fits = n and pixels.shape[3] == 3 and pixels.dtype == np.uint8 and n * 5 == len(pixels)
    if not fits or codes.shape != (5 * n,) or codes.dtype.kind not in "iu":
        raise ValueError(
            f"{images} {pixels.shape} {pixels.dtype} with labels {codes.shape} {codes.dtype} must be five severities "
            "of [N, 32, 32, 3] uint8 and as many labels, as published; download both again"
        )
    part = slice((severity - 1) * n, severity * n)
    known = torch.from_numpy(codes[part].astype(np.int64))
    return Records(Arrays(pixels[part], str(images), first=part.start), known, classes=classes)


def npy(data_set: DataSet, root: Path | None, corruption: str, severity: int) -> StoredSplits:
    """The published CIFAR-10-C: `<corruption>.npy`, five severities one after the other, and `labels.npy`."""
    for place in places(data_set, root, "CIFAR-10-C"):
        images, labels = place / f"{corruption}.npy", place / "labels.npy"
        if images.is_file() and labels.is_file():
            return {"test": partial(_npy, images, labels, severity, data_set.classes)}
    return {}


# --- which column holds the images, which the labels and domains ------------------------------------------------


def records(tables: Tables, word: str, data_set: DataSet) -> Records:
    """The images of a split with labels and domains; classes without names are numbered alike in all splits."""
    table = tables[word]()
    named = table.classes()
    cells = table.images(_image_column(table, data_set))
    coded: list[tuple[Tensor | None, tuple[str, ...]]] = []
    notes = []
    for kind, names in (("label", data_set.classes), ("domain", data_set.domain_names)):
        column = _other_column(table, kind, data_set)
        if column is None:
            coded.append((None, ()))
            continue
        given = named.get(column, ())
        if names and given and len(names) != len(given):
            raise ValueError(
                f"{table.origin}: {column!r} has {len(given)} classes where {data_set.name} has {len(names)}; "
                "point root at this data set, or use data=parquet for one of your own"
            )
        coded.append(_codes(table, column, given or names, tables))
        if data_set.image is None and coded[-1][0] is not None:
            notes.append(f"{kind}s: the column {column!r}")
    (labels, classes), (domains, domain_names) = coded
    return Records(cells, labels, domains, classes, domain_names, tuple(notes))


def _image_column(table: ArrowTable, data_set: DataSet) -> str:
    images = [name for name in table.columns if table.kind(name) == "image"]
    wanted = data_set.image or "image"
    if wanted in images:
        return wanted
    if data_set.image or len(images) != 1:
        raise ValueError(
            f"{table.origin} has {len(images)} columns of images ({', '.join(images) or 'none'}), and none is called "
            f"{wanted!r}; one of bytes, or of {{bytes, path}} as Hugging Face writes them, is needed: give it that "
            f"name (its columns are {', '.join(table.columns)})"
        )
    return images[0]


def _other_column(table: ArrowTable, kind: str, data_set: DataSet) -> str | None:
    wanted = data_set.label if kind == "label" else data_set.domain
    if data_set.image:  # a known data set: what it does not name, it does not have
        if wanted and wanted not in table.columns:
            raise ValueError(
                f"{table.origin} has no column {wanted!r} for the {kind}; it has "
                f"{', '.join(table.columns)}: use data=parquet for a data set of your own"
            )
        return wanted
    if kind in table.columns:
        return kind
    classes = [name for name in table.classes() if name in table.columns] if kind == "label" else []
    if len(classes) > 1:
        raise ValueError(
            f"{table.origin} has {len(classes)} columns of classes ({', '.join(classes)}); call the label's 'label'"
        )
    return classes[0] if classes else None


def _codes(
    table: ArrowTable, column: str, names: tuple[str, ...], tables: Tables
) -> tuple[Tensor | None, tuple[str, ...]]:
    """A column as numbers 0, 1, … and their names; None where the data set withholds the values."""
    values = _plain(table, column)
    missing = sum(value is None for value in values)
    if missing == len(values):
        return None, ()
    if missing:
        raise ValueError(
            f"{table.origin}: {missing} of {len(values)} values of {column!r} are empty; fill them, or leave out "
            "the column: a data set needs no labels"
        )
    used = set(values)
    if names and all(isinstance(value, int) for value in used):
        if not 0 <= min(used) <= max(used) < len(names):
            raise ValueError(
                f"{table.origin}: {column!r} spans {min(used)}..{max(used)}; there are {len(names)} names: correct one"
            )
        return torch.tensor(values, dtype=torch.int64), names
    order: Iterable[Any] = names
    if not names:  # of all splits, so that a class absent from one does not shift the numbers of the others
        others = [other for read in tables.values() if column in (other := read()).columns]
        every = {value for other in others for value in _plain(other, column) if value is not None}
        order = sorted(every, key=lambda value: (str(type(value)), value))
    codes, vocabulary = {value: k for k, value in enumerate(order)}, tuple(map(str, order))
    if unknown := [value for value in used if value not in codes]:
        raise ValueError(f"{table.origin}: {column!r} holds {unknown[0]!r}; known: {', '.join(vocabulary)}")
    return torch.tensor([codes[value] for value in values]), vocabulary


def _plain(table: ArrowTable, column: str) -> list[Any]:
    """Numbers or texts, one for each row; None where there is none, of which -1 is the hub's mark."""
    remedy = "a label is one number or text: leave this column out, or rename it"
    odd = (OverflowError, ValueError, TypeError, NotImplementedError)  # of times that Python does not have, or maps
    with explained(f"{table.origin}: {column!r} cannot be read", remedy, *odd):
        values = table.values(column)
        for value in values:
            hash(value)
        return [None if value is None or value == -1 or value != value else value for value in values]


Store = Callable[[DataSet, Path | None], StoredSplits]
STORES: Mapping[str, tuple[Store, ...]] = {  # where to look, in this order
    "imagenet100": (parquet, wnids, hub),
    "folder": (folder,),
    "parquet": (parquet,),
}
USUAL: tuple[Store, ...] = (parquet, hub)
