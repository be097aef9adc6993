"""fig:epsilon_study (sec:otppm): plans of one encoder for ε from 0.01 to 1, of INCE and of GCA-UOT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.claims import EmpiricalClaim, Judgement, Results
from gcalign.lab.experiments.engine.drawing import DOUBLE, look, ordered, page
from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, grid
from gcalign.lab.experiments.engine.records import Record, by_seed, check_any
from gcalign.lab.experiments.engine.statistics import estimates
from gcalign.lab.experiments.paper import PLANS
from gcalign.lab.experiments.paper.plans import matrices, measured_plan, recorded
from gcalign.lab.paper import NAMES

if TYPE_CHECKING:
    import pandas as pd

    from gcalign.lab.experiments.engine.measures import MeasuredRun

EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0)
METHODS = ("ince", "gca-uot")
LEAST, MOST = 1e-4, 1.0  # mass of a pair, in the colours


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """Plans for ε from 0.01 to 1, INCE and GCA-UOT."""
    # one set of weights for every plan, as in the paper; the measurement names the method of a plan
    trained = grid(scale, chosen, ("plans-epsilon",), ("ince",), seeds=scale.seeds[:1])
    return [dataclasses.replace(job, labels={k: v for k, v in job.labels.items() if k != "method"}) for job in trained]


def plans_by_epsilon(of: MeasuredRun) -> list[Record]:
    """The plan of each method for each ε, and two numbers of each."""
    records = []
    for method in METHODS:
        for eps in EPSILONS:
            labels = {"method": method, "eps": eps}
            plan = dataclasses.replace(measured_plan(of, name=method, eps=eps), labels=labels)
            records.append(plan)
            records += [Record(measure=name, value=plan.about[name], labels=labels) for name in ("diagonal", "entropy")]
    return records


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """A row of panels for each method."""
    import numpy as np
    from matplotlib.colors import LogNorm

    plans = {(record["method"], float(record["eps"])): record["about"]["log_plan"] for record in recorded(records)}
    check_any(plans, "fig-epsilon", "plan by method and eps")
    methods, epsilons = ordered(key[0] for key in plans), sorted({key[1] for key in plans})
    shown = {
        f"{m} {{:,.{digits}f}}": estimates(by_seed(records, m, "method", "eps"))
        for m, digits in (("diagonal", 2), ("entropy", 1))
    }
    side = (DOUBLE - 1.1) / max(len(epsilons), 4)
    with page(folder, "fig-epsilon", DOUBLE, len(methods) * (side + 0.27) + 0.5) as made:
        grid = made.figure.subplots(len(methods), len(epsilons), squeeze=False)
        for row, method in enumerate(methods):
            for column, eps in enumerate(epsilons):
                axes = grid[row][column]
                axes.set_xticks([])
                axes.set_yticks([])
                if column == 0:
                    axes.set_ylabel(look(method).name)
                if row == 0:
                    axes.set_title(f"ε = {eps:g}", loc="center")
                if (method, eps) not in plans:
                    axes.set_axis_off()
                    continue
                plan = np.exp(np.asarray(plans[method, eps], dtype=float))
                image = drawing.heat(axes, np.maximum(plan, LEAST), norm=LogNorm(LEAST, MOST))
                numbers = [text.format(by[method, eps].mean) for text, by in shown.items() if (method, eps) in by]
                axes.set_xlabel("\n".join(numbers), fontsize=6)
        bar = made.figure.colorbar(image, ax=grid, aspect=24, pad=0.01, shrink=0.8, extend="both")
        bar.set_label("mass of a pair, P")
        note = "Plans of one encoder on one batch. Diagonal: mean share of a row's mass on its own pair."
        made.caption(records, note)
    return made.paths


# --- claims --------------------------------------------------------------------------------------------------------


def smoother(results: Results) -> Judgement:
    """Whether the mean entropy of the plan's rows, each made a distribution, rises with every step of ε."""
    import numpy as np

    entropies: dict[str, dict[float, float]] = {}
    for record, plan in matrices(results, "fig-epsilon"):
        shares = plan / plan.sum(1, keepdims=True)
        entropy = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(1).mean()
        entropies.setdefault(NAMES[record["method"]], {})[float(record["eps"])] = float(entropy)
    if not any(len(by) > 1 for by in entropies.values()):
        raise results.missing("fig-epsilon")
    text, rises = [], []
    for name, by in sorted(entropies.items()):
        low, high = min(by), max(by)
        rises.append(all(by[x] <= by[y] for x, y in pairwise(sorted(by))))
        text.append(f"{name} {by[low]:.2f} → {by[high]:.2f} for ε from {low:g} to {high:g}")
    return Judgement("held" if all(rises) else "failed", f"entropy of a row, in nats: {'; '.join(text)}")


def claims() -> Iterable[EmpiricalClaim]:
    return [
        EmpiricalClaim(
            PLANS,
            "ε smooths",
            "ε controls the amount of smoothing: the plan's entropy rises with ε",
            smoother,
            "sec:otppm, fig:epsilon_study",
            "a picture",
        ),
    ]


EXPERIMENTS = (
    Experiment(
        "fig-epsilon",
        draw,
        jobs,
        searched=("ince",),
        measures={"plans-epsilon": plans_by_epsilon},
        claims=claims,
        place=11,
    ),
)
