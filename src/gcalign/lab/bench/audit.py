"""`gcalign bench audit`: time, memory and AUROC of an audit of many pairs: whole plan, batches with passes, batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gcalign.auditing.calibration import separation
from gcalign.auditing.pairs import audit
from gcalign.auditing.plans import BATCH, LARGE, WHOLE
from gcalign.lab.audit.cells import gaussians, mismatch
from gcalign.lab.bench import table
from gcalign.lab.bench.probe import peak, reset_peak
from gcalign.lab.bench.table import BenchResult, BenchTable, BenchTarget, Column, Row
from gcalign.lab.bench.timing import Progress, timed

SHARE, RANK = 0.1, 32
KINDS = ("random", "same group")
COLUMNS: tuple[Column, ...] = (
    ("n", "pairs", table.whole),
    ("dim", "D", table.whole),
    ("wrong", "wrong partners", str),
    ("name", "score", str),
    ("auroc", "AUROC", "{:.4f}".format),
    ("loss", "less than the best plan", "{:.4f}".format),
    ("share", "share found", "{:.3f}".format),
    ("seconds", "s", table.whole),
    ("megabytes", "extra MB", table.whole),
)


def bench_audit(*, n: Sequence[int], dim: int, seed: int, progress: Progress) -> BenchResult:
    """Audit Gaussian clusters of each size, a tenth of the pairs mismatched, in every way that fits in memory."""
    cells = [(size, kind, name, options) for size in n for kind in KINDS for name, options in _ways(size)]
    rows: list[Row] = []
    made: dict[tuple[int, str], Any] = {}
    for size, kind, name, options in progress.over(cells, lambda c: f"n = {c[0]:,}, {c[1]}, {c[2]}"):
        if (size, kind) not in made:
            made = {(size, kind): _pairs(size, dim, kind, seed)}  # one set at a time
        a, b, wrong = made[size, kind]
        found: list[Any] = []
        before = reset_peak()
        seconds = timed(lambda a=a, b=b, o=options, into=found: into.append(audit(a, b, seed=seed, **o)))  # type: ignore[misc]
        extra = max(peak() - before, 0) / 1e6
        told = separation(found[0].suspicion[wrong], found[0].suspicion[~wrong])
        row = {"n": size, "dim": dim, "wrong": kind, "name": name, "auroc": told, "share": found[0].share}
        rows.append(row | {"seconds": seconds, "megabytes": extra})
    for row in rows:
        same = [r for r in rows if (r["n"], r["wrong"]) == (row["n"], row["wrong"]) and r["name"] != "cosine"]
        row["loss"] = max(r["auroc"] for r in same) - row["auroc"]
    targets = [
        BenchTarget(f"{row['name']}, {row['n']:,} pairs, extra MB", "≤", 8000, row["megabytes"])
        for row in rows
        if row["n"] >= 100_000 and row["wrong"] == KINDS[0] and row["name"] != "cosine"
    ]
    title = f"Gaussian clusters with hubs, {SHARE:.0%} of the pairs mismatched, one run each"
    return BenchResult(
        "audit",
        "gcalign.audit(a, b); extra memory is the peak resident size during the call less the size just before",
        {"n": list(n), "dim": dim, "rank": RANK, "seed": seed, "share": SHARE},
        [BenchTable("audit", title, COLUMNS, rows)],
        targets,
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
