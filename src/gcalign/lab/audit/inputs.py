"""Embeddings, ids and items to show, from npy, npz, parquet, safetensors and text files. Nothing is unpickled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gcalign.errors import did_you_mean
from gcalign.lab import arrays, files
from gcalign.lab.data.tables import Parquet, python_values, read_columns
from gcalign.lab.words import path_of

EMBEDDINGS = (".npy", ".npz", ".parquet", ".safetensors")
ITEMS = (".parquet", ".txt")
NPY = b"\x93NUMPY"  # how an npy file begins


@dataclass(frozen=True)
class AuditedPairs:
    """Pairs to audit, with what is known of them."""

    title: str
    a: Any  # [n, D]
    b: Any  # [n, D]
    note: str
    folds: torch.Tensor | None = None  # [n]
    names: Sequence[str] | None = None
    first: Sequence[Any] | None = None  # what the sides show
    second: Sequence[Any] | None = None
    wrong: torch.Tensor | None = None  # [n] bool: the pairs that were mismatched on purpose, where that is known
    sides: tuple[str, str] = ("first", "second")  # what a page calls them


@dataclass(frozen=True)
class Place:
    """FILE or FILE:NAME, where NAME is an array or a column of the file."""

    path: Path
    name: str | None

    @staticmethod
    def of(text: str, suffixes: Sequence[str]) -> Place:
        before, _, after = text.rpartition(":")
        named = before and not path_of(text).exists()
        path, name = (path_of(before), after) if named else (path_of(text), None)
        if path.suffix not in suffixes:
            raise ValueError(f"{text} must be a {', '.join(suffixes)} file, or FILE:NAME for an array or column in it")
        if not path.is_file():
            wrong = "is a folder, a pipe or a device" if path.exists() else "does not exist"
            raise ValueError(f"{path} {wrong}; give a {', '.join(suffixes)} file")
        return Place(path, name)

    def __str__(self) -> str:
        return str(self.path) if self.name is None else f"{self.path}:{self.name}"

    def chosen(self, names: Sequence[str]) -> str:
        """The name that was given, or the only one there is."""
        if self.name is None and len(names) == 1:
            return names[0]
        if self.name is None:
            listed = ", ".join(names[:20]) or "nothing"
            raise ValueError(f"{self.path} has several arrays or columns ({listed}); say which: {self.path}:NAME")
        if self.name not in names:
            raise ValueError(f"{self.path} has no {self.name!r}; {did_you_mean(self.name, names)}")
        return self.name


def embeddings(text: str) -> Any:  # [n, D], a numpy array or a tensor
    """The embeddings of one side; arrays in npy files stay on disk."""
    place = Place.of(text, EMBEDDINGS)
    if place.path.suffix == ".npz":
        array = arrays.from_npz(place.path, place.chosen(arrays.names(place.path)))
    else:
        array = {".npy": _npy, ".parquet": _columns, ".safetensors": _safetensors}[place.path.suffix](place)
    if len(array.shape) != 2 or 0 in array.shape:
        raise ValueError(f"{place} has the shape {tuple(array.shape)}; it must be [n, D], one embedding per row")
    return array


def vector(text: str, n: int) -> Any:  # [n]
    """A whole number for each pair, from an npy file."""
    place = Place.of(text, (".npy",))
    array = _npy(place)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise ValueError(f"{place} has the shape {array.shape} and {array.dtype}; it must have {n} whole numbers")
    return array


def _npy(place: Place) -> Any:
    if place.name is not None:
        raise ValueError(f"{place}: an npy file holds one array; leave :{place.name} out")
    try:
        return np.load(place.path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        said = " ".join(str(error).split())
        with place.path.open("rb") as file:
            magic = file.read(len(NPY))
        if magic != NPY:
            said = "it does not begin like an npy file"
        elif "pickle" in said.lower() or "Python objects" in said:
            raise ValueError(
                f"{place} holds Python objects, and reading those would run code from the file; it must hold plain "
                "numbers: save it again with np.save(path, array.astype('float32'))"
            ) from None
        raise ValueError(f"{place} cannot be read ({said}); write it again with np.save or np.savez") from None


def _safetensors(place: Place) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(place.path, framework="pt") as file:
            return file.get_tensor(place.chosen(list(file.keys())))
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{place} cannot be read ({error}); write it again with safetensors.torch.save_file") from None


def _schema(place: Place) -> Any:
    return Parquet([place.path]).schema


def _columns(place: Place) -> Any:
    """A column of lists, or columns f0, f1 … as `gcalign embed` writes them."""
    import pyarrow as pa

    schema = _schema(place)
    numbered = sorted((n for n in schema.names if re.fullmatch(r"f\d+", n)), key=lambda n: int(n[1:]))
    if place.name is None and numbered:
        table = read_columns(place.path, numbered)
        for name in numbered:
            _full(place, name, table[name])
        return np.stack([table[name].to_numpy() for name in numbered], axis=1)
    lists = [field.name for field in schema if pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)]
    if not lists:
        raise ValueError(f"{place} has no embeddings; it must have a column of lists, or columns f0, f1 …")
    name = place.chosen(lists)
    column = read_columns(place.path, [name])[name]
    _full(place, name, column)
    joined = column.combine_chunks()
    values = joined.flatten().to_numpy(zero_copy_only=False)
    lengths = set(joined.value_lengths().to_pylist())
    if len(lengths) != 1:
        raise ValueError(f"{place} has lists of {min(lengths)} to {max(lengths)} numbers; all must be equally long")
    return values.reshape(len(joined), lengths.pop())


def _full(place: Place, name: str, column: Any) -> None:
    if len(column) == 0:
        raise ValueError(f"{place.path}:{name} is empty; an audit needs one row per pair")
    if column.null_count:
        first = next(k for k, valid in enumerate(column.is_valid().to_pylist()) if not valid)
        raise ValueError(
            f"{place.path}:{name} is empty in {column.null_count} of {len(column)} rows, first in row {first}; every "
            "row must have a value: fill it, or leave these pairs out on both sides"
        )


def ids(text: str, n: int) -> list[str]:
    """A name for each pair, none of them twice."""
    names = [str(value) for value in _items(Place.of(text, ITEMS), n)]
    seen: dict[str, int] = {}
    for k, value in enumerate(names):
        if value in seen:
            raise ValueError(
                f"{text} has the id {value!r} in rows {seen[value]} and {k}; an id must name one pair: make them unique"
            )
        seen[value] = k
    return names


def items(text: str, n: int) -> list[Any]:
    """What is shown for each pair: texts, or images as bytes."""
    return [_shown(value) for value in _items(Place.of(text, ITEMS), n)]


def _items(place: Place, n: int) -> list[Any]:
    if place.path.suffix == ".txt":
        try:
            values: list[Any] = _lines(files.read(place.path).decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{place} is not UTF-8 ({error.reason}); save it again as UTF-8") from None
    else:
        name = place.chosen(list(_schema(place).names))
        column = read_columns(place.path, [name])[name]
        _full(place, name, column)
        values = python_values(column)
    if len(values) != n:
        raise ValueError(f"{place} has {len(values)} rows for {n} pairs; it must have a row for each pair")
    return values


def _lines(text: str) -> list[str]:
    """Lines as editors count them: a text may hold U+2028 and its like."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []


def _shown(value: Any) -> str | bytes:
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):  # an image, as the datasets library stores it
        return bytes(value["bytes"])
    return value if isinstance(value, (str, bytes)) else str(value)
