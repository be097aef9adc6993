"""Where pairs are mismatched: accuracy and detection against their share and against the relaxation λ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments.figures.style import (
    DOUBLE,
    INK,
    INTERVAL,
    Cell,
    about,
    absent,
    accuracy_of,
    cells,
    letter,
    log_ticks,
    look,
    needed,
    ordered,
    page,
)
from gcalign.lab.experiments.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDEWAYS = 0.05  # of the gap between neighbouring shares, from method to method
DETECTION = "mismatch-auroc"


def fig_mismatch(records: Sequence[Record], folder: Path) -> list[Path]:
    """Accuracy and AUROC against the share of mismatched pairs; below, paired differences to InfoNCE."""
    probe = accuracy_of(records, "fig-mismatch")
    by_plan = [r for r in records if r.labels.get("score", "plan") == "plan"]
    panels = (
        (probe, 100.0, "linear probe (%)"),
        ("knn", 100.0, "nearest neighbours (%)"),
        ("100-labels", 100.0, "linear, 100 labels (%)"),
        (DETECTION, 1.0, "AUROC of the plan"),
    )
    drawn: list[str] = []
    with page(folder, "fig-mismatch", DOUBLE, 4.1) as made:
        grid = made.figure.subplots(2, len(panels), sharex=True)
        for k, (measure, unit, name) in enumerate(panels):
            found = cells(by_plan, measure, "method", "noise", unit=unit)
            if not found:
                absent(grid[0][k], name)
                absent(grid[1][k], name)
                continue
            drawn += [method for method, _ in found]
            _shares(grid[0][k], found)
            _shares(grid[1][k], _less(found, "ince"))
            grid[1][k].axhline(0, color=look("ince").colour, linestyle=look("ince").dash, linewidth=1.0)
            grid[1][k].set_xlabel("mismatched pairs (%)")
            letter(grid[0][k], k, name)
        grid[0][0].set_ylabel("on clean test images")
        grid[1][0].set_ylabel("minus InfoNCE, paired")
        needed(drawn, "fig-mismatch", "method and noise")
        made.legend([look(method).name for method in ordered(drawn)])
        note = "A share of training pairs was mismatched on purpose. D: how well the method's own plan tells true from "
        note += "mismatched pairs of test images (0.5 is chance); marks of one share stand side by side."
        made.caption(about(records, note, spread=INTERVAL))
    return made.paths


def fig_mismatch_lambda(records: Sequence[Record], folder: Path) -> list[Path]:
    """GCA-UOT with most pairs mismatched, against λ: accuracy, detection, and what the gradient does with a pair."""
    probe = accuracy_of(records, "fig-mismatch-lambda")
    with page(folder, "fig-mismatch-lambda", DOUBLE, 2.6) as made:
        first, second, third = made.figure.subplots(1, 3)
        lines = (
            (
                first,
                ((probe, "o", "linear probe"), ("knn", "s", "nearest neighbours"), ("100-labels", "^", "100 labels")),
            ),
            (second, ((DETECTION, "o", ""),)),
        )
        drawn = 0
        for axes, measures in lines:
            for measure, marker, name in measures:
                some = [r for r in records if r.labels.get("score", "plan") == "plan"]
                found = cells(some, measure, "relax", unit=1 if measure == DETECTION else 100)
                _against(axes, found, marker, name)
                drawn += len(found)
        for pairs, marker in (("true", "o"), ("mismatched", "s")):
            for measure, dash in (("pull", "-"), ("push", "--")):
                some = [r for r in records if r.labels.get("pairs") == pairs]
                _against(third, cells(some, measure, "relax"), marker, f"{measure}, {pairs}", dash)
        needed(drawn, "fig-mismatch-lambda", "relax")
        first.set_ylabel("accuracy (%)")
        second.set_ylabel("AUROC of the plan")
        third.set_ylabel("weight in the gradient")
        first.legend()
        third.legend()
        for k, (axes, title) in enumerate(((first, "accuracy"), (second, "detection"), (third, "mechanism"))):
            axes.set_xlabel("relaxation λ")
            letter(axes, k, title)
        shares = sorted({float(r.labels["noise"]) for r in records if "noise" in r.labels})
        note = (
            f"GCA-UOT, {', '.join(f'{100 * s:.0f} %' for s in shares)} of the training pairs mismatched. C: a pair is "
        )
        note += "pulled together by 1 − P_ii and pushed from the others by the rest of its row."
        made.caption(about(records, note, spread=INTERVAL))
    return made.paths


def _against(axes: Axes, found: Mapping[tuple[float, ...], Cell], marker: str, name: str, dash: str = "-") -> None:
    if not found:
        return
    x = [key[0] for key in found]
    y, half = [cell.mean for cell in found.values()], [cell.half_interval for cell in found.values()]
    axes.errorbar(x, y, half, label=name or None, marker=marker, linestyle=dash, capsize=1.5, elinewidth=0.7)
    log_ticks(axes, x)


def _shares(axes: Axes, found: Mapping[tuple[str, float], Cell]) -> None:
    """A line for each method over the shares, with intervals, side by side."""
    methods = ordered(method for method, _ in found)
    shares = sorted({share for _, share in found})
    gap = 100 * min((b - a for a, b in pairwise(shares)), default=0.1)
    for k, method in enumerate(methods):
        shift = gap * SIDEWAYS * (k - (len(methods) - 1) / 2)
        mine = {share: found[method, share] for share in shares if (method, share) in found}
        axes.errorbar(
            [100 * share + shift for share in mine],
            [cell.mean for cell in mine.values()],
            [cell.half_interval for cell in mine.values()],
            label=look(method).name,
            capsize=1.5,
            elinewidth=0.7,
            capthick=0.7,
            **look(method).line,
        )
    axes.set_xticks([100 * share for share in shares])
    axes.tick_params(labelcolor=INK)


def _less(found: Mapping[tuple[str, float], Cell], base: str) -> dict[tuple[str, float], Cell]:
    """Differences to `base` at the same share, over the seeds that both have."""
    return {
        (method, share): less
        for (method, share), cell in found.items()
        if method != base and (base, share) in found and (less := cell.minus(found[base, share])).by_seed
    }
