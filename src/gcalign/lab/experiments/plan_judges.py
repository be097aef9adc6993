"""How claims about plans are judged: by the matrices of fig-plans and fig-epsilon."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

from gcalign.lab.experiments.judges import Results, Verdict
from gcalign.lab.experiments.paper import METHODS, NAMES


def _plans(results: Results, experiment: str) -> list[tuple[dict[str, Any], list[list[float]]]]:
    records = [r for r in results.of(experiment) if r.measure == "plan"]
    return [(r.labels, [[math.exp(x) for x in row] for row in r.about["log_plan"]]) for r in records]


def contrast(results: Results) -> Verdict:
    """log of mean mass on the diagonal over that off it: GCA-UOT against the other three plans."""
    found = {}
    for labels, plan in _plans(results, "fig-plans"):
        n, on = len(plan), sum(plan[i][i] for i in range(len(plan)))
        off = sum(map(sum, plan)) - on
        found[str(labels["method"])] = math.log(on / n) - math.log(off / (n * n - n))
    if "gca-uot" not in found or len(found) < 2:
        raise results.missing("fig-plans")
    told = ", ".join(f"{NAMES[m]} {found[m]:.2f}" for m in METHODS if m in found)
    return Verdict("not shown", f"log ratio of mass on and off the diagonal: {told}; one run of each", 1)


def both_marginals(results: Results) -> Verdict:
    """Largest relative deviation of a column sum from their mean, with and without column projections."""
    found = {}
    for labels, plan in _plans(results, "fig-plans"):
        sums = [sum(column) for column in zip(*plan, strict=True)]
        middle = statistics.fmean(sums)
        found[str(labels["method"])] = max(abs(s / middle - 1) for s in sums)
    iterated = [m for m in ("gca-ince", "gca-rince") if m in found]
    if "ince" not in found or not iterated:
        raise results.missing("fig-plans")
    told = ", ".join(f"{NAMES[m]} {100 * found[m]:.1f} %" for m in ("ince", *iterated))
    held = all(found[m] < 0.01 < found["ince"] for m in iterated)
    return Verdict("held" if held else "failed", f"column sums deviate by up to {told}")


def smoother(results: Results) -> Verdict:
    """Whether the mean entropy of the plan's rows, each made a distribution, rises with every step of ε."""
    found: dict[str, dict[float, float]] = {}
    for labels, plan in _plans(results, "fig-epsilon"):
        shares = [[x / sum(row) for x in row] for row in plan]
        entropy = statistics.fmean(-sum(p * math.log(p) for p in row if p > 0) for row in shares)
        found.setdefault(NAMES[str(labels["method"])], {})[float(labels["eps"])] = entropy
    if not any(len(by) > 1 for by in found.values()):
        raise results.missing("fig-epsilon")
    told, rises = [], []
    for name, by in sorted(found.items()):
        low, high = min(by), max(by)
        rises.append(all(by[x] <= by[y] for x, y in itertools.pairwise(sorted(by))))
        told.append(f"{name} {by[low]:.2f} → {by[high]:.2f} for ε from {low:g} to {high:g}")
    return Verdict("held" if all(rises) else "failed", f"entropy of a row, in nats: {'; '.join(told)}")
