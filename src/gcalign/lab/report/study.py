"""The page of a study: runs, results, and plans that are solved again in the browser. Data in, HTML out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from gcalign.lab.report.pack import Sprite, halves, whole
from gcalign.lab.report.page import Grid, asset, filled

SCRIPTS = ("base.js", "plan.js", "table.js", "heat.js", "neighbours.js", "charts.js", "start.js")


@dataclass(frozen=True)
class Sample:
    """Images as they are, to choose from."""

    name: str
    sprite: Sprite
    labels: Tensor | None  # [n]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Pairing:
    """Two views of each image of a sample; the second shows another image where a pair is mismatched."""

    sample: int
    about: str
    first: Sprite
    second: Sprite
    partners: Tensor  # [n]  what the second view shows
    domains: Tensor | None  # [n]
    domain_names: tuple[str, ...]


@dataclass(frozen=True)
class Embedded:
    """What a run makes of a pairing: normalised projections, and each image's nearest others in the encoder's space."""

    pairing: int
    z1: Tensor  # [n, d]
    z2: Tensor  # [n, d]
    near: Tensor  # [n, k]
    cosines: Tensor  # [n, k]


@dataclass(frozen=True)
class Shown:
    """A run in the interactive parts. λ is None where a side is free and inf where it is hard."""

    name: str
    method: str
    objective: str
    eps: float
    iterations: int
    rows: float | None
    columns: float | None
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]  # measure -> steps, values
    embedded: Embedded | None = None  # None where its data is not there

    @property
    def mode(self) -> str:
        if self.columns is None:
            return "free" if self.rows is None else "rows"
        return "both" if self.rows == self.columns == float("inf") else "relaxed"


@dataclass(frozen=True)
class Point:
    name: str
    method: str
    setting: str
    alignment: float
    uniformity: float


@dataclass(frozen=True)
class Result:
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
    results: list[Result] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    pairings: list[Pairing] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    planes: dict[str, list[Point]] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)


def render(study: Study) -> str:
    """The page as one string."""
    return filled(
        "study.html.jinja",
        ("style.css", "study.css"),
        study=study,
        plans=any(run.embedded for run in study.shown),
        curves=any(run.curves for run in study.shown),
        # "<" would let a name end the script element
        data=Markup(json.dumps(_data(study), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")),
        script=Markup("\n".join(map(asset, SCRIPTS))),
    )


def _data(study: Study) -> dict[str, Any]:
    sprites: list[Sprite] = []

    def place(sprite: Sprite) -> int:
        if sprite not in sprites:
            sprites.append(sprite)
        return sprites.index(sprite)

    methods = list(
        dict.fromkeys([r.method for r in study.shown] + [p.method for x in study.planes.values() for p in x])
    )
    samples = [
        {"name": s.name, "n": s.sprite.n, "sprite": place(s.sprite), "labels": _list(s.labels), "classes": s.classes}
        for s in study.samples
    ]
    pairings = [_pairing(p, study.samples[p.sample], place) for p in study.pairings]
    seen: dict[str, int] = {}
    shown = []
    for run in study.shown:
        dash = seen[run.method] = seen.get(run.method, -1) + 1
        shown.append(_shown(run) | {"colour": methods.index(run.method), "dash": dash})
    planes = [
        {"name": name, "points": [vars(p) | {"colour": methods.index(p.method)} for p in plane]}
        for name, plane in study.planes.items()
    ]
    pictures = [{"url": s.url, "columns": s.columns, "rows": s.rows} for s in sprites]
    return {"sprites": pictures, "samples": samples, "pairings": pairings, "shown": shown, "planes": planes}


def _pairing(p: Pairing, sample: Sample, place: Any) -> dict[str, Any]:
    labels = sample.labels
    return {
        "n": len(p.partners),
        "sample": p.sample,
        "about": p.about,
        "first": place(p.first),
        "second": place(p.second),
        "labels": _list(labels),
        "secondLabels": None if labels is None else _list(labels[p.partners]),
        "classes": sample.classes,
        "domains": _list(p.domains),
        "domainNames": p.domain_names,
        "mismatched": (p.partners != torch.arange(len(p.partners))).nonzero().flatten().tolist(),
    }


def _shown(run: Shown) -> dict[str, Any]:
    relaxed = [lam for lam in (run.rows, run.columns) if lam is not None and lam != float("inf")]
    out: dict[str, Any] = {
        "name": run.name,
        "method": run.method,
        "objective": run.objective,
        "eps": run.eps,
        "iterations": run.iterations,
        "mode": run.mode,
        "lam": relaxed[0] if relaxed else None,
        "curves": {name: {"x": list(x), "y": [_rounded(v) for v in y]} for name, (x, y) in run.curves.items()},
        "pairing": None,
    }
    if (e := run.embedded) is not None:
        out |= {"pairing": e.pairing, "dim": e.z1.shape[1], "z1": halves(e.z1), "z2": halves(e.z2)}
        out |= {"neighbours": whole(e.near), "neighbourCosines": halves(e.cosines)}
    return out


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _list(values: Tensor | None) -> list[int] | None:
    return None if values is None else values.tolist()
