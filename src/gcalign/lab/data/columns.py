"""The columns of a table: which holds the images, which the labels and domains, and those as numbers with names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcalign.lab.data.catalogue import Source
from gcalign.lab.data.encoded import Records, Rows
from gcalign.lab.data.tables import Table


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
    values, rows = _distinct(table, column)
    missing = np.isin(rows, [k for k, value in enumerate(values) if value is None or value == -1])  # -1: the hub's mark
    if missing.all():
        return None, ()
    if missing.any():
        raise ValueError(
            f"{table.origin}: {missing.sum()} of {len(rows)} values of {column!r} are empty; fill them, or leave out "
            "the column: an unlabelled data set is welcome"
        )
    used = [values[k] for k in np.unique(rows)]
    if names and all(isinstance(value, int) for value in used):
        if not 0 <= min(used) <= max(used) < len(names):
            raise ValueError(f"{table.origin}: {column!r} spans {min(used)}..{max(used)}; there are {len(names)} names")
        return _looked_up([int(value) for value in used], rows), names
    vocabulary: Sequence[Any] = names
    if not names:
        # of all splits, so that a class absent from one does not shift the numbers of the others
        every = {v for other in others for v in _distinct(other, column)[0] if v is not None}
        vocabulary = sorted(every, key=lambda value: (str(type(value)), value))
    codes = {value: k for k, value in enumerate(vocabulary)}
    if unknown := [value for value in used if value not in codes]:
        raise ValueError(f"{table.origin}: {column!r} holds {unknown[0]!r}; known: {', '.join(map(str, vocabulary))}")
    return _looked_up([codes[value] for value in used], rows), tuple(map(str, vocabulary))


def _looked_up(codes: Sequence[int], rows: Rows) -> Tensor:  # [N] int64
    return torch.tensor(codes)[torch.from_numpy(np.unique(rows, return_inverse=True)[1])]


def _distinct(table: Table, column: str) -> tuple[list[Any], Rows]:
    """The values of a column, each once, and the place of each row's among them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column in table.schema.nested:
        raise ValueError(
            f"{table.origin}: {column!r} holds {table.schema.nested[column]}; a label is one number or text: name "
            "another column with columns=, or leave this one out"
        )
    stored = table.values(column)
    if not len(stored):
        return [], np.zeros(0, np.int64)
    coded = stored.unify_dictionaries() if pa.types.is_dictionary(stored.type) else pc.dictionary_encode(stored)
    whole = coded.combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    values = [*whole.dictionary.to_pylist(), None]
    return values, whole.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
