"""Tables: named columns of one length, some of which hold images; in CSV, JSON lines or Arrow's form.

CSV and JSON are read here and not by `datasets`, which would guess the types of columns (the name "NA" becomes nothing,
"007" a number) and refuse rows of mixed kinds without naming them; a table of pairs says for each row what is wrong.
Parquet is read through pyarrow and not by `load_dataset`, which first writes a copy of everything to the user's home: a
kilobyte that unpacks to gigabytes would fill the disk. Images that are too many to be held are read in any order, which
parquet cannot do; `mapped` makes that copy for them.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gcalign.errors import count, did_you_mean
from gcalign.lab import arrays, files
from gcalign.lab.data.decode import SUFFIXES, Encoded, Files, Index, Raw
from gcalign.lab.limits import limit, within
from gcalign.lab.words import explained

NEARLY = 0.9  # of the cells, from which the others are faults
_NUMBER = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*")
_OF_LISTS = frozenset("0123456789+-.,eEinfa \t\r\n")
BATCH = 1024  # rows of images in memory at a time, at most
RATIO = 1000  # by which images may unpack; those that are pictures hardly do


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
        """Whether nearly all cells end so: one that does not is a fault of its row, not a text."""
        ending = sum(isinstance(cell := row[column], str) and cell.lower().endswith(suffixes) for row in self.rows)
        return ending > NEARLY * len(self.rows)

    def _lists(self, column: str) -> bool:
        """Whether the cells are lists in brackets, as pandas writes them to CSV."""
        return all(isinstance(row[column], str) and _is_list(row[column].strip()) for row in self.rows)

    def kind(self, column: str) -> str:
        if self._ends(column, SUFFIXES):
            return "image"
        if self._ends(column, (".npy",)) or self._lists(column):
            return "array"
        if all(isinstance(row[column], str) and _NUMBER.fullmatch(row[column]) for row in self.rows):
            return "number"
        first = next((row[column] for row in self.rows if row[column] not in (None, [])), "")
        while isinstance(first, list) and first:
            first = first[0]
        return "text" if isinstance(first, str) else "array" if isinstance(first, (int, float)) else str(type(first))

    def values(self, column: str) -> list[Any]:
        if self._lists(column):
            return [_numbers(row[column], self.where(k), column) for k, row in enumerate(self.rows)]
        if not self._ends(column, (".npy",)):
            return [row[column] for row in self.rows]
        return [arrays.from_npy(self.folder / name) for name in self._names(column)]

    def images(self, column: str) -> Encoded:
        return Files(self.folder, self._names(column))

    def _names(self, column: str) -> list[str]:
        """Files within the folder of the table: what a table names elsewhere is not read."""
        for k, row in enumerate(self.rows):
            path = self.folder / str(row[column])
            if not path.resolve().is_relative_to(self.folder.resolve()):
                raise ValueError(
                    f"{self.where(k)}: {column}={row[column]!r} is outside {self.folder}; a table names files within "
                    "its own folder: move them there"
                )
            if not path.is_file():
                raise ValueError(f"{self.where(k)}: {column}={row[column]!r} is missing in {self.folder}; add it")
        return [row[column] for row in self.rows]


def _is_list(cell: str) -> bool:
    """Whether a cell is numbers in brackets; in time linear in its length, whatever it holds."""
    return cell[:1] == "[" and cell[-1:] == "]" and set(cell[1:-1]) <= _OF_LISTS and any(map(str.isdigit, cell))


def _numbers(cell: str, where: str, column: str) -> list[float]:
    """The numbers of a list in brackets, with commas or, as numpy prints them, spaces."""
    try:
        return [float(number) for number in cell.strip()[1:-1].replace(",", " ").split()]
    except ValueError as error:
        raise ValueError(
            f"{where}: {column} is no list of numbers ({error}); save embeddings as .npy, or lists in parquet"
        ) from None


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


# --- tables in Arrow's form -----------------------------------------------------------------------------------------


class ArrowTable(Table, ABC):
    """A table with a schema; images are bytes, or {bytes, path} as `datasets` writes them."""

    scattered = True  # whether any row costs the same to read

    def __init__(self, schema: Any, origin: str) -> None:
        self.schema, self.origin, self.columns = schema, origin, tuple(schema.names)
        check_names(self.columns, origin)

    @abstractmethod
    def column(self, name: str) -> Any:
        """A whole column, as an Arrow array."""

    @abstractmethod
    def read(self, column: str, rows: Index) -> Iterator[Raw]:
        """The encoded images of these rows; b"" where there is none."""

    def mapped(self, column: str) -> ArrowTable:
        """The same column for reading in any order."""
        return self

    def kind(self, column: str) -> str:
        found = inner = self.schema.field(column).type
        if _holds_bytes(found):
            return "image"
        while hasattr(inner, "value_type"):  # of a list or a dictionary
            inner = inner.value_type
        if pa.types.is_string(inner) or pa.types.is_large_string(inner):
            return "text"
        return "array" if pa.types.is_integer(inner) or pa.types.is_floating(inner) else str(found)

    def values(self, column: str) -> list[Any]:
        return python_values(self.column(column))

    def images(self, column: str) -> Encoded:
        return Cells(self, column)

    def classes(self) -> dict[str, tuple[str, ...]]:
        """By column, the names that its numbers stand for: `datasets` writes them, other writers leave them out."""
        try:
            features = json.loads((self.schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
            named = {name: f["names"] for name, f in features.items() if f.get("_type") == "ClassLabel"}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}  # odd, or of another writer: the table itself says what its classes are
        return {k: tuple(v) for k, v in named.items() if isinstance(v, list) and all(isinstance(x, str) for x in v)}


class Cells(Encoded):
    """The images of one column."""

    def __init__(self, table: ArrowTable, column: str) -> None:
        self.table, self.column, self.scattered = table, column, table.scattered

    def __len__(self) -> int:
        return len(self.table)

    def where(self, row: int) -> str:
        return self.table.where(row)

    def stream(self, rows: Index) -> Iterator[Raw]:
        return self.table.read(self.column, rows)

    def mapped(self) -> Encoded:
        return Cells(self.table.mapped(self.column), self.column)


class Mapped(ArrowTable):
    """A table of `datasets`, mapped from disk; unlike one of pyarrow it pickles to its path and not to its data."""

    def __init__(self, table: Any, schema: Any, origin: str) -> None:
        super().__init__(schema, origin)
        self.table = table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> Any:
        return self.table.column(name)

    def read(self, column: str, rows: Index) -> Iterator[Raw]:
        cells = self.table.column(column)
        return (_bytes(cells.slice(row, 1))[0] for row in rows.tolist())


class Parquet(ArrowTable):
    """Parquet files, one after the other."""

    scattered = False

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = tuple(files)
        opened = [_open(file) for file in self.files]
        super().__init__(opened[0].schema_arrow, str(files[0]))
        rows = [count("the number of rows", file.metadata.num_rows, f"see {self.origin}", least=0) for file in opened]
        within("TABLE_ROWS", sum(rows), f"the number of rows of {self.origin}")
        self.starts = np.cumsum([0, *rows])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def where(self, row: int) -> str:
        k = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"{self.files[k]} row {row - int(self.starts[k])}"

    def column(self, name: str) -> Any:
        parts = [read_columns(file, [name])[name] for file in self.files]
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)

    def read(self, column: str, rows: Index) -> Iterator[Raw]:
        for file, start, stop in zip(self.files, self.starts[:-1], self.starts[1:], strict=True):
            wanted = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)] - start
            if not len(wanted):
                continue
            opened, first = _open(file), 0
            together = _rows_at_once(file, column)
            with _readable(file):
                for batch in opened.iter_batches(together, columns=[column]):
                    here = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, first + len(batch))]
                    if len(here):
                        yield from _bytes(batch.column(0).take(pa.array(here - first)))
                    first += len(batch)
                    if first > wanted[-1]:
                        break

    def mapped(self, column: str) -> ArrowTable:
        import datasets

        step = min(_rows_at_once(file, column) for file in self.files)
        files = [glob.escape(str(file)) for file in self.files]  # `datasets` takes patterns
        rows = datasets.load_dataset("parquet", data_files=files, split="train", columns=[column], batch_size=step)
        return Mapped(rows.data, rows.features.arrow_schema, self.origin)


def read_columns(file: Path, names: Sequence[str]) -> Any:
    """Whole columns of a parquet file as an Arrow table, if they are within the limit."""
    size = sum(_size(chunk) for chunk in _chunks(_open(file), names))
    within("ARRAY_BYTES", size, f"the number of bytes of {', '.join(map(repr, names[:3]))} of {file}")
    with _readable(file):
        return _open(file, names).read(columns=list(names))


def _open(file: Path, columns: Sequence[str] = ()) -> Any:
    """A parquet file; of the texts and images of these columns, one that is stored once is held once."""
    with _readable(file):
        if not file.is_file():
            raise ValueError("it is a pipe, a device or a folder")
        opened = pq.ParquetFile(file)
        once = {c.path_in_schema for c in _chunks(opened, columns) if c.physical_type not in _WIDTH}
        return pq.ParquetFile(file, read_dictionary=sorted(once)) if once else opened


def _readable(file: Path) -> AbstractContextManager[None]:
    kinds = (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError)
    return explained(f"{file} is not a readable parquet file", "it may be truncated: download it again", *kinds)


# --- how much a file asks for: by its metadata, before anything is read ----------------------------------------

_WIDTH = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}  # bytes of a number


def _chunks(opened: Any, columns: Sequence[str]) -> Iterator[Any]:
    """What a file says of each stored part of these columns."""
    for k in range(opened.metadata.num_row_groups):
        group = opened.metadata.row_group(k)
        for j in range(group.num_columns):
            path = group.column(j).path_in_schema
            if any(path == column or path.startswith(f"{column}.") for column in columns):
                yield group.column(j)


def _size(chunk: Any) -> int:
    """Bytes of a stored part in memory: its numbers, or its texts, each once, and a number for each row."""
    times = chunk.num_values if "DELTA_BYTE_ARRAY" in chunk.encodings else 1  # texts that share their beginnings
    return max(times * chunk.total_uncompressed_size, _WIDTH.get(chunk.physical_type, 4) * chunk.num_values)


def _rows_at_once(file: Path, column: str) -> int:
    """Rows of images that are read together: one that is stored once may stand for many."""
    rows, most = BATCH, limit("TABLE_BYTES")
    for chunk in _chunks(_open(file), [column]):
        size = max(1, chunk.total_uncompressed_size)
        if size > RATIO * max(1, chunk.total_compressed_size):
            within("TABLE_BYTES", size, f"the number of bytes that {column!r} of {file} unpacks to")
        each = size / max(1, chunk.num_values) if set(chunk.encodings) <= {"PLAIN", "RLE", "BIT_PACKED"} else size
        rows = min(rows, int(most / max(1, each)))
    return max(1, rows)


# --- values -----------------------------------------------------------------------------------------------------


def _holds_bytes(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(k).name == "bytes" and _holds_bytes(kind.field(k).type) for k in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _bytes(column: Any) -> list[bytes]:
    values = pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column
    return [value or b"" for value in values.to_pylist()]


def python_values(column: Any) -> list[Any]:
    """The values of an Arrow array as Python has them; one that is stored once is one object."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in python_values(chunk)]
    if isinstance(column, pa.DictionaryArray):
        words = column.dictionary.to_pylist()
        return [None if k is None else words[k] for k in column.indices.to_pylist()]
    if isinstance(column, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        inner = iter(python_values(column.flatten()))
        return [None if n is None else list(islice(inner, n)) for n in pc.list_value_length(column).to_pylist()]
    if isinstance(column, pa.StructArray):
        parts = [python_values(part) for part in column.flatten()]
        rows = [dict(zip((field.name for field in column.type), row, strict=True)) for row in zip(*parts, strict=True)]
        return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]
    return list(column.to_pylist())
