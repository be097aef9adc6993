"""How the paper's claims are judged by result files: small functions, each from records to a verdict."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gcalign.lab.experiments import columns
from gcalign.lab.experiments.columns import Column
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.sheets import points
from gcalign.lab.experiments.sheets import signed as with_sign
from gcalign.lab.experiments.statistics import Comparison, Estimate, Seeded, averaged, by_seed, contrast, holm, mean
from gcalign.lab.experiments.verdicts import ALPHA, Results, Verdict, Word, both, bracket, signed, within
from gcalign.lab.paper import METHODS, NAMES

SIMILAR = 0.10  # of run time: "very similar" is an interval within ± 10 %
CONVERGED = 0.01  # of a row sum: what a converged plan may miss


def gain(results: Results, k: int, a: str, b: str, sign: int = 1) -> Verdict:
    """a − b in column k of tab:new_combine."""
    records = results.of("table1")
    table = columns.standing_in(columns.NEW_COMBINE, records)[k].table(records)
    c = results.contrast("table1", table, {a: 1, b: -1})
    return signed(c, both(c), sign)


def larger_gains(results: Results) -> Verdict:
    """Whether GCA adds more to RINCE than to INCE, over the standard columns measured."""
    records = results.of("table1")
    every = columns.standing_in(columns.NEW_COMBINE, records)
    measured = [c for c in every if c.group == "Standard" and c.table(records)]
    table = {m: averaged([c.ours(records, m) for c in measured]) for m in METHODS}
    c = results.contrast("table1", table, {"gca-rince": 1, "rince": -1, "gca-ince": -1, "ince": 1})
    return signed(c, f"{both(c, of=' points more for RINCE')}, {', '.join(c.name for c in measured)}")


def best(results: Results, of: Sequence[Column], *experiments: str) -> Verdict:
    """Whether GCA-UOT leads the columns in which the paper's table has it leading."""
    method, records = "gca-uot", results.of(*experiments)
    claimed = [c for c in columns.standing_in(of, records) if method in c.best() and c.ours(records, method)]
    if not claimed:
        raise results.missing(experiments[0])
    leads, clear, rivals = [], [], []
    for column in claimed:
        table = column.table(records)
        found = {m: c for m in table if m != method and (c := contrast(table, {method: 1, m: -1}))}
        leads += [column.name] if all(mean(table[method]) > mean(table[m]) for m in found) else []
        # each at 95 %: all of them must be passed, so there is nothing to correct
        wins = [c.pooled.mean > 0 and c.pooled.p() <= ALPHA for c in found.values()]
        clear += [column.name] if wins and all(wins) else []
        rivals += [(column.name, m, c.pooled) for m, c in found.items()]
    # one loss in many comparisons is no loss yet
    adjusted = holm([e.p() for *_, e in rivals])
    beaten = [
        f"{at} by {NAMES[m]}" for (at, m, e), p in zip(rivals, adjusted, strict=True) if e.mean < 0 and p <= ALPHA
    ]
    told = f"highest mean in {len(leads)} of {len(claimed)} columns ({', '.join(leads) or 'none'})"
    told += f"; better than every other method in {len(clear)}"
    told += f"; beaten (Holm over all comparisons) in {', '.join(beaten)}" if beaten else ""
    word: Word = "failed" if beaten else "held" if len(clear) == len(claimed) else "not shown"
    return Verdict(word, told, len(claimed[0].ours(records, method)))


def quality(results: Results, measure: str, on: str, a: str, b: str) -> Verdict:
    """Whether a's alignment or uniformity (lower is better) is below b's, over the settings measured.

    Both measures follow ε, so where a and b have different ones nothing is said of the methods.
    """
    experiment = "fig-align-uniform"
    c, n = _mean_over("setting", results, experiment, measure, a, b, on=on)
    told = f"{both(c, 1, 3, '')}, mean of {n} settings"
    eps = {m: _option("method.eps=", results.of(experiment), m) for m in (a, b)}
    if eps[a] != eps[b]:
        differ = " and ".join(f"{eps[m]} for {NAMES[m]}" for m in (a, b))
        return Verdict("not judgeable", f"{told}; confounded by ε, {differ}: see the rows with the same ε", c.pooled.n)
    return signed(c, told, -1)


def _option(key: str, records: Sequence[Record], method: str) -> str:
    """The values of an option in the runs of a method."""
    words = {word for r in records if r.labels.get("method") == method for word in r.words if word.startswith(key)}
    return ", ".join(sorted(word.removeprefix(key) for word in words))


def same_eps(results: Results, measure: str | None, a: str, b: str) -> Verdict:
    """a − b with the same ε for both, over the values measured; `None` is accuracy, the others are better lower."""
    what = measure or columns.accuracy(results.of("fig-same-eps"))
    c, n = _mean_over("eps", results, "fig-same-eps", what, a, b, **({"on": "clean"} if measure else {}))
    told = both(c, 1, 3, "") if measure else both(c)
    return signed(c, f"{told}, mean of {n} values of ε", -1 if measure else 1)


def _mean_over(
    label: str, results: Results, experiment: str, measure: str, a: str, b: str, **at: str
) -> tuple[Comparison, int]:
    """a − b of each seed, averaged over the values of a label that both have, and how many there are."""
    records = results.of(experiment)

    def values(m: str, x: Any) -> Seeded:
        return by_seed(records, measure, method=m, **{label: x}, **at)

    places = sorted({r.labels[label] for r in records if label in r.labels})
    places = [x for x in places if values(a, x) and values(b, x)]
    table = {m: averaged([values(m, x) for x in places]) for m in METHODS}
    return results.contrast(experiment, table, {a: 1, b: -1}), len(places)


def under_noise(results: Results, a: str, b: str) -> Verdict:
    """a − b at the largest share of mismatched pairs."""
    records = results.of("fig-noise")
    noise = max(float(r.labels["noise"]) for r in records)
    by = {
        measure: {m: values for m in METHODS if (values := by_seed(records, measure, method=m, noise=noise))}
        for measure in (columns.accuracy(records), "knn")
    }
    c = results.contrast("fig-noise", by[columns.accuracy(records)], {a: 1, b: -1})
    other = contrast(by["knn"], {a: 1, b: -1})
    beside = f" (nearest neighbours: {points(other.pooled.among(results.family).interval())})" if other else ""
    return signed(c, f"{both(c)}{beside} with {100 * noise:.0f} % of the pairs mismatched")


def domains(results: Results, measure: str, judged: Callable[[Comparison, str], Verdict]) -> Verdict:
    """The most weight on the domain against none, a target of pairs alone; weight across domains is told with it."""
    records = results.of("fig-ptgt")
    weights = {(float(r.labels["alpha"]), float(r.labels["beta"])) for r in records if r.measure == measure}
    found = {w: by_seed(records, measure, alpha=w[0], beta=w[1]) for w in weights}
    ends = sorted(weights, key=lambda w: (w[0] - w[1], w))
    none = (0.0, 0.0)
    if none not in found or ends[-1] == none:
        raise results.missing("fig-ptgt")
    c = results.contrast("fig-ptgt", found, {ends[-1]: 1, none: -1})
    low, high = (f"{100 * mean(found[w]):.1f} %" for w in (none, ends[-1]))
    told = f"{low} with pairs alone, {high} at α = {ends[-1][0]:g}: {both(c)}"
    across = [f"{100 * mean(found[w]):.1f} % at β = {w[1]:g}" for w in ends if w[0] < w[1]]
    return judged(c, "; ".join([told, *across]))


def from_scratch(c: Comparison, told: str) -> Verdict:
    """What no encoder shows that starts from random weights."""
    return Verdict("not judgeable", f"{told}; from random weights, where DomainBed starts from ImageNet's", c.pooled.n)


def above_the_line(results: Results) -> Verdict:
    """How many settings (q, λ) of GCA-RINCE beat INCE, and how many lose to it, by Holm over the settings."""
    records = results.of("fig-q-lambda")
    measure = columns.accuracy(records)
    settings = sorted({(float(r.labels["q"]), float(r.labels["lam"])) for r in records if "q" in r.labels})
    table: dict[Any, Seeded] = {
        (q, lam): by_seed(records, measure, method="gca-rince", q=q, lam=lam) for q, lam in settings
    }
    table["ince"] = by_seed(records, measure, method="ince")
    known = {at: c.pooled for at in settings if (c := contrast(table, {at: 1, "ince": -1}))}
    if not known:
        raise results.missing("fig-q-lambda")
    adjusted = dict(zip(known, holm([e.p() for e in known.values()]), strict=True))
    better, worse = (sum(s * known[at].mean > 0 and adjusted[at] <= ALPHA for at in known) for s in (1, -1))
    word: Word = "held" if 2 * better > len(known) else "failed" if 2 * worse > len(known) else "not shown"
    told = f"of {len(known)} settings {better} are better than INCE, {worse} worse (Holm), the rest not shown"
    ends = sorted(known, key=lambda at: known[at].mean)
    shown = {at: points(known[at].among(len(known)).interval()) for at in (ends[0], ends[-1])}
    said = [f"{interval} points (q = {q:g}, λ = {lam:g})" for (q, lam), interval in shown.items()]
    return Verdict(word, f"{told}; from {' to '.join(said)}", min(e.n for e in known.values()))


# --- cost: seconds, measured with the methods taking turns, and counted operations --------------------------------


def similar_seconds(results: Results, a: str, b: str) -> Verdict:
    """How much longer an epoch of a takes than one of b."""
    c = _ratio(results, "seconds-per-epoch", a, b)
    told = f"an epoch of {NAMES[a]} takes {_percent(c.pooled)} more time than one of {NAMES[b]}{_paired(c)}"
    return replace(within(c, told, math.log1p(-SIMILAR), math.log1p(SIMILAR)), of="rounds")


def fewer_seconds(results: Results, a: str, b: str) -> Verdict:
    """The same of the loss alone: all else of an epoch is the same for both, so it decides which is faster."""
    c, epoch = (_ratio(results, measure, a, b) for measure in ("step-seconds-loss", "seconds-per-epoch"))
    told = f"the loss of {NAMES[a]} takes {_percent(c.pooled)} more time than that of {NAMES[b]}{_paired(c)}"
    return replace(signed(c, f"{told}; a whole epoch {_percent(epoch.pooled)}", -1), of="rounds")


def _ratio(results: Results, measure: str, a: str, b: str) -> Comparison:
    """In logarithms: times multiply, and so does what slows a machine down."""
    records = results.of("fig-time")
    found = {m: by_seed(records, measure, method=m, iterations=None) for m in METHODS}
    table = {m: {s: math.log(x) for s, x in by.items()} for m, by in found.items()}
    return results.contrast("fig-time", table, {a: 1, b: -1})


def _paired(c: Comparison) -> str:
    return f"; paired {bracket(_percent(c.paired))}" if c.paired.df else ""


def _percent(e: Estimate) -> str:
    """The ratio less one, with its interval."""
    d = e.interval()
    mean, low, high = (with_sign(100 * math.expm1(x), 1) if math.isfinite(x) else "" for x in (d.mean, d.low, d.high))
    return f"{mean} [{low}, {high}] %" if e.df else f"{mean} %"


def flops(results: Results, method: str, most: float) -> Verdict:
    """MFLOP of a loss over that of INCE, held up to `most` more; counts have no spread."""
    records = results.of("flops")
    mine, base = (by_seed(records, "mflops", method=m, part="total") for m in (method, "ince"))
    if not mine or not base:
        raise results.missing("flops")
    x, y = next(iter(mine.values())), next(iter(base.values()))
    return Verdict("held" if x / y - 1 <= most else "failed", f"{x:.2f} against {y:.2f} MFLOP: {_more(x, y)}")


def _more(x: float, y: float) -> str:
    return f"{with_sign(100 * (x / y - 1), 1)} %"


def flops_of_the_published_code(results: Results, method: str, most: float) -> Verdict:
    """The same of the code that the paper counted; that of this library stands beside it."""
    from gcalign.lab.verify.costs import macs  # torch, which `gcalign --help` does not wait for

    x, y = macs(NAMES[method]), macs(NAMES["ince"])
    told = f"published code: {x:.2f} against {y:.2f} million multiply-adds, {_more(x, y)}"
    here = flops(results, method, most).ours
    return Verdict("held" if x / y - 1 <= most else "failed", f"{told}; here {here}")


# --- plans: the matrices of fig-plans and fig-epsilon -------------------------------------------------------------


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
    if not found:
        raise results.missing("fig-plans")
    n = min(e.n for e in found)
    told = ", ".join(f"{NAMES[m]} {mean(table[m]):.2f}" for m in METHODS if m in table)
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


def converged(results: Results) -> Verdict:
    """How far row sums are from their mean after fewer than ten iterations, which end with the columns."""
    missed: dict[str, float] = {}
    for record, plan in _plans(results, "fig-plans"):
        name, iterations = str(record.labels["method"]), int(record.about["iterations"])
        if name in ("gca-ince", "gca-rince") and iterations < 10:
            sums = [sum(row) for row in plan]
            worst = max(abs(s / statistics.fmean(sums) - 1) for s in sums)
            key = f"{NAMES[name]}, {iterations} iterations at ε = {record.about['eps']:.2g}"
            missed[key] = max(worst, missed.get(key, 0.0))
    if not missed:
        raise results.missing("fig-plans")
    told = "; ".join(f"{key}: {100 * worst:.1f} %" for key, worst in missed.items())
    held = 2 * sum(worst <= CONVERGED for worst in missed.values()) >= len(missed)
    return Verdict("held" if held else "failed", f"row sums deviate by up to: {told}")


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
