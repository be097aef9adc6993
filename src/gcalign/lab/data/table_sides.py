"""The columns of a table as sides: checked, decoded and divided. The table is a user's own, or drawn here."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcalign.errors import one_of
from gcalign.lab.data.catalogue import local
from gcalign.lab.data.decode import Encoded, decode, short_side, statistics
from gcalign.lab.data.sides import KINDS, ColumnSide, Preprocessing, Samples, coded, divided
from gcalign.lab.data.sources import LARGEST, MEMORY, TABLES
from gcalign.lab.data.tables import Parquet, Table, TextTable, csv_rows, json_rows
from gcalign.lab.limits import within
from gcalign.lab.words import path_of, some

FILES = ("metadata.csv", "metadata.jsonl", "pairs.csv", "pairs.jsonl", "pairs.parquet")  # of a folder
USUAL = {"shapes": "image,caption"}  # columns, where a data set has its own
GROUPS = {"shapes": "what"}


def table_of(name: str, root: str | Path | None, size: int | None = None) -> Table:
    """The table of a data set of pairs."""
    one_of("data", name, TABLES)
    if name == "shapes":
        from gcalign.lab.data import shapes

        return shapes.Shapes(size or shapes.SIZE)
    if root is None:
        raise ValueError("data=pairs needs data.root=, a .parquet, .csv or .jsonl file with one column per side")
    return open_table(local(root) or path_of(root))


def open_table(root: Path) -> Table:
    """The table at this path, or the one in this folder."""
    if root.is_dir():
        named = [root / name for name in FILES if (root / name).is_file()]
        named = named or sorted(path for path in root.iterdir() if path.suffix == ".parquet" and path.is_file())
        if len(named) != 1:
            have = f"{len(named)} tables ({', '.join(path.name for path in named)})" if named else "no table of pairs"
            raise ValueError(f"data.root={root} has {have}; one is needed, called {' or '.join(FILES)}: name the file")
        root = named[0]
    if not root.is_file():
        raise ValueError(f"data.root={root} does not exist; name a .parquet, .csv or .jsonl file, or its folder")
    if root.suffix == ".parquet":
        table: Table = Parquet([root])
    elif root.suffix in (".csv", ".jsonl"):
        table = TextTable(root, csv_rows(root) if root.suffix == ".csv" else json_rows(root))
    else:
        raise ValueError(f"data.root={root} must end in .parquet, .csv or .jsonl; convert it to one of them")
    within("TABLE_ROWS", len(table), f"the number of rows of {root}")
    if not len(table):
        raise ValueError(f"{root} has no rows; a table of pairs needs one row per pair")
    return table


def load_columns(
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
) -> Samples:
    """The rows of a table, with a side for each of `columns`. `limit` takes so many training pairs at random."""
    table = table_of(name, root, size)
    columns = columns or tuple(USUAL.get(name, "").split(","))
    if len(columns) < 2:
        raise ValueError(
            f"data.columns={','.join(columns)} must name two columns or more, e.g. data.columns=[image,name_en]; "
            f"{table.origin} has {', '.join(table.columns)}"
        )
    if len(set(columns)) < len(columns):
        raise ValueError(f"data.columns=[{','.join(columns)}] names a column twice; each side needs its own column")
    groups, grouped = _groups(table, group if group is not None else GROUPS.get(name))
    wrong: dict[int, str] = {}  # what keeps a row from being used
    sides = tuple(_side(table, column, size, wrong) for column in columns)
    if wrong:
        message = f"{len(wrong)} of {len(table)} pairs cannot be used: {some(wrong.values())}"
        if on_error == "raise":
            raise ValueError(f"{message}; a pair needs all its sides: correct the rows, or set data.on_error=skip")
        warnings.warn(f"{message}; they are skipped", stacklevel=2)
        rows = torch.tensor([k for k in range(len(table)) if k not in wrong], dtype=torch.int64)
        sides, groups = tuple(side.kept(rows) for side in sides), torch.unique(groups[rows], return_inverse=True)[1]
    split = divided(groups, (validation, test), fold, f"data.group={group} of {table.origin}")
    samples = Samples(f"pairs of {table.origin}", sides, split, groups=groups, grouped=grouped)
    train = samples.rows("train")
    if limit is not None and limit < len(train):
        chosen = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:limit]]
        samples = samples.kept(torch.cat([chosen, samples.rows("validation"), samples.rows("test")]).sort().values)
    return samples


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


def _side(table: Table, name: str, size: int | None, wrong: dict[int, str]) -> ColumnSide:
    """One side: a column, or several joined with +, whose items are all right answers."""
    parts = name.split("+")
    kinds = set()
    for column in parts:
        table.check(column, "data.columns")
        kinds.add(one_of(f"what column {column!r} of {table.origin} holds", table.kind(column), KINDS))
    if len(kinds) > 1:
        joined = " and ".join(sorted(kinds))
        raise ValueError(f"data.columns: {name} joins {joined}; a side can hold one kind of item only")
    (kind,) = kinds
    if kind == "text":
        return _texts(table, name, parts, wrong)
    return _arrays(table, name, parts, wrong) if kind == "array" else _images(table, name, parts, size, wrong)


def _images(table: Table, name: str, parts: Sequence[str], size: int | None, wrong: dict[int, str]) -> ColumnSide:
    stored = {column: table.images(column) for column in parts}
    side = size or min(LARGEST, *map(_short, stored.values()))  # one size for all of them
    total = len(parts) * len(table) * 3 * side**2
    if total > MEMORY:
        raise ValueError(
            f"{len(table)} images of {side}×{side} are {total:,} bytes, and memory has room for {MEMORY:,}; lower "
            f"data.size to {int(math.sqrt(MEMORY / (3 * len(parts) * len(table))))}"
        )
    pixels = []
    for column, encoded in stored.items():
        decoded, bad = decode(encoded, np.arange(len(table)), side)
        wrong |= {int(k): f"{table.where(int(k))}: {column} ({text.rpartition(': ')[2]})" for k, text in bad.items()}
        pixels.append(decoded)
    items = pixels[0] if len(pixels) == 1 else torch.stack(pixels, 1).flatten(0, 1)
    mean, std = statistics(items[torch.linspace(0, len(items) - 1, min(2000, len(items))).long()])
    about = Preprocessing(name, "image", tuple(items.shape[1:]), mean, std)
    return ColumnSide(about, items, torch.arange(len(table)).repeat_interleave(len(parts)))


def _short(encoded: Encoded) -> int:
    for raw in encoded.stream(np.arange(min(100, len(encoded)))):
        with suppress(Exception):  # damaged ones are reported where they are decoded
            return short_side(raw)
    return 32


def _texts(table: Table, name: str, parts: Sequence[str], wrong: dict[int, str]) -> ColumnSide:
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
    return ColumnSide(Preprocessing(name, "text", ()), tuple(items), torch.tensor(owner))


def _arrays(table: Table, name: str, parts: Sequence[str], wrong: dict[int, str]) -> ColumnSide:
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
        two = " and ".join(f"{n} in {where}" for n, where in list(lengths.items())[:2])
        raise ValueError(f"arrays of {name} have different lengths, {two}; all must have the same: pad or cut them")
    width = next(iter(lengths), 1)
    items = torch.from_numpy(np.stack([x if x.size == width else np.zeros(width, np.float32) for x in rows]))
    items = items.nan_to_num(0, 0, 0)
    mean, std = items.double().mean(0), items.double().std(0, correction=0)
    std = torch.where(std > 0, std, 1)
    about = Preprocessing(name, "array", (width,), tuple(mean.tolist()), tuple(std.tolist()))
    return ColumnSide(about, items, torch.arange(len(table)).repeat_interleave(len(parts)))


# --- rules that find near-duplicates ----------------------------------------------------------------------------

_PEOPLE = str.maketrans({"👨": "🧑", "👩": "🧑", "👦": "🧒", "👧": "🧒"} | dict.fromkeys("🏻🏼🏽🏾🏿\ufe0f"))
_WHOLE = {"👫": "🧑🤝🧑", "👬": "🧑🤝🧑", "👭": "🧑🤝🧑", "💏": "🧑❤💋🧑", "💑": "🧑❤🧑"}
_ATTRIBUTES = frozenset("♀♂🦰🦱🦲🦳➡")  # gender, hair, direction: parts that a joiner adds to a base


def base_emoji(text: str) -> str:
    """An emoji without skin tone, gender, hair and direction: what its variants have in common."""
    plain = _WHOLE.get(text.translate(_PEOPLE), text.translate(_PEOPLE))
    parts = re.split("\u200d", plain)
    return "".join([part for part in parts if part not in _ATTRIBUTES] or parts)


RULES = {"base": base_emoji}
