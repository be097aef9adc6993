"""Hyper-parameters: three values of one knob for every method, chosen on held-out training images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.registry import Chosen, Job, Scale
from gcalign.lab.experiments.scales import joined

EPSILONS = (0.2, 0.5, 0.1)
EPS = tuple(f"method.eps={value}" for value in EPSILONS)
GRID: Mapping[str, tuple[str, ...]] = {
    # without negatives ε is a factor of the loss; how slowly the twin follows is what matters
    "byol": tuple(f"model.momentum={value}" for value in (0.98, 0.996, 0.9)),
}
ALWAYS: Mapping[str, tuple[str, ...]] = {"byol": ("model.projector=mlp3-bn",)}  # it collapses without BatchNorm


def jobs(scale: Scale, methods: Iterable[str]) -> list[Job]:
    """The search of each method, at the first seed in the standard setting."""
    seed = scale.seeds[0]
    found = []
    for method in methods:
        for knob in GRID.get(method, EPS):
            own = (*ALWAYS.get(method, ()), knob)
            words = joined((f"method={method}",), scale.train, scale.images, own, (f"seed={seed}",))
            found.append(Job({"method": method, "knob": knob}, words, ("validation",), seed))
    return found


def chosen(records: Sequence[Record]) -> Chosen:
    """The words of each method: its best knob by validation accuracy; of equals the first of the grid."""
    found = {}
    for method in dict.fromkeys(record.labels["method"] for record in records):
        scores = {r.labels["knob"]: r.value or 0.0 for r in records if r.labels["method"] == method}
        knob = max((k for k in GRID.get(method, EPS) if k in scores), key=lambda k: scores[k])
        found[method] = (*ALWAYS.get(method, ()), knob)
    return found


def first(methods: Iterable[str]) -> Chosen:
    """What would be chosen if all were equal: for showing the jobs before the search is done."""
    return {method: (*ALWAYS.get(method, ()), GRID.get(method, EPS)[0]) for method in methods}
