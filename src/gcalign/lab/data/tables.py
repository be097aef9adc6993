"""Images in tables: parquet files and Hugging Face data sets."""

from __future__ import annotations

import glob
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcalign.errors import count
from gcalign.lab.data.encoded import Encoded, Raw, Rows
from gcalign.lab.limits import limit, within

BATCH = 1024  # rows of a parquet file in memory at a time
RATIO = 1000  # by which images may unpack; those that are pictures hardly do


@dataclass(frozen=True)
class Schema:
    """What a table says of its columns."""

    columns: tuple[str, ...]
    images: tuple[str, ...]
    classes: Mapping[str, tuple[str, ...]]  # by column, where the table names them
    nested: Mapping[str, str]  # columns of lists and the like, and what they hold


def _schema(arrow: Any) -> Schema:
    import pyarrow as pa

    nested = {field.name: str(field.type) for field in arrow if pa.types.is_nested(field.type)}
    return Schema(tuple(arrow.names), tuple(f.name for f in arrow if _holds_bytes(f.type)), _classes(arrow), nested)


def _holds_bytes(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(kind.field(k).name == "bytes" and _holds_bytes(kind.field(k).type) for k in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _classes(arrow: Any) -> dict[str, tuple[str, ...]]:
    """The names of classes that Hugging Face's `datasets` writes beside a table; other writers leave them out."""
    try:
        features = json.loads((arrow.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        named = {name: f["names"] for name, f in features.items() if f.get("_type") == "ClassLabel"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # odd, or of another writer: the table itself says what its classes are
    return {k: tuple(v) for k, v in named.items() if isinstance(v, list) and all(isinstance(x, str) for x in v)}


def _bytes(column: Any) -> list[bytes]:
    """The encoded images of a column of bytes, or of {bytes, path} as `datasets` writes them; b"" where none is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column
    return [value or b"" for value in values.to_pylist()]


class Table(Encoded, ABC):
    """A table whose `image` column holds encoded images."""

    image = ""
    origin = ""
    schema: Schema

    @abstractmethod
    def values(self, column: str) -> Any:
        """A whole column of labels or domains, as an Arrow array."""


class Arrow(Table):
    """An Arrow table, usually mapped from disk: `datasets` keeps its cache as such."""

    def __init__(self, table: Any, schema: Any, origin: str) -> None:
        # a table of `datasets` rather than of pyarrow, as it pickles to its path and not to its data
        self.table, self.origin = table, origin
        self.schema = _schema(schema)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def read(self, row: int) -> Raw:
        return _bytes(self.table.column(self.image).slice(row, 1))[0]

    def where(self, row: int) -> str:
        return f"{self.origin} row {row}"

    def values(self, column: str) -> Any:
        return self.table.column(column)


class Parquet(Table):
    """Parquet files, one after the other, read straight through pyarrow.

    `load_dataset` would first write all of it to a cache of its own, which takes longer than decoding small images;
    it pays only where images are read in any order, so `mapped` uses it.
    """

    scattered = False

    def __init__(self, files: Sequence[Path]) -> None:
        self.files, self.origin = tuple(files), str(files[0])
        opened = [self._open(file) for file in self.files]
        self.schema = _schema(opened[0].schema_arrow)
        rows = [count("the number of rows", file.metadata.num_rows, f"see {self.origin}", least=0) for file in opened]
        within("TABLE_ROWS", sum(rows), f"the number of rows of {self.origin}")
        self.starts = np.cumsum([0, *rows])

    @staticmethod
    def _open(file: Path, dictionary: Sequence[str] = ()) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            if not file.is_file():
                raise ValueError("it is a pipe, a device or a folder")
            return pq.ParquetFile(file, read_dictionary=list(dictionary))
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            raise _unreadable(file, error) from error

    def _step(self, opened: Any, file: Path) -> int:
        """Rows that can be read together: a value that is stored once may stand for many."""
        rows, most = BATCH, limit("TABLE_BYTES")
        for chunk in _chunks(opened.metadata, self.image):
            size = max(1, chunk.total_uncompressed_size)
            if size > RATIO * max(1, chunk.total_compressed_size):
                within("TABLE_BYTES", size, f"the number of bytes that {self.image!r} of {file} unpacks to")
            each = size / max(1, chunk.num_values) if set(chunk.encodings) <= {"PLAIN", "RLE", "BIT_PACKED"} else size
            rows = min(rows, int(most / max(1, each)))
        return max(1, rows)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, row: int) -> Raw:
        return next(self.stream(np.array([row])))

    def where(self, row: int) -> str:
        k = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"{self.files[k]} row {row - int(self.starts[k])}"

    def stream(self, rows: Rows) -> Iterator[Raw]:
        import pyarrow as pa

        for file, start, stop in zip(self.files, self.starts[:-1], self.starts[1:], strict=True):
            wanted = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)] - start
            if not len(wanted):
                continue
            opened, first = self._open(file), 0
            try:
                for batch in opened.iter_batches(self._step(opened, file), columns=[self.image]):
                    here = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, first + len(batch))]
                    if len(here):
                        yield from _bytes(batch.column(0).take(pa.array(here - first)))
                    first += len(batch)
                    if first > wanted[-1]:
                        break
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(file, error) from error

    def values(self, column: str) -> Any:
        import pyarrow as pa

        parts = [self._column(file, column) for file in self.files]
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)

    def _column(self, file: Path, column: str) -> Any:
        import pyarrow as pa

        opened = self._open(file, [column])  # each text once, however many rows have it
        for chunk in _chunks(opened.metadata, column):
            times = chunk.num_values if "DELTA_BYTE_ARRAY" in chunk.encodings else 1
            within("TABLE_BYTES", times * chunk.total_uncompressed_size, f"the number of bytes of {column!r} of {file}")
        try:
            return opened.read(columns=[column]).column(column)
        except (pa.ArrowException, OSError, KeyError, MemoryError) as error:
            raise _unreadable(file, error) from error

    def mapped(self) -> Encoded:
        import datasets

        files = [glob.escape(str(file)) for file in self.files]  # `datasets` takes patterns
        step = min(self._step(self._open(file), file) for file in self.files)
        rows = datasets.load_dataset("parquet", data_files=files, split="train", columns=[self.image], batch_size=step)
        arrow = Arrow(rows.data, rows.features.arrow_schema, self.origin)
        arrow.image = self.image
        return arrow


def _chunks(metadata: Any, column: str) -> Iterator[Any]:
    """What the file says of each stored part of a column, before any is read."""
    for k in range(metadata.num_row_groups):
        group = metadata.row_group(k)
        for j in range(group.num_columns):
            path = group.column(j).path_in_schema
            if path == column or path.startswith(f"{column}."):
                yield group.column(j)


_WIDTH = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}  # bytes of a number


def columns_of(file: Path, names: Sequence[str]) -> Any:
    """Whole columns of a parquet file as an Arrow table; a text or an image that is stored once is held once."""
    import pyarrow as pa

    size, texts = 0, set()
    for chunk in (chunk for name in names for chunk in _chunks(Parquet._open(file).metadata, name)):
        width = _WIDTH.get(chunk.physical_type)
        if width is None:
            texts.add(chunk.path_in_schema)
        times = chunk.num_values if "DELTA_BYTE_ARRAY" in chunk.encodings else 1
        size += max(times * chunk.total_uncompressed_size, (width or 4) * chunk.num_values)
    within("ARRAY_BYTES", size, f"the number of bytes of {', '.join(map(repr, names[:3]))} of {file}")
    try:
        return Parquet._open(file, sorted(texts)).read(columns=list(names))
    except (pa.ArrowException, OSError, KeyError, MemoryError) as error:
        raise _unreadable(file, error) from error


def python_values(column: Any) -> list[Any]:
    """The values of an Arrow array as Python has them; one that is stored once is one object."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in python_values(chunk)]
    if isinstance(column, pa.DictionaryArray):
        words = column.dictionary.to_pylist()
        return [None if k is None else words[k] for k in column.indices.to_pylist()]
    if isinstance(column, (pa.ListArray, pa.LargeListArray)):
        inner, ends = python_values(column.values), column.offsets.to_pylist()
        spans = zip(ends, ends[1:], column.is_valid().to_pylist(), strict=False)
        return [inner[first:last] if valid else None for first, last, valid in spans]
    if isinstance(column, pa.FixedSizeListArray):
        width = column.type.list_size
        inner = python_values(column.values.slice(width * column.offset, width * len(column)))
        return [inner[width * k : width * (k + 1)] if v else None for k, v in enumerate(column.is_valid().to_pylist())]
    if isinstance(column, pa.StructArray):
        parts = [python_values(part) for part in column.flatten()]
        rows = [dict(zip((field.name for field in column.type), row, strict=True)) for row in zip(*parts, strict=True)]
        return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]
    return list(column.to_pylist())


def _unreadable(file: Path, error: Exception) -> ValueError:
    return ValueError(f"{file} is not a readable parquet file ({error}); it may be truncated: download it again")
