"""Runs of a folder in a table. One that cannot be read is named in a warning, and hides no other."""

from __future__ import annotations

import datetime
import json
import statistics
import warnings
from collections.abc import Iterator
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from gcalign.lab.terminal import console, fitting
from gcalign.lab.training.config import Config
from gcalign.lab.training.runs import Run
from gcalign.lab.words import path_of, printable

WIDTH = 160  # where the output is no terminal and has no width of its own
NONE = "{} has no runs; make one with: gcalign train method=gca-uot data=scenes"
COLUMNS = ("run", "method", "data", "pairs", "seed", "state", "accuracy", "started")


def show(folder: str, *, mean: bool = False) -> None:
    """Print the table of a folder, or of its methods with their `mean` over seeds."""
    rows = summary(folder) if mean else listing(folder)
    if not rows:
        raise ValueError(NONE.format(folder))
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*(Column(Text(printable(name))) for name in names))
    for row in rows:
        table.add_row(*(Text(printable(row.get(name, "–"))) for name in names))
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


def _accuracies(results: list[dict[str, Any]]) -> dict[str, float]:
    return {line["protocol"]: line["accuracy"] for line in results if line["kind"] == "probe"}


def _about(config: Config) -> dict[str, Any]:
    pairs = f"{config.pairs.noise:.0%} mismatched" if config.pairs.noise else "clean"
    return {"method": config.method["name"], "data": config.data.name, "pairs": pairs}


def _record(run: Run, config: Config | None, results: list[dict[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = dict.fromkeys(COLUMNS) | {"run": str(run.path), "accuracy": {}, "state": "unreadable"}
    if config is None:
        return record
    steps = [r["step"] for r in results if r["kind"] == "train"]
    started = datetime.datetime.fromtimestamp(run.config_file.stat().st_mtime)
    record |= _about(config) | {"seed": config.seed, "accuracy": _accuracies(results)}
    record["state"] = "done" if run.done else f"step {steps[-1] if steps else 0}"
    return record | {"started": started.strftime("%Y-%m-%d %H:%M")}


def summary(folder: str) -> list[dict[str, Any]]:
    """Mean and spread over seeds for the runs of a folder that differ in nothing but their seed."""
    groups: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, list[float]]]] = {}
    for _, config, results in _read(folder):
        if config is not None:
            settings = _flat(config.identity | {"seed": None})
            group = groups.setdefault(json.dumps(settings, sort_keys=True), (_about(config), settings, {}))
            for protocol, accuracy in _accuracies(results).items():
                group[2].setdefault(protocol, []).append(100 * accuracy)
    rows = []
    for about, settings, accuracies in groups.values():
        peers = [other for their, other, _ in groups.values() if their == about]
        more = ", ".join(f"{k}={v}" for k, v in settings.items() if any(peer.get(k) != v for peer in peers))
        spread = {p: f" ± {statistics.stdev(v):.2f}" if len(v) > 1 else "" for p, v in accuracies.items()}
        shown = {p: f"{statistics.fmean(v):.2f}{spread[p]}" for p, v in accuracies.items()}
        seeds = max(map(len, accuracies.values()), default=0)
        rows.append(about | {"settings": more or "–", "seeds": seeds, **shown})
    return rows


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
