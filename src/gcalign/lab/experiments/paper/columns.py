"""Columns of the paper's tables: what is printed there, where the same is among our records, and both as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab import paper
from gcalign.lab.experiments.engine.claims import ALPHA, EmpiricalClaim, Judgement, Results, Word
from gcalign.lab.experiments.engine.experiment import EXTREME, VIEWS, Draw
from gcalign.lab.experiments.engine.records import by_seed, check_any, probe, values
from gcalign.lab.experiments.engine.statistics import (
    Estimate,
    adjusted,
    contrast,
    differences,
    estimates,
    mean_of,
    welch,
)
from gcalign.lab.experiments.engine.tables import NOTHING, Cell, Sheet, gap, listed, percent, settings
from gcalign.lab.experiments.paper import ACCURACY
from gcalign.lab.paper import METHODS, NAMES

if TYPE_CHECKING:
    import pandas as pd

PROBE = "accuracy"  # stands for the measure of the scale's probe
STAND_IN = "scenes"  # the data set of scale tiny
CORRUPTED = "cifar10c"  # the measure whose protocol was mended after a first look


@dataclass(frozen=True)
class Column:
    """A column of one of the paper's tables: test accuracy in % for `METHODS`, and which of our records it is."""

    name: str
    data: str
    measure: str
    settings: tuple[str, ...]  # averaged
    group: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def figure(self, method: str) -> Estimate:
        """The paper's."""
        k = METHODS.index(method)
        return Estimate.printed(self.mean[k], self.std[k], paper.SEEDS)

    def delta(self, a: str, b: str) -> Estimate:
        """a − b as far as the paper's table tells: unpaired."""
        return welch(self.figure(a), self.figure(b))

    def best(self) -> tuple[str, ...]:
        """The paper's highest, all of them at a tie."""
        return tuple(m for m, x in zip(METHODS, self.mean, strict=True) if x == max(self.mean))

    def ours(self, records: pd.DataFrame) -> pd.DataFrame:
        """Methods × seeds, between 0 and 1, for the methods that have any."""
        measure = probe(records) if self.measure == PROBE else self.measure
        parts = [by_seed(records, measure, "method", data=self.data, setting=s, noise=None) for s in self.settings]
        table = mean_of(parts).dropna(how="all")
        return table.loc[[m for m in METHODS if m in table.index]]


def standing_in(columns: Sequence[Column], records: pd.DataFrame) -> tuple[Column, ...]:
    """The columns, those of the first one's data set moved to `scenes` where records are of that instead."""
    first, seen = columns[0].data, values(records, "data")
    if first in seen or STAND_IN not in seen:
        return tuple(columns)
    return tuple(
        replace(c, data=STAND_IN, name=c.name.replace("CIFAR-10", STAND_IN)) if c.data == first else c for c in columns
    )


def _combined(name: str) -> Column:
    """Of tab:new_combine; the name says which images and views it is of."""
    of, extreme, _ = name.partition(" (Ex)")
    corrupted = of == "CIFAR-10C"
    data, measure = ("cifar10", CORRUPTED) if corrupted else (of.replace("-", "").lower(), PROBE)
    group = "Noisy" if extreme or corrupted else "Standard"
    return Column(name, data, measure, EXTREME if extreme else ("standard",), group, *paper.NEW_COMBINE[name])


def _conditions(data: str, measure: str, table: paper.Rows) -> tuple[Column, ...]:
    rows = zip(VIEWS, table.items(), strict=True)
    return tuple(Column(name, data, measure, (setting,), "", *figures) for setting, (name, figures) in rows)


NEW_COMBINE = tuple(map(_combined, paper.NEW_COMBINE))
CIFAR10 = _conditions("cifar10", PROBE, paper.CIFAR10)
CIFAR100 = _conditions("cifar100", PROBE, paper.CIFAR100)
CIFAR10C = _conditions("cifar10", CORRUPTED, paper.CIFAR10C)


# --- the table -----------------------------------------------------------------------------------------------------


def comparison(name: str, label: str, columns: Sequence[Column]) -> Draw:
    """A drawing: methods against columns, with a row of paired differences under each GCA version of a method."""

    def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
        return _compared(name, label, standing_in(columns, records), records).write(folder)

    return draw


def _compared(name: str, label: str, columns: Sequence[Column], records: pd.DataFrame) -> Sheet:
    shown = {c.name: table for c in columns if len(table := c.ours(records))}
    check_any(shown, name, "accuracy by method and setting")
    own = [c for c in columns if c.name in shown]
    every = sorted({int(s) for table in shown.values() for s in table})
    ranked = {c: _ranked(estimates(table), len(every)) for c, table in shown.items()}
    twins = dict(paper.PAIRS)
    rows: list[list[Cell]] = []
    for m in METHODS:
        rows.append([NAMES[m], *(ranked[c].get(m, NOTHING) for c in shown)])
        if m in twins:
            gaps = [contrast(table, {m: 1, twins[m]: -1}) for table in shown.values()]
            rows.append([f"Δ = {NAMES[m]} − {NAMES[twins[m]]}", *map(gap, gaps)])
    groups = {c.group: sum(other.group == c.group for other in own) for c in own}
    measures = {probe(records) if c.measure == PROBE else c.measure for c in own}
    used = records[records["method"].isin(METHODS) & records["measure"].isin(measures)]
    notes = [
        f"`{label}` of the paper at scale {listed(used['scale'])}: test accuracy in %, mean ± standard "
        f"deviation over {'seeds' if len(every) > 1 else 'seed'} {listed(every)}. {_protocol(used)}",
        "The best of a column is in bold, the second in italics (LaTeX: underlined), whatever their spread. Δ is the "
        "difference paired by seed with its 95 % interval (Student t); ▲ and ▼ stand only where that excludes zero.",
    ]
    missing = [c.name for c in columns if c.name not in shown]
    if missing:
        notes.append(f"Not measured at this scale: {', '.join(missing)}.")
    notes += settings(used)
    return Sheet(name, ["Method", *shown], rows, notes, [g for g in groups.items() if g[0]])


def _ranked(column: Mapping[str, Estimate], seeds: int) -> dict[str, Cell]:
    """Cells of one column; ranks are those of the numbers as printed, so ties share them."""
    printed = {m: round(100 * e.mean, 2) for m, e in column.items()}
    best, second, *_ = [*sorted(set(printed.values()), reverse=True), math.nan, math.nan]
    cells: dict[str, Cell] = {}
    for m, e in column.items():
        text = percent(e) + (f" (n = {e.n})" if e.n < seeds else "")
        cells[m] = (text, "best" if printed[m] == best else "second" if printed[m] == second else "")
    return cells


def _protocol(records: pd.DataFrame) -> str:
    """How accuracy was taken, as far as the records say."""
    each = {
        (str(about["protocol"]), about.get("n_train"), about.get("n_test"))
        for about in records["about"]
        if "protocol" in about
    }
    names = [f"{name} ({fitted} training and {tested} test images)" for name, fitted, tested in sorted(each, key=str)]
    return f"Probed by {'; '.join(names)}." if names else ""


# --- the claim that every one of these tables makes ------------------------------------------------------------------


def claims_best(label: str, where: str, says: str, columns: Sequence[Column], *experiments: str) -> EmpiricalClaim:
    """GCA-UOT leads the columns in which the paper's table has it leading."""
    text = f"highest mean in {sum('gca-uot' in c.best() for c in columns)} of {len(columns)} columns"

    def judge(results: Results) -> Judgement:
        return _best(results, columns, *experiments)

    mended = all(c.measure == CORRUPTED for c in columns)
    return EmpiricalClaim(ACCURACY, f"GCA-UOT best{label}", says, judge, where, text, mended)


def _best(results: Results, columns: Sequence[Column], *experiments: str) -> Judgement:
    method, records = "gca-uot", results.of(*experiments)
    led = [c for c in standing_in(columns, records) if method in c.best()]
    tables = {c.name: table for c in led if method in (table := c.ours(records)).index}
    if not tables:
        raise results.missing(experiments[0])
    leads, clear = [], []
    rivals: dict[tuple[str, str], Estimate] = {}
    for name, table in tables.items():
        gaps = differences(table, method, table.index, pooled=True)  # of the rivals
        means = estimates(table)
        leads += [name] if all(means[method].mean > means[m].mean for m in gaps) else []
        # each at 95 %: all of them must be passed, so there is nothing to correct
        wins = [e.mean < 0 and e.p() <= ALPHA for e in gaps.values()]
        clear += [name] if wins and all(wins) else []
        rivals |= {(name, m): e for m, e in gaps.items()}
    # one loss in many comparisons is no loss yet
    beaten = [f"{at[0]} by {NAMES[at[1]]}" for at, p in adjusted(rivals).items() if rivals[at].mean > 0 and p <= ALPHA]
    text = f"highest mean in {len(leads)} of {len(tables)} columns ({', '.join(leads) or 'none'})"
    text += f"; above every other method in {len(clear)}"
    text += f"; beaten (Holm over all comparisons) in {', '.join(beaten)}" if beaten else ""
    word: Word = "failed" if beaten else "held" if len(clear) == len(tables) else "not shown"
    first = next(iter(tables.values()))
    return Judgement(word, text, int(first.loc[method].notna().sum()))
