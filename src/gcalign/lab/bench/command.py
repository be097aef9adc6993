"""`gcalign bench`: runs measurements with a progress bar, prints their tables, writes JSON and a plot."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.text import Text

from gcalign.lab import files
from gcalign.lab.bench import machine, plot, table
from gcalign.lab.bench.table import BenchResult
from gcalign.lab.bench.timing import Progress, threads


def bench(
    chosen: Mapping[str, dict[str, Any]], n_threads: int | None, to_json: str | None, to_plot: str | None
) -> None:
    """Run the measurements named, each with its settings, on `n_threads` threads of torch."""
    json_path = None if to_json in (None, "-") else _writable("--json", str(to_json))
    plot_path = None if to_plot is None else plot.check(_writable("--plot", to_plot))
    with threads(n_threads), Progress(shown=sys.stderr.isatty()) as progress:
        found = machine.machine()
        results = [_measurement(name)(progress=progress, **settings) for name, settings in chosen.items()]
    record = {"gcalign": version("gcalign"), "machine": found, "benches": {r.name: r.record() for r in results}}
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if json_path is not None:
        files.write(json_path, text)
    if plot_path is not None:
        plot.draw(results[0], plot_path)
    if to_json == "-":
        sys.stdout.write(text)
        return
    console = table.console(terminal=sys.stdout.isatty())
    console.print(Text(machine.described(found)))
    for result in results:
        result.show(console)
    warning = machine.busy(found)
    if warning is not None:
        console.print(Text(f"· {warning}"))


def _measurement(name: str) -> Callable[..., BenchResult]:
    """`bench_NAME` of the module NAME, imported only now: `data` needs the training stack."""
    measurement: Callable[..., BenchResult] = getattr(import_module(f"gcalign.lab.bench.{name}"), f"bench_{name}")
    return measurement


def _writable(option: str, path: str) -> Path:
    """The path, if a file can be put there: better known before the run than after it."""
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise ValueError(f"{option}={path} must be a file in a directory that exists; create {target.parent}")
    return target
