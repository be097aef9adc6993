"""An audit as CSV, JSON, parquet and weights: whole files or none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gcalign.auditing.result import Audit
from gcalign.lab import files
from gcalign.lab.words import printable

TABLES = (".csv", ".json", ".parquet")
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")


def checked(option: str, path: str | None, suffixes: Sequence[str]) -> Path | None:
    return None if path is None else files.writable(option, path, suffixes)


def columns(audit: Audit, names: Sequence[str] | None, worst: int | None = None) -> dict[str, list[Any]]:
    """The ranking, or the start of it; pairs by their ids if they have some."""
    table = {name: values[:worst].tolist() for name, values in audit.table().items()}
    if names is not None:
        for column in ("pair", "other"):
            table[column] = [names[k] for k in table[column]]
    return table


def rows(audit: Audit, names: Sequence[str] | None, worst: int | None = None) -> list[dict[str, Any]]:
    """The same, pair by pair."""
    table = columns(audit, names, worst)
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def write_table(
    path: Path, audit: Audit, names: Sequence[str] | None, own: Mapping[str, Sequence[str]] | None = None
) -> None:
    """The ranking in the format of the suffix, with the table's own columns after it."""
    table = columns(audit, names)
    order = audit.ranking.tolist()
    for name, values in (own or {}).items():
        table[name if name not in table else f"{name} of the table"] = [values[k] for k in order]
    if path.suffix == ".csv":
        cells = ([spreadsheet_cell(x) for x in row] for row in zip(*table.values(), strict=True))
        files.write(path, files.csv_text([table, *cells]))
    elif path.suffix == ".json":
        each = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        content = {"summary": audit.summary(), "pairs": each}
        files.write(path, json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
    else:
        import pyarrow as pa

        about = {"gcalign": json.dumps(audit.summary(), allow_nan=False)}
        files.write_parquet(path, pa.table(table).replace_schema_metadata(about))


def spreadsheet_cell(value: Any) -> Any:
    """Numbers rounded, names as text: a spreadsheet would run one that begins like a formula, a terminal an ESC."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, str) or NUMBER.fullmatch(value):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
