"""Tables: named columns of one length, some of which hold images. Here those in CSV, JSON lines and npz files.

`datasets` would guess the types of CSV and JSON columns (the name "NA" becomes nothing, "007" a number) and refuse rows
of mixed kinds without naming them; a table of pairs says for each row what is wrong.
"""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gcalign.errors import did_you_mean
from gcalign.lab import arrays, files
from gcalign.lab.data.decode import SUFFIXES, Arrays, Encoded, Files
from gcalign.lab.words import explained


class Table(ABC):
    """Named columns of one length."""

    origin: str
    columns: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def kind(self, column: str) -> str:
        """image, text, array, or what else the column holds."""

    @abstractmethod
    def values(self, column: str) -> list[Any]:
        """Texts, lists of texts, or numbers, one for each row; None where there is none."""

    @abstractmethod
    def images(self, column: str) -> Encoded:
        """The images of a column, not decoded yet."""

    def where(self, row: int) -> str:
        return f"{self.origin} row {row}"

    def check(self, column: str, key: str) -> None:
        if column not in self.columns:
            raise ValueError(f"{key}={column}: {self.origin} has no such column; {did_you_mean(column, self.columns)}")


def check_names(columns: Sequence[str], origin: str) -> None:
    """That no two columns have one name: one of them would hide the other."""
    if twice := [name for name, times in Counter(columns).items() if times > 1]:
        raise ValueError(f"{origin} has two columns called {twice[0]!r}; each needs its own name: rename one")


class TextTable(Table):
    """Rows of texts, numbers and lists; texts that end like images or .npy are files beside the table."""

    def __init__(self, path: Path, rows: list[dict[str, Any]]) -> None:
        self.origin, self.folder, self.rows = str(path), path.parent, rows
        self.columns = tuple(dict.fromkeys(name for row in rows for name in row))
        for k, row in enumerate(rows):
            if len(row) != len(self.columns):
                missing = sorted(set(self.columns) - row.keys())
                raise ValueError(
                    f"{self.where(k)} has {len(row)} of {len(self.columns)} columns ({', '.join(missing)} missing); "
                    "every row must have them all: correct the row"
                )

    def __len__(self) -> int:
        return len(self.rows)

    def _ends(self, column: str, suffixes: tuple[str, ...]) -> bool:
        values = [row[column] for row in self.rows]
        return all(isinstance(value, str) and value.lower().endswith(suffixes) for value in values)

    def kind(self, column: str) -> str:
        if self._ends(column, SUFFIXES):
            return "image"
        if self._ends(column, (".npy",)):
            return "array"
        first = next((row[column] for row in self.rows if row[column] not in (None, [])), "")
        while isinstance(first, list) and first:
            first = first[0]
        return "text" if isinstance(first, str) else "array" if isinstance(first, (int, float)) else str(type(first))

    def values(self, column: str) -> list[Any]:
        if not self._ends(column, (".npy",)):
            return [row[column] for row in self.rows]
        return [arrays.from_npy(self.folder / name) for name in self._names(column)]

    def images(self, column: str) -> Encoded:
        return Files(self.folder, self._names(column))

    def _names(self, column: str) -> list[str]:
        """Files within the folder of the table: what a table names elsewhere is not read."""
        for k, row in enumerate(self.rows):
            path = self.folder / row[column]
            if not path.resolve().is_relative_to(self.folder.resolve()):
                raise ValueError(
                    f"{self.where(k)}: {column}={row[column]!r} is outside {self.folder}; a table names files within "
                    "its own folder: move them there"
                )
            if not path.is_file():
                raise ValueError(f"{self.where(k)}: {column}={row[column]!r} is missing in {self.folder}; add it")
        return [row[column] for row in self.rows]


class ArrayTable(Table):
    """An npz file: [N, D] numbers, [N, H, W, 3] images of uint8, [N] texts. Nothing in it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.origin = str(path)
        self.arrays = {name: arrays.from_npz(path, name) for name in arrays.names(path)}
        self.columns = tuple(self.arrays)
        lengths = {name: len(array) if array.ndim else 0 for name, array in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            each = ", ".join(f"{name} has {n}" for name, n in lengths.items())
            raise ValueError(f"{path}: {each} rows; row i of all arrays must be one pair: give them the same length")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def kind(self, column: str) -> str:
        array = self.arrays[column]
        if array.dtype == np.uint8 and (array.ndim == 4 and array.shape[3] == 3):
            return "image"
        if array.dtype.kind == "U" and array.ndim == 1:
            return "text"
        return "array" if array.dtype.kind in "fiu" else f"{array.dtype} {list(array.shape)}"

    def values(self, column: str) -> list[Any]:
        return list(self.arrays[column].tolist() if self.kind(column) == "text" else self.arrays[column])

    def images(self, column: str) -> Encoded:
        return Arrays(self.arrays[column], self.origin)


def _text(path: Path) -> str:
    with explained(f"{path} is not UTF-8", "save it as UTF-8", UnicodeDecodeError):
        return files.read(path).decode("utf-8-sig")


def csv_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    try:
        reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
        check_names(reader.fieldnames or (), str(path))
        for number, row in enumerate(reader):
            if None in row or None in row.values():
                raise ValueError(f"{path} row {number} does not have one value for each column; correct the row")
            rows.append(dict(row))
    except csv.Error as error:
        raise ValueError(f"{path} row {len(rows)} is not CSV ({error}); correct the row") from error
    return rows


def json_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(_text(path).split("\n"), 1):  # a text may hold U+2028 and its like
        if line.strip():
            with explained(f"{path} line {number} is not JSON", "correct the line", ValueError):
                row = files.from_json(line, finite=True)
            if not isinstance(row, dict):
                raise ValueError(f'{path} line {number} is not a record; write {{"column": value, …}} on each line')
            rows.append(row)
    return rows
