"""`gcalign bench audit`: time, memory and AUROC of an audit of many pairs: whole plan, batches with passes, batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from gcalign.auditing.calibration import separation
from gcalign.auditing.door import audit
from gcalign.auditing.plans import BATCH, LARGE, WHOLE
from gcalign.lab.audit.cells import gaussians, mismatch
from gcalign.lab.bench import table
from gcalign.lab.bench.probe import measured
from gcalign.lab.bench.table import BenchResult, BenchTable, Row
from gcalign.lab.terminal import Progress

SHARE, RANK = 0.1, 32
KINDS = ("random", "same group")
COLUMNS = table.columns(
    ("n", "pairs", table.whole),
    "dim",
    ("wrong", "wrong partners", str),
    ("name", "score", str),
    ("auroc", "AUROC", "{:.4f}".format),
    ("loss", "less than the best plan", "{:.4f}".format),
    ("share", "share found", "{:.3f}".format),
    ("seconds", "s", table.whole),
    "megabytes",
)


def bench_audit(*, n: Sequence[int], dim: int, seed: int, progress: Progress) -> BenchResult:
    """Audit Gaussian clusters of each size, a tenth of the pairs mismatched, in every way that fits in memory."""
    rows: list[Row] = []
    for size, kind in progress.over(list(product(n, KINDS)), lambda cell: f"n = {cell[0]:,}, {cell[1]}"):
        a, b, wrong = _pairs(size, dim, kind, seed)
        cell: list[Row] = []
        for name, options in progress.over(_ways(size), lambda way: way[0]):
            result, seconds, extra = measured(partial(audit, a, b, seed=seed, **options))
            row = {"n": size, "dim": dim, "wrong": kind, "name": name, "share": result.share, "seconds": seconds}
            auroc = separation(result.suspicion[wrong], result.suspicion[~wrong])
            cell.append(row | {"auroc": auroc, "megabytes": extra / 1e6})
        best = max(row["auroc"] for row in cell if row["name"] != "cosine")
        rows += [row | {"loss": best - row["auroc"]} for row in cell]
    title = f"Gaussian clusters with hubs, {SHARE:.0%} of the pairs mismatched, one run each"
    return BenchResult(
        "gcalign.audit(a, b); extra memory is the peak resident size during the call less the size just before",
        [BenchTable("audit", title, COLUMNS, rows)],
        settings={"rank": RANK, "share": SHARE},
    )


def _ways(n: int) -> list[tuple[str, dict[str, Any]]]:
    ways: list[tuple[str, dict[str, Any]]] = []
    if n <= LARGE:
        ways.append(("whole plan", {"batch": n, "passes": 0}))
    if n <= 200_000:
        ways.append((f"batches of {min(BATCH, n):,}, 2 passes", {"batch": BATCH, "passes": 2}))
    smaller = [batch for batch in (BATCH, WHOLE, LARGE) if batch < n]
    ways += [(f"batches of {batch:,}", {"batch": batch, "passes": 0}) for batch in smaller]
    return [*ways, ("cosine", {"score": "cosine"})] if n <= 200_000 else ways


def _pairs(n: int, dim: int, kind: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pairs of `RANK` dimensions, turned into `dim`: that costs as much as any embeddings, and is not too easy."""
    rank = min(RANK, dim)
    clean = gaussians(n, seed, rank, clusters=max(2, n // 100))
    partners, wrong = mismatch(clean, kind, SHARE, seed)
    a, b, _ = clean.embed(partners)
    turn = torch.linalg.qr(torch.randn(dim, rank, generator=torch.Generator().manual_seed(seed))).Q.T
    return a @ turn, b @ turn, wrong
