"""What methods differ by, paired by seed: with mismatched pairs, with extreme views, and with the same ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments import statistics
from gcalign.lab.experiments.figures.style import (
    ACCURACIES,
    DOUBLE,
    INK,
    INTERVAL,
    SETTINGS,
    BySeed,
    about,
    absent,
    accuracy_of,
    bars,
    cells,
    letter,
    log_ticks,
    look,
    needed,
    ordered,
    page,
)
from gcalign.lab.experiments.records import Record
from gcalign.lab.paper import PAIRS

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
            grid[1][k].axhline(0, **look("ince").level)
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
        low, high = third.get_ylim()
        third.set_ylim(low, high + 0.3 * (high - low))  # four lines all over the plot: the legend gets its own place
        third.legend(loc="upper left", ncols=2, columnspacing=0.8, handlelength=1.2, fontsize=6)
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


def _against(axes: Axes, found: Mapping[tuple[float, ...], BySeed], marker: str, name: str, dash: str = "-") -> None:
    if found:
        x = [key[0] for key in found]
        bars(axes, x, found.values(), {"marker": marker, "linestyle": dash}, name)
        log_ticks(axes, x)


def _shares(axes: Axes, found: Mapping[tuple[str, float], BySeed]) -> None:
    """A line for each method over the shares, with intervals, side by side."""
    methods = ordered(method for method, _ in found)
    shares = sorted({share for _, share in found})
    gap = 100 * min((b - a for a, b in pairwise(shares)), default=0.1)
    for k, method in enumerate(methods):
        shift = gap * SIDEWAYS * (k - (len(methods) - 1) / 2)
        mine = {share: found[method, share] for share in shares if (method, share) in found}
        x = (100 * share + shift for share in mine)
        bars(axes, x, mine.values(), look(method).line, look(method).name, capthick=0.7)
    axes.set_xticks([100 * share for share in shares])
    axes.tick_params(labelcolor=INK)


def _less(found: Mapping[tuple[str, float], BySeed], base: str) -> dict[tuple[str, float], BySeed]:
    """Differences to `base` at the same share, over the seeds that both have."""
    return {
        (method, share): less
        for (method, share), cell in found.items()
        if method != base and (base, share) in found and (less := cell.minus(found[base, share])).by_seed
    }


COMPARISONS = (("gca-uot", "ince"), ("gca-ince", "ince"), ("gca-rince", "rince"))
MEAN = "mean"
ASIDE = 0.11  # of the gap between two views, from mark to mark


def fig_extreme(records: Sequence[Record], folder: Path) -> list[Path]:
    """Accuracy by view and method; beside it the paired differences; a row for each protocol."""
    measures = dict.fromkeys((accuracy_of(records, "fig-extreme"), "knn"))
    protocols = {m: found for m in measures if (found := _by_view(cells(records, m, "setting", "method", unit=100)))}
    needed(protocols, "fig-extreme", "setting and method")
    methods = ordered({method for found in protocols.values() for _, method in found})
    with page(folder, "fig-extreme", DOUBLE, 0.9 + 2.3 * len(protocols)) as made:
        rows = made.figure.subplots(len(protocols), 2, sharex=True, squeeze=False)
        for k, (measure, found) in enumerate(protocols.items()):
            left, right = rows[k]
            views = [*dict.fromkeys(view for view, _ in found)]
            for j, method in enumerate(methods):
                mine = {view: found[view, method] for view in views if (view, method) in found}
                _marks(left, views, mine, j - (len(methods) - 1) / 2, method, look(method).name)
            right.axhline(0, color=INK, linewidth=0.8)
            for j, (a, b) in enumerate(COMPARISONS):
                both = [view for view in views if (view, a) in found and (view, b) in found]
                gains = {v: gain for v in both if (gain := found[v, a].minus(found[v, b])).by_seed}
                _marks(right, views, gains, j - (len(COMPARISONS) - 1) / 2, a, f"{look(a).name} less {look(b).name}")
            for axes in (left, right):
                axes.set_xticks(range(len(views)), [SETTINGS.get(view, view) for view in views])
                axes.grid(visible=False, axis="x")
            left.set_ylabel("accuracy (%)")
            right.set_ylabel("difference (points)")
            letter(left, 2 * k, ACCURACIES[measure])
            letter(right, 2 * k + 1, "the same, paired by seed")
        made.legend([look(method).name for method in methods])
        rows[0][1].legend(loc="best", fontsize=6)
        note = "Trained with extreme views, tested on clean images. The mean of the views is taken seed by seed."
        made.caption(about(records, note, spread=INTERVAL))
    return made.paths


def _by_view(found: Mapping[tuple[str, str], BySeed]) -> dict[tuple[str, str], BySeed]:
    """With the mean over views of each method that was trained with all of them, behind the others."""
    views = [*dict.fromkeys(view for view, _ in found)]
    means = {}
    for method in dict.fromkeys(method for _, method in found):
        parts = [found[view, method].by_seed for view in views if (view, method) in found]
        if len(views) > 1 and len(parts) == len(views) and (mean := statistics.averaged(parts)):
            means[MEAN, method] = BySeed(mean)
    return {**found, **means}


def _marks(axes: Axes, views: Sequence[str], found: Mapping[str, BySeed], place: float, method: str, name: str) -> None:
    """A mark with its interval over each view, `place` marks from the middle."""
    x = (views.index(view) + ASIDE * place for view in found)
    bars(axes, x, found.values(), look(method).marks, name, capthick=0.7)


APART = 1.04  # a factor of ε, so that two bars stand side by side


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
            for side, (a, b) in zip((1 / APART, APART), PAIRS, strict=True):
                both = [eps for method, eps in found if method == a and (b, eps) in found]
                gains = {eps: gain for eps in both if (gain := found[a, eps].minus(found[b, eps])).by_seed}
                drawn += gains
                x, less = (side * eps for eps in gains), f"{look(a).name} less {look(b).name}"
                bars(axes, x, gains.values(), look(a).marks, less, capsize=2, elinewidth=None)
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
