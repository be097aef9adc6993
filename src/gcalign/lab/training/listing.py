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
    rows = []
    for record in (_record(*each) for each in _read(folder)):
        accuracy = ", ".join(f"{k} {100 * v:.1f} %" for k, v in record["accuracy"].items())
        rows.append(
            {key: "–" if value is None else value for key, value in {**record, "accuracy": accuracy or None}.items()}
        )
    return rows


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


def _record(run: Run, config: Config | None, results: list[dict[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = dict.fromkeys(COLUMNS) | {"run": str(run.path), "accuracy": {}, "state": "unreadable"}
    if config is None:
        return record
    steps = [r["step"] for r in results if r["kind"] == "train"]
    started = datetime.datetime.fromtimestamp(run.config_file.stat().st_mtime)
    return record | {
        "method": config.method["name"],
        "data": config.data.name,
        "pairs": _pairs(config),
        "seed": config.seed,
        "state": "done" if run.done else f"step {steps[-1] if steps else 0}",
        "accuracy": _accuracies(results),
        "started": started.strftime("%Y-%m-%d %H:%M"),
    }


def summary(folder: str) -> list[dict[str, Any]]:
    """Mean and spread over seeds for the runs of a folder that differ in nothing but their seed."""
    groups: dict[str, tuple[Config, dict[str, list[float]]]] = {}
    for _, config, results in _read(folder):
        if config is not None:
            settings = json.dumps(config.identity | {"seed": None}, sort_keys=True)
            group = groups.setdefault(settings, (config, {}))[1]
            for protocol, accuracy in _accuracies(results).items():
                group.setdefault(protocol, []).append(100 * accuracy)
    rows = []
    differing = _differing([config for config, _ in groups.values()])
    for (config, accuracies), more in zip(groups.values(), differing, strict=True):
        spread = {p: f" ± {statistics.stdev(v):.2f}" if len(v) > 1 else "" for p, v in accuracies.items()}
        shown = {p: f"{statistics.fmean(v):.2f}{spread[p]}" for p, v in accuracies.items()}
        about = {"method": config.method["name"], "data": config.data.name, "pairs": _pairs(config), "settings": more}
        rows.append(about | {"seeds": max(map(len, accuracies.values()), default=0), **shown})
    return rows


def _pairs(config: Config) -> str:
    return f"{config.pairs.noise:.0%} mismatched" if config.pairs.noise else "clean"


def _differing(configs: list[Config]) -> list[str]:
    """For each config the keys that differ among those of the same method, data and pairs."""
    plain = [_flat(config.identity | {"seed": None}) for config in configs]
    heads = [(config.method["name"], config.data.name, config.pairs.noise) for config in configs]
    differing = []
    for mine, head in zip(plain, heads, strict=True):
        peers = [other for other, theirs in zip(plain, heads, strict=True) if theirs == head]
        differing.append(", ".join(f"{k}={v}" for k, v in mine.items() if any(p.get(k) != v for p in peers)) or "–")
    return differing


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
