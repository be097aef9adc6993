"""What methods differ by, paired by seed: with mismatched pairs, with extreme views, and with the same ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments.figures import style
from gcalign.lab.experiments.figures.style import ACCURACIES, DOUBLE, bars, letter, look, needed, of, ordered, page
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.statistics import BySeed, averaged, cells, gains
from gcalign.lab.paper import PAIRS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDEWAYS = 0.05  # of the gap between neighbouring shares, from method to method
DETECTION = "mismatch-auroc"


def fig_mismatch(records: Sequence[Record], folder: Path) -> list[Path]:
    """Accuracy and AUROC against the share of mismatched pairs; below, paired differences to InfoNCE."""
    probe = style.accuracy_of(records, "fig-mismatch")
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
                style.absent(grid[0][k], name)
                style.absent(grid[1][k], name)
                continue
            drawn += [method for method, _ in found]
            _shares(grid[0][k], found)
            _shares(grid[1][k], style.less(found, "ince"))
            grid[1][k].axhline(0, **look("ince").level)
            grid[1][k].set_xlabel("mismatched pairs (%)")
            letter(grid[0][k], k, name)
        grid[0][0].set_ylabel("on clean test images")
        grid[1][0].set_ylabel("minus InfoNCE, paired")
        needed(drawn, "fig-mismatch", "method and noise")
        made.legend(ordered(drawn))
        note = "A share of training pairs was mismatched on purpose. D: how well the method's own plan tells true from "
        note += "mismatched pairs of test images (0.5 is chance); marks of one share stand side by side."
        made.caption(records, note, spread=style.INTERVAL)
    return made.paths


def fig_mismatch_lambda(records: Sequence[Record], folder: Path) -> list[Path]:
    """GCA-UOT with most pairs mismatched, against λ: accuracy, detection, and what the gradient does with a pair."""
    probe = style.accuracy_of(records, "fig-mismatch-lambda")
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
        first.legend()
        low, high = third.get_ylim()
        third.set_ylim(low, high + 0.3 * (high - low))  # four lines all over the plot: the legend gets its own place
        third.legend(loc="upper left", ncols=2, columnspacing=0.8, handlelength=1.2, fontsize=6)
        letter(first, 0, "accuracy", xlabel="relaxation λ", ylabel="accuracy (%)")
        letter(second, 1, "detection", xlabel="relaxation λ", ylabel="AUROC of the plan")
        letter(third, 2, "mechanism", xlabel="relaxation λ", ylabel="weight in the gradient")
        shares = sorted({float(r.labels["noise"]) for r in records if "noise" in r.labels})
        note = (
            f"GCA-UOT, {', '.join(f'{100 * s:.0f} %' for s in shares)} of the training pairs mismatched. C: a pair is "
        )
        note += "pulled together by 1 − P_ii and pushed from the others by the rest of its row."
        made.caption(records, note, spread=style.INTERVAL)
    return made.paths


def _against(axes: Axes, found: Mapping[float, BySeed], marker: str, name: str, dash: str = "-") -> None:
    if found:
        bars(axes, found, found.values(), {"marker": marker, "linestyle": dash}, name)
        style.log_ticks(axes, list(found))


def _shares(axes: Axes, found: Mapping[tuple[str, float], BySeed]) -> None:
    shares = sorted({share for _, share in found})
    methods = ordered(method for method, _ in found)
    style.side_by_side(axes, found, methods, 100 * style.gap_between(shares) * SIDEWAYS)
    axes.set_xticks([100 * share for share in shares])
    axes.tick_params(labelcolor=style.INK)


COMPARISONS = (("gca-uot", "ince"), ("gca-ince", "ince"), ("gca-rince", "rince"))
MEAN = "mean"
ASIDE = 0.11  # of the gap between two views, from mark to mark


def fig_extreme(records: Sequence[Record], folder: Path) -> list[Path]:
    """Accuracy by view and method; beside it the paired differences; a row for each protocol."""
    measures = dict.fromkeys((style.accuracy_of(records, "fig-extreme"), "knn"))
    protocols = {m: found for m in measures if (found := _by_view(cells(records, m, "setting", "method", unit=100)))}
    needed(protocols, "fig-extreme", "setting and method")
    methods = ordered({method for found in protocols.values() for method, _ in found})
    with page(folder, "fig-extreme", DOUBLE, 0.9 + 2.3 * len(protocols)) as made:
        rows = made.figure.subplots(len(protocols), 2, sharex=True, squeeze=False)
        for k, (measure, found) in enumerate(protocols.items()):
            left, right = rows[k]
            views = [*dict.fromkeys(view for _, view in found)]
            for j, method in enumerate(methods):
                _marks(left, views, of(found, method), j - (len(methods) - 1) / 2, method, look(method).name)
            right.axhline(0, color=style.INK, linewidth=0.8)
            for j, (a, b) in enumerate(COMPARISONS):
                gained, name = gains(of(found, a), of(found, b)), f"{look(a).name} less {look(b).name}"
                _marks(right, views, gained, j - (len(COMPARISONS) - 1) / 2, a, name)
            for axes in (left, right):
                axes.set_xticks(range(len(views)), [style.SETTINGS.get(view, view) for view in views])
                axes.grid(visible=False, axis="x")
            letter(left, 2 * k, ACCURACIES[measure], ylabel="accuracy (%)")
            letter(right, 2 * k + 1, "the same, paired by seed", ylabel="difference (points)")
        made.legend(methods)
        rows[0][1].legend(loc="best", fontsize=6)
        note = "Trained with extreme views, tested on clean images. The mean of the views is taken seed by seed."
        made.caption(records, note, spread=style.INTERVAL)
    return made.paths


def _by_view(found: Mapping[tuple[str, str], BySeed]) -> dict[tuple[str, str], BySeed]:
    """By method and view, with the mean over views of each method that was trained with all of them at the end."""
    views = [*dict.fromkeys(view for view, _ in found)]
    out = {(method, view): cell for (view, method), cell in found.items()}
    for method in dict.fromkeys(method for _, method in found):
        parts = of(out, method)
        if len(views) > 1 and len(parts) == len(views) and (mean := averaged(list(parts.values()))):
            out[method, MEAN] = mean
    return out


def _marks(axes: Axes, views: Sequence[str], found: Mapping[str, BySeed], place: float, method: str, name: str) -> None:
    """A mark with its interval over each view, `place` marks from the middle."""
    x = (views.index(view) + ASIDE * place for view in found)
    bars(axes, x, found.values(), look(method).marks, name, capthick=0.7)


APART = 1.04  # a factor of ε, so that two bars stand side by side


def fig_same_eps(records: Sequence[Record], folder: Path) -> list[Path]:
    """Accuracy, alignment and uniformity of the GCA version less those of the method, against the ε of both."""
    measure = style.accuracy_of(records, "fig-same-eps")
    clean = [r for r in records if r.labels.get("on", "clean") == "clean"]
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
            found = cells(clean, what, "method", "eps", unit=unit)
            if not found:
                style.absent(axes, title)
                continue
            axes.axhline(0, color=style.INK, linewidth=0.8)
            for side, (a, b) in zip((1 / APART, APART), PAIRS, strict=True):
                gained, name = gains(of(found, a), of(found, b)), f"{look(a).name} less {look(b).name}"
                drawn += gained
                x = (side * eps for eps in gained)
                bars(axes, x, gained.values(), look(a).marks, name, capsize=2, elinewidth=None)
            shown = sorted(set(drawn))
            if shown:
                style.log_ticks(axes, shown)
                axes.set_xlim(shown[0] / 1.3, 1.3 * shown[-1])
            letter(axes, k, better, xlabel="ε of both", ylabel=f"difference in {title}")
        needed(drawn, "fig-same-eps", "a method and its GCA version with the same eps")
        made.legend([f"{look(a).name} less {look(b).name}" for a, b in PAIRS])
        note = (
            f"Standard views. Accuracy: {ACCURACIES[measure]}. Alignment and uniformity: of two views of test images."
        )
        made.caption(records, note, spread="bars: 95 % interval (Student's t) of the mean difference over seeds")
    return made.paths
