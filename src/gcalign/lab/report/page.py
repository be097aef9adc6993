"""The page of a study: runs, results, and plans that are solved again in the browser. Data in, HTML out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from markupsafe import Markup
from torch import Tensor

from gcalign.lab.experiments.engine.claims import Judgement, Word
from gcalign.lab.pages.pack import Sprite
from gcalign.lab.pages.page import Grid, Json, asset, filled
from gcalign.lab.report.accuracies import Bars

SCRIPTS = ("base", "plan", "table", "heat", "suspects", "map", "views", "neighbours", "charts", "start")


@dataclass(frozen=True)
class DrawnResult:
    """A table or figure that was drawn from a result file, with its numbers in words."""

    name: str
    does: str
    command: str
    html: Markup | None = None
    figures: Mapping[str, str] = field(default_factory=dict)  # what it shows -> data URL
    numbers: Grid | None = None


@dataclass(frozen=True)
class Study:
    title: str
    lead: str
    runs: Grid
    facts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    results: list[DrawnResult] = field(default_factory=list)
    samples: list[Json] = field(default_factory=list)  # images as they are, to choose from
    pairings: list[Json] = field(default_factory=list)  # two views of each image of a sample
    shown: list[Json] = field(default_factory=list)  # runs in the interactive parts
    planes: dict[str, list[Json]] = field(default_factory=dict)  # points: name, method, setting, both measures
    bars: list[Bars] = field(default_factory=list)
    seen: list[Json] = field(default_factory=list)  # the views that training saw
    claims: list[Judgement] = field(default_factory=list)
    commands: dict[str, list[str]] = field(default_factory=dict)


def render(study: Study) -> str:
    """The page as one string."""
    colours = _colours(study)
    data = json.dumps(_data(study, colours), ensure_ascii=False, separators=(",", ":"))
    return filled(
        "study.html.jinja",
        ("style.css", "study.css"),
        study=study,
        colours=colours,
        verdicts=Counter(c.word for c in sorted(study.claims, key=lambda c: get_args(Word).index(c.word))),
        plans=any(run["pairing"] is not None for run in study.shown),
        curves=any(run["curves"] for run in study.shown),
        # "<" would let a name end the script element
        data=Markup(data.replace("<", "\\u003c")),
        script=Markup("\n".join(asset(f"{name}.js") for name in SCRIPTS)),
    )


def _colours(study: Study) -> dict[str, int]:
    """A number for each method, the same in every chart."""
    found = [r["method"] for r in (*study.shown, *(p for plane in study.planes.values() for p in plane))]
    found += [bar.method for panel in study.bars for bar in panel.bars if bar.method]
    return {method: k for k, method in enumerate(dict.fromkeys(found))}


def _data(study: Study, colours: Mapping[str, int]) -> Json:
    """What the scripts read. Each sprite is there once, and known by its number."""
    sprites: dict[Sprite, int] = {}

    def encoded(value: Sprite | Tensor) -> int | list[Any]:
        return value.tolist() if isinstance(value, Tensor) else sprites.setdefault(value, len(sprites))

    def coloured(entries: Sequence[Json]) -> list[Json]:
        return [entry | {"colour": colours[entry["method"]]} for entry in entries]

    methods = [run["method"] for run in study.shown]
    dashes = [{"dash": methods[:k].count(name)} for k, name in enumerate(methods)]
    content = {
        "samples": study.samples,
        "pairings": study.pairings,
        "shown": [run | dash for run, dash in zip(coloured(study.shown), dashes, strict=True)],
        "planes": [{"name": name, "points": coloured(points)} for name, points in study.planes.items()],
        "seen": study.seen,
    }
    content = json.loads(json.dumps(content, default=encoded))
    return {"sprites": [{"url": s.url, "columns": s.columns, "rows": s.rows} for s in sprites], **content}
