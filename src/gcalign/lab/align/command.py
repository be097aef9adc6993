"""`gcalign align`: reads both sides and the pairs, fits heads, and writes one new folder."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gcalign.aligning.aligner import ABOUT, Aligner
from gcalign.lab import files
from gcalign.lab.align import inputs
from gcalign.lab.align.page import ShownItems, rendered
from gcalign.lab.audit.inputs import items
from gcalign.lab.commands import output
from gcalign.lab.terminal import console, fitting
from gcalign.lab.words import path_of, printable

EXAMPLES = 30  # items of A whose matches the page shows


def align(args: argparse.Namespace) -> None:
    """Align what was named. Everything is read, checked and fitted before anything is written."""
    folder = path_of(args.output)
    read = (args.a, args.b, args.pairs, args.show_a, args.show_b)
    files.check_apart({"--json": args.json}, [name for name in read if name is not None])
    with files.new_folder("-o", folder) as part:
        aligner = _aligned(args, part)
    written = [str(folder / name) for name in sorted(os.listdir(folder))]

    def content() -> dict[str, Any]:
        return {"report": json.loads((folder / ABOUT).read_text("utf-8"))["report"], "written": written}

    output(content, args.json, lambda: _show(aligner, written))


def _aligned(args: argparse.Namespace, part: Path) -> Aligner:
    """The fitted heads, with their files in the folder `part`."""
    (a, texts_a), (b, texts_b) = inputs.side(args.a), inputs.side(args.b)
    shown = ShownItems(
        items(args.show_a, len(a)) if args.show_a else texts_a,
        items(args.show_b, len(b)) if args.show_b else texts_b,
    )
    pairs = None if args.pairs is None else inputs.pairs(args.pairs)
    options = {"method": args.method, "dim": args.dim, "budget": args.budget, "relax": args.relax, "seed": args.seed}
    aligner = Aligner(**options, audit=not args.no_audit, progress=sys.stderr.isatty())
    try:
        aligner.fit(a, b, pairs)
    except (ValueError, TypeError) as error:
        raise ValueError(_named(str(error), args)) from error
    aligner.save(part)
    for side, values in enumerate((a, b)):
        _write_embeddings(part / f"{'ab'[side]}.npy", aligner, side, values)
    suspects = ((i, j, f"{p:.4f}") for i, j, p in aligner.report.suspects)
    files.write(part / "suspects.csv", files.csv_text([("a", "b", "probability"), *suspects]))
    title = f"{Path(args.a).name} and {Path(args.b).name}, aligned"
    embedded = [np.load(part / f"{side}.npy", mmap_mode="r") for side in "ab"]
    again = "gcalign " + shlex.join(sys.argv[1:])
    files.write(part / "index.html", rendered(aligner, embedded, shown, title, EXAMPLES, [again]))
    return aligner


def _write_embeddings(path: Path, aligner: Aligner, side: int, values: Any) -> None:
    """The aligned embeddings of a side, part by part: they need not fit into memory."""
    dim = aligner.heads[side].weight.shape[1]
    to = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(len(values), dim))
    start = 0
    for block in aligner.blocks(side, values):
        to[start : start + len(block)] = block.numpy()
        start += len(block)
    to.flush()


def _named(message: str, args: argparse.Namespace) -> str:
    """What is wrong with a side or the pairs, by the name of its file."""
    for side, name in (("a", args.a), ("b", args.b)):
        if message.startswith((f"{side}[", f"{side} of dtype", f"{side} has")):
            return f"{name}{message[1:]}"
    return message.replace("pairs[", f"{args.pairs}[", 1) if message.startswith("pairs[") else message


def _show(aligner: Aligner, written: Sequence[str]) -> None:
    """Retrieval as a table, then what more pairs would give, notes and files."""
    from rich.table import Table

    report = aligner.report
    table = Table()
    for heading in ("", "R@1", "95 %", "R@10", "95 %"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, recall in report.retrieval.items():
        spans = (f"{low:.1f} to {high:.1f}" for low, high in (recall.interval_1, recall.interval_10))
        one, ten = spans
        table.add_row(name, f"{recall.at_1:.1f}", one, f"{recall.at_10:.1f}", ten)
    lines = str(report).split("\n")
    print("\n".join(lines[:2]))
    if report.retrieval:
        first = report.retrieval["aligner"]
        print(f"{first.pairs:,} held-out pairs among {first.gallery:,} candidates, in %:")
        to = console(100)
        to.print(fitting(table, to))
    print("\n".join(printable(line) for line in lines[2 + len(report.retrieval) :]))
    for path in written:
        print(f"written: {path}")
