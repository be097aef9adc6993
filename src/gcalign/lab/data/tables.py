"""Images in tables: parquet files and Hugging Face data sets, their columns, classes and domains."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcalign.lab.data.catalogue import Source
from gcalign.lab.data.encoded import Encoded, Raw, Records, Rows

BATCH = 1024  # rows of a parquet file in memory at a time


@dataclass(frozen=True)
class Schema:
    """What a table says of its columns."""

    columns: tuple[str, ...]
    images: tuple[str, ...]
    classes: Mapping[str, tuple[str, ...]]  # by column, where the table names them


def _schema(arrow: Any) -> Schema:
    import pyarrow as pa

    def bytes_inside(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return any(kind.field(k).name == "bytes" for k in range(kind.num_fields))
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    # written by Hugging Face's `datasets`; other writers leave it out
    features = json.loads((arrow.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    classes = {name: tuple(f["names"]) for name, f in features.items() if f.get("_type") == "ClassLabel"}
    return Schema(tuple(arrow.names), tuple(f.name for f in arrow if bytes_inside(f.type)), classes)


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

    def __init__(self, files: Sequence[Path]) -> None:
        self.files, self.origin = tuple(files), str(files[0])
        opened = [self._open(file) for file in self.files]
        self.schema = _schema(opened[0].schema_arrow)
        self.starts = np.cumsum([0] + [file.metadata.num_rows for file in opened])

    @staticmethod
    def _open(file: Path) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(file, error) from error

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
                for batch in opened.iter_batches(BATCH, columns=[self.image]):
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

        try:
            return self._open(file).read(columns=[column]).column(column)
        except (pa.ArrowException, OSError, KeyError) as error:
            raise _unreadable(file, error) from error

    def mapped(self) -> Encoded:
        import datasets

        files = [str(file) for file in self.files]
        rows = datasets.load_dataset("parquet", data_files=files, split="train", columns=[self.image])
        arrow = Arrow(rows.data, rows.features.arrow_schema, self.origin)
        arrow.image = self.image
        return arrow


def _unreadable(file: Path, error: Exception) -> ValueError:
    return ValueError(f"{file} is not a readable parquet file ({error}); it may be truncated: download it again")


def records(tables: Mapping[str, Table], split: str, source: Source, columns: Mapping[str, str]) -> Records:
    """One table with its labels and domains; classes without names are numbered alike in all of `tables`."""
    table = tables[split]
    table.image = _image_column(table, source, columns)
    coded: list[tuple[Tensor | None, tuple[str, ...]]] = []
    for kind, names in (("label", source.classes), ("domain", source.domain_names)):
        column = _other_column(table, kind, source, columns)
        if column is None:
            coded.append((None, ()))
            continue
        named = table.schema.classes.get(column, ())
        if names and named and len(names) != len(named):
            raise ValueError(
                f"{table.origin}: {column!r} has {len(named)} classes where {source.name} has {len(names)}; "
                "point root at this data set, or use data=parquet for one of your own"
            )
        others = [other for other in tables.values() if column in other.schema.columns]
        coded.append(_codes(table, column, named or names, others))
    (labels, classes), (domains, domain_names) = coded
    return Records(table, labels, domains, classes, domain_names)


def _present(table: Table, kind: str, column: str) -> str:
    if column not in table.schema.columns:
        raise ValueError(
            f"{table.origin} has no column {column!r} for the {kind}; it has {', '.join(table.schema.columns)}: "
            f"name one with columns={{'{kind}': …}}"
        )
    return column


def _image_column(table: Table, source: Source, columns: Mapping[str, str]) -> str:
    asked = columns.get("image") or source.image
    found = table.schema.images
    if asked:
        if _present(table, "image", asked) not in found:
            raise ValueError(f"{table.origin}: column {asked!r} holds no image bytes; those that do: {found or 'none'}")
        return asked
    if len(found) != 1:
        rule = f"has {len(found)} columns of images ({', '.join(found)})" if found else "has no column of images"
        raise ValueError(
            f"{table.origin} {rule}; one of bytes, or of {{bytes, path}} as Hugging Face writes them, is needed: "
            f"its columns are {', '.join(table.schema.columns)}; name one with columns={{'image': …}}"
        )
    return found[0]


def _other_column(table: Table, kind: str, source: Source, columns: Mapping[str, str]) -> str | None:
    asked = columns.get(kind) or (source.label if kind == "label" else source.domain)
    if asked:
        return _present(table, kind, asked)
    if source.image:  # a known data set: what it does not name, it does not have
        return None
    if kind in table.schema.columns:
        return kind
    classes = [name for name in table.schema.classes if name in table.schema.columns] if kind == "label" else []
    if len(classes) > 1:
        raise ValueError(
            f"{table.origin} has {len(classes)} columns of classes ({', '.join(classes)}); one is the label: "
            "say which with columns={'label': …}"
        )
    return classes[0] if classes else None


def _codes(
    table: Table, column: str, names: tuple[str, ...], others: Sequence[Table]
) -> tuple[Tensor | None, tuple[str, ...]]:
    """A column as numbers 0, 1, … and their names; None where the data set withholds the values."""
    values = table.values(column).to_pylist()
    missing = sum(value is None or value == -1 for value in values)  # -1 is the hub's mark of a withheld label
    if missing == len(values):
        return None, ()
    if missing:
        raise ValueError(
            f"{table.origin}: {missing} of {len(values)} values of {column!r} are empty; fill them, or leave out the "
            "column: an unlabelled data set is welcome"
        )
    if names and isinstance(values[0], int):
        if not 0 <= min(values) <= max(values) < len(names):
            raise ValueError(
                f"{table.origin}: {column!r} spans {min(values)}..{max(values)}; there are {len(names)} names"
            )
        return torch.tensor(values), names
    vocabulary: Sequence[Any] = names
    if not names:
        # of all splits, so that a class absent from one does not shift the numbers of the others
        vocabulary = sorted({v for other in others for v in other.values(column).unique().to_pylist() if v is not None})
    codes = {value: k for k, value in enumerate(vocabulary)}
    if unknown := sorted(set(values) - codes.keys()):
        raise ValueError(f"{table.origin}: {column!r} holds {unknown[0]!r}; known: {', '.join(map(str, vocabulary))}")
    return torch.tensor([codes[value] for value in values]), tuple(map(str, vocabulary))
