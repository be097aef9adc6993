"""How claims about plans are judged: by the matrices of fig-plans and fig-epsilon."""

from __future__ import annotations

import itertools
import math
import statistics

from gcalign.lab.experiments.judges import ALPHA, Results, Verdict, Word
from gcalign.lab.experiments.paper import METHODS, NAMES
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.statistics import contrast, holm


def _plans(results: Results, experiment: str) -> list[tuple[Record, list[list[float]]]]:
    records = [r for r in results.of(experiment) if r.measure == "plan"]
    return [(r, [[math.exp(x) for x in row] for row in r.about["log_plan"]]) for r in records]


def clearer(results: Results) -> Verdict:
    """log of mean mass on the diagonal over that off it: GCA-UOT against the other plans, over the seeds of each."""
    table: dict[str, dict[int | None, float]] = {}
    for record, plan in _plans(results, "fig-plans"):
        n, on = len(plan), sum(plan[i][i] for i in range(len(plan)))
        off = sum(map(sum, plan)) - on
        value = math.log(on / n) - math.log(off / (n * n - n))
        table.setdefault(str(record.labels["method"]), {})[record.seed] = value
    others = [m for m in METHODS if m in table and m != "gca-uot"]
    found = [c.pooled for m in others if (c := contrast(table, {"gca-uot": 1, m: -1}))]
    if "gca-uot" not in table or not found:
        raise results.missing("fig-plans")
    n = min(e.n for e in found)
    told = ", ".join(f"{NAMES[m]} {statistics.fmean(table[m].values()):.2f}" for m in METHODS if m in table)
    # held needs all of them, so nothing is to be corrected; failed needs one of several
    above = all(e.mean > 0 and e.p() <= ALPHA for e in found)
    below = any(e.mean < 0 and p <= ALPHA for e, p in zip(found, holm([e.p() for e in found]), strict=True))
    word: Word = "held" if above else "failed" if below else "not shown"
    told += "; one run of each" if n == 1 else ""
    return Verdict(word, f"log ratio of mass on and off the diagonal: {told}", n)


def both_marginals(results: Results) -> Verdict:
    """Largest relative deviation of a column sum from their mean, with and without column projections.

    A plan whose columns were projected last has these sums whatever the encoder, so it is no finding that it has.
    """
    found: dict[str, float] = {}
    for record, plan in _plans(results, "fig-plans"):
        sums = [sum(column) for column in zip(*plan, strict=True)]
        middle = statistics.fmean(sums)
        worst = max(abs(s / middle - 1) for s in sums)
        name = str(record.labels["method"])
        found[name] = max(worst, found.get(name, 0.0)) if name != "ince" else min(worst, found.get(name, math.inf))
    iterated = [m for m in ("gca-ince", "gca-rince") if m in found]
    if "ince" not in found or not iterated:
        raise results.missing("fig-plans")
    told = ", ".join(f"{NAMES[m]} {100 * found[m]:.1f} %" for m in ("ince", *iterated))
    held = all(found[m] < 0.01 < found["ince"] for m in iterated)
    return Verdict("true by construction" if held else "failed", f"column sums deviate by up to {told}")


def smoother(results: Results) -> Verdict:
    """Whether the mean entropy of the plan's rows, each made a distribution, rises with every step of ε."""
    found: dict[str, dict[float, float]] = {}
    for record, plan in _plans(results, "fig-epsilon"):
        shares = [[x / sum(row) for x in row] for row in plan]
        entropy = statistics.fmean(-sum(p * math.log(p) for p in row if p > 0) for row in shares)
        found.setdefault(NAMES[str(record.labels["method"])], {})[float(record.labels["eps"])] = entropy
    if not any(len(by) > 1 for by in found.values()):
        raise results.missing("fig-epsilon")
    told, rises = [], []
    for name, by in sorted(found.items()):
        low, high = min(by), max(by)
        rises.append(all(by[x] <= by[y] for x, y in itertools.pairwise(sorted(by))))
        told.append(f"{name} {by[low]:.2f} → {by[high]:.2f} for ε from {low:g} to {high:g}")
    return Verdict("held" if all(rises) else "failed", f"entropy of a row, in nats: {'; '.join(told)}")
