"""What a report shows of runs on pairs: retrieval, and names for what training never saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gcalign.lab.experiments.shown import Entry
from gcalign.lab.report.page import Cell, Grid
from gcalign.lab.report.study import Result
from gcalign.lab.words import quoted


def pair_results(entries: Sequence[Entry], names: Sequence[str]) -> list[Result]:
    """The last retrieval and the last zero-shot result of each run that has one, as `gcalign probe` recorded them."""
    found = []
    for entry, name in zip(entries, names, strict=True):
        if not entry.config.data.paired:
            continue
        last = {line["protocol"]: line for line in entry.results if line["kind"] == "probe" and _is_whole(line)}
        for protocol, line in last.items():
            grid = _examples(line) if protocol == "zeroshot" else _recall(line)
            does = "names for what training never saw" if protocol == "zeroshot" else "retrieval among held-out pairs"
            does = f"{does}: {line['n_test']} pairs of {line['split']}, {line['gallery']} candidates, run {name}"
            command = quoted("gcalign", "probe", f"run={entry.run.path}", f"protocol={protocol}")
            found.append(Result(f"{protocol}, {name}", does, command, html=None, figures={}, numbers=grid))
    return found


def _is_whole(line: dict[str, Any]) -> bool:
    """Whether it is what `pair_use.probe` writes."""
    ways, examples = line.get("recall"), line.get("examples")
    if not isinstance(ways, dict) or not isinstance(examples, list):
        return False
    numbers = all(
        isinstance(by, dict) and all(isinstance(v, (int, float)) for v in by.values()) for by in ways.values()
    )
    shown = all(isinstance(e, dict) and isinstance(e.get("found"), list) and "is" in e for e in examples)
    pairs = all(
        isinstance(f, list) and len(f) == 2 for e in examples if isinstance(e, dict) for f in e.get("found", [])
    )
    return numbers and shown and pairs and {"n_test", "split", "gallery"} <= line.keys()


def _recall(line: dict[str, Any]) -> Grid:
    ways: dict[str, dict[str, float]] = line["recall"]
    head = [f"R@{k}" for k in next(iter(ways.values()), {})]
    rows = [[Cell(way), *(Cell(f"{100 * v:.1f} %") for v in by.values())] for way, by in ways.items()]
    return Grid(["from → to", *head], rows)


def _examples(line: dict[str, Any]) -> Grid:
    (way, by), *_ = line["recall"].items()
    said = ", ".join(f"R@{k} {100 * v:.1f} %" for k, v in by.items())
    rows = [
        [
            Cell(str(e["is"])),
            Cell("yes" if e.get("right") else "no"),
            Cell("; ".join(str(name) for name, _ in e["found"])),
        ]
        for e in line["examples"]
    ]
    return Grid(["it is", "first is right", f"names found, best first ({way}: {said})"], rows)
