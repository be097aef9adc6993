"""How every figure looks: colours, names, sizes, captions and files; and means over seeds."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab import files
from gcalign.lab.experiments import statistics
from gcalign.lab.experiments.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SINGLE, DOUBLE = 3.4, 7.0  # inches: one column and two
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


@dataclass(frozen=True)
class BySeed:
    """One number for each seed."""

    by_seed: statistics.Seeded

    @property
    def mean(self) -> float:
        return statistics.mean(self.by_seed)

    @property
    def std(self) -> float:
        """Over seeds; 0 for a single one, which has none."""
        return statistics.spread(self.by_seed.values()).std or 0.0

    def minus(self, other: BySeed) -> BySeed:
        """Differences of the seeds both have."""
        return BySeed(statistics.minus(self.by_seed, other.by_seed))

    @property
    def half_interval(self) -> float:
        """Half of the mean's 95 % interval; 0 for a single seed, which has none."""
        found = statistics.interval(self.by_seed.values())
        return found.high - found.mean if found and found.n > 1 else 0.0


Key = tuple[Any, ...]


def cells(records: Iterable[Record], measure: str, *labels: str, unit: float = 1.0) -> dict[Key, BySeed]:
    """The measure by its labels, sorted; records without one of them are left out. `unit` multiplies."""
    found: dict[Key, dict[int | None, float]] = {}
    for r in records:
        if r.measure != measure or r.value is None or any(name not in r.labels for name in labels):
            continue
        key = tuple(r.labels[name] for name in labels)
        seeds = found.setdefault(key, {})
        if r.seed in seeds:
            raise ValueError(
                f"{r.experiment} has {measure} of {r.labels} with seed {r.seed} twice; one drawing shows one data set "
                "and one result for each seed: delete one or draw them apart"
            )
        seeds[r.seed] = unit * r.value
    return {key: BySeed(found[key]) for key in sorted(found, key=lambda key: tuple((str(type(x)), x) for x in key))}


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


def about(records: Sequence[Record], *sentences: str, spread: str | None = None, seeds: bool = True) -> str:
    """A caption: the sentences, then data, scale, seeds and what the spread shows."""
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
    return " ".join([*sentences, last[:1].upper() + last[1:] + "." if facts else ""]).strip()


@dataclass
class Page:
    """A figure being drawn and, afterwards, its files."""

    figure: Figure
    paths: list[Path] = field(default_factory=list)

    def caption(self, text: str) -> None:
        width, _ = self.figure.get_size_inches()
        filled = textwrap.fill(text, int(22.5 * width))
        self.figure.supxlabel(filled, x=0.01, ha="left", fontsize=6.3, color=INK, linespacing=1.35)

    def legend(self, order: Iterable[str]) -> None:
        """Above the panels, each name once."""
        named: dict[str, Any] = {}
        for axes in self.figure.axes:
            named |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        names = [name for name in order if name in named]
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


def letter(axes: Axes, k: int, title: str) -> None:
    """A panel's title behind its bold letter."""
    axes.set_title(rf"$\bf{{{chr(ord('A') + k)}}}$  {title}")


def log_ticks(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis with a tick at every value."""
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()


def absent(axes: Axes, what: str) -> None:
    """An empty panel that says so."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, f"no records of {what}", transform=axes.transAxes, ha="center", va="center", color=INK)
