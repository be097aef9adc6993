"""How every figure looks: colours, names, sizes, captions and files; lines, bars, differences and plans."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab import files
from gcalign.lab.experiments.engine.records import by_seed, check_any, seeds, values
from gcalign.lab.experiments.engine.statistics import Estimate, estimates

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

DOUBLE = 7.0  # inches: two columns
INTERVAL = "bars: 95 % interval (Student's t) of the mean over seeds"
STD = "bars: ± 1 standard deviation over seeds"
INK, GUIDE = "0.25", "0.9"
THIN: dict[str, Any] = {"ecolor": INK, "elinewidth": 0.6, "capsize": 1.2, "capthick": 0.6}  # error bars on bars
RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that bytes do not depend on the machine
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GUIDE,
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.hashsalt": "gcalign",
}


@dataclass(frozen=True)
class Look:
    """A method in a drawing: a base and its GCA version share a hue, and differ in marker, dash and filling."""

    name: str
    colour: str
    marker: str
    dash: str = "--"
    filled: bool = False
    hatch: str = "/////"  # of its bars, where they are not filled

    @property
    def line(self) -> dict[str, Any]:
        face = self.colour if self.filled else "white"
        return {"color": self.colour, "marker": self.marker, "linestyle": self.dash, "markerfacecolor": face}

    @property
    def marks(self) -> dict[str, Any]:
        """Without the line between them."""
        return self.line | {"linestyle": "none"}

    @property
    def level(self) -> dict[str, Any]:
        """A line across, without marks."""
        return {"color": self.colour, "linestyle": self.dash, "linewidth": 1.0}

    @property
    def bar(self) -> dict[str, Any]:
        hatch = {} if self.filled else {"hatch": self.hatch}
        return {"facecolor": self.colour if self.filled else "white", "edgecolor": self.colour, **hatch}


# Okabe and Ito's colours
LOOKS = {
    "ince": Look("InfoNCE", "#0072B2", "o"),
    "gca-ince": Look("GCA-INCE", "#0072B2", "o", "-", True),
    "rince": Look("RINCE", "#D55E00", "s", hatch="\\\\\\\\\\"),
    "gca-rince": Look("GCA-RINCE", "#D55E00", "s", "-", True),
    "simclr": Look("SimCLR", "#E69F00", "v", ":", hatch="....."),
    "byol": Look("BYOL", "#CC79A7", "P", ":", hatch="xxxxx"),
    "iot": Look("IOT", "#009E73", "^", hatch="-----"),
    "iot-uni": Look("IOT-uni", "#009E73", "^", "-", True),
    "gca-uot": Look("GCA-UOT", "#000000", "D", "-", True),
}
CLASS = Look("class", "#0072B2", "o", "-", True)
DOMAIN = Look("domain", "#D55E00", "s", "--", False)
DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "imagenet100": "ImageNet-100",
    "pacs": "PACS",
    "scenes": "built-in scenes",
}
SETTINGS = {"standard": "C0 standard", "C1": "C1 erase", "C2": "C2 crop", "C3": "C3 brightness"}
ACCURACIES = {"linear": "linear probe", "linear-fast": "linear probe, fast protocol", "knn": "nearest neighbours"}


def look(method: str) -> Look:
    """A known method's look; any other is grey under its own name."""
    return LOOKS.get(method, Look(method, "0.5", "x", "-."))


def ordered(names: Iterable[str], known: Iterable[str] = LOOKS) -> list[str]:
    """Names in the order known, the rest behind in alphabetical order."""
    places = {name: k for k, name in enumerate(known)}
    return sorted(set(names), key=lambda name: (places.get(name, len(places)), name))


def accuracy_of(records: pd.DataFrame, name: str) -> str:
    """The protocol the records' accuracies are of."""
    measures = set(records.loc[records["value"].notna(), "measure"])
    taken = [m for m in ACCURACIES if m in measures]
    check_any(taken, name, " or ".join(ACCURACIES))
    return taken[0]


def protocols(records: pd.DataFrame, name: str, *labels: str) -> dict[str, pd.DataFrame]:
    """The accuracies in % by the scale's probe and by nearest neighbours, as far as there are any."""
    measures = dict.fromkeys((accuracy_of(records, name), "knn"))
    tables = {m: by_seed(records, m, *labels, unit=100) for m in measures}
    shown = {m: table for m, table in tables.items() if len(table)}
    check_any(shown, name, " and ".join(labels))
    return shown


@dataclass
class Page:
    """A figure being drawn and, afterwards, its files."""

    figure: Figure
    paths: list[Path] = field(default_factory=list)

    def caption(
        self, records: pd.DataFrame | None, *sentences: str, spread: str | None = None, seeded: bool = True
    ) -> None:
        """The sentences, then data, scale, seeds and what the spread shows."""
        data = [] if records is None else [DATA.get(d, d) for d in ordered(values(records, "data"), DATA)]
        scales = [] if records is None else sorted(records["scale"].unique())
        drawn = seeds(records) if seeded and records is not None else []
        facts = [", ".join(data)] if data else []
        facts += [f"{', '.join(scales)} scale"] if scales else []
        if drawn:
            facts.append(f"{len(drawn)} seeds" if len(drawn) > 1 else "one seed, no spread")
        if spread and len(drawn) > 1:
            facts.append(spread)
        last = "; ".join(facts)
        text = " ".join([*sentences, last[:1].upper() + last[1:] + "." if facts else ""]).strip()
        width, _ = self.figure.get_size_inches()
        filled = textwrap.fill(text, int(22.5 * width))
        self.figure.supxlabel(filled, x=0.01, ha="left", fontsize=6.3, color=INK, linespacing=1.35)

    def legend(self, order: Iterable[str]) -> None:
        """Above the panels, each name once; methods by their names."""
        named: dict[str, Any] = {}
        for axes in self.figure.axes:
            named |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        names = [name for name in (look(entry).name for entry in order) if name in named]
        self.figure.legend(
            [named[name] for name in names],
            names,
            loc="outside upper center",
            ncols=9,
            columnspacing=1.2,
            handletextpad=0.5,
            handlelength=2.2,
        )


@contextmanager
def page(folder: Path, name: str, width: float, height: float) -> Iterator[Page]:
    """A figure of that many inches, written as <name>.png and <name>.pdf: same records, same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(RC):  # type: ignore[arg-type]  # the stubs list every key there is
        made = Page(Figure(figsize=(width, height), layout="constrained"))
        yield made
        folder.mkdir(parents=True, exist_ok=True)
        nothing: dict[str, dict[str, Any]] = {
            "png": {"Software": None},
            "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
        }
        for kind, metadata in nothing.items():
            buffer = io.BytesIO()
            made.figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
            path = folder / f"{name}.{kind}"
            files.write(path, buffer.getvalue())
            made.paths.append(path)


# --- what is drawn of tables ---------------------------------------------------------------------------------------


def marks(
    axes: Axes,
    x: Iterable[float],
    shown: Iterable[Estimate],
    line: Mapping[str, Any],
    name: str,
    *,
    std: bool = False,
    **more: Any,
) -> None:
    """Means with their 95 % intervals; with `std`, with their standard deviations."""
    shown = list(shown)
    half = [e.std if std else e.half for e in shown]
    how = {"capsize": 1.5, "elinewidth": 0.7, **more, **line}
    axes.errorbar(list(x), [e.mean for e in shown], half if any(half) else None, label=name or None, **how)


def line(axes: Axes, table: pd.DataFrame, look: Look) -> None:
    """A line through the means of a table's rows, over their names, with standard deviations."""
    shown = estimates(table)
    marks(axes, shown, shown.values(), look.line, look.name, std=True, capthick=0.7)


def lines(
    axes: Axes,
    table: pd.DataFrame,
    methods: Sequence[str],
    shift: float,
    *,
    unit: float = 100,
    std: bool = False,
    look: Callable[[str], Look] = look,
) -> None:
    """A line for each method of a table (method, x), moved by `shift` from method to method."""
    for k, method in enumerate(methods):
        if shown := estimates(part(table, method)):
            x = (unit * at + shift * (k - (len(methods) - 1) / 2) for at in shown)
            marks(axes, x, shown.values(), look(method).line, look(method).name, std=std, capthick=0.7)


def bars(axes: Axes, shown: Mapping[float, Estimate], width: float, look: Look) -> None:
    """Bars at x, with standard deviations."""
    spread = [e.std for e in shown.values()]
    error: dict[str, Any] = {"yerr": spread if any(spread) else None, "error_kw": THIN}
    means = [e.mean for e in shown.values()]
    axes.bar(list(shown), means, width, label=look.name, linewidth=0.7, **error, **look.bar)


def paired(table: pd.DataFrame, base: str) -> pd.DataFrame:
    """Of a table (method, x), the differences of every other method to `base` at the same x, seed by seed."""
    import pandas as pd

    others = [m for m in table.index.unique(0) if m != base]
    if base not in table.index.get_level_values(0):
        return table[:0]
    gaps = {m: minus(table.loc[m], table.loc[base]) for m in others}
    return pd.concat(gaps) if gaps else table[:0]


def minus(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """a − b, seed by seed, of the rows that both have with a seed in common."""
    common = [at for at in a.index if at in b.index]
    return (a.loc[common] - b.loc[common]).dropna(how="all")


def part(table: pd.DataFrame, method: str) -> pd.DataFrame:
    """The rows of a method in a table (method, x), by x; none where it has none."""
    return table.loc[method] if method in table.index.get_level_values(0) else table.droplevel(0)[:0]


def heat(axes: Axes, matrix: Any, **how: Any) -> AxesImage:
    """A matrix in shades of blue, without a grid."""
    axes.grid(visible=False)
    return axes.imshow(matrix, interpolation="nearest", **{"cmap": "Blues", **how})


def gap_between(values: Sequence[float]) -> float:
    """The smallest gap between neighbours."""
    return min((b - a for a, b in pairwise(values)), default=0.1)


def letter(axes: Axes, k: int, title: str, **labels: Any) -> None:
    """A panel's title behind its bold letter, and the labels of its axes."""
    axes.set(title=rf"$\bf{{{chr(ord('A') + k)}}}$  {title}", **labels)


def log_ticks(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis with a tick at every value."""
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def absent(axes: Axes, what: str) -> None:
    """An empty panel that says so."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, f"no records of {what}", transform=axes.transAxes, ha="center", va="center", color=INK)
