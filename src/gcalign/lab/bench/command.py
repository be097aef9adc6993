"""`gcalign bench`: runs measurements with a progress bar, prints their tables, writes JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version

from rich.text import Text

from gcalign.lab import files, terminal
from gcalign.lab.bench import launches, losses, machine, memory, solvers
from gcalign.lab.bench.table import BenchResult, Row
from gcalign.lab.timing import threads

WIDTH = 165  # where the output is no terminal and has no width of its own
MEASUREMENTS: Mapping[str, Callable[..., BenchResult]] = {
    "losses": losses.bench_losses,
    "launches": launches.bench_launches,
    "solvers": solvers.bench_solvers,
    "memory": memory.bench_memory,
}


def bench(chosen: Mapping[str, Row], n_threads: int | None, to_json: str | None) -> None:
    """Run the measurements named, each with its settings, on `n_threads` threads of torch."""
    with threads(n_threads), terminal.Progress() as progress:
        about = machine.machine()
        results = {name: MEASUREMENTS[name](progress=progress, **settings) for name, settings in chosen.items()}
    benches = {name: result.record(chosen[name]) for name, result in results.items()}
    if to_json is not None:
        files.to_json_file(to_json, {"gcalign": version("gcalign"), "machine": about, "benches": benches})
    if to_json == "-":
        return
    console = terminal.console(WIDTH)
    console.print(Text(machine.described(about)))
    for name, result in results.items():
        result.show(name, console)
    if warning := machine.busy(about):
        console.print(Text(f"· {warning}"))
