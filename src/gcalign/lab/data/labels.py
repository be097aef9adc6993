"""Which column of a table holds the images, which the labels and domains; and those as numbers with names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from gcalign.lab.data.arrow import ArrowTable
from gcalign.lab.data.catalogue import DataSet
from gcalign.lab.data.decode import Index, Records
from gcalign.lab.words import explained


def records(tables: Mapping[str, ArrowTable], split: str, data_set: DataSet) -> Records:
    """One table with its labels and domains; classes without names are numbered alike in all of `tables`."""
    table, named = tables[split], tables[split].classes()
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
        others = [other for other in tables.values() if column in other.columns]
        coded.append(_codes(table, column, given or names, others))
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
    table: ArrowTable, column: str, names: tuple[str, ...], others: Sequence[ArrowTable]
) -> tuple[Tensor | None, tuple[str, ...]]:
    """A column as numbers 0, 1, … and their names; None where the data set withholds the values."""
    values, rows = _distinct(table, column)
    none = [k for k, value in enumerate(values) if value is None or value == -1 or value != value]  # -1: the hub's mark
    missing = np.isin(rows, none)
    if missing.all():
        return None, ()
    if missing.any():
        raise ValueError(
            f"{table.origin}: {missing.sum()} of {len(rows)} values of {column!r} are empty; fill them, or leave out "
            "the column: an unlabelled data set is welcome"
        )
    present, places = np.unique(rows, return_inverse=True)
    used = [values[k] for k in present]
    if names and all(isinstance(value, int) for value in used):
        if not 0 <= min(used) <= max(used) < len(names):
            raise ValueError(
                f"{table.origin}: {column!r} spans {min(used)}..{max(used)}; there are {len(names)} names: correct one"
            )
        codes, vocabulary = {value: int(value) for value in used}, names
    else:
        # of all splits, so that a class absent from one does not shift the numbers of the others
        every = {v for other in others for v in _distinct(other, column)[0] if v is not None} if not names else set()
        order = names or sorted(every, key=lambda value: (str(type(value)), value))
        codes, vocabulary = {value: k for k, value in enumerate(order)}, tuple(map(str, order))
    if unknown := [value for value in used if value not in codes]:
        raise ValueError(f"{table.origin}: {column!r} holds {unknown[0]!r}; known: {', '.join(vocabulary)}")
    return torch.tensor([codes[value] for value in used])[torch.from_numpy(places)], vocabulary


def _distinct(table: ArrowTable, column: str) -> tuple[list[Any], Index]:
    """The values of a column, each once, and the place of each row's among them."""
    import pyarrow.compute as pc

    if table.nested(column):
        raise ValueError(
            f"{table.origin}: {column!r} holds {table.schema.field(column).type}; a label is one number or text: leave "
            "this column out, or rename it"
        )
    stored = table.column(column)
    if not len(stored):
        return [], np.zeros(0, np.int64)
    coded = stored.unify_dictionaries() if pa.types.is_dictionary(stored.type) else pc.dictionary_encode(stored)
    whole = coded.combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    remedy = "store numbers or texts"  # a time may be one that Python does not have
    with explained(f"{table.origin}: {column!r} cannot be read", remedy, OverflowError, ValueError):
        values = [*whole.dictionary.to_pylist(), None]
    return values, whole.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
