"""Accuracies of runs and of what they are compared with, with 95 % intervals: over seeds, or over the test images."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from gcalign.lab.experiments.engine.statistics import LEVEL, Estimate
from gcalign.lab.report.runs import Entry, names

MEASURED = ("probe", "baseline")  # kinds of result lines
BySeed = dict[int, tuple[Entry, dict[str, Any]]]  # seed -> a run and one of its lines


@dataclass(frozen=True)
class Bar:
    """An accuracy with its interval, where there is one, and what that rests on."""

    name: str
    method: str | None  # None for a baseline
    mean: float
    low: float | None
    high: float | None
    basis: str


@dataclass(frozen=True)
class Bars:
    protocol: str
    data: str
    bars: list[Bar]

    @property
    def near(self) -> tuple[float, float]:
        """The part of the axis that holds every interval, in whole steps of 5 %."""
        ends = [x for bar in self.bars for x in (bar.mean, bar.low, bar.high) if x is not None]
        low, high = math.floor(20 * min(ends)), math.ceil(20 * max(ends))
        return low / 20, max(high, low + 1) / 20


def bars(runs: Sequence[Entry]) -> list[Bars]:
    """One panel for each protocol, data set and number of labels; runs that differ only in their seed are one bar."""
    groups: dict[tuple[str, str], dict[str, BySeed]] = {}
    called = protocol_names(runs)
    for entry in runs:
        for line in entry.results:
            if line["kind"] in MEASURED and 0 <= line["accuracy"] <= 1:
                panel = called(line), str(line.get("data", entry.config.data.name))
                setting = json.dumps(entry.config.identity | {"seed": None}, sort_keys=True)
                key = setting if line["kind"] == "probe" else str(line["of"])
                # the last line of a protocol counts
                groups.setdefault(panel, {}).setdefault(key, {})[entry.config.seed] = entry, line
    return [_panel(panel, list(found.values())) for panel, found in groups.items()]


def protocol_names(runs: Sequence[Entry]) -> Callable[[dict[str, Any]], str]:
    """What to call the protocol of a line: with its number of labels if that differs from line to line."""
    probes = [line for entry in runs for line in entry.results if line["kind"] in MEASURED]
    told = {(line["protocol"], labels) for line in probes if isinstance(labels := line.get("labels_used"), int)}
    several = {name for name, times in Counter(name for name, _ in told).items() if times > 1}

    def called(line: dict[str, Any]) -> str:
        name, labels = str(line["protocol"]), line.get("labels_used")
        return f"{name}, {labels:,} labels" if name in several and isinstance(labels, int) else name

    return called


def _panel(panel: tuple[str, str], settings: Sequence[BySeed]) -> Bars:
    firsts = [next(iter(by_seed.values())) for by_seed in settings]
    trained = [entry for entry, line in firsts if line["kind"] == "probe"]
    called = dict(zip(trained, names(trained, seeds=False), strict=True))
    found = []
    for (entry, line), by_seed in zip(firsts, settings, strict=True):
        lines = [line for _, line in by_seed.values()]
        if line["kind"] == "probe":
            found.append(_bar(called[entry], entry.method, lines))
        else:
            model, _, _ = str(line["of"]).partition(" (")
            found.append(_bar(f"{model} (baseline)", None, lines))
    return Bars(*panel, sorted(found, key=lambda bar: -bar.mean))


def _bar(name: str, method: str | None, lines: Sequence[dict[str, Any]]) -> Bar:
    values = [float(line["accuracy"]) for line in lines]
    if len(values) > 1:
        over_seeds = Estimate.of(values)
        low, high = over_seeds.interval()
        return Bar(name, method, over_seeds.mean, max(0.0, low), min(1.0, high), f"{len(values)} seeds")
    n = lines[0].get("n_test")
    if not isinstance(n, int) or n < 1:
        return Bar(name, method, values[0], None, None, "one seed")
    found = stats.binomtest(round(values[0] * n), n).proportion_ci(LEVEL, "wilson")
    return Bar(name, method, values[0], float(found.low), float(found.high), f"one seed, {n:,} test images")
