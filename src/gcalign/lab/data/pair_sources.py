"""Pairs by name: a user's own table, or shapes with captions that are drawn here."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcalign.errors import one_of
from gcalign.lab.data import shapes
from gcalign.lab.data.catalogue import local
from gcalign.lab.data.decode import decode, short_side, statistics
from gcalign.lab.data.encoded import Encoded, some
from gcalign.lab.data.pair_tables import opened
from gcalign.lab.data.paired import KINDS, RULES, PairedData, PairedSide, coded, divided
from gcalign.lab.data.sources import LARGEST, MEMORY
from gcalign.lab.data.tables import Table

NAMES = ("pairs", "shapes")
USUAL = {"shapes": "image,caption"}  # columns, where a data set has its own
GROUPS = {"shapes": "what"}


def table_of(name: str, root: str | Path | None, size: int | None = None) -> Table:
    """The table of a data set of pairs."""
    one_of("data", name, NAMES)
    if name == "pairs" and root is None:
        raise ValueError("data=pairs needs data.root=, a .parquet, .csv, .jsonl or .npz file with a column a side")
    return shapes.Shapes(size or shapes.SIZE) if name == "shapes" else opened(local(root or "") or Path())


def load_pairs(
    name: str,
    *,
    root: str | Path | None = None,
    columns: Sequence[str] = (),
    group: str | None = None,
    size: int | None = None,
    limit: int | None = None,
    on_error: str = "raise",
    validation: float = 0.1,
    test: float = 0.2,
    fold: int = 0,
) -> PairedData:
    """The pairs of a table, checked, decoded and divided. `limit` takes so many training pairs at random."""
    table = table_of(name, root, size)
    columns = columns or tuple(USUAL.get(name, "").split(","))
    if len(columns) < 2:
        raise ValueError(
            f"data.columns={','.join(columns)} must name two columns or more, e.g. data.columns=[image,name_en]; "
            f"{table.origin} has {', '.join(table.columns)}"
        )
    if len(set(columns)) < len(columns):
        raise ValueError(f"data.columns=[{','.join(columns)}] names a column twice; each side is one of its own")
    groups, grouped = _groups(table, group if group is not None else GROUPS.get(name))
    wrong: dict[int, str] = {}
    sides = tuple(_side(table, column, size, wrong) for column in columns)
    rows = torch.tensor([k for k in range(len(table)) if k not in wrong], dtype=torch.int64)
    if wrong:
        said = f"{len(wrong)} of {len(table)} pairs cannot be used: {some(wrong.values())}"
        if on_error == "raise":
            raise ValueError(f"{said}; every side of a pair must be there: correct the rows, or data.on_error=skip")
        warnings.warn(f"{said}; they are left out", stacklevel=2)
        sides, groups = tuple(side.kept(rows) for side in sides), torch.unique(groups[rows], return_inverse=True)[1]
    split = divided(groups, (validation, test), fold, f"data.group={group} of {table.origin}")
    pairs = PairedData(table.origin, sides, groups, grouped, split)
    train = pairs.rows("train")
    if limit is not None and limit < len(train):
        chosen = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:limit]]
        pairs = pairs.kept(torch.cat([chosen, pairs.rows("validation"), pairs.rows("test")]).sort().values)
    return pairs


def _groups(table: Table, group: str | None) -> tuple[Tensor, bool]:
    if group is None:
        return torch.arange(len(table)), False
    column, _, rule = group.partition(":")
    table.check(column, "data.group")
    values = table.values(column)
    if any(isinstance(value, (list, np.ndarray)) for value in values):
        raise ValueError(f"data.group={group}: a group is one text or number for each row, not a list")
    if rule:
        function = RULES[one_of("the rule after data.group=column:", rule, RULES)]
        values = [function(str(value)) for value in values]
    return coded(values), True


def _side(table: Table, name: str, size: int | None, wrong: dict[int, str]) -> PairedSide:
    """One side: a column, or several joined with +, whose items are all right answers."""
    parts = name.split("+")
    kinds = set()
    for column in parts:
        table.check(column, "data.columns")
        kinds.add(one_of(f"what column {column!r} of {table.origin} holds", table.kind(column), KINDS))
    if len(kinds) > 1:
        raise ValueError(f"data.columns: {name} joins {' and '.join(sorted(kinds))}; one side has one kind of items")
    (kind,) = kinds
    make = {"image": _images, "text": _texts, "array": _arrays}[kind]
    return make(table, name, parts, size, wrong)


def _images(table: Table, name: str, parts: Sequence[str], size: int | None, wrong: dict[int, str]) -> PairedSide:
    found, rows = [], np.arange(len(table))
    for column in parts:
        encoded = table.images(column)
        side = size or min(LARGEST, _short(encoded))
        total = len(parts) * len(table) * 3 * side**2
        if total > MEMORY:
            raise ValueError(
                f"{len(table)} images of {side}×{side} are {total:,} bytes, and at most {MEMORY:,} are held; lower "
                f"data.size to {int(math.sqrt(MEMORY / (3 * len(parts) * len(table))))}"
            )
        pixels, bad = decode(encoded, rows, side)
        wrong |= {int(k): f"{table.where(int(k))}: {column} ({text.rpartition(': ')[2]})" for k, text in bad.items()}
        found.append(pixels)
    items = found[0] if len(found) == 1 else torch.stack(found, 1).flatten(0, 1)
    owner = torch.arange(len(table)).repeat_interleave(len(parts))
    mean, std = statistics(items[torch.linspace(0, len(items) - 1, min(2000, len(items))).long()])
    return PairedSide(name, "image", items, owner, mean, std)


def _short(encoded: Encoded) -> int:
    for raw in encoded.stream(np.arange(min(100, len(encoded)))):
        with suppress(Exception):  # damaged ones are reported where they are decoded
            return short_side(raw)
    return 32


def _texts(table: Table, name: str, parts: Sequence[str], size: int | None, wrong: dict[int, str]) -> PairedSide:
    columns = {column: table.values(column) for column in parts}
    items: list[str] = []
    owner: list[int] = []
    for row in range(len(table)):
        for column, values in columns.items():
            several = values[row] if isinstance(values[row], list) else [values[row]]
            for text in several or [None]:
                if not isinstance(text, str) or not text.strip():
                    wrong[row] = f"{table.where(row)}: {column} is empty"
                items.append(text if isinstance(text, str) else "")
                owner.append(row)
    return PairedSide(name, "text", tuple(items), torch.tensor(owner))


def _arrays(table: Table, name: str, parts: Sequence[str], size: int | None, wrong: dict[int, str]) -> PairedSide:
    rows: list[Any] = []
    lengths: dict[int, str] = {}
    for row, values in enumerate(zip(*(table.values(column) for column in parts), strict=True)):
        for column, value in zip(parts, values, strict=True):
            try:
                array = np.asarray([] if value is None else value, np.float32).reshape(-1)
            except (ValueError, TypeError):
                array = np.zeros(0, np.float32)
            if not array.size or not np.isfinite(array).all():
                wrong[row] = f"{table.where(row)}: {column} has no numbers, or some that are not finite"
            else:
                lengths.setdefault(array.size, f"{table.where(row)}: {column}")
            rows.append(array)
    if len(lengths) > 1:
        said = " and ".join(f"{n} in {where}" for n, where in list(lengths.items())[:2])
        raise ValueError(f"arrays of {name} have different lengths, {said}; all must have one: pad or cut them")
    width = next(iter(lengths), 1)
    items = torch.from_numpy(np.stack([x if x.size == width else np.zeros(width, np.float32) for x in rows]))
    items = items.nan_to_num(0, 0, 0)
    mean, std = items.double().mean(0), items.double().std(0, correction=0)
    std = torch.where(std > 0, std, 1)
    owner = torch.arange(len(table)).repeat_interleave(len(parts))
    return PairedSide(name, "array", items, owner, tuple(mean.tolist()), tuple(std.tolist()))
