"""`gcalign bench`: runs measurements with a progress bar, prints their tables, writes JSON and a plot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any

from rich.text import Text

from gcalign.lab import files, terminal
from gcalign.lab.bench import machine, plot
from gcalign.lab.bench.table import BenchResult
from gcalign.lab.bench.timing import Progress, threads

WIDTH = 165  # where the output is no terminal and has no width of its own


def bench(
    chosen: Mapping[str, dict[str, Any]], n_threads: int | None, to_json: str | None, to_plot: str | None
) -> None:
    """Run the measurements named, each with its settings, on `n_threads` threads of torch."""
    if to_json not in (None, "-"):
        files.writable("--json", str(to_json))
    plot_path = None if to_plot is None else plot.check(files.writable("--plot", to_plot))
    with threads(n_threads), Progress(shown=sys.stderr.isatty()) as progress:
        found = machine.machine()
        results = [_measurement(name)(progress=progress, **settings) for name, settings in chosen.items()]
    record = {"gcalign": version("gcalign"), "machine": found, "benches": {r.name: r.record() for r in results}}
    if to_json is not None:
        files.to_json_file(to_json, record)
    if plot_path is not None:
        plot.draw(results[0], plot_path)
    if to_json == "-":
        return
    console = terminal.console(WIDTH)
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
