"""What a measurement found: tables of rows, targets met or missed, and how it was done; printed, or as JSON."""

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
class BenchTarget:
    """A bound on one figure; a figure that was not measured neither meets nor misses it."""

    what: str
    rule: str  # ≤ or ≥
    bound: float
    value: float | None

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.bound if self.rule == "≤" else self.value >= self.bound

    def record(self) -> Row:
        return {"what": self.what, "rule": self.rule, "bound": self.bound, "value": self.value, "met": self.met}


@dataclass(frozen=True)
class BenchResult:
    """What a measurement found; `settings` are those that the command does not know."""

    method: str
    sheets: Sequence[BenchTable]
    targets: Sequence[BenchTarget] = ()
    notes: Sequence[str] = ()
    settings: Row = field(default_factory=dict)

    def record(self, settings: Row) -> Row:
        """Everything needed to repeat it."""
        return {
            "method": self.method,
            "settings": settings | self.settings,
            "tables": {sheet.name: list(sheet.rows) for sheet in self.sheets},
            "targets": [target.record() for target in self.targets],
            "notes": list(self.notes),
        }

    def show(self, name: str, console: Console) -> None:
        console.print(Text(f"{name}: {self.method}"))
        for sheet in self.sheets:
            console.print(fitting(sheet.table(), console))
        if measured := [target for target in self.targets if target.value is not None]:
            console.print(fitting(_verdicts(measured), console))
        for note in self.notes:
            console.print(Text(f"· {note}"))


def _verdicts(targets: Sequence[BenchTarget]) -> Table:
    words = {True: Text("met", style="green"), False: Text("missed", style="bold red")}
    table = Table("target", "bound", "measured", "", title="targets", title_justify="left", title_style="bold")
    for target in targets:
        verdict = words[bool(target.met)]
        table.add_row(Text(target.what), f"{target.rule} {target.bound:g}", f"{target.value:.3g}", verdict)
    return table
