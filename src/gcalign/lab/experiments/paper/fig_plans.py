"""fig:diagnolline (app:vistransplan): −log P of four methods between two views of test images, sorted by class."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.claims import ALPHA, EmpiricalClaim, Judgement, Results, Word
from gcalign.lab.experiments.engine.drawing import DOUBLE, letter, look, ordered, page
from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, grid
from gcalign.lab.experiments.engine.records import check_any
from gcalign.lab.experiments.engine.statistics import adjusted, differences, estimates
from gcalign.lab.experiments.paper import ITERATIONS, PLANS
from gcalign.lab.experiments.paper.plans import matrices, measured_plan, recorded
from gcalign.lab.paper import METHODS, NAMES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

CONVERGED = 0.01  # of a row sum: what a converged plan may miss
SHOWN = ("ince", "gca-ince", "gca-rince", "gca-uot")


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """−log P of four methods, sorted by class."""
    return grid(scale, chosen, ("plan",), SHOWN, seeds=scale.seeds[:1])


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """−log P of each method, rows and columns sorted by class, on one colour scale."""
    import numpy as np

    plans = {record["method"]: record["about"] for record in recorded(records)}
    check_any(plans, "fig-plans", "plan")
    methods = ordered(plans)
    tables = {method: -np.asarray(plans[method]["log_plan"], dtype=float) for method in methods}
    finite = np.concatenate([table[np.isfinite(table)] for table in tables.values()])
    low, high = np.percentile(finite, (0.5, 99.5))
    with page(folder, "fig-plans", DOUBLE, 2.25) as made:
        panels = made.figure.subplots(1, len(methods), squeeze=False)[0]
        for k, (axes, method) in enumerate(zip(panels, methods, strict=True)):
            image = drawing.heat(axes, tables[method], cmap="Blues_r", vmin=low, vmax=high)
            known = plans[method]
            _boundaries(axes, known.get("classes", []), named=k == 0)
            settings = [
                f"{name} {known[key]:g}"
                for key, name in (("eps", "ε ="), ("iterations", "iterations:"))
                if key in known
            ]
            axes.set_xlabel(", ".join(settings), fontsize=6)
            letter(axes, k, look(method).name)
        bar = made.figure.colorbar(image, ax=panels, aspect=18, pad=0.01, shrink=0.9, extend="both")
        bar.set_label("−log P (nat)")
        n = len(tables[methods[0]])
        made.caption(records, f"Plans between two views of {n} images, sorted by class. Dark: much mass.")
    return made.paths


def _boundaries(axes: Axes, classes: Sequence[str], *, named: bool) -> None:
    """Thin lines between classes, and their names on the left."""
    axes.set_xticks([])
    start, middles, names = 0, [], []
    for name, members in groupby(classes):
        size = len(list(members))
        middles.append(start + size / 2 - 0.5)
        names.append(str(name))
        start += size
        if start < len(classes):
            axes.axhline(start - 0.5, color="white", linewidth=0.4)
            axes.axvline(start - 0.5, color="white", linewidth=0.4)
    axes.set_yticks(middles, names if named else [""] * len(names), fontsize=5.5)
    axes.tick_params(length=0)


# --- claims --------------------------------------------------------------------------------------------------------


def both_marginals(results: Results) -> Judgement:
    """Largest relative deviation of a column sum from their mean, with and without column projections.

    A plan whose columns were projected last has these sums whatever the encoder, so it is no finding that it has.
    """
    deviations: dict[str, list[float]] = {}
    for record, plan in matrices(results, "fig-plans"):
        sums = plan.sum(0)
        deviations.setdefault(record["method"], []).append(float(abs(sums / sums.mean() - 1).max()))
    worst = {m: min(by) if m == "ince" else max(by) for m, by in deviations.items()}
    iterated = [m for m in ("gca-ince", "gca-rince") if m in worst]
    if "ince" not in worst or not iterated:
        raise results.missing("fig-plans")
    each = ", ".join(f"{NAMES[m]} {100 * worst[m]:.1f} %" for m in ("ince", *iterated))
    held = all(worst[m] < 0.01 < worst["ince"] for m in iterated)
    return Judgement("true by construction" if held else "failed", f"column sums deviate by up to {each}")


def clearer(results: Results) -> Judgement:
    """log of mean mass on the diagonal over that off it: GCA-UOT against the other plans, over the seeds of each."""
    import pandas as pd

    ratios: dict[str, dict[int, float]] = {}
    for record, plan in matrices(results, "fig-plans"):
        n, on = len(plan), float(plan.trace())
        off = float(plan.sum()) - on
        ratios.setdefault(record["method"], {})[record["seed"]] = math.log(on / n) - math.log(off / (n * n - n))
    table = pd.DataFrame.from_dict(ratios, orient="index")
    known = differences(table, "gca-uot", [m for m in METHODS if m in table.index], pooled=True)  # of the rivals
    if not known:
        raise results.missing("fig-plans")
    n = min(e.n for e in known.values())
    means = estimates(table)
    text = ", ".join(f"{NAMES[m]} {means[m].mean:.2f}" for m in METHODS if m in means)
    # held needs all of them, so nothing is to be corrected; failed needs one of several
    above = all(e.mean < 0 and e.p() <= ALPHA for e in known.values())
    below = any(known[m].mean > 0 and p <= ALPHA for m, p in adjusted(known).items())
    word: Word = "held" if above else "failed" if below else "not shown"
    text += "; one run of each" if n == 1 else ""
    return Judgement(word, f"log ratio of mass on and off the diagonal: {text}", n)


def converged(results: Results) -> Judgement:
    """How far row sums are from their mean after fewer than ten iterations, which end with the columns."""
    missed: dict[str, float] = {}
    for record, plan in matrices(results, "fig-plans"):
        name, about = record["method"], record["about"]
        if name in ("gca-ince", "gca-rince") and about["iterations"] < 10:
            sums = plan.sum(1)
            key = f"{NAMES[name]}, {about['iterations']} iterations at ε = {about['eps']:.2g}"
            missed[key] = max(float(abs(sums / sums.mean() - 1).max()), missed.get(key, 0.0))
    if not missed:
        raise results.missing("fig-plans")
    text = "; ".join(f"{key}: {100 * worst:.1f} %" for key, worst in missed.items())
    held = 2 * sum(worst <= CONVERGED for worst in missed.values()) >= len(missed)
    return Judgement("held" if held else "failed", f"row sums deviate by up to: {text}")


def claims() -> Iterable[EmpiricalClaim]:
    return [
        EmpiricalClaim(
            PLANS,
            "row and column sums",
            "INCE's plan has only its rows normalised, GCA-INCE's and GCA-RINCE's rows and columns",
            both_marginals,
            "app:vistransplan",
            "a picture",
        ),
        EmpiricalClaim(
            PLANS,
            "contrast of GCA-UOT",
            "GCA-UOT's plan shows greater differences between positive and negative pairs",
            clearer,
            "app:vistransplan",
            "a picture",
        ),
        EmpiricalClaim(
            ITERATIONS,
            "fewer than ten",
            "Plans converge in fewer than 10 iterations (held: at least half of them have row sums within 1 %)",
            converged,
            "app:time",
            "“in many cases can converge very quickly in fewer than 10 iterations”",
            exploratory=True,
        ),
    ]


EXPERIMENTS = (
    Experiment(
        "fig-plans",
        draw,
        jobs,
        searched=SHOWN,
        measures={"plan": lambda of: [measured_plan(of)]},
        claims=claims,
        place=10,
    ),
)
