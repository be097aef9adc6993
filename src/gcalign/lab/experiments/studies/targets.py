"""E3: does a target with domains help, and what does it cost?

Weight on the domain raises domain accuracy at every α we tried, and costs nine points of class accuracy at α = 0.1 and
above. No α is shown to raise domain accuracy at a cost of less than a point of class accuracy.

## Plan

PACS, GCA-INCE with weight α on images of the same domain. First the window (`fig-targets-window`), on one seed (49),
which is not used again: domain accuracy of the untrained encoder, of pairs alone and of supervision (cross-entropy on
the domains, with the same first weights, batches and views). A target can only show what lies between the last two. Of
four settings that take about as long, all with the 6992 training images, the one with the widest window between pairs
alone and supervision is taken:

* views C0, 32 pixels, small encoder of half width, 18 epochs
* DomainBed's views (crop from 0.7, jitter 0.3 of all four, grey 0.1), 32 pixels, small encoder of half width, 18 epochs
* DomainBed's, 48 pixels, small encoder of half width, 8 epochs
* DomainBed's, 64 pixels, ResNet-18 of width 1/8 with a 7 × 7 stem, 9 epochs

Then `fig-targets`:

* compared: ε = 0.2, `Blocks` target with α = 0, 0.003, 0.01, 0.03, 0.1, 1 × seeds 40 to 44; untrained and supervised
  lines for each seed
* mass: with batches of 128 and four domains α gives a domain α·B/4 = 0, 0.1, 0.32, 0.96, 3.2, 32, against 1 for the
  pair
* primary: is there an α with domain accuracy above pairs alone and class accuracy not more than one point below? Held:
  for one α both intervals say so, by Holm over the five. Failed: each α is shown to lower domain accuracy or to lose
  more than a point of class accuracy
* secondary: domain accuracy above, and class accuracy not more than a point below pairs alone, at each α: a family of
  ten
* cost: 43 runs, 1.5 core-hours

## Changes

* Before any run: seeds, the settings of the window and the rule of the primary question are named; the comparisons at
  single α are a family of ten. The seeds of `fig-ptgt` are not used, since their results are known.
* After the window (seed 49), before the other runs: it is widest at 64 pixels with the ResNet-18, 77.6 % for pairs
  alone and 86.4 % supervised (C0 86.0 and 90.0, DomainBed's views at 32 pixels 84.3 and 89.8, at 48 85.9 and 89.6). By
  the rule it is taken.

## Result

![Domain accuracy rises with α from 78 to 83 %, between the untrained encoder and one trained on domains; class accuracy
falls from 32 to 23 %](../results/small/fig-targets.png)

* At best the target closes two thirds of the way from pairs alone (77.9 %) to training on the domains themselves (85.7
  %).
* At α = 0.003 and 0.01 a loss of class accuracy is not shown: the intervals are too wide. If you want both, start
  there.
* The encoder starts from random weights and has 32 % class accuracy. E9 asks the same of a pretrained one.

![Domain and class accuracy of the untrained encoder, of pairs alone and of training on domains in four
settings](../results/small/fig-targets-window.png)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.claims import (
    ABOVE,
    ALPHA,
    NEGLIGIBLE,
    NOT_WORSE,
    Contrast,
    EmpiricalClaim,
    Family,
    Judgement,
    Results,
    Word,
    only_planned,
)
from gcalign.lab.experiments.engine.drawing import CLASS, DOMAIN, DOUBLE, INK, Look, letter, marks, page
from gcalign.lab.experiments.engine.experiment import (
    DOMAINS,
    Chosen,
    Experiment,
    Job,
    Scale,
    seed_by_seed,
    target_weights,
)
from gcalign.lab.experiments.engine.records import by_seed, check_any, series, values
from gcalign.lab.experiments.engine.statistics import Estimate, differences, estimates, holm

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

ALPHAS = (0.0, 0.003, 0.01, 0.03, 0.1, 1.0)  # of a batch of B, α gives a domain the mass α·B/4 against 1 for the pair
EVERY = (*DOMAINS, *(f"{measure}-{which}" for which in ("untrained", "supervised") for measure in DOMAINS))
PACS = ("data=pacs",)  # all 6992 training images
WIDE = ("model.encoder=resnet18", "model.width=0.125", "model.stem=imagenet")
WINDOWS: Mapping[str, tuple[str, ...]] = {  # each takes about as long
    "C0, 32 px": ("views=C0", "data.size=32", "epochs=18"),
    "DomainBed, 32 px": ("views=domainbed", "data.size=32", "epochs=18"),
    "DomainBed, 48 px": ("views=domainbed", "data.size=48", "epochs=8"),
    "DomainBed, 64 px, ResNet-18 of width 1/8": ("views=domainbed", "data.size=64", "epochs=9", *WIDE),
}
WIDEST = WINDOWS["DomainBed, 64 px, ResNet-18 of width 1/8"]  # by fig-targets-window
VIEWS: Mapping[str, tuple[str, ...]] = {"C0": ("views=C0",), "DomainBed": ("views=domainbed",)}
WINDOW_SETTINGS: dict[str, dict[str, Any]] = {  # a seed that is not used again
    "tiny": {"domain_seeds": (49,), "variants": VIEWS},
    "small": {"domains": PACS, "domain_seeds": (49,), "variants": WINDOWS},
    "paper": {"domain_seeds": (49,), "variants": VIEWS},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "small": {"domains": (*PACS, *WIDEST, "channels_last=true"), "domain_seeds": tuple(range(40, 45))},
    "paper": {"domains": ("data=pacs", "recipe=pacs", "data.size=224", "data.limit=1998", "views=domainbed")},
}


def window(scale: Scale, chosen: Chosen) -> list[Job]:
    """What a target plan can show on PACS: untrained, pairs alone and supervised, by setting, one seed (ours)."""
    jobs = [
        job
        for name, words in scale.variants.items()
        for job in target_weights(scale, EVERY, [(0.0, 0.0)], labels={"setting": name}, words=words)
    ]
    return seed_by_seed(scale.domain_seeds, jobs)


def targets(scale: Scale, chosen: Chosen) -> list[Job]:
    """Is there a target plan that buys domain accuracy and costs no class accuracy? PACS against α (ours)."""
    alone = target_weights(scale, EVERY, [(0.0, 0.0)])
    weighted = target_weights(scale, DOMAINS, [(alpha, 0.0) for alpha in ALPHAS[1:]])
    return seed_by_seed(scale.domain_seeds, [*alone, *weighted])


# --- figures -------------------------------------------------------------------------------------------------------

LOOKS = {"domain": DOMAIN, "across-domains": CLASS}
LINES = {
    "untrained": Look("untrained", "0.55", "x", ":"),
    "supervised": Look("trained on domains", "#009E73", "^", "-.", True),
}
PAIRS = Look("pairs alone", "#0072B2", "o", "-")
LIMIT = -100 * NEGLIGIBLE  # points of class accuracy that may be lost
READOUT = (
    "Domain accuracy: on images held out of training. Class accuracy: the mean over domains, each left out of the "
    "readout in turn."
)


def draw_targets(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Both accuracies against α, one against the other, and paired differences to pairs alone."""
    tables = {m: by_seed(records, m, "alpha", unit=100) for m in DOMAINS}
    lines = {
        (m, which): e
        for m in DOMAINS
        for which in LINES
        for e in estimates(by_seed(records, f"{m}-{which}", "method", unit=100)).values()
    }
    alphas = sorted({alpha for table in tables.values() for alpha in table.index})
    check_any(alphas, "fig-targets", "domain or across-domains by alpha")
    with page(folder, "fig-targets", DOUBLE, 4.6) as made:
        ((first, second), (third, fourth)) = made.figure.subplots(2, 2)
        for k, (axes, measure) in enumerate(((first, "domain"), (second, "across-domains"))):
            _against(axes, alphas, tables[measure], LOOKS[measure])
            for which, how in LINES.items():
                if (measure, which) in lines:
                    _level(axes, lines[measure, which], how)
            name = f"{LOOKS[measure].name} accuracy"
            letter(axes, k, name, ylabel=f"{name} (%)")
        _curve(third, estimates(tables["domain"]), estimates(tables["across-domains"]), lines)
        letter(third, 2, "one against the other")
        fourth.axhline(0, color=INK, linewidth=0.8)
        fourth.axhline(LIMIT, color=CLASS.colour, linestyle=":", linewidth=0.8)
        for measure, shift in (("domain", -0.08), ("across-domains", 0.08)):
            table = tables[measure]
            gaps = (table - table.loc[0.0]).drop(0.0) if 0.0 in table.index else table[:0]
            _against(fourth, alphas, gaps, LOOKS[measure], shift)
        letter(fourth, 3, "differences, paired by seed", ylabel="less pairs alone (points)")
        made.legend([DOMAIN.name, CLASS.name, *(how.name for how in LINES.values())])
        masses = _masses(records, alphas)
        for axes in (first, second, fourth):
            axes.set_xticks(range(len(alphas)), [f"{a:g}\n{masses[a]}" for a in alphas])
            axes.set_xlabel("α (below: mass of a domain; a pair has 1)")
        note = f"GCA-INCE. Target: 1 for views of one image, α within a domain. The mass is α·B/domains. {READOUT}"
        made.caption(records, note, "Dotted in D: a loss of one point.", spread=drawing.INTERVAL)
    return made.paths


def _masses(records: pd.DataFrame, alphas: Sequence[float]) -> dict[float, str]:
    """What α gives to a domain: α·B/4 for batches of B and four domains."""
    known = [about for about in records["about"] if {"batch_size", "domains"} <= about.keys()]
    sizes = {(about["batch_size"], about["domains"]) for about in known}
    if len(sizes) != 1:
        return dict.fromkeys(alphas, "")
    ((batch, domains),) = sizes
    return {alpha: f"{alpha * batch / domains:.2g}" for alpha in alphas}


def _against(axes: Axes, alphas: Sequence[float], table: pd.DataFrame, look: Look, shift: float = 0.0) -> None:
    shown = estimates(table)
    marks(axes, (alphas.index(alpha) + shift for alpha in shown), shown.values(), look.line, look.name)


def _level(axes: Axes, e: Estimate, look: Look) -> None:
    """A line across, with its interval as a band."""
    axes.axhline(e.mean, label=look.name, **look.level)
    axes.axhspan(e.mean - e.half, e.mean + e.half, color=look.colour, alpha=0.12, linewidth=0)


def _curve(
    axes: Axes,
    domain: Mapping[float, Estimate],
    across: Mapping[float, Estimate],
    lines: Mapping[tuple[str, str], Estimate],
) -> None:
    """Class against domain accuracy, from α to α."""
    both = [alpha for alpha in domain if alpha in across]
    if not both:
        drawing.absent(axes, "both accuracies")
        return
    x, y = [domain[a] for a in both], [across[a] for a in both]
    _cross(axes, x, y, Look("α", INK, "o", "-", True))
    for alpha, a, b in zip(both, x, y, strict=True):
        axes.annotate(f"{alpha:g}", (a.mean, b.mean), (3, 3), textcoords="offset points", size=6)
    for which, how in LINES.items():
        if ("domain", which) in lines and ("across-domains", which) in lines:
            _cross(axes, [lines["domain", which]], [lines["across-domains", which]], how)
    axes.set(xlabel="domain accuracy (%)", ylabel="class accuracy (%)")


def _cross(axes: Axes, x: Sequence[Estimate], y: Sequence[Estimate], look: Look) -> None:
    """Marks with intervals both ways."""
    across = [e.half for e in x]
    marks(axes, (e.mean for e in x), y, look.line, look.name, xerr=across, capsize=None)


def draw_window(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Untrained, pairs alone and supervised in each setting: a target can show what lies between the last two."""
    settings = [str(setting) for setting in values(records, "setting")]
    check_any(settings, "fig-targets-window", "setting")
    with page(folder, "fig-targets-window", DOUBLE, 1.3 + 0.4 * len(settings)) as made:
        panels = made.figure.subplots(1, 2, sharey=True)
        for k, (axes, measure) in enumerate(zip(panels, DOMAINS, strict=True)):
            for which, how in {"untrained": LINES["untrained"], "": PAIRS, "supervised": LINES["supervised"]}.items():
                name = f"{measure}-{which}" if which else measure
                by = {s: e.mean for s, e in estimates(by_seed(records, name, "setting", unit=100)).items()}
                places = [settings.index(setting) for setting in by]
                axes.plot(list(by.values()), places, label=how.name, **how.marks)
            axes.set_ylim(len(settings) - 0.5, -0.5)
            title = f"{LOOKS[measure].name} accuracy"
            letter(axes, k, title, xlabel=f"{title} (%)")
        panels[0].set_yticks(range(len(settings)), settings)
        made.legend([LINES["untrained"].name, PAIRS.name, LINES["supervised"].name])
        made.caption(records, f"GCA-INCE, α = 0. {READOUT}")
    return made.paths


# --- claims --------------------------------------------------------------------------------------------------------

E3 = Family("E3: target plans on PACS", 24, "planned")


def bought(results: Results) -> Judgement:
    """Whether some α raises domain accuracy and loses less than a point of class accuracy.

    Held: for one α both are shown, by Holm over the α. Failed: each α is shown to lower domain accuracy or to lose more
    than a point of class accuracy.
    """
    records = results.of("fig-targets")
    tables = [only_planned(results, "fig-targets", by_seed(records, m, "alpha"), ALPHAS) for m in DOMAINS]
    domain, across = (differences(table, 0.0, ALPHAS) for table in tables)
    gaps = {alpha: (domain[alpha], across[alpha]) for alpha in ALPHAS[1:]}
    shown = [max(_side(d, 0.0, 1), _side(k, -NEGLIGIBLE, 1)) for d, k in gaps.values()]
    lost = [min(1.0, 2 * min(_side(d, 0.0, -1), _side(k, -NEGLIGIBLE, -1))) for d, k in gaps.values()]
    word: Word = "held" if min(holm(shown)) <= ALPHA else "failed" if max(lost) <= ALPHA else "not shown"
    both = [f"{alpha:g}" for alpha, p in zip(gaps, holm(shown), strict=True) if p <= ALPHA]
    return Judgement(word, f"both for {'α = ' + ', '.join(both) if both else 'no α'}{_window(records)}", gaps[1.0][0].n)


def _side(e: Estimate, bound: float, sign: int) -> float:
    """p of the bound where the estimate lies on that side of it, else 1."""
    return e.p(bound) if sign * (e.mean - bound) > 0 else 1.0


def _window(records: pd.DataFrame) -> str:
    lines = {which: series(records, f"domain-{which}") for which in LINES}
    text = [f"{which} {100 * Estimate.of(by).mean:.1f} %" for which, by in lines.items() if len(by)]
    return f"; domain accuracy {', '.join(text)}" if text else ""


def claims() -> Iterator[EmpiricalClaim]:
    says = "There is an α with domain accuracy above, and class accuracy not more than a point below pairs alone"
    yield EmpiricalClaim(E3, "E3 both", says, bought)
    for measure, name, rule, beats in (
        ("domain", "domain accuracy", ABOVE, "is above that of pairs alone"),
        ("across-domains", "class accuracy", NOT_WORSE, "is not more than a point below that of pairs alone"),
    ):
        for alpha in ALPHAS[1:]:
            says = f"{name.capitalize()} at α = {alpha:g} {beats}"
            text = "{gap} points{other} from {percent[0.0]} %"
            weights = {alpha: 1, 0.0: -1}
            judge = Contrast("fig-targets", weights, measure, by="alpha", rule=rule, planned=True, text=text)
            yield EmpiricalClaim(E3, f"E3 {name}, α = {alpha:g}", says, judge)


EXPERIMENTS = (
    Experiment("fig-targets-window", draw_window, window, changes=WINDOW_SETTINGS, place=19),
    Experiment("fig-targets", draw_targets, targets, changes=SETTINGS, claims=claims, place=20),
)
