"""Runs of a folder in a table. One that cannot be read is named in a warning, and hides no other."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from gcalign.lab.terminal import console, fitting
from gcalign.lab.training.config import Config
from gcalign.lab.training.runs import Run
from gcalign.lab.words import path_of, printable

WIDTH = 160  # where the output is no terminal and has no width of its own
NONE = "{} has no runs; make one with: gcalign train method=gca-uot data=scenes"
COLUMNS = ("run", "method", "data", "pairs", "seed", "state", "accuracy", "started")


def show(folder: str) -> None:
    """Print the table of a folder."""
    rows = listing(folder)
    if not rows:
        raise ValueError(NONE.format(folder))
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*(Text(printable(row[name])) for name in COLUMNS))
    out = console(WIDTH)
    out.print(fitting(table, out))


def listing(folder: str) -> list[dict[str, Any]]:
    """One row for each run below a folder, in words: what it is, how far it is, its best-known accuracies."""
    rows = [_record(*each) for each in _read(folder)]
    for row in rows:
        row["accuracy"] = ", ".join(f"{k} {100 * v:.1f} %" for k, v in row["accuracy"].items()) or None
    return [{key: "–" if value is None else value for key, value in row.items()} for row in rows]


def records(folder: str) -> list[dict[str, Any]]:
    """The same as plain data: the accuracy of each protocol, the last one measured, is a number."""
    every = [_record(*each) for each in _read(folder)]
    if not every:
        raise ValueError(NONE.format(folder))
    return every


def _read(folder: str) -> Iterator[tuple[Run, Config | None, list[dict[str, Any]]]]:
    """Every run below a folder with its config and results; None of one that cannot be read."""
    for path in sorted(path_of(folder).glob("**/config.json")):
        run = Run(path.parent)
        try:
            yield run, run.config(), run.results()
        except (ValueError, OSError) as error:
            warnings.warn(str(error), stacklevel=3)
            yield run, None, []


def _record(run: Run, config: Config | None, results: list[dict[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = dict.fromkeys(COLUMNS) | {"run": str(run.path), "accuracy": {}, "state": "unreadable"}
    if config is None:
        return record
    steps = [r["step"] for r in results if r["kind"] == "train"]
    started = datetime.datetime.fromtimestamp(run.config_file.stat().st_mtime)
    return record | {
        "method": config.method["name"],
        "data": config.data.name,
        "pairs": f"{config.pairs.noise:.0%} mismatched" if config.pairs.noise else "clean",
        "seed": config.seed,
        "state": "done" if run.done else f"step {steps[-1] if steps else 0}",
        "accuracy": {line["protocol"]: line["accuracy"] for line in results if line["kind"] == "probe"},
        "started": started.strftime("%Y-%m-%d %H:%M"),
    }
