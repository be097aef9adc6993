"""fig:ablation_study: accuracy of GCA-RINCE against q and λ of its divergence, with large erase."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.claims import ALPHA, EmpiricalClaim, Judgement, Results, Word
from gcalign.lab.experiments.engine.drawing import ACCURACIES, DOUBLE, STD, Look, letter, look, page
from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, grid, options, seed_by_seed, views
from gcalign.lab.experiments.engine.records import by_seed, check_any, probe, series, values
from gcalign.lab.experiments.engine.statistics import Estimate, adjusted, differences, estimates, simultaneous
from gcalign.lab.experiments.engine.statistics import points as in_points
from gcalign.lab.experiments.paper import ITERATIONS

if TYPE_CHECKING:
    import pandas as pd

# q = 0.98 with λ from 0 to 1, and λ = 0.01 with q from (nearly) 0 to 1
Q_LAMBDA = (
    *((0.98, lam) for lam in (0.0, 0.01, 0.1, 0.5, 1.0)),
    *((q, 0.01) for q in (0.1, 0.3, 0.6, 1.0)),
)
DASHES, MARKERS = ("-", "--", "-.", ":"), ("s", "o", "^", "D")


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """Accuracy of GCA-RINCE against q and λ."""
    varied = options([{"q": q, "lam": lam} for q, lam in Q_LAMBDA], "C1")
    line = grid(scale, chosen, (scale.probe,), ("ince",), views(("C1",)))
    return seed_by_seed(scale.seeds, [*line, *grid(scale, chosen, (scale.probe,), ("gca-rince",), varied)])


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """GCA-RINCE's accuracy against λ and q, with the InfoNCE line."""
    measure = drawing.accuracy_of(records, "fig-q-lambda")
    points = estimates(by_seed(records, measure, "q", "lam", unit=100))
    check_any(points, "fig-q-lambda", "q and lam")
    base = estimates(by_seed(records, measure, "method", unit=100, method="ince"))
    with page(folder, "fig-q-lambda", DOUBLE, 2.9) as made:
        panels = made.figure.subplots(1, 2, sharey=True)
        for k, (axes, name, other) in enumerate(zip(panels, ("λ", "q"), ("q", "λ"), strict=True)):
            sweeps: dict[float, dict[float, Estimate]] = {}
            for (q, lam), e in points.items():
                fixed, varied = (q, lam) if k == 0 else (lam, q)
                sweeps.setdefault(fixed, {})[varied] = e
            longest = max(len(sweep) for sweep in sweeps.values())
            for (fixed, sweep), dash, marker in zip(
                ((f, s) for f, s in sweeps.items() if len(s) == longest), DASHES, MARKERS, strict=False
            ):
                how = Look(f"GCA-RINCE, {other} = {fixed:g}", look("gca-rince").colour, marker, dash, True)
                places = sorted(sweep)
                shown = [sweep[at] for at in places]
                drawing.marks(axes, places, shown, how.line, how.name, std=True, capthick=0.7)
            for e in base.values():
                axes.axhline(e.mean, label="InfoNCE", **look("ince").level)
                axes.axhspan(e.mean - e.std, e.mean + e.std, color=look("ince").colour, alpha=0.12, lw=0)
            letter(axes, k, f"{name} varied", xlabel=f"{name} of the robust divergence")
            axes.legend(loc="best")
        lams = sorted({key[1] for key in points})
        if len(lams) > 1:
            least = min(lam for lam in lams if lam > 0)
            panels[0].set_xscale("symlog", linthresh=least, linscale=0.5)
            panels[0].set_xticks(lams, [f"{lam:g}" for lam in lams])
            panels[0].minorticks_off()
            panels[0].set_xlim(lams[0] - 0.3 * least, 1.3 * lams[-1])
        panels[0].set_ylabel("accuracy (%)")
        spread = f"{STD} (InfoNCE: shaded)"
        views = [f"Views: {drawing.SETTINGS.get(s, s)}." for s in sorted(values(records, "setting"))]
        made.caption(records, *views, f"Accuracy: {ACCURACIES[measure]}.", spread=spread)
    return made.paths


# --- claims --------------------------------------------------------------------------------------------------------


def above_the_line(results: Results) -> Judgement:
    """How many settings (q, λ) of GCA-RINCE beat INCE, and how many lose to it, by Holm over the settings."""
    records = results.of("fig-q-lambda")
    table = by_seed(records, probe(records), "q", "lam")
    settings = list(table.index)
    table.loc[("ince", ""), :] = series(records, probe(records), method="ince")
    known = differences(table, ("ince", ""), settings, pooled=True)
    if not known:
        raise results.missing("fig-q-lambda")
    ps = adjusted(known)
    better, worse = (sum(s * known[at].mean > 0 and ps[at] <= ALPHA for at in known) for s in (1, -1))
    word: Word = "held" if 2 * better > len(known) else "failed" if 2 * worse > len(known) else "not shown"
    text = f"of {len(known)} settings {better} are better than INCE, {worse} worse (Holm), the rest not shown"
    ends = sorted(known, key=lambda at: known[at].mean)
    shown = {at: in_points(known[at], level=simultaneous(len(known))) for at in (ends[0], ends[-1])}
    both = [f"{interval} points (q = {q:g}, λ = {lam:g})" for (q, lam), interval in shown.items()]
    return Judgement(word, f"{text}; from {' to '.join(both)}", min(e.n for e in known.values()))


def claims() -> Iterable[EmpiricalClaim]:
    return [
        EmpiricalClaim(
            ITERATIONS,
            "q and λ",
            "GCA-RINCE lies above the INCE line over q and λ with large erase (held: in most settings)",
            above_the_line,
            "fig:ablation_study",
            "a picture; 89.21 against 88.40 % in tab:cifar10",
        ),
    ]


EXPERIMENTS = (
    Experiment(
        "fig-q-lambda",
        draw,
        jobs,
        searched=("ince", "gca-rince"),
        claims=claims,
        place=13,
    ),
)
