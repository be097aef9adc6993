"""How every figure looks: colours, names, sizes, captions and files; and means over seeds."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab import files
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.statistics import BySeed, gains

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOUBLE = 7.0  # inches: two columns
INTERVAL = "bars: 95 % interval (Student's t) of the mean over seeds"
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
    "scenes": "embedded scenes",
}
SETTINGS = {"standard": "C0 standard", "C1": "C1 erase", "C2": "C2 crop", "C3": "C3 brightness"}
ACCURACIES = {"linear": "linear probe", "linear-fast": "linear probe, fast protocol", "knn": "nearest neighbours"}


def look(method: str) -> Look:
    """A known method's look; any other is grey under its own name."""
    return LOOKS.get(method, Look(method, "0.5", "x", "-."))


def ordered(found: Iterable[str], known: Iterable[str] = LOOKS) -> list[str]:
    """What was found, in the order known, the rest behind by name."""
    places = {name: k for k, name in enumerate(known)}
    return sorted(set(found), key=lambda name: (places.get(name, len(places)), name))


def accuracy_of(records: Sequence[Record], name: str) -> str:
    """The protocol the records' accuracies are of."""
    measures = {r.measure for r in records if r.value is not None}
    found: list[str] = needed([m for m in ACCURACIES if m in measures], name, " or ".join(ACCURACIES))
    return found[0]


def needed(found: Any, name: str, what: str) -> Any:
    """What was found, if there is any."""
    if not found:
        raise ValueError(f"{name} needs records of {what}, and there is none; `gcalign reproduce {name}` makes them")
    return found


@dataclass
class Page:
    """A figure being drawn and, afterwards, its files."""

    figure: Figure
    paths: list[Path] = field(default_factory=list)

    def caption(
        self, records: Sequence[Record], *sentences: str, spread: str | None = None, seeds: bool = True
    ) -> None:
        """The sentences, then data, scale, seeds and what the spread shows."""
        data = [DATA.get(d, d) for d in ordered({str(r.labels["data"]) for r in records if "data" in r.labels}, DATA)]
        scales = sorted({r.scale for r in records})
        drawn = {r.seed for r in records if r.seed is not None} if seeds else set()
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


def bars(
    axes: Axes, x: Iterable[float], found: Iterable[BySeed], line: Mapping[str, Any], name: str, **more: Any
) -> None:
    """Means with their 95 % intervals; with `std=True` with their standard deviations."""
    shown, std = list(found), more.pop("std", False)
    half = [cell.std if std else cell.half_interval for cell in shown]
    how = {"capsize": 1.5, "elinewidth": 0.7, **more, **line}
    axes.errorbar(list(x), [cell.mean for cell in shown], half if any(half) else None, label=name or None, **how)


def side_by_side(
    axes: Axes, found: Mapping[tuple[str, float], BySeed], methods: Sequence[str], shift: float, *, std: bool = False
) -> None:
    """A line for each method over shares of the pairs in %, moved by `shift` from method to method."""
    for k, method in enumerate(methods):
        mine = {100 * share: cell for (name, share), cell in found.items() if name == method}
        if mine:
            x = (share + shift * (k - (len(methods) - 1) / 2) for share in mine)
            bars(axes, x, mine.values(), look(method).line, look(method).name, std=std, capthick=0.7)


def of(found: Mapping[tuple[Any, Any], BySeed], first: Any) -> dict[Any, BySeed]:
    """Cells whose first label is that, by the second."""
    return {key[1]: cell for key, cell in found.items() if key[0] == first}


def less(found: Mapping[tuple[str, Any], BySeed], base: str) -> dict[tuple[str, Any], BySeed]:
    """Differences to `base` in the same place, over the seeds that both have."""
    others = dict.fromkeys(method for method, _ in found if method != base)
    return {(m, at): gain for m in others for at, gain in gains(of(found, m), of(found, base)).items()}


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
