"""Two columns of a table as pairs, and the table written again: without the flagged pairs, or with better partners."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gcalign.auditing.result import Audit
from gcalign.lab import files
from gcalign.lab.audit.inputs import AuditedPairs
from gcalign.lab.audit.outputs import spreadsheet_cell
from gcalign.lab.data.decode import decode
from gcalign.lab.data.table_sides import open_table
from gcalign.lab.data.tables import Parquet, Table, TextTable
from gcalign.lab.words import path_of, some

FORMATS = (".csv", ".jsonl", ".parquet")
SIDE = 32  # pixels of the images that encoders see


class TableColumns:
    """A table of pairs, and the names of the two columns that belong together."""

    def __init__(self, path: str, first: str, second: str, ids: str | None = None) -> None:
        self.path, self.first, self.second = path_of(path), first, second
        if self.path.suffix not in FORMATS:
            raise ValueError(f"{path} must end in {', '.join(FORMATS)}; save the table as one of them")
        self.table = open_table(self.path)
        for name in (first, second, *([] if ids is None else [ids])):
            self.table.check(name, "column")
        if first == second:
            raise ValueError(f"{first} is named twice; name the two columns that belong together")
        self.ids = None if ids is None else [str(value) for value in self.table.values(ids)]

    def pairs(self) -> AuditedPairs:
        """The pairs, with what a page shows of them."""
        a, b = (_side(self.table, name) for name in (self.first, self.second))
        return AuditedPairs(
            title=f"Audit of {self.path.name}: {self.first} and {self.second}",
            a=a,
            b=b,
            note="",
            names=self.ids,
            first=_shown(self.table, self.first),
            second=_shown(self.table, self.second),
            sides=(self.first, self.second),
        )

    def texts(self) -> dict[str, list[str]]:
        """The columns that hold texts, for a ranking that can be read."""
        named = [self.first, self.second, *(c for c in self.table.columns if c not in (self.first, self.second))]
        kinds = {column: self.table.kind(column) for column in named}
        return {c: [str(v) for v in self.table.values(c)] for c in named if kinds[c] in ("text", "number")}

    def write_clean(self, path: Path, audit: Audit) -> int:
        """The table without the flagged pairs, in its own format; returns how many are left."""
        kept = (~audit.flagged).nonzero().flatten().tolist()
        if isinstance(self.table, Parquet):
            import pyarrow.parquet as pq

            files.write_parquet(path, pq.read_table(self.path).take(kept))
        else:
            assert isinstance(self.table, TextTable)
            files.write(path, _written([self.table.rows[k] for k in kept], path.suffix))
        return len(kept)

    def suggestions(self, audit: Audit) -> list[dict[str, Any]]:
        """For flagged pairs and suspects the partner that fits better, where there is one; the worst pair first."""
        shown, result = self.texts(), []
        chosen = (audit.flagged | audit.suspects) & (audit.other_similarity > audit.similarity)
        for k in audit.ranking[chosen[audit.ranking]].tolist():
            other = int(audit.other[k])
            row: dict[str, Any] = {"pair": k if self.ids is None else self.ids[k]}
            row |= {name: shown[name][k] for name in (self.first, self.second) if name in shown}
            row["suggested pair"] = other if self.ids is None else self.ids[other]
            if self.second in shown:
                row["suggestion"] = shown[self.second][other]
            row["probability"] = round(float(audit.probability[k]), 4)
            row["similarity"], row["its similarity"] = (
                round(float(x[k]), 4) for x in (audit.similarity, audit.other_similarity)
            )
            result.append(row)
        return result


def write_suggestions(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Suggestions as CSV or JSON lines."""
    safe = [{name: spreadsheet_cell(value) for name, value in row.items()} for row in rows]
    files.write(path, _written(safe if path.suffix == ".csv" else list(rows), path.suffix))


def _written(rows: list[dict[str, Any]], suffix: str) -> str:
    if suffix == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return files.csv_text([rows[0] if rows else ["pair"], *(row.values() for row in rows)])


def _side(table: Table, name: str) -> Any:
    """Texts, numbers [n, D] or images [n, 3, H, W] of a column."""
    kind = table.kind(name)
    if kind == "image":
        pixels, wrong = decode(table.images(name), np.arange(len(table)), SIDE)
        _complete(table, name, wrong)
        return pixels
    values = table.values(name)
    _complete(table, name, {k: f"{table.where(k)} is empty" for k, v in enumerate(values) if v is None or v == ""})
    if kind == "text":
        if not all(isinstance(value, str) for value in values):
            raise ValueError(f"{name} of {table.origin} holds lists of texts; an audit takes one text for each pair")
        return values
    if kind != "array":
        held = "one number for each pair" if kind == "number" else kind
        raise ValueError(f"{name} of {table.origin} holds {held}; an audit takes texts, images or lists of numbers")
    try:
        matrix = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError):
        matrix = np.empty(0, dtype=np.float32)
    if matrix.ndim != 2:
        raise ValueError(f"{name} of {table.origin} must hold lists of numbers of one length, one embedding per row")
    return torch.from_numpy(matrix)


def _complete(table: Table, name: str, wrong: dict[int, str]) -> None:
    if wrong:
        raise ValueError(
            f"{name} of {table.origin} cannot be used in {len(wrong)} of {len(table)} rows ({some(wrong.values())}); "
            "every pair needs both sides: correct these rows, or leave them out"
        )


def _shown(table: Table, name: str) -> Sequence[Any] | None:
    kind = table.kind(name)
    if kind == "text":
        return [str(value) for value in table.values(name)]
    return _Images(table, name) if kind == "image" else None


class _Images(Sequence[Any]):
    """The images of a column, read when they are shown."""

    def __init__(self, table: Table, name: str) -> None:
        self.images, self.n = table.images(name), len(table)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, k: Any) -> Any:
        pixels, _ = decode(self.images, np.asarray([k]), 72)
        return pixels[0].permute(1, 2, 0).numpy()
