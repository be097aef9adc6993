"""Grids of jobs: every method in every variant, with every seed. Light to import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gcalign.lab.experiments.engine.experiment import Chosen, Job, Scale, joined, value_of

Variants = Iterable[tuple[Mapping[str, Any], tuple[str, ...]]]  # labels of runs that are compared, and their words
EXTREME = ("C1", "C2", "C3")  # large erase, strong crop, brightness
VIEWS: Mapping[str, tuple[str, ...]] = {"standard": (), **{view: (f"views={view}",) for view in EXTREME}}
EXTENDED = ("ince", "gca-ince", "rince", "gca-rince")  # each method before its GCA version
DOMAINS = ("domain", "across-domains")  # measures
DOMAIN_EPS = 0.2  # appendix:dgsetting


def data_name(words: Sequence[str]) -> str:
    """The data set that words name."""
    name = value_of(words, "data")
    assert name is not None
    return name


def grid(
    scale: Scale,
    chosen: Chosen,
    measures: tuple[str, ...],
    methods: Iterable[str],
    variants: Variants = (({}, ()),),
    *,
    data: tuple[str, ...] = (),
    seeds: Sequence[int] = (),
) -> list[Job]:
    """Every method in every variant, on the scale's images unless other data is given.

    Seed by seed, so that a sweep cut short has whole grids.
    """
    data = data or scale.images
    shared = {"data": data_name(data), "setting": "standard"}
    return [
        Job({"method": method, **shared, **labels}, joined(*before, words, (f"seed={seed}",)), measures, seed)
        for seed in seeds or scale.seeds
        for labels, words in variants
        for method in methods
        for before in [((f"method={method}",), scale.train, data, chosen[method])]
    ]


def seed_by_seed(seeds: Sequence[int], jobs: Iterable[Job]) -> list[Job]:
    """Jobs of several grids in the order of their seeds."""
    return sorted(jobs, key=lambda job: seeds.index(job.seed))


def views(names: Iterable[str] = VIEWS) -> Variants:
    """Settings of the augmentation."""
    return [({"setting": name}, VIEWS[name]) for name in names]


def options(values: Sequence[Mapping[str, float]], setting: str = "standard", **labels: Any) -> Variants:
    """Settings of a method's options, which are labels too."""
    own = [tuple(f"method.{key}={value}" for key, value in by.items()) for by in values]
    shared = {"setting": setting, **labels}
    return [({**shared, **by}, (*VIEWS[setting], *words)) for by, words in zip(values, own, strict=True)]


def noises(scale: Scale) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """Shares of pairs with a wrong partner."""
    return [({"noise": noise}, (f"pairs.noise={noise:g}",) if noise else ()) for noise in scale.noise]


def target_weights(
    scale: Scale,
    measures: tuple[str, ...],
    weights: Iterable[tuple[float, float]],
    *,
    labels: Mapping[str, Any] | None = None,
    words: tuple[str, ...] = (),
) -> list[Job]:
    """GCA-INCE with weight α on pairs within a domain and β on pairs across domains."""
    variants = [
        (
            {"alpha": alpha, "beta": beta, **(labels or {})},
            ("target.name=blocks", f"target.alpha={alpha}", f"target.beta={beta}"),
        )
        for alpha, beta in weights
    ]
    chosen, data = {"gca-ince": (f"method.eps={DOMAIN_EPS}",)}, joined(scale.domains, words)
    return grid(scale, chosen, measures, chosen, variants, data=data, seeds=scale.domain_seeds)
