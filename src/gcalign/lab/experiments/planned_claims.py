"""The questions of `docs/plan.md` as claims, judged as planned: by the paired interval, once all seeds are there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from gcalign.lab.experiments import paper, search, suite
from gcalign.lab.experiments.claim import Claim
from gcalign.lab.experiments.judges import ALPHA, NEGLIGIBLE, Judge, NotMeasured, Results, Verdict, Word
from gcalign.lab.experiments.paper import NAMES
from gcalign.lab.experiments.planned import ALPHAS, COMPARED, EXTREME, RELAXATIONS
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.scales import SCALES
from gcalign.lab.experiments.statistics import Comparison, Estimate, Seeded, averaged, by_seed, contrast, holm, mean
from gcalign.lab.experiments.tables import points

Row = TypeVar("Row")
MISMATCH, SECONDARY, MECHANISM = "E1: mismatched pairs", "E1: secondary measures", "E1: mechanism"
VIEWS, TARGETS = "E2: extreme views", "E3: target plans on PACS"
SECTIONS = (MISMATCH, SECONDARY, MECHANISM, VIEWS, TARGETS)  # each is a family of comparisons
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
    return found


def told(c: Comparison, unit: float = 100, digits: int = 2, of: str = " points") -> str:
    """The paired interval, which decides, then the pooled one."""
    pooled = points(c.pooled.interval(), unit, digits)
    return f"{points(c.paired.interval(), unit, digits)}{of}" + (
        f"; pooled {pooled[pooled.index('[') :]}" if c.pooled.df else ""
    )


def above(c: Comparison, said: str, bound: float = 0.0) -> Verdict:
    """Held where the paired interval lies above the bound, failed where it lies below."""
    e = c.paired
    word: Word = "held" if e.mean > bound else "failed"
    p = e.p(bound)
    return Verdict(word if p <= ALPHA else "not shown", said, e.n, p=p)


# --- E1 --------------------------------------------------------------------------------------------------------


def _mismatched(results: Results, measure: str | None, **labels: str) -> tuple[dict[str, Seeded], float]:
    """Values of each method at the largest share of mismatched pairs, and that share; `None` is the linear probe."""
    records = results.of("fig-mismatch")
    share = max(suite.named("fig-mismatch").at(SCALES[results.scale]).noise)
    what = measure or paper.accuracy(records)
    return {m: by_seed(records, what, method=m, noise=share, **labels) for m in COMPARED}, share


def mismatched(measure: str | None, method: str) -> Judge:
    """method − INCE with most pairs mismatched."""

    def judge(results: Results) -> Verdict:
        table, share = _mismatched(results, measure)
        c = compared(results, "fig-mismatch", table, {method: 1, "ince": -1})
        levels = f"{100 * mean(table[method]):.1f} against {100 * mean(table['ince']):.1f} %"
        return above(c, f"{told(c)} ({levels}) with {100 * share:.0f} % of the pairs mismatched")

    return judge


def detected(results: Results) -> Verdict:
    """AUROC of GCA-UOT's plan for mismatched pairs less that of INCE's, both trained with most pairs mismatched."""
    table, share = _mismatched(results, "mismatch-auroc", score="plan")
    c = compared(results, "fig-mismatch", table, {"gca-uot": 1, "ince": -1})
    levels = f"{mean(table['gca-uot']):.3f} against {mean(table['ince']):.3f}"
    return above(c, f"{told(c, 1, 3, '')} ({levels}) with {100 * share:.0f} % of the pairs mismatched")


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
    said = f"{points(found[best].interval())} points at λ = {best:g}, the best, less that at λ = {most:g}"
    p = min(adjusted[x] for x in better) if better else max(e.p() for e in found.values())
    word: Word = ("held" if better else "failed") if p <= ALPHA else "not shown"
    return Verdict(word, said, found[best].n, p=p)


# --- E2 --------------------------------------------------------------------------------------------------------


def extreme(a: str, b: str) -> Judge:
    """a − b, mean of the extreme views."""

    def judge(results: Results) -> Verdict:
        records = results.of("fig-extreme")
        measure = paper.accuracy(records)
        methods = {str(r.labels["method"]) for r in records}
        table = {
            m: averaged([by_seed(records, measure, method=m, setting=view) for view in EXTREME])
            for m in sorted(methods)
        }
        c = compared(results, "fig-extreme", table, {a: 1, b: -1})
        return above(c, f"{told(c)}, mean of {', '.join(EXTREME)}")

    return judge


# --- E3 --------------------------------------------------------------------------------------------------------


def _weighted(results: Results, measure: str) -> dict[float, Seeded]:
    records = results.of("fig-targets")
    return {alpha: by_seed(records, measure, alpha=alpha) for alpha in ALPHAS}


def weighted(measure: str, alpha: float, bound: float) -> Judge:
    """Accuracy with weight α on the domain less that with pairs alone, against a bound."""

    def judge(results: Results) -> Verdict:
        table = _weighted(results, measure)
        c = compared(results, "fig-targets", table, {alpha: 1, 0.0: -1})
        return above(c, f"{told(c)} from {100 * mean(table[0.0]):.1f} %", bound)

    return judge


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
    return Verdict(
        word, f"domain and class accuracy less pairs alone: {'; '.join(each)}{_window(results)}", gains[1.0][0].n
    )


def _side(e: Estimate, bound: float, sign: int) -> float:
    """p of the bound where the estimate lies on that side of it, else 1."""
    return e.p(bound) if sign * (e.mean - bound) > 0 else 1.0


def _window(results: Results) -> str:
    records: Sequence[Record] = results.of("fig-targets")
    lines = {which: by_seed(records, f"domain-{which}") for which in ("untrained", "supervised")}
    said = [f"{which} {100 * mean(by):.1f} %" for which, by in lines.items() if by]
    return f"; domain accuracy {', '.join(said)}" if said else ""


# --- the claims ------------------------------------------------------------------------------------------------


def _family() -> list[Claim]:
    """The family of E1; its primary comparison is the first."""
    order = sorted((m for m in COMPARED if m != "ince"), key=lambda m: m != "gca-uot")
    return [
        Claim(
            MISMATCH,
            f"E1 {NAMES[m]}, {name}",
            "plan, E1",
            f"{NAMES[m]} is above INCE where most pairs are mismatched, {name}" + (" (primary)" if first else ""),
            OURS,
            mismatched(measure, m),
        )
        for measure, name in (("knn", "nearest neighbours"), (None, "linear probe"))
        for m in order
        for first in [measure == "knn" and m == "gca-uot"]
    ]


def _targets() -> list[Claim]:
    told = (
        ("domain", "domain accuracy", 0.0, "is above that of pairs alone"),
        ("across-domains", "class accuracy", -NEGLIGIBLE, "is not more than a point below that of pairs alone"),
    )
    return [
        Claim(
            TARGETS,
            "E3 both",
            "plan, E3",
            "There is an α with domain accuracy above, and class accuracy not more than a point below pairs alone",
            OURS,
            bought,
        ),
        *(
            Claim(
                TARGETS,
                f"E3 {name}, α = {alpha:g}",
                "plan, E3",
                f"{name.capitalize()} at α = {alpha:g} {says}",
                OURS,
                judge,
            )
            for measure, name, bound, says in told
            for alpha in ALPHAS[1:]
            for judge in [weighted(measure, alpha, bound)]
        ),
    ]


PLANNED: tuple[Claim, ...] = (
    *_family(),
    *(
        Claim(SECONDARY, f"E1 {name}", "plan, E1", f"GCA-UOT is above INCE {where}", OURS, judge)
        for name, where, judge in (
            ("100 labels", "with 100 labels", mismatched("100-labels", "gca-uot")),
            ("10 labels", "with 10 labels", mismatched("10-labels", "gca-uot")),
            ("detection", "in telling true from mismatched pairs (AUROC of the plan)", detected),
        )
    ),
    Claim(MECHANISM, "E1 push", "plan, E1", "Mismatched pairs are pushed less, the smaller λ is", OURS, push),
    Claim(
        MECHANISM,
        "E1 finite λ",
        "plan, E1",
        "Nearest neighbours are best at a λ below the largest, where marginals are nearly hard",
        OURS,
        finite,
    ),
    *(
        Claim(
            VIEWS,
            f"E2 {NAMES[a]}, {NAMES[b]}",
            "plan, E2",
            f"{NAMES[a]} is above {NAMES[b]} with extreme views",
            OURS,
            extreme(a, b),
        )
        for a, b in (("gca-uot", "ince"), ("gca-ince", "ince"), ("gca-rince", "rince"))
    ),
    *_targets(),
)
