"""What a measurement gives: tables of rows, and how they were measured; printed, or as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch.utils.benchmark import Measurement

from gcalign.lab.terminal import fitting

Row = dict[str, Any]
Column = tuple[str, str, Callable[[Any], str]]  # key, heading, how a value is shown
whole, ratio, number, error = "{:,.0f}".format, "{:.2f}".format, "{:g}".format, "{:.1e}".format


def milliseconds(value: float) -> str:
    return f"{1e3 * value:,.1f}"


_COMMON: dict[str, tuple[str, Callable[[Any], str]]] = {
    "n": ("n", whole),
    "dim": ("D", whole),
    "eps": ("ε", number),
    "name": ("loss", str),
    "seconds": ("ms", milliseconds),
    "repeats": ("runs", whole),
    "against_eager": ("/ eager", ratio),
    "iterations": ("iterations", whole),
    "megabytes": ("extra MB", whole),
}


def figures(times: Measurement) -> Row:
    """What a table and the JSON show of a time."""
    return {"seconds": times.median, "iqr": times.iqr, "repeats": len(times.times)}


def columns(*chosen: str | Column) -> tuple[Column, ...]:
    """Columns of a table: those that many tables have by their key alone, others in full."""
    return tuple((column, *_COMMON[column]) if isinstance(column, str) else column for column in chosen)


@dataclass(frozen=True)
class BenchTable:
    """One table: rows are plain records, columns say which of their values are shown."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    def table(self) -> Table:
        table = Table(title=self.title, title_justify="left", title_style="bold")
        cells = [
            ["–" if row.get(key) is None else show(row[key]) for key, _, show in self.columns] for row in self.rows
        ]
        for k, (key, heading, _) in enumerate(self.columns):
            words = all(isinstance(row.get(key), (str, type(None))) for row in self.rows)
            # where room is short headings wrap, figures never
            widest = max((len(line[k]) for line in cells), default=0)
            table.add_column(heading, justify="left" if words else "right", min_width=widest)
        for line in cells:
            table.add_row(*map(Text, line))
        return table


@dataclass(frozen=True)
class BenchResult:
    """What a measurement found; `settings` are those that the command does not know."""

    method: str
    sheets: Sequence[BenchTable]
    notes: Sequence[str] = ()
    settings: Row = field(default_factory=dict)

    def record(self, settings: Row) -> Row:
        """Everything needed to repeat it."""
        return {
            "method": self.method,
            "settings": settings | self.settings,
            "tables": {sheet.name: list(sheet.rows) for sheet in self.sheets},
            "notes": list(self.notes),
        }

    def show(self, name: str, console: Console) -> None:
        console.print(Text(f"{name}: {self.method}"))
        for sheet in self.sheets:
            console.print(fitting(sheet.table(), console))
        for note in self.notes:
            console.print(Text(f"· {note}"))
