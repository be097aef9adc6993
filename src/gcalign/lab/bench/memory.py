"""`gcalign bench memory`: the peak memory a loss adds, dense in units of its matrix, streaming in megabytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gcalign.lab.bench import losses, table
from gcalign.lab.bench.batches import WORDS
from gcalign.lab.bench.probe import METHOD, probed
from gcalign.lab.bench.table import BenchResult, BenchTable, Row
from gcalign.lab.terminal import Progress

LARGE, BLOCK = 65_536, 256
STREAMED = "INCE, streaming"
# name, method and options of the streaming losses; the first is the baseline
STREAMING: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (STREAMED, "ince", {"block": BLOCK}),
    ("GCA-INCE, recomputed", "gca-ince", {"block": BLOCK, "iterations": 1000, "tol": losses.TOL}),
    ("GCA-INCE, half cache", "gca-ince", {"block": BLOCK, "iterations": 1000, "tol": losses.TOL, "cache": "half"}),
)
DENSE_COLUMNS = table.columns("n", "eps", "name", "megabytes", ("matrices", "in n × n float32", table.ratio))
STREAMING_COLUMNS = table.columns(
    *("n", "eps", "name", "megabytes"),
    ("seconds", "s", table.ratio),
    ("against_ince", "/ streaming INCE", table.ratio),
)


def bench_memory(
    *,
    n: Sequence[int],
    dim: int,
    eps: float,
    seed: int,
    large: Sequence[int] = (),
    names: Sequence[str] | None = None,
    progress: Progress,
) -> BenchResult:
    """Measure each loss of `names` (all, where None) dense at every n, and streaming at every n of `large`."""
    every = {losses.EAGER: (None, {}), **losses.OURS}
    chosen = {name: every[name] for name in names or every}
    common = {"eps": eps, "dim": dim, "seed": seed, "threads": torch.get_num_threads()}
    dense: list[Row] = []
    for size, name in progress.over([(s, k) for s in n for k in chosen], lambda c: f"n = {c[0]}, {c[1]}"):
        called, chosen_options = chosen[name]
        measured = probed({"method": called, "options": chosen_options, "n": size, **common})
        dense.append(_row(name, size, eps, measured) | {"matrices": measured["extra_bytes"] / (4 * size * size)})
    streaming = _streaming(large, common, progress)
    notes = [] if large else [f"streaming at n = {LARGE:,} takes minutes; measure it with --large"]
    sheets = [BenchTable("dense", "dense: extra memory of forward plus backward", DENSE_COLUMNS, dense)]
    if streaming:
        title = f"streaming in blocks of {BLOCK} rows, one run each"
        sheets.append(BenchTable("streaming", title, STREAMING_COLUMNS, streaming))
    return BenchResult(
        f"{METHOD}; {WORDS}, D = {dim}, tol = {losses.TOL:g} of ‖P − T‖₁",
        sheets,
        notes,
        {"large": list(large), "tol": losses.TOL},
    )


def _streaming(large: Sequence[int], common: Row, progress: Progress) -> list[Row]:
    rows: list[Row] = []
    cells = [(size, *entry) for size in large for entry in STREAMING]
    for size, name, called, chosen in progress.over(cells, lambda c: f"n = {c[0]}, {c[1]}"):
        measured = probed({"method": called, "options": chosen, "n": size, **common})
        row = _row(name, size, common["eps"], measured) | {"seconds": measured["seconds"]}
        base = row if name == STREAMED else next(r for r in rows if r["n"] == size and r["name"] == STREAMED)
        rows.append(row | {"against_ince": row["seconds"] / base["seconds"]})
    return rows


def _row(name: str, n: int, eps: float, measured: Row) -> Row:
    return {"n": n, "eps": eps, "name": name, "megabytes": measured["extra_bytes"] / 1e6}
