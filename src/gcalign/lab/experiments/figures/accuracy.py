"""Accuracy and time against what was varied: noise, iterations, ε, q, λ, and the target's α − β."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab import paper
from gcalign.lab.experiments.figures import style
from gcalign.lab.experiments.figures.style import ACCURACIES, DOUBLE, Look, letter, look, needed, ordered, page
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.statistics import BySeed, cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STD = "bars: ± 1 standard deviation over seeds"
SIDEWAYS = 0.03  # of the gap between neighbouring shares, from method to method
SHOWN_DOMAINS, SHOWN_EACH = 4, 4  # of fig-ptgt's target plans


def _line(axes: Axes, found: Mapping[Any, BySeed], look: Look) -> None:
    style.bars(axes, found, found.values(), look.line, look.name, std=True, capthick=0.7)


def fig_noise(records: Sequence[Record], folder: Path) -> list[Path]:
    """Accuracy against the share of mismatched pairs, and the paired difference to InfoNCE; a row for each protocol."""
    measures = (style.accuracy_of(records, "fig-noise"), "knn")
    protocols = {m: found for m in measures if (found := cells(records, m, "method", "noise", unit=100))}
    needed(protocols, "fig-noise", "method and noise")
    methods = ordered(method for found in protocols.values() for method, _ in found)
    shares = sorted({share for found in protocols.values() for _, share in found})
    shift = 100 * style.gap_between(shares) * SIDEWAYS
    with page(folder, "fig-noise", DOUBLE, 0.9 + 2.4 * len(protocols)) as made:
        grid = made.figure.subplots(len(protocols), 2, sharex=True, squeeze=False)
        for row, (measure, found) in enumerate(protocols.items()):
            left, right = grid[row]
            style.side_by_side(left, found, methods, shift, std=True)
            style.side_by_side(right, style.less(found, "ince"), methods, shift)
            right.axhline(0, **look("ince").level)
            letter(left, 2 * row, ACCURACIES[measure], ylabel="accuracy (%)")
            paired = "the same, paired by seed with InfoNCE"
            letter(right, 2 * row + 1, paired, ylabel="minus InfoNCE (points)")
        for axes in grid[-1]:
            axes.set(xlabel="mismatched pairs (%)", xticks=[100 * share for share in shares])
        made.legend(methods)
        note = "Accuracy on clean test images after training with a share of pairs mismatched on purpose; marks of one "
        note += "share stand side by side."
        spread = f"left {STD}; right bars: 95 % interval (Student's t) of the mean difference over seeds"
        made.caption(records, note, spread=spread)
    return made.paths


def fig_sensitivity(records: Sequence[Record], folder: Path) -> list[Path]:
    """Compactness and accuracy against iterations and ε (fig:sensitivity_study)."""
    measure = style.accuracy_of(records, "fig-sensitivity")
    rows = (("compactness", 1.0, "compactness"), (measure, 100.0, "accuracy (%)"))
    columns = (("iterations", "Sinkhorn iterations"), ("eps", "entropic regularisation ε"))
    with page(folder, "fig-sensitivity", DOUBLE, 3.5) as made:
        grid = made.figure.subplots(2, 2, sharey="row", sharex="col")
        drawn = []
        for row, (what, unit, label) in enumerate(rows):
            grid[row][0].set_ylabel(label)
            for column, (knob, name) in enumerate(columns):
                axes = grid[row][column]
                varied = [r for r in records if r.labels.get("varied") == knob]
                found = cells(varied, what, knob, unit=unit)
                if row == 0:
                    letter(axes, column, f"{name} varied")
                if not found:
                    continue
                drawn.append(found)
                _line(axes, found, look("gca-ince"))
                style.log_ticks(axes, list(found))
                if row == 1:
                    axes.set_xlabel(name)
        needed(drawn, "fig-sensitivity", "varied=iterations or varied=eps")
        made.figure.align_ylabels(grid[:, 0])
        note = (
            "GCA-INCE. Compactness: mean L2 distance of the encoder's features to their class centre (low: tight); "
            f"accuracy: {ACCURACIES[measure]}."
        )
        made.caption(records, note, spread=STD)
    return made.paths


def fig_q_lambda(records: Sequence[Record], folder: Path) -> list[Path]:
    """GCA-RINCE's accuracy against λ and q, with the InfoNCE line (fig:ablation_study)."""
    measure = style.accuracy_of(records, "fig-q-lambda")
    found = needed(cells(records, measure, "q", "lam", unit=100), "fig-q-lambda", "q and lam")
    base = cells([r for r in records if r.labels.get("method") == "ince"], measure, "method", unit=100)
    with page(folder, "fig-q-lambda", DOUBLE, 2.9) as made:
        panels = made.figure.subplots(1, 2, sharey=True)
        for k, (axes, name, other) in enumerate(zip(panels, ("λ", "q"), ("q", "λ"), strict=True)):
            sweeps: dict[float, dict[float, BySeed]] = {}
            for (q, lam), cell in found.items():
                fixed, varied = (q, lam) if k == 0 else (lam, q)
                sweeps.setdefault(fixed, {})[varied] = cell
            longest = max(len(sweep) for sweep in sweeps.values())
            for (fixed, sweep), dash, marker in zip(
                ((f, s) for f, s in sweeps.items() if len(s) == longest), _DASHES, _MARKERS, strict=False
            ):
                called = f"GCA-RINCE, {other} = {fixed:g}"
                _line(axes, dict(sorted(sweep.items())), Look(called, look("gca-rince").colour, marker, dash, True))
            for cell in base.values():
                axes.axhline(cell.mean, label="InfoNCE", **look("ince").level)
                axes.axhspan(cell.mean - cell.std, cell.mean + cell.std, color=look("ince").colour, alpha=0.12, lw=0)
            letter(axes, k, f"{name} varied", xlabel=f"{name} of the robust divergence")
            axes.legend(loc="best")
        lams = sorted({key[1] for key in found})
        if len(lams) > 1:
            least = min(lam for lam in lams if lam > 0)
            panels[0].set_xscale("symlog", linthresh=least, linscale=0.5)
            panels[0].set_xticks(lams, [f"{lam:g}" for lam in lams])
            panels[0].minorticks_off()
            panels[0].set_xlim(lams[0] - 0.3 * least, 1.3 * lams[-1])
        panels[0].set_ylabel("accuracy (%)")
        spread = f"{STD} (InfoNCE: shaded)"
        views = [
            f"Views: {style.SETTINGS.get(s, s)}."
            for s in sorted({r.labels["setting"] for r in records if "setting" in r.labels})
        ]
        made.caption(records, *views, f"Accuracy: {ACCURACIES[measure]}.", spread=spread)
    return made.paths


_DASHES, _MARKERS = ("-", "--", "-.", ":"), ("s", "o", "^", "D")


def fig_time(records: Sequence[Record], folder: Path) -> list[Path]:
    """Seconds per epoch of each method and against iterations; accuracy against iterations (fig:time_comp)."""
    steps = {r.about["steps"] for r in records if "steps" in r.about}
    per_epoch = steps.pop() if len(steps) == 1 else math.nan  # what the loss alone takes of an epoch
    plain = [r for r in records if "iterations" not in r.labels]
    whole = cells(plain, "seconds-per-epoch", "method")
    loss = cells(plain, "step-seconds-loss", "method", unit=per_epoch)
    epoch = cells(records, "seconds-per-epoch", "iterations")
    alone = cells(records, "step-seconds-loss", "iterations", unit=per_epoch)
    needed(whole or epoch, "fig-time", "seconds-per-epoch")
    with page(folder, "fig-time", DOUBLE, 2.8) as made:
        first, second, third = made.figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
        methods = ordered(whole)[::-1]
        for k, method in enumerate(methods):
            seconds, spread = whole[method].mean, whole[method].std
            first.barh(k, seconds, 0.68, xerr=spread or None, linewidth=0.8, error_kw=style.THIN, **look(method).bar)
            part = f" ({loss[method].mean:.2f})" if method in loss else ""
            first.annotate(
                f"{seconds:.2f}{part}", (seconds + spread, k), (2, 0), textcoords="offset points", va="center", size=6
            )
        first.set_yticks(range(len(methods)), [look(method).name for method in methods])
        first.set_xlim(0, 1.5 * max((cell.mean for cell in whole.values()), default=1))
        first.grid(visible=False, axis="y")
        _line(second, epoch, Look("whole step", look("gca-ince").colour, "o", "-", True))
        _line(second, alone, Look("loss alone", look("gca-ince").colour, "o"))
        second.set_yscale("log")
        second.yaxis.set_major_formatter("{x:g}")
        second.legend(loc="best")
        shown = [m for m in ACCURACIES if cells(records, m, "iterations")]
        for measure in shown[:1]:
            reached = cells(records, measure, "iterations", unit=100)
            _line(third, reached, look("gca-ince"))
            style.log_ticks(third, list(reached))
        if not shown:
            style.absent(third, "accuracy")
        letter(first, 0, "each method", xlabel="seconds per epoch (of that, the loss)")
        letter(second, 1, "GCA-INCE, time", xlabel="Sinkhorn iterations", ylabel="seconds per epoch")
        letter(third, 2, "GCA-INCE, accuracy", xlabel="Sinkhorn iterations", ylabel="accuracy (%)")
        if epoch or alone:
            style.log_ticks(second, sorted({*epoch, *alone}))
        where = sorted({str(r.about["timed"]) for r in records if "timed" in r.about})
        probes = [f"Accuracy: {ACCURACIES[measure]}." for measure in shown[:1]]
        trained = [r for r in records if r.measure in shown]
        rounds = ["A, B bars: ± 1 standard deviation over rounds."]
        made.caption(trained or plain, *where, *rounds, *probes, spread=f"C {STD}", seeds=bool(trained))
    return made.paths


def fig_ptgt(records: Sequence[Record], folder: Path) -> list[Path]:
    """Target plans, and domain and class accuracy against α − β (fig:Ptgt)."""
    domain = cells(records, "domain", "alpha", "beta", unit=100)
    across = cells(records, "across-domains", "alpha", "beta", unit=100)
    pairs = sorted({*domain, *across}, key=lambda pair: (pair[0] - pair[1], pair))
    needed(pairs, "fig-ptgt", "domain or across-domains by alpha and beta")
    shown = [pairs[k] for k in sorted({0, len(pairs) // 2, len(pairs) - 1})]
    with page(folder, "fig-ptgt", DOUBLE, 2.6) as made:
        left, right = made.figure.subfigures(1, 2, width_ratios=(1.2, 1), squeeze=False)[0]
        plans = left.subplots(1, len(shown), sharey=True, squeeze=False)[0]
        for axes, (alpha, beta) in zip(plans, shown, strict=True):
            image = axes.imshow(_target(alpha, beta), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            axes.set_xlabel(f"α = {alpha:g}\nβ = {beta:g}")
            for edge in (k * SHOWN_EACH - 0.5 for k in range(1, SHOWN_DOMAINS)):
                axes.axhline(edge, color=style.INK, linewidth=0.4)
                axes.axvline(edge, color=style.INK, linewidth=0.4)
            axes.set_xticks([])
            axes.set_yticks([(k + 0.5) * SHOWN_EACH - 0.5 for k in range(SHOWN_DOMAINS)], ["1", "2", "3", "4"])
            axes.tick_params(length=0)
            axes.grid(visible=False)
        letter(plans[0], 0, r"target plans $P_{\mathrm{tgt}}$", ylabel="domain")
        bar = left.colorbar(image, ax=plans, location="bottom", aspect=30, shrink=0.8, pad=0.04)
        bar.set_label("target mass of a pair")
        axes = right.subplots()
        for found, measure in ((domain, style.DOMAIN), (across, style.CLASS)):
            _line(axes, {a - b: found[a, b] for a, b in pairs if (a, b) in found}, measure)
        for value in paper.DOMAIN_ACCURACY:
            axes.axhline(value, color=style.DOMAIN.colour, linestyle=":", linewidth=0.8)
            axes.annotate(
                f"paper, domain: {value:.2f} %",
                (1, value),
                (-2, 2),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                size=6,
                color=style.DOMAIN.colour,
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


def _target(alpha: float, beta: float) -> Any:
    """The target plan of a small batch, sorted by domain."""
    import torch

    from gcalign.batch import Side, Sides
    from gcalign.targets import Blocks

    domains = torch.arange(SHOWN_DOMAINS).repeat_interleave(SHOWN_EACH)
    side = Side(torch.zeros(len(domains), 1), domains=domains)
    return Blocks(alpha, beta).on(Sides.in_cross(side, side), torch.float32).dense().numpy()
