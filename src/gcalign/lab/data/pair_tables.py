"""Tables of pairs as they are stored: parquet, CSV or JSON lines that name files, or npz; read column by column."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from gcalign.lab import arrays, files
from gcalign.lab.data.encoded import Arrays, Encoded, Files
from gcalign.lab.data.files import SUFFIXES
from gcalign.lab.data.tables import Parquet, Table
from gcalign.lab.limits import within
from gcalign.lab.words import explained

TABLES = ("metadata.csv", "metadata.jsonl", "pairs.csv", "pairs.jsonl", "pairs.parquet", "pairs.npz")  # of a folder


class TextTable(Table):
    """Rows of texts, numbers and lists; texts that end like images or .npy are files beside the table."""

    def __init__(self, path: Path, rows: list[dict[str, Any]]) -> None:
        self.origin, self.folder, self.rows = str(path), path.parent, rows
        if not rows:
            raise ValueError(f"{path} has no rows; a table of pairs needs a row for each pair")
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
        found = [row[column] for row in self.rows]
        return all(isinstance(value, str) and value.lower().endswith(suffixes) for value in found)

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
            said = ", ".join(f"{name} has {n}" for name, n in lengths.items())
            raise ValueError(f"{path}: {said} rows; row i of all arrays must be one pair: give them the same length")

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


def opened(root: Path) -> Table:
    """The table at this path, or the one in this folder."""
    if root.is_dir():
        found = [root / name for name in TABLES if (root / name).is_file()]
        found = found or sorted(path for path in root.iterdir() if path.suffix == ".parquet" and path.is_file())
        if len(found) != 1:
            have = f"{len(found)} tables ({', '.join(path.name for path in found)})" if found else "no table of pairs"
            raise ValueError(f"data.root={root} has {have}; one is needed, called {' or '.join(TABLES)}: name the file")
        root = found[0]
    if not root.is_file():
        raise ValueError(f"data.root={root} does not exist; name a .parquet, .csv, .jsonl or .npz file, or its folder")
    if root.suffix == ".parquet":
        table: Table = Parquet([root])
    elif root.suffix == ".npz":
        table = ArrayTable(root)
    elif root.suffix in (".csv", ".jsonl"):
        table = TextTable(root, _rows(root))
    else:
        raise ValueError(f"data.root={root} must end in .parquet, .csv, .jsonl or .npz; convert it to one of them")
    within("TABLE_ROWS", len(table), f"the number of rows of {root}")
    if not len(table):
        raise ValueError(f"{root} has no rows; a table of pairs needs a row for each pair")
    return table


def _rows(path: Path) -> list[dict[str, Any]]:
    with explained(f"{path} is not UTF-8", "save it as UTF-8", UnicodeDecodeError):
        text = files.read(path).decode("utf-8-sig")
    rows: list[dict[str, Any]] = []
    if path.suffix == ".csv":
        try:
            for number, row in enumerate(csv.DictReader(io.StringIO(text, newline=""), strict=True)):
                if None in row or None in row.values():
                    raise ValueError(f"{path} row {number} does not have one value for each column; correct the row")
                rows.append(dict(row))
        except csv.Error as error:
            raise ValueError(f"{path} row {len(rows)} is not CSV ({error}); correct the row") from error
        return rows
    for number, line in enumerate(text.splitlines()):
        if line.strip():
            with explained(f"{path} line {number + 1} is not JSON", "correct the line", ValueError):
                row = files.from_json(line, finite=True)
            if not isinstance(row, dict):
                raise ValueError(f'{path} line {number + 1} is not a record; write {{"column": value, …}} on each line')
            rows.append(row)
    return rows
