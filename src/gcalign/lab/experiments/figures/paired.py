"""What GCA adds to a method, paired by seed, where both have the same ε."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gcalign.lab.experiments.figures.style import (
    ACCURACIES,
    DOUBLE,
    INK,
    about,
    absent,
    accuracy_of,
    cells,
    letter,
    log_ticks,
    look,
    needed,
    page,
)
from gcalign.lab.experiments.records import Record
from gcalign.lab.paper import PAIRS

ASIDE = 1.04  # a factor of ε, so that two bars stand side by side


def fig_same_eps(records: Sequence[Record], folder: Path) -> list[Path]:
    """Accuracy, alignment and uniformity of the GCA version less those of the method, against the ε of both."""
    measure = accuracy_of(records, "fig-same-eps")
    clean = [r for r in records if r.labels.get("on", "clean") == "clean"]
    panels = (
        (measure, 100.0, "accuracy (points)", "higher is better"),
        ("alignment", 1.0, "alignment", "lower is better"),
        ("uniformity", 1.0, "uniformity", "lower is better"),
    )
    with page(folder, "fig-same-eps", DOUBLE, 2.8) as made:
        drawn: list[float] = []
        for k, (axes, (what, unit, name, better)) in enumerate(
            zip(made.figure.subplots(1, len(panels)), panels, strict=True)
        ):
            found = cells(clean, what, "method", "eps", unit=unit)
            if not found:
                absent(axes, name)
                continue
            axes.axhline(0, color=INK, linewidth=0.8)
            for side, (a, b) in zip((1 / ASIDE, ASIDE), PAIRS, strict=True):
                both = [eps for method, eps in found if method == a and (b, eps) in found]
                gains = {eps: gain for eps in both if (gain := found[a, eps].minus(found[b, eps])).by_seed}
                drawn += gains
                style = look(a).line | {"linestyle": "none"}
                axes.errorbar(
                    [side * eps for eps in gains],
                    [cell.mean for cell in gains.values()],
                    [cell.half_interval for cell in gains.values()],
                    label=f"{look(a).name} less {look(b).name}",
                    capsize=2,
                    **style,
                )
            shown = sorted(set(drawn))
            if shown:
                log_ticks(axes, shown)
                axes.set_xlim(shown[0] / 1.3, 1.3 * shown[-1])
            axes.set_xlabel("ε of both")
            axes.set_ylabel(f"difference in {name}")
            letter(axes, k, better)
        needed(drawn, "fig-same-eps", "a method and its GCA version with the same eps")
        made.legend([f"{look(a).name} less {look(b).name}" for a, b in PAIRS])
        note = (
            f"Standard views. Accuracy: {ACCURACIES[measure]}. Alignment and uniformity: of two views of test images."
        )
        made.caption(about(records, note, spread="bars: 95 % interval (Student's t) of the mean difference over seeds"))
    return made.paths
