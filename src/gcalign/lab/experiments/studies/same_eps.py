"""A control: what does GCA add where a method and its GCA version have the same ε?

No difference is shown: all intervals include zero. So most of the difference in alignment and uniformity came from ε.

The search may give them different ε, which alone moves alignment and uniformity. Accuracy, alignment and uniformity of
GCA-INCE − INCE and of GCA-RINCE − RINCE, mean over three values of ε. How it is judged was written before its runs; the
verdicts are among the paper's [claims](../claims.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.claims import BELOW, Contrast, EmpiricalClaim, plainly
from gcalign.lab.experiments.engine.drawing import ACCURACIES, DOUBLE, letter, look, page, part
from gcalign.lab.experiments.engine.experiment import (
    EXTENDED,
    Chosen,
    Experiment,
    Job,
    Scale,
    grid,
    options,
    seed_by_seed,
)
from gcalign.lab.experiments.engine.records import by_seed, check_any
from gcalign.lab.experiments.engine.statistics import estimates
from gcalign.lab.experiments.paper import ACCURACY, QUALITY
from gcalign.lab.paper import NAMES, PAIRS

if TYPE_CHECKING:
    import pandas as pd

EPSILONS = (0.1, 0.2, 0.5)


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """What GCA adds where both have the same ε (ours)."""
    own: Chosen = dict.fromkeys(EXTENDED, ())
    varied, measures = options([{"eps": eps} for eps in EPSILONS]), (scale.probe, "align-uniform")
    return seed_by_seed(scale.seeds, (job for m in EXTENDED for job in grid(scale, own, measures, (m,), varied)))


# --- the figure ----------------------------------------------------------------------------------------------------

APART = 1.04  # a factor of ε, so that two bars stand side by side


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Accuracy, alignment and uniformity of the GCA version less those of the method, against the ε of both."""
    measure = drawing.accuracy_of(records, "fig-same-eps")
    clean = records[records["on"].isna() | (records["on"] == "clean")] if "on" in records else records
    panels = (
        (measure, 100.0, "accuracy (points)", "higher is better"),
        ("alignment", 1.0, "alignment", "lower is better"),
        ("uniformity", 1.0, "uniformity", "lower is better"),
    )
    with page(folder, "fig-same-eps", DOUBLE, 2.8) as made:
        drawn: list[float] = []
        for k, (axes, (what, unit, title, better)) in enumerate(
            zip(made.figure.subplots(1, len(panels)), panels, strict=True)
        ):
            table = by_seed(clean, what, "method", "eps", unit=unit)
            if table.empty:
                drawing.absent(axes, title)
                continue
            axes.axhline(0, color=drawing.INK, linewidth=0.8)
            for side, (a, b) in zip((1 / APART, APART), PAIRS, strict=True):
                gaps, name = estimates(drawing.minus(part(table, a), part(table, b))), _name(a, b)
                drawn += gaps
                x = (side * eps for eps in gaps)
                drawing.marks(axes, x, gaps.values(), look(a).marks, name, capsize=2, elinewidth=None)
            shown = sorted(set(drawn))
            if shown:
                drawing.log_ticks(axes, shown)
                axes.set_xlim(shown[0] / 1.3, 1.3 * shown[-1])
            letter(axes, k, better, xlabel="ε of both", ylabel=f"difference in {title}")
        check_any(drawn, "fig-same-eps", "a method and its GCA version with the same eps")
        made.legend([_name(a, b) for a, b in PAIRS])
        note = (
            f"Standard views. Accuracy: {ACCURACIES[measure]}. Alignment and uniformity: of two views of test images."
        )
        made.caption(records, note, spread="bars: 95 % interval (Student's t) of the mean difference over seeds")
    return made.paths


def _name(a: str, b: str) -> str:
    return f"{look(a).name} less {look(b).name}"


# --- claims --------------------------------------------------------------------------------------------------------


def _claim(measure: str | None, a: str, b: str) -> EmpiricalClaim:
    """Of accuracy (None), which is better higher, or of alignment or uniformity, which are better lower."""
    how: dict[str, Any] = {"at": {"on": "clean"}, "rule": BELOW, "show": plainly} if measure else {}
    text = f"{{gap}}{'' if measure else ' points'}{{other}}"
    judge = Contrast("fig-same-eps", {a: 1, b: -1}, measure, over="eps", text=text, **how)
    what = measure or "accuracy"
    return EmpiricalClaim(
        QUALITY if measure else ACCURACY,
        f"{what} {NAMES[a]}, same ε",
        f"{NAMES[a]} improves {what} over {NAMES[b]} on CIFAR-10 at the same ε",
        judge,
        "app:representation" if measure else "Results on Standard Augmentations",
        "no figure (our control)",
    )


def claims() -> Iterable[EmpiricalClaim]:
    return [_claim(measure, a, b) for measure in (None, "alignment", "uniformity") for a, b in PAIRS]


EXPERIMENTS = (Experiment("fig-same-eps", draw, jobs, claims=claims, place=25),)
