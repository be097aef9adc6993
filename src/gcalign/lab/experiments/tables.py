"""The paper's tables, drawn from records alone: (records, folder) -> the Markdown and LaTeX files written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gcalign.lab import paper
from gcalign.lab.experiments import columns as printed
from gcalign.lab.experiments.columns import Column
from gcalign.lab.experiments.jobs import SAME
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.registry import Draw
from gcalign.lab.experiments.sheets import Sheet, marked, percent, points, signed
from gcalign.lab.experiments.statistics import Difference, Seeded, by_seed, difference, minus, spread
from gcalign.lab.paper import METHODS, NAMES

NOTHING = "–"


def _compared(name: str, label: str, columns: Sequence[Column]) -> Draw:
    return lambda records, folder: comparison(name, label, columns, records).write(folder)


table1 = _compared("table1", "tab:new_combine", printed.NEW_COMBINE)
table_a_cifar10 = _compared("tableA-cifar10", "tab:cifar10", printed.CIFAR10)
table_a_cifar100 = _compared("tableA-cifar100", "tab:cifar100", printed.CIFAR100)
table_a_cifar10c = _compared("tableA-cifar10c", "tab:cifar10c", printed.CIFAR10C)


def comparison(name: str, label: str, columns: Sequence[Column], records: Sequence[Record]) -> Sheet:
    """Methods against columns, with a row of paired differences under each method that has its plain twin."""
    columns = printed.standing_in(columns, records)
    shown = [c for c in columns if c.table(records)]
    if not shown:
        raise ValueError(f"{name} has no records to show; `gcalign reproduce {name} scale=small` makes some")
    values = {c.name: {m: c.ours(records, m) for m in METHODS} for c in shown}
    seeds = sorted({s for by in values.values() for seeded in by.values() for s in seeded if s is not None})
    marked = {c.name: _ranked(values[c.name], len(seeds)) for c in shown}
    twins = dict(paper.PAIRS)
    rows = []
    for m in METHODS:
        rows.append([NAMES[m], *(marked[c.name].get(m, NOTHING) for c in shown)])
        if m in twins:
            deltas = [difference(values[c.name][m], values[c.name][twins[m]]) for c in shown]
            rows.append([f"Δ = {NAMES[m]} − {NAMES[twins[m]]}", *map(delta, deltas)])
    groups = {c.group: sum(other.group == c.group for other in shown) for c in shown}
    measures = {printed.accuracy(records) if c.measure == printed.ACCURACY else c.measure for c in shown}
    used = [r for r in records if r.labels.get("method") in METHODS and r.measure in measures]
    notes = [
        f"`{label}` of the paper at scale {_joined(r.scale for r in used)}: test accuracy in %, mean ± standard "
        f"deviation over {'seeds' if len(seeds) > 1 else 'seed'} {_joined(seeds)}. {_protocol(used)}",
        "The best of a column is in bold, the second in italics (LaTeX: underlined), whatever their spread. Δ is the "
        "difference paired by seed with its 95 % interval (Student t); ▲ and ▼ stand only where that excludes zero.",
    ]
    missing = [c.name for c in columns if c not in shown]
    if missing:
        notes.append(f"Not measured at this scale: {', '.join(missing)}.")
    notes += _settings(used)
    return Sheet(name, ["Method", *(c.name for c in shown)], rows, notes, [g for g in groups.items() if g[0]])


def _ranked(values: Mapping[str, Seeded], seeds: int) -> dict[str, str]:
    """Cells of one column; ranks are those of the numbers as printed, so ties share them."""
    spreads = {m: spread(seeded.values()) for m, seeded in values.items() if seeded}
    printed = {m: round(100 * s.mean, 2) for m, s in spreads.items()}
    best, second, *_ = [*sorted(set(printed.values()), reverse=True), math.nan, math.nan]
    cells = {}
    for m, s in spreads.items():
        text = percent(s) + (f" (n = {s.n})" if s.n < seeds else "")
        cells[m] = marked(text, "best" if printed[m] == best else "second" if printed[m] == second else "")
    return cells


def delta(d: Difference | None) -> str:
    """Points with their interval, marked where this excludes zero."""
    if d is None:
        return NOTHING
    mark = " ▲" if d.better else " ▼" if d.worse else ""
    return f"{points(d)}{mark}"


def _joined(things: Iterable[object]) -> str:
    return ", ".join(map(str, dict.fromkeys(things)))


def _protocol(records: Sequence[Record]) -> str:
    """How accuracy was taken, as far as the records say."""
    told = {
        (str(r.about["protocol"]), r.about.get("n_train"), r.about.get("n_test"))
        for r in records
        if "protocol" in r.about
    }
    each = [f"{name} ({fitted} training and {tested} test images)" for name, fitted, tested in sorted(told, key=str)]
    return f"Probed by {'; '.join(each)}." if each else ""


def _settings(records: Sequence[Record]) -> list[str]:
    """The words all runs share, then those each method has for itself: its hyper-parameters."""
    runs = [r for r in records if r.words]
    if not runs:
        return []
    shared = _common(r.words for r in runs)
    own = {m: _common(r.words for r in runs if r.labels["method"] == m) for m in METHODS}
    chosen = {m: " ".join(w for w in own[m] if w not in shared and not w.startswith("method=")) for m in METHODS}
    told = "; ".join(f"{NAMES[m]} `{words}`" for m, words in chosen.items() if words)
    return [f"All runs: `{' '.join(shared)}`. {f'Chosen for each method: {told}.' if told else ''}".rstrip()]


def _common(runs: Iterable[Sequence[str]]) -> list[str]:
    """The words in every run, in the order of the first."""
    first, *others = [*runs] or [()]
    return [word for word in first if all(word in other for other in others)]


def scouts(records: Sequence[Record], folder: Path) -> list[Path]:
    """Each setting by each protocol: means, and the difference to InfoNCE of every seed. Two seeds have no interval."""
    measures = [*dict.fromkeys(r.measure for r in records if r.value is not None and "setting" in r.labels)]
    settings = [*dict.fromkeys(str(r.labels["setting"]) for r in records if "setting" in r.labels)]
    methods = [m for m in METHODS if any(r.labels.get("method") == m for r in records)]
    others = [m for m in methods if m != "ince"]
    rows = []
    for setting in settings:
        for measure in measures:
            found = {m: by_seed(records, measure, method=m, setting=setting) for m in methods}
            means = [f"{100 * spread(by.values()).mean:.2f}" if by else NOTHING for by in found.values()]
            gains = [minus(found[m], found.get("ince", {})) for m in others]
            told = [", ".join(signed(100 * x) for x in gain.values()) for gain in gains]
            rows.append([f"{setting}, {measure}", *means, *(text if text else NOTHING for text in told)])
    if not rows:
        raise ValueError("scouts has no records to show; `gcalign reproduce scouts` makes some")
    header = ["Setting", *(NAMES[m] for m in methods), *(f"{NAMES[m]} − INCE" for m in others)]
    notes = [
        f"Scouts at scale {_joined(r.scale for r in records)}, exploratory: test accuracy in %, mean over seeds "
        f"{_joined(sorted({r.seed for r in records if r.seed is not None}))}; differences seed by seed. They say where "
        "to look, not what is so.",
        "Long tail: 100 times more images of the first class than of the last, probed with balanced labels. Four "
        "views: of half as many images, so that as many pass the encoder. Noisy labels: targets by label, 40 % wrong.",
        *_settings(records),
    ]
    return Sheet("scouts", header, rows, notes).write(folder)


def table_labels(records: Sequence[Record], folder: Path) -> list[Path]:
    """Each protocol: means, and GCA-UOT less INCE, with its own ε and with that of GCA-UOT."""
    measures = [*dict.fromkeys(r.measure for r in records if r.value is not None and "setting" in r.labels)]
    rows = []
    for measure in measures:
        relaxed = by_seed(records, measure, method="gca-uot", setting="chosen")
        plain = [by_seed(records, measure, method="ince", setting=setting) for setting in ("chosen", SAME)]
        means = [percent(spread(by.values())) if by else NOTHING for by in (*plain, relaxed)]
        rows.append([measure, *means, *(delta(difference(relaxed, by)) for by in plain)])
    if not rows:
        raise ValueError("table-labels has no records to show; `gcalign reproduce table-labels` makes some")
    header = ["Protocol", "INCE", f"INCE, {SAME}", "GCA-UOT", "GCA-UOT − INCE", f"GCA-UOT − INCE, {SAME}"]
    notes = [
        f"Targets by label, 40 % of the labels wrong, at scale {_joined(r.scale for r in records)}: test accuracy "
        "in %, mean ± standard deviation over seeds "
        f"{_joined(sorted({r.seed for r in records if r.seed is not None}))}; differences paired by seed with their "
        "95 % interval (Student t).",
        *_settings(records),
    ]
    return Sheet("table-labels", header, rows, notes).write(folder)


def table_methods(records: Sequence[Record], folder: Path) -> list[Path]:
    """tab:diff, from the method objects: what they print of themselves. There is nothing to measure."""
    from gcalign.alignment import Alignment
    from gcalign.geometry import Entropic
    from gcalign.methods import method

    rows = []
    for name in METHODS:
        made = method(name)
        assert isinstance(made, Alignment)
        sets = " ∩ ".join(map(repr, made.constraints)) or "none"
        d_gamma = type(made.geometry or Entropic()).__name__ if made.constraints else "–"  # nothing is projected
        kernel, divergence, target = map(repr, (made.kernel, made.divergence, made.target))
        iterated = "yes" if len(made.constraints) > 1 else "no"
        rows.append([NAMES[name], kernel, d_gamma, sets, divergence, target, made.layout, iterated])
    header = ["Method", "K_θ", "d_Γ", "constraints B", "d_M", "P_tgt", "layout", "iterated"]
    notes = [
        "`tab:diff` of the paper, printed by the methods themselves (`gcalign.method(name)`) with their defaults. A "
        "penalty makes a constraint soft; the layout says whether the negatives are the other view alone (cross) or "
        "all embeddings of the batch (joint)."
    ]
    return Sheet("table-methods", header, rows, notes).write(folder)


def flops(records: Sequence[Record], folder: Path) -> list[Path]:
    """Counted operations of each loss beside the paper's three figures."""
    parts = ("matmul", "elementwise", "total")
    found = {m: {p: by_seed(records, "mflops", method=m, part=p) for p in parts} for m in METHODS}
    counts = {m: {p: by[p].mean if by[p] else None for p in parts} for m, by in found.items()}
    counted = {m: by for m, by in counts.items() if any(x is not None for x in by.values())}
    if not counted:
        raise ValueError("flops has no records to show; `gcalign reproduce flops` makes some")
    base = counts["ince"]["total"]
    rows = []
    for m, by in counted.items():
        cells = [NOTHING if x is None else f"{x:.2f}" for x in by.values()]
        total = by["total"]
        ratio = NOTHING if total is None or not base else f"{total / base:.2f}"
        told = paper.MFLOPS.get(m)
        theirs = [NOTHING] * 2 if told is None else [f"{told:.2f}", f"{told / paper.MFLOPS['ince']:.2f}"]
        rows.append([NAMES[m], *cells, ratio, *theirs])
    header = ["Method", "matrix products", "element-wise", "total", "÷ INCE", "paper", "paper ÷ INCE"]
    about = {k: v for r in records if r.measure == "mflops" for k, v in sorted(r.about.items()) if k != "paper"}
    notes = [
        "MFLOP of one loss, forward and backward, against the paper's figures, whose batch and counting are not told."
    ]
    notes += [f"Settings: {'; '.join(f'{k}: {v}' for k, v in sorted(about.items()))}."] if about else []
    return Sheet("flops", header, rows, notes).write(folder)
