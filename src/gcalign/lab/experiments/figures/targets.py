"""Target plans on PACS: domain and class accuracy against the weight α of a domain, between the lines of the window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments.figures import style
from gcalign.lab.experiments.figures.style import CLASS, DOMAIN, DOUBLE, INK, Look, bars, letter, needed, page
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.statistics import BySeed, cells, gains

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURES = {"domain": DOMAIN, "across-domains": CLASS}
LINES = {
    "untrained": Look("untrained", "0.55", "x", ":"),
    "supervised": Look("trained on domains", "#009E73", "^", "-.", True),
}
PAIRS = Look("pairs alone", "#0072B2", "o", "-")
LIMIT = -1.0  # points of class accuracy that may be lost
READOUT = (
    "Domain accuracy: on images held out of training. Class accuracy: the mean over domains, each left out of the "
    "readout in turn."
)


def fig_targets(records: Sequence[Record], folder: Path) -> list[Path]:
    """Both accuracies against α, one against the other, and paired differences to pairs alone."""
    found = {m: cells(records, m, "alpha", unit=100) for m in MEASURES}
    lines = {
        (m, which): cell
        for m in MEASURES
        for which in LINES
        for cell in cells(records, f"{m}-{which}", "method", unit=100).values()
    }
    alphas = sorted({alpha for by in found.values() for alpha in by})
    needed(alphas, "fig-targets", "domain or across-domains by alpha")
    with page(folder, "fig-targets", DOUBLE, 4.6) as made:
        ((first, second), (third, fourth)) = made.figure.subplots(2, 2)
        for k, (axes, measure) in enumerate(((first, "domain"), (second, "across-domains"))):
            _against(axes, alphas, found[measure], MEASURES[measure])
            for which, drawn in LINES.items():
                if (measure, which) in lines:
                    _level(axes, lines[measure, which], drawn)
            name = f"{MEASURES[measure].name} accuracy"
            letter(axes, k, name, ylabel=f"{name} (%)")
        _curve(third, found["domain"], found["across-domains"], lines)
        letter(third, 2, "one against the other")
        fourth.axhline(0, color=INK, linewidth=0.8)
        fourth.axhline(LIMIT, color=CLASS.colour, linestyle=":", linewidth=0.8)
        for measure, shift in (("domain", -0.08), ("across-domains", 0.08)):
            by = {alpha: cell for alpha, cell in found[measure].items() if alpha}
            alone = dict.fromkeys(by, found[measure].get(0.0, BySeed()))
            _against(fourth, alphas, gains(by, alone), MEASURES[measure], shift)
        letter(fourth, 3, "differences, paired by seed", ylabel="less pairs alone (points)")
        made.legend([DOMAIN.name, CLASS.name, *(drawn.name for drawn in LINES.values())])
        masses = _masses(records, alphas)
        for axes in (first, second, fourth):
            axes.set_xticks(range(len(alphas)), [f"{a:g}\n{masses[a]}" for a in alphas])
            axes.set_xlabel("α (below: mass of a domain; a pair has 1)")
        note = f"GCA-INCE. Target: 1 for views of one image, α within a domain. The mass is α·B/domains. {READOUT}"
        made.caption(records, note, "Dotted in D: a loss of one point.", spread=style.INTERVAL)
    return made.paths


def _masses(records: Sequence[Record], alphas: Sequence[float]) -> dict[float, str]:
    """What α gives to a domain: α·B/4 for batches of B and four domains."""
    sizes = {
        (r.about["batch_size"], r.about["domains"]) for r in records if {"batch_size", "domains"} <= r.about.keys()
    }
    if len(sizes) != 1:
        return dict.fromkeys(alphas, "")
    ((batch, domains),) = sizes
    return {alpha: f"{alpha * batch / domains:.2g}" for alpha in alphas}


def _against(
    axes: Axes, alphas: Sequence[float], found: Mapping[float, BySeed], look: Look, shift: float = 0.0
) -> None:
    bars(axes, (alphas.index(alpha) + shift for alpha in found), found.values(), look.line, look.name)


def _level(axes: Axes, cell: BySeed, drawn: Look) -> None:
    """A line across, with its interval as a band."""
    half = cell.half_interval
    axes.axhline(cell.mean, label=drawn.name, **drawn.level)
    axes.axhspan(cell.mean - half, cell.mean + half, color=drawn.colour, alpha=0.12, linewidth=0)


def _curve(
    axes: Axes,
    domain: Mapping[float, BySeed],
    across: Mapping[float, BySeed],
    lines: Mapping[tuple[str, str], BySeed],
) -> None:
    """Class against domain accuracy, from α to α."""
    both = [alpha for alpha in domain if alpha in across]
    if not both:
        style.absent(axes, "both accuracies")
        return
    x, y = [domain[a] for a in both], [across[a] for a in both]
    _cross(axes, x, y, Look("α", INK, "o", "-", True))
    for alpha, a, b in zip(both, x, y, strict=True):
        axes.annotate(f"{alpha:g}", (a.mean, b.mean), (3, 3), textcoords="offset points", size=6)
    for which, drawn in LINES.items():
        if ("domain", which) in lines and ("across-domains", which) in lines:
            _cross(axes, [lines["domain", which]], [lines["across-domains", which]], drawn)
    axes.set(xlabel="domain accuracy (%)", ylabel="class accuracy (%)")


def _cross(axes: Axes, x: Sequence[BySeed], y: Sequence[BySeed], look: Look) -> None:
    """Marks with intervals both ways."""
    across = [cell.half_interval for cell in x]
    bars(axes, (cell.mean for cell in x), y, look.line, look.name, xerr=across, capsize=None)


def fig_targets_window(records: Sequence[Record], folder: Path) -> list[Path]:
    """Untrained, pairs alone and supervised in each setting: a target can show what lies between the last two."""
    settings = [*dict.fromkeys(str(r.labels["setting"]) for r in records if "setting" in r.labels)]
    needed(settings, "fig-targets-window", "setting")
    with page(folder, "fig-targets-window", DOUBLE, 1.3 + 0.4 * len(settings)) as made:
        panels = made.figure.subplots(1, 2, sharey=True)
        for k, (axes, measure) in enumerate(zip(panels, MEASURES, strict=True)):
            for which, drawn in {"untrained": LINES["untrained"], "": PAIRS, "supervised": LINES["supervised"]}.items():
                name = f"{measure}-{which}" if which else measure
                by = {setting: cell.mean for setting, cell in cells(records, name, "setting", unit=100).items()}
                places = [settings.index(setting) for setting in by]
                axes.plot(list(by.values()), places, label=drawn.name, **drawn.marks)
            axes.set_ylim(len(settings) - 0.5, -0.5)
            title = f"{MEASURES[measure].name} accuracy"
            letter(axes, k, title, xlabel=f"{title} (%)")
        panels[0].set_yticks(range(len(settings)), settings)
        made.legend([LINES["untrained"].name, PAIRS.name, LINES["supervised"].name])
        made.caption(records, f"GCA-INCE, α = 0. {READOUT}")
    return made.paths
