"""The page of a study: runs, results, and plans that are solved again in the browser. Data in, HTML out."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from markupsafe import Markup
from torch import Tensor

from gcalign.auditing.result import Audit
from gcalign.lab.experiments.engine.claims import Judgement, Word
from gcalign.lab.report.pack import Sprite, halves, whole
from gcalign.lab.report.page import Grid, asset, filled

SCRIPTS = ("base", "plan", "table", "heat", "suspects", "map", "views", "neighbours", "charts", "start")


@dataclass(frozen=True)
class Sample:
    """Images as they are, to choose from."""

    name: str
    sprite: Sprite
    labels: Tensor | None  # [n]
    classes: tuple[str, ...]
    domains: Tensor | None = None  # [n]
    domain_names: tuple[str, ...] = ()


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
    """What a run makes of a pairing: normalised projections, and the images in the encoder's space."""

    pairing: int
    z1: Tensor  # [n, d]
    z2: Tensor  # [n, d]
    near: Tensor  # [n, k] other images, the nearest first
    cosines: Tensor  # [n, k]
    maps: Mapping[str, Tensor] = field(default_factory=dict)  # [n, 2] in [0, 1]
    audit: Audit | None = None


@dataclass(frozen=True)
class Goal:
    """P_tgt by what two images share: the value on pairs, within a group, and of all others."""

    pair: float
    same: float
    other: float
    group: str | None = None  # "labels" or "domains"
    normalized: bool = False  # each row is divided by its sum


@dataclass(frozen=True)
class Step:
    """A batch of training, in part: the images as they are, then their first views, then the second ones, …"""

    number: int
    sprite: Sprite
    names: tuple[str, ...]
    mismatched: tuple[bool, ...]


@dataclass(frozen=True)
class Seen:
    """The views that training saw."""

    about: str
    views: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Bar:
    """An accuracy with its interval, where there is one, and what that rests on."""

    name: str
    method: str
    mean: float
    low: float | None
    high: float | None
    basis: str


@dataclass(frozen=True)
class Bars:
    protocol: str
    data: str
    bars: list[Bar]

    @property
    def near(self) -> tuple[float, float]:
        """The part of the axis that holds every interval, in whole steps of 5 %."""
        ends = [x for bar in self.bars for x in (bar.mean, bar.low, bar.high) if x is not None]
        low, high = math.floor(20 * min(ends)), math.ceil(20 * max(ends))
        return low / 20, max(high, low + 1) / 20


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
    goal: Goal | None = None
    seen: int | None = None  # which of the study's `seen`

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
    samples: list[Sample] = field(default_factory=list)
    pairings: list[Pairing] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    planes: dict[str, list[Point]] = field(default_factory=dict)
    bars: list[Bars] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
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
        plans=any(run.embedded for run in study.shown),
        curves=any(run.curves for run in study.shown),
        # "<" would let a name end the script element
        data=Markup(data.replace("<", "\\u003c")),
        script=Markup("\n".join(asset(f"{name}.js") for name in SCRIPTS)),
    )


def _colours(study: Study) -> dict[str, int]:
    """A number for each method, the same in every chart."""
    found = [r.method for r in study.shown] + [p.method for x in study.planes.values() for p in x]
    found += [bar.method for panel in study.bars for bar in panel.bars]
    return {method: k for k, method in enumerate(dict.fromkeys(found))}


def _data(study: Study, colours: Mapping[str, int]) -> dict[str, Any]:
    sprites: list[Sprite] = []

    def place(sprite: Sprite) -> int:
        if sprite not in sprites:
            sprites.append(sprite)
        return sprites.index(sprite)

    samples = [
        {"name": s.name, "n": s.sprite.n, "sprite": place(s.sprite), "labels": _list(s.labels), "classes": s.classes,
         "domains": _list(s.domains), "domainNames": s.domain_names}
        for s in study.samples
    ]  # fmt: skip
    pairings = [_pairing(p, study.samples[p.sample], place) for p in study.pairings]
    seen: dict[str, int] = {}
    shown = []
    for run in study.shown:
        dash = seen[run.method] = seen.get(run.method, -1) + 1
        shown.append(_shown(run) | {"colour": colours[run.method], "dash": dash})
    planes = [
        {"name": name, "points": [vars(p) | {"colour": colours[p.method]} for p in plane]}
        for name, plane in study.planes.items()
    ]
    batches = [
        vars(s) | {"steps": [vars(step) | {"sprite": place(step.sprite)} for step in s.steps]} for s in study.seen
    ]
    pictures = [{"url": s.url, "columns": s.columns, "rows": s.rows} for s in sprites]
    found = {"samples": samples, "pairings": pairings, "shown": shown, "planes": planes, "seen": batches}
    return {"sprites": pictures, **found}


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
        "curves": {name: {"x": list(x), "y": [float(f"{v:.5g}") for v in y]} for name, (x, y) in run.curves.items()},
        "pairing": None,
        "goal": run.goal and vars(run.goal),
        "seen": run.seen,
    }
    if (e := run.embedded) is not None:
        out |= {"pairing": e.pairing, "dim": e.z1.shape[1], "z1": halves(e.z1), "z2": halves(e.z2)}
        out |= {"neighbours": whole(e.near), "neighbourCosines": halves(e.cosines), "audit": _audit(e.audit)}
        out["maps"] = {name: whole((65535 * points).round()) for name, points in e.maps.items()}
    return out


def _audit(a: Audit | None) -> dict[str, Any] | None:
    if a is None:
        return None
    each = {"ranking": whole(a.ranking), "other": whole(a.other), "probability": halves(a.probability)}
    expected = {"share": a.share, "auroc": a.auroc if math.isfinite(a.auroc) else None, "flagged": int(a.flagged.sum())}
    return each | {"eps": a.settings["eps"]} | expected


def _list(values: Tensor | None) -> list[int] | None:
    return None if values is None else values.tolist()
