"""The questions of `docs/plan.md` as claims, judged as planned: by the paired interval, once all seeds are there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TypeVar

from gcalign.lab.experiments import columns, paired_tables, search, suite
from gcalign.lab.experiments.columns import EXTREME
from gcalign.lab.experiments.jobs import ALPHAS, COMPARED, PAIRED, RELAXATIONS, SAME
from gcalign.lab.experiments.scales import SCALES
from gcalign.lab.experiments.sheets import points
from gcalign.lab.experiments.statistics import Comparison, Estimate, Seeded, averaged, by_seed, contrast, holm, mean
from gcalign.lab.experiments.verdicts import (
    ALPHA,
    NEGLIGIBLE,
    EmpiricalClaim,
    NotMeasured,
    Results,
    Verdict,
    Word,
    both,
)
from gcalign.lab.paper import NAMES

Row = TypeVar("Row")
MISMATCH, SECONDARY, MECHANISM = "E1: mismatched pairs", "E1: secondary measures", "E1: mechanism"
VIEWS, TARGETS = "E2: extreme views", "E3: target plans on PACS"
LABELS, LABELS_MORE = "E4: targets by noisy labels", "E4: secondary comparisons"
PICTURES = "E5: pairs of images and names"
# each is a family of comparisons
SECTIONS = (MISMATCH, SECONDARY, MECHANISM, VIEWS, TARGETS, LABELS, LABELS_MORE, PICTURES)
OURS = "no figure (our experiment)"


def seeds(experiment: str, scale: str) -> list[int]:
    """Those that the plan has at this scale."""
    planned = suite.named(experiment)
    assert planned.jobs is not None
    jobs = planned.jobs(planned.at(SCALES[scale]), search.first(planned.searched))
    return [*dict.fromkeys(job.seed for job in jobs)]


def compared(
    results: Results, experiment: str, table: Mapping[Row, Seeded], weights: Mapping[Row, float]
) -> Comparison:
    """A contrast over all planned seeds; a look at some of them decides nothing."""
    wanted = seeds(experiment, results.scale)
    have = [s for s in wanted if all(s in table.get(row, {}) for row in weights)]
    if len(have) < len(wanted):
        so_far = (f"{len(have)} of {len(wanted)} seeds so far",) if have else ()
        raise NotMeasured(f"gcalign reproduce {experiment} scale={results.scale}", *so_far)
    whole: dict[Row, Seeded] = {
        row: {s: by[s] for s in wanted} for row, by in table.items() if all(s in by for s in wanted)
    }
    found = contrast(whole, weights)
    assert found is not None
    return found.among(results.family)


told = partial(both, first="paired")  # which decides


def above(c: Comparison, said: str, bound: float = 0.0) -> Verdict:
    """Held where the paired interval lies above the bound, failed where it lies below."""
    e = c.paired
    word: Word = "held" if e.mean > bound else "failed"
    p = e.p(bound)
    return Verdict(word if p <= ALPHA else "not shown", said, e.n, p=p)


# --- E1 --------------------------------------------------------------------------------------------------------


def _mismatched(results: Results, measure: str | None, **labels: str) -> tuple[dict[str, Seeded], str]:
    """Values of each method at the largest share of mismatched pairs, and that share; `None` is the linear probe."""
    records = results.of("fig-mismatch")
    share = max(suite.named("fig-mismatch").at(SCALES[results.scale]).noise)
    what = measure or columns.accuracy(records)
    table: dict[str, Seeded] = {m: by_seed(records, what, method=m, noise=share, **labels) for m in COMPARED}
    return table, f"with {100 * share:.0f} % of the pairs mismatched"


def mismatched(results: Results, measure: str | None, method: str) -> Verdict:
    """method − INCE with most pairs mismatched."""
    table, share = _mismatched(results, measure)
    c = compared(results, "fig-mismatch", table, {method: 1, "ince": -1})
    levels = f"{100 * mean(table[method]):.1f} against {100 * mean(table['ince']):.1f} %"
    return above(c, f"{told(c)} ({levels}) {share}")


def detected(results: Results) -> Verdict:
    """AUROC of GCA-UOT's plan for mismatched pairs less that of INCE's, both trained with most pairs mismatched."""
    table, share = _mismatched(results, "mismatch-auroc", score="plan")
    c = compared(results, "fig-mismatch", table, {"gca-uot": 1, "ince": -1})
    levels = f"{mean(table['gca-uot']):.3f} against {mean(table['ince']):.3f}"
    return above(c, f"{told(c, 1, 3, '')} ({levels}) {share}")


def _relaxed(results: Results, measure: str, **labels: str) -> dict[float, Seeded]:
    records = results.of("fig-mismatch-lambda")
    return {float(x): by_seed(records, measure, relax=x, **labels) for x in RELAXATIONS}


def push(results: Results) -> Verdict:
    """The slope over log₁₀ λ of how strongly mismatched pairs are pushed from the others."""
    table = _relaxed(results, "push", pairs="mismatched")
    at = {x: math.log10(x) for x in table}
    middle = math.fsum(at.values()) / len(at)
    scale = math.fsum((x - middle) ** 2 for x in at.values())
    c = compared(results, "fig-mismatch-lambda", table, {x: (at[x] - middle) / scale for x in table})
    ends = ", ".join(f"{mean(table[x]):.3f} at λ = {x:g}" for x in (min(table), max(table)))
    return above(c, f"{told(c, 1, 3, '')} for ten times the λ ({ends})")


def finite(results: Results) -> Verdict:
    """kNN accuracy at each λ less that at the largest: held by one of them (Holm), failed if all of them are below."""
    table = _relaxed(results, "knn")
    most = max(table)
    others = [x for x in table if x != most]
    found = {x: compared(results, "fig-mismatch-lambda", table, {x: 1, most: -1}).paired for x in others}
    adjusted = dict(zip(found, holm([e.p() for e in found.values()]), strict=True))
    better = [x for x, e in found.items() if e.mean > 0]
    best = max(found, key=lambda x: found[x].mean)
    shown = points(found[best].among(len(others)).interval())
    said = f"{shown} points at λ = {best:g}, the best, less that at λ = {most:g}"
    p = min(adjusted[x] for x in better) if better else max(e.p() for e in found.values())
    word: Word = ("held" if better else "failed") if p <= ALPHA else "not shown"
    return Verdict(word, said, found[best].n, p=p)


# --- E2 --------------------------------------------------------------------------------------------------------


def extreme(results: Results, a: str, b: str) -> Verdict:
    """a − b, mean of the extreme views."""
    records = results.of("fig-extreme")
    measure = columns.accuracy(records)
    table = {
        m: averaged([by_seed(records, measure, method=m, setting=view) for view in EXTREME])
        for m in sorted({str(r.labels["method"]) for r in records})
    }
    c = compared(results, "fig-extreme", table, {a: 1, b: -1})
    return above(c, f"{told(c)}, mean of {', '.join(EXTREME)}")


# --- E3 --------------------------------------------------------------------------------------------------------


def _weighted(results: Results, measure: str) -> dict[float, Seeded]:
    records = results.of("fig-targets")
    return {alpha: by_seed(records, measure, alpha=alpha) for alpha in ALPHAS}


def weighted(results: Results, measure: str, alpha: float, bound: float) -> Verdict:
    """Accuracy with weight α on the domain less that with pairs alone, against a bound."""
    table = _weighted(results, measure)
    c = compared(results, "fig-targets", table, {alpha: 1, 0.0: -1})
    return above(c, f"{told(c)} from {100 * mean(table[0.0]):.1f} %", bound)


def bought(results: Results) -> Verdict:
    """Whether some α raises domain accuracy and loses less than a point of class accuracy.

    Held: for one α both are shown, by Holm over the α. Failed: each α is shown to lower domain accuracy or to lose more
    than a point of class accuracy.
    """
    domain, across = (_weighted(results, measure) for measure in ("domain", "across-domains"))
    gains: dict[float, tuple[Estimate, Estimate]] = {}
    for alpha in ALPHAS[1:]:
        one, two = (compared(results, "fig-targets", t, {alpha: 1, 0.0: -1}).paired for t in (domain, across))
        gains[alpha] = one, two
    both = [max(_side(d, 0.0, 1), _side(k, -NEGLIGIBLE, 1)) for d, k in gains.values()]
    good = dict(zip(gains, holm(both), strict=True))
    bad = [min(1.0, 2 * min(_side(d, 0.0, -1), _side(k, -NEGLIGIBLE, -1))) for d, k in gains.values()]
    word: Word = "held" if min(good.values()) <= ALPHA else "failed" if max(bad) <= ALPHA else "not shown"
    each = [f"α = {a:g}: {points(d.interval())} and {points(k.interval())}" for a, (d, k) in gains.items()]
    said = f"domain and class accuracy less pairs alone: {'; '.join(each)}{_window(results)}"
    return Verdict(word, said, gains[1.0][0].n)


def _side(e: Estimate, bound: float, sign: int) -> float:
    """p of the bound where the estimate lies on that side of it, else 1."""
    return e.p(bound) if sign * (e.mean - bound) > 0 else 1.0


def _window(results: Results) -> str:
    lines = {which: by_seed(results.of("fig-targets"), f"domain-{which}") for which in ("untrained", "supervised")}
    said = [f"{which} {100 * mean(by):.1f} %" for which, by in lines.items() if by]
    return f"; domain accuracy {', '.join(said)}" if said else ""


# --- E4 --------------------------------------------------------------------------------------------------------


def labelled(results: Results, measure: str | None, setting: str) -> Verdict:
    """GCA-UOT − INCE with targets by noisy labels; INCE has its own ε or that of GCA-UOT."""
    records = results.of("table-labels")
    what = measure or columns.accuracy(records)
    table: dict[str, Seeded] = {
        "gca-uot": by_seed(records, what, method="gca-uot", setting="chosen"),
        "ince": by_seed(records, what, method="ince", setting=setting),
    }
    c = compared(results, "table-labels", table, {"gca-uot": 1, "ince": -1})
    levels = f"{100 * mean(table['gca-uot']):.1f} against {100 * mean(table['ince']):.1f} %"
    return above(c, f"{told(c)} ({levels}) with 40 % of the labels wrong")


# --- E5 --------------------------------------------------------------------------------------------------------


def retrieved(results: Results, method: str, noisy: bool) -> Verdict:
    """method − INCE both ways, by R@10 on the test pairs of pictures and names, with the identity target."""
    records = results.of("emoji-pairs")
    shares = suite.named("emoji-pairs").at(SCALES[results.scale]).noise
    share = max(shares) if noisy else min(shares)
    table: dict[str, Seeded] = {
        m: by_seed(records, paired_tables.PRIMARY, method=m, noise=share, target="identity") for m in PAIRED
    }
    c = compared(results, "emoji-pairs", table, {method: 1, "clip": -1})
    levels = f"{100 * mean(table[method]):.1f} against {100 * mean(table['clip']):.1f} %"
    return above(c, f"{told(c)} ({levels}) with {100 * share:.0f} % of the pairs mismatched")


# --- the claims ------------------------------------------------------------------------------------------------


def _family() -> list[EmpiricalClaim]:
    """The family of E1; its primary comparison is the first."""
    found = []
    for measure, name in (("knn", "nearest neighbours"), (None, "linear probe")):
        for m in sorted((m for m in COMPARED if m != "ince"), key=lambda m: m != "gca-uot"):
            says = f"{NAMES[m]} is above INCE where most pairs are mismatched, {name}"
            says += " (primary)" if measure == "knn" and m == "gca-uot" else ""
            judge = partial(mismatched, measure=measure, method=m)
            found.append(EmpiricalClaim(MISMATCH, f"E1 {NAMES[m]}, {name}", "plan, E1", says, OURS, judge))
    return found


def _targets() -> list[EmpiricalClaim]:
    says = "There is an α with domain accuracy above, and class accuracy not more than a point below pairs alone"
    found = [EmpiricalClaim(TARGETS, "E3 both", "plan, E3", says, OURS, bought)]
    for measure, name, bound, beats in (
        ("domain", "domain accuracy", 0.0, "is above that of pairs alone"),
        ("across-domains", "class accuracy", -NEGLIGIBLE, "is not more than a point below that of pairs alone"),
    ):
        for alpha in ALPHAS[1:]:
            says, judge = f"{name.capitalize()} at α = {alpha:g} {beats}", partial(weighted, measure=measure)
            judge = partial(judge, alpha=alpha, bound=bound)
            found.append(EmpiricalClaim(TARGETS, f"E3 {name}, α = {alpha:g}", "plan, E3", says, OURS, judge))
    return found


PLANNED: tuple[EmpiricalClaim, ...] = (
    *_family(),
    *(
        EmpiricalClaim(SECONDARY, f"E1 {name}", "plan, E1", f"GCA-UOT is above INCE {where}", OURS, judge)
        for name, where, judge in (
            ("100 labels", "with 100 labels", partial(mismatched, measure="100-labels", method="gca-uot")),
            ("10 labels", "with 10 labels", partial(mismatched, measure="10-labels", method="gca-uot")),
            ("detection", "in telling true from mismatched pairs (AUROC of the plan)", detected),
        )
    ),
    EmpiricalClaim(MECHANISM, "E1 push", "plan, E1", "Mismatched pairs are pushed less, the smaller λ is", OURS, push),
    EmpiricalClaim(
        MECHANISM,
        "E1 finite λ",
        "plan, E1",
        "Nearest neighbours are best at a λ below the largest, where marginals are nearly hard",
        OURS,
        finite,
    ),
    *(
        EmpiricalClaim(
            VIEWS,
            f"E2 {NAMES[a]}, {NAMES[b]}",
            "plan, E2",
            f"{NAMES[a]} is above {NAMES[b]} with extreme views",
            OURS,
            partial(extreme, a=a, b=b),
        )
        for a, b in (("gca-uot", "ince"), ("gca-ince", "ince"), ("gca-rince", "rince"))
    ),
    *_targets(),
    *(
        EmpiricalClaim(
            LABELS if measure == "knn" and setting == "chosen" else LABELS_MORE,
            f"E4 {name}, {setting}",
            "plan, E4",
            f"GCA-UOT is above INCE{' at the same ε' if setting == SAME else ''} with targets by noisy labels, {name}",
            OURS,
            partial(labelled, measure=measure, setting=setting),
        )
        for measure, name in (("knn", "nearest neighbours"), (None, "linear probe"))
        for setting in ("chosen", SAME)
    ),
    *(
        EmpiricalClaim(
            PICTURES,
            f"E5 {NAMES[m]}, {pairs}",
            "plan, E5",
            f"{NAMES[m]} is above INCE both ways (CLIP), {pairs}, R@10",
            OURS,
            partial(retrieved, method=m, noisy=noisy),
        )
        for pairs, noisy in (("clean pairs", False), ("mismatched pairs", True))
        for m in ("gca-ince", "gca-uot")
    ),
)
