"""What a report shows of runs on pairs: retrieval, and names for what training never saw."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gcalign.lab.pages.page import Grid
from gcalign.lab.report.page import DrawnResult
from gcalign.lab.report.runs import Entry
from gcalign.lab.words import quoted


def pair_results(entries: Sequence[Entry], names: Sequence[str]) -> list[DrawnResult]:
    """The last retrieval and the last zero-shot result of each run that has one, as `gcalign probe` recorded them."""
    found: list[DrawnResult] = []
    for entry, name in zip(entries, names, strict=True):
        last: dict[str, DrawnResult] = {}
        for line in entry.results:
            if line["kind"] == "probe" and entry.config.data.paired:
                with suppress(KeyError, TypeError, ValueError, AttributeError):  # not what `gcalign probe` writes
                    last[line["protocol"]] = _drawn(entry, name, line)
        found += last.values()
    return found


def _drawn(entry: Entry, name: str, line: dict[str, Any]) -> DrawnResult:
    protocol, zeroshot = line["protocol"], line["protocol"] == "zeroshot"
    does = "names for what training never saw" if zeroshot else "retrieval among held-out pairs"
    does = f"{does}: {line['n_test']} pairs of {line['split']}, {line['gallery']} candidates, run {name}"
    command = quoted("gcalign", "probe", f"run={entry.run.path}", f"protocol={protocol}")
    return DrawnResult(f"{protocol}, {name}", does, command, numbers=_examples(line) if zeroshot else _recall(line))


def _recall(line: dict[str, Any]) -> Grid:
    ways: dict[str, dict[str, float]] = line["recall"]
    head = [f"R@{k}" for k in next(iter(ways.values()), {})]
    rows = [[way, *(f"{100 * v:.1f} %" for v in by.values())] for way, by in ways.items()]
    return Grid(["from → to", *head], rows)


def _examples(line: dict[str, Any]) -> Grid:
    (way, by), *_ = line["recall"].items()
    said = ", ".join(f"R@{k} {100 * v:.1f} %" for k, v in by.items())
    rows = [
        [str(e["is"]), "yes" if e.get("right") else "no", "; ".join(str(name) for name, _ in e["found"])]
        for e in line["examples"]
    ]
    return Grid(["it is", "first is right", f"names found, best first ({way}: {said})"], rows)
