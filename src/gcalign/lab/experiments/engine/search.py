"""Hyper-parameters, chosen on held-out training images: the same number of settings for every method.

The first stage tries values of the main option, ε. The second tries four more settings at the best of them: another
option if the method has one, else values around the best ε. A setting is judged by its mean over the search's seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from gcalign.lab.experiments.engine.experiment import Chosen, Job, Scale, Search, joined, method_words
from gcalign.lab.experiments.engine.records import Record

AROUND = (0.6, 0.8, 1.25, 1.6)  # times the best ε
_Q = tuple(f"method.q={value}" for value in (0.3, 0.15, 0.05, 0.9))  # beside the default, 0.6
SECOND: Mapping[str, tuple[str, ...]] = {
    "rince": _Q,
    "gca-rince": _Q,
    "gca-uot": tuple(f"method.relax=[{value},{value}]" for value in (0.5, 1, 2, 0.05)),  # beside 0.2
    "iot-uni": tuple(f"method.weight={value}" for value in (0.1, 0.4, 0.05, 0.8)),  # beside 0.2
    "byol": tuple(f"optimizer.lr={value}" for value in (1e-3, 4e-3, 5e-4, 8e-3)),
}
ALWAYS: Mapping[str, tuple[str, ...]] = {"byol": ("model.projector=mlp3-bn",)}  # it collapses without BatchNorm


def jobs(scale: Scale, methods: Iterable[str], records: Sequence[Record] = ()) -> list[Job]:
    """The search of each method as far as it is known: its second stage follows from the records of the first."""
    scores = _scores(records, scale.search)
    return [
        Job({"method": method, "knob": " ".join(knobs)}, words, ("validation",), seed)
        for seed in scale.search.seeds
        for method in methods
        for knobs in _settings(method, scale.search, scores.get(method, {}))
        for own in [(*ALWAYS.get(method, ()), *knobs, f"seed={seed}")]
        for words in [joined(method_words(method), scale.train, scale.images, scale.search.words, own)]
    ]


def chosen(records: Sequence[Record], search: Search) -> Chosen:
    """The words of each method: its best setting by mean validation accuracy; of equals the first."""
    words = {}
    for method, scores in _scores(records, search).items():
        tried = [knobs for knobs in _settings(method, search, scores) if " ".join(knobs) in scores]
        words[method] = (*ALWAYS.get(method, ()), *max(tried, key=_by(scores)))
    return words


def first(methods: Iterable[str], search: Search) -> Chosen:
    """What would be chosen if all were equal: for showing the jobs before the search is done."""
    return {method: (*ALWAYS.get(method, ()), _first(method, search)[0]) for method in methods}


def _first(method: str, search: Search) -> list[str]:
    if method == "byol":  # how slowly the momentum encoder follows is what matters
        return [f"model.momentum={value}" for value in search.momentum]
    return [f"method.eps={value}" for value in search.eps]


def _settings(method: str, search: Search, scores: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Those of the first stage and, where all of them have a score, those of the second."""
    stage: list[tuple[str, ...]] = [(knob,) for knob in _first(method, search)]
    if not search.refined or any(" ".join(knobs) not in scores for knobs in stage):
        return stage
    best = max(stage, key=_by(scores))
    if method in SECOND:
        return [*stage, *((*best, knob) for knob in SECOND[method])]
    value = float(best[0].partition("=")[2])
    return [*stage, *((f"method.eps={value * factor:.3g}",) for factor in AROUND)]


def _by(scores: Mapping[str, float]) -> Callable[[tuple[str, ...]], float]:
    return lambda knobs: scores[" ".join(knobs)]


def _scores(records: Iterable[Record], search: Search) -> dict[str, dict[str, float]]:
    """The mean validation accuracy of each setting that has one for every seed, by method."""
    values: dict[str, dict[str, dict[int | None, float]]] = {}
    for record in records:
        of = values.setdefault(str(record.labels["method"]), {}).setdefault(str(record.labels["knob"]), {})
        of[record.seed] = record.value or 0.0
    return {
        method: {
            knob: statistics.fmean(by_seed.values())
            for knob, by_seed in settings.items()
            if set(search.seeds) <= by_seed.keys()
        }
        for method, settings in values.items()
    }
