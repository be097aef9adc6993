"""`gcalign bench`: runs measurements with a progress bar, prints their tables, writes JSON and a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from rich.text import Text

from gcalign.lab import files, terminal
from gcalign.lab.bench import audit, distributed, launches, losses, machine, memory, scaling, solvers
from gcalign.lab.bench.table import BenchResult, Row
from gcalign.lab.timing import threads

WIDTH = 165  # where the output is no terminal and has no width of its own


def _data(**settings: Any) -> BenchResult:
    from gcalign.lab.bench.data import bench_data  # needs the training stack

    return bench_data(**settings)


MEASUREMENTS: Mapping[str, Callable[..., BenchResult]] = {
    "losses": losses.bench_losses,
    "launches": launches.bench_launches,
    "solvers": solvers.bench_solvers,
    "memory": memory.bench_memory,
    "scaling": scaling.bench_scaling,
    "data": _data,
    "audit": audit.bench_audit,
    "distributed": distributed.bench_distributed,
}


def bench(chosen: Mapping[str, Row], n_threads: int | None, to_json: str | None, to_plot: str | None) -> None:
    """Run the measurements named, each with its settings, on `n_threads` threads of torch."""
    plot_path = None if to_plot is None else scaling.drawable(files.writable("--plot", to_plot))
    with threads(n_threads), terminal.Progress() as progress:
        found = machine.machine()
        results = {name: MEASUREMENTS[name](progress=progress, **settings) for name, settings in chosen.items()}
    benches = {name: result.record(chosen[name]) for name, result in results.items()}
    if to_json is not None:
        files.to_json_file(to_json, {"gcalign": version("gcalign"), "machine": found, "benches": benches})
    if plot_path is not None:
        scaling.draw(results["scaling"], chosen["scaling"], plot_path)
    if to_json == "-":
        return
    console = terminal.console(WIDTH)
    console.print(Text(machine.described(found)))
    for name, result in results.items():
        result.show(name, console)
    warning = machine.busy(found)
    if warning is not None:
        console.print(Text(f"· {warning}"))
