"""fig:Ptgt (sec:domaingen): domain and class accuracy against the weight that the target plan gives to domains.

GCA-INCE on PACS. The target is 1 for views of one image, α for images of one domain, β for images of two. The paper
claims that more weight on the domain raises domain accuracy and costs no class accuracy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab import paper
from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.claims import EmpiricalClaim, Judgement, Results, compared
from gcalign.lab.experiments.engine.drawing import CLASS, DOMAIN, DOUBLE, STD, letter, page
from gcalign.lab.experiments.engine.experiment import DOMAINS, Chosen, Experiment, Job, Scale, target_weights
from gcalign.lab.experiments.engine.records import by_seed, check_any
from gcalign.lab.experiments.engine.statistics import estimates
from gcalign.lab.experiments.paper import TARGET

if TYPE_CHECKING:
    import pandas as pd

# α − β is varied: across domains (α = 0), pairs alone, within a domain (β = 0)
ALPHA_BETA = ((0.0, 0.25), (0.0, 0.0), (0.05, 0.0), (0.25, 0.0), (0.5, 0.0), (1.0, 0.0))
SHOWN_DOMAINS, SHOWN_EACH = 4, 4  # of the target plans that are drawn


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """Domain and class accuracy against α − β of the target plan."""
    return target_weights(scale, DOMAINS, ALPHA_BETA)


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Target plans, and domain and class accuracy against α − β."""
    domain, across = (estimates(by_seed(records, m, "alpha", "beta", unit=100)) for m in DOMAINS)
    pairs = sorted({*domain, *across}, key=lambda pair: (pair[0] - pair[1], pair))
    check_any(pairs, "fig-ptgt", "domain or across-domains by alpha and beta")
    shown = [pairs[k] for k in sorted({0, len(pairs) // 2, len(pairs) - 1})]
    with page(folder, "fig-ptgt", DOUBLE, 2.6) as made:
        left, right = made.figure.subfigures(1, 2, width_ratios=(1.2, 1), squeeze=False)[0]
        plans = left.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, (alpha, beta) in zip(plans, shown, strict=True):
            image = drawing.heat(axes, target(alpha, beta), vmin=0, vmax=1)
            axes.set_xlabel(f"α = {alpha:g}\nβ = {beta:g}")
            for edge in (k * SHOWN_EACH - 0.5 for k in range(1, SHOWN_DOMAINS)):
                axes.axhline(edge, color=drawing.INK, linewidth=0.4)
                axes.axvline(edge, color=drawing.INK, linewidth=0.4)
            axes.set_xticks([])
            axes.set_yticks([(k + 0.5) * SHOWN_EACH - 0.5 for k in range(SHOWN_DOMAINS)], ["1", "2", "3", "4"])
            axes.tick_params(length=0)
        letter(plans[0], 0, r"target plans $P_{\mathrm{tgt}}$", ylabel="domain")
        bar = left.colorbar(image, ax=plans, location="bottom", aspect=30, shrink=0.8, pad=0.04)
        bar.set_label("target mass of a pair")
        axes = right.subplots()
        for measured, how in ((domain, DOMAIN), (across, CLASS)):
            x = [a - b for a, b in pairs if (a, b) in measured]
            shown_here = [measured[pair] for pair in pairs if pair in measured]
            drawing.marks(axes, x, shown_here, how.line, how.name, std=True, capthick=0.7)
        for value in paper.DOMAIN_ACCURACY:
            axes.axhline(value, color=DOMAIN.colour, linestyle=":", linewidth=0.8)
            axes.annotate(
                f"paper, domain: {value:.2f} %",
                (1, value),
                (-2, 2),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                size=6,
                color=DOMAIN.colour,
            )
        axes.set_ylim(top=101)
        axes.legend(loc="best", frameon=True, facecolor="white", edgecolor="none", framealpha=1)
        letter(axes, 1, "accuracy of linear readouts", xlabel="α − β", ylabel="accuracy (%)")
        note = (
            "GCA-INCE. Target: 1 for views of one image, α within a domain, β across domains. Domain accuracy: on "
            "images held out of training. Class accuracy: the mean over domains, each left out of the readout in turn."
        )
        made.caption(records, note, spread=STD)
    return made.paths


def target(alpha: float, beta: float) -> Any:
    """The target plan of a small batch, sorted by domain."""
    import torch

    from gcalign.batch import Side, Sides
    from gcalign.targets import Blocks

    domains = torch.arange(SHOWN_DOMAINS).repeat_interleave(SHOWN_EACH)
    side = Side(torch.zeros(len(domains), 1), domains=domains)
    return Blocks(alpha, beta).on(Sides.in_cross(side, side), torch.float32).dense().numpy()


# --- claims --------------------------------------------------------------------------------------------------------


def from_scratch(results: Results) -> Judgement:
    """What no encoder shows that starts from random weights."""
    judged = most_against_none(results, "across-domains")
    text = f"{judged.result}; from random weights, where DomainBed starts from ImageNet's"
    return Judgement("not judgeable", text, judged.n)


def most_against_none(results: Results, measure: str = "domain") -> Judgement:
    """The most weight on the domain against none, a target of pairs alone; weight across domains stands beside it."""
    table = by_seed(results.of("fig-ptgt"), measure, "alpha", "beta")
    ends = sorted(table.index, key=lambda w: (w[0] - w[1], w))
    none = (0.0, 0.0)
    if none not in table.index or ends[-1] == none:
        raise results.missing("fig-ptgt")
    means = {w: f"{100 * e.mean:.1f} %" for w, e in estimates(table).items()}
    text = f"{means[none]} with pairs alone, {means[ends[-1]]} at α = {ends[-1][0]:g}: {{gap}} points{{other}}"
    across = [f"{means[w]} at β = {w[1]:g}" for w in ends if w[0] < w[1]]
    return compared(results, "fig-ptgt", table, {ends[-1]: 1, none: -1}, text="; ".join([text, *across]))


def claims() -> Iterable[EmpiricalClaim]:
    return [
        EmpiricalClaim(
            TARGET,
            "domain accuracy",
            "More weight on the domain raises the accuracy of domain classification",
            most_against_none,
            "sec:domaingen, fig:Ptgt",
            "{} % → {} %".format(*paper.DOMAIN_ACCURACY),
            exploratory=True,
        ),
        EmpiricalClaim(
            TARGET,
            "class accuracy",
            "… “without diminishing classification performance”",
            from_scratch,
            "sec:domaingen, fig:Ptgt",
            "no figure in the text",
        ),
    ]


EXPERIMENTS = (Experiment("fig-ptgt", draw, jobs, claims=claims, place=6),)
