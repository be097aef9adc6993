"""The runs of each experiment. Light to import."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gcalign.lab.experiments.registry import Chosen, Job, Scale
from gcalign.lab.experiments.scales import joined

METHODS = ("ince", "gca-ince", "rince", "gca-rince", "simclr", "byol", "iot", "iot-uni", "gca-uot")  # as in the paper
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "standard": (),
    "C1": ("views=C1",),  # large erase
    "C2": ("views=C2",),  # strong crop
    "C3": ("views=C3",),  # brightness
}
EXTENDED = ("ince", "gca-ince", "rince", "gca-rince")  # each method before its GCA version
PLANNED = ("ince", "gca-ince", "gca-rince", "gca-uot")  # whose plans fig:diagnolline shows
ITERATIONS = (1, 2, 3, 5, 10, 20)
EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0)
# fig:ablation_study: q = 0.98 with λ from 0 to 1, and λ = 0.01 with q from (nearly) 0 to 1
Q_LAMBDA = (
    *((0.98, lam) for lam in (0.0, 0.01, 0.1, 0.5, 1.0)),
    *((q, 0.01) for q in (0.1, 0.3, 0.6, 1.0)),
)
# fig:Ptgt varies α − β: across domains (α = 0), pairs alone, within a domain (β = 0)
ALPHA_BETA = ((0.0, 0.25), (0.0, 0.0), (0.05, 0.0), (0.25, 0.0), (0.5, 0.0), (1.0, 0.0))
DOMAINS = ("domain", "across-domains")
DOMAIN_EPS = 0.2  # appendix:dgsetting
SAME_EPS = (0.1, 0.2, 0.5)  # of fig-same-eps


def data_name(words: Sequence[str]) -> str:
    """The data set that words name."""
    return next(word.partition("=")[2] for word in words if word.startswith("data="))


def make_job(scale: Scale, chosen: Chosen, method: str, seed: int, measures: tuple[str, ...], **more: Any) -> Job:
    """One run of a method on `data` (the scale's images) in a `setting`, with `words` of its own."""
    data: tuple[str, ...] = more.get("data", scale.images)
    setting: str = more.get("setting", "standard")
    labels = {"method": method, "data": data_name(data), "setting": setting, **more.get("labels", {})}
    words = joined(
        (f"method={method}",),
        scale.train,
        data,
        chosen[method],
        SETTINGS[setting],
        more.get("words", ()),
        (f"seed={seed}",),
    )
    return Job(labels, words, measures, seed)


def grid(
    scale: Scale,
    chosen: Chosen,
    measures: tuple[str, ...],
    settings: Iterable[str] = SETTINGS,
    methods: Iterable[str] = METHODS,
    **more: Any,
) -> list[Job]:
    """Every method in every setting; seed by seed, so that a sweep cut short has whole grids."""
    return [
        make_job(scale, chosen, method, seed, measures, setting=setting, **more)
        for seed in scale.seeds
        for setting in settings
        for method in methods
    ]


def _varied(
    scale: Scale,
    chosen: Chosen,
    method: str,
    measures: tuple[str, ...],
    knobs: Iterable[Mapping[str, float]],
    **more: Any,
) -> list[Job]:
    """A method with each setting of its knobs, which are labels too."""
    labels = more.pop("labels", {})
    return [
        make_job(
            scale,
            chosen,
            method,
            seed,
            measures,
            labels={**labels, **values},
            words=tuple(f"method.{knob}={value}" for knob, value in values.items()),
            **more,
        )
        for seed in scale.seeds
        for values in knobs
    ]


def _by_seed(scale: Scale, jobs: Iterable[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: scale.seeds.index(job.seed))


def table1(scale: Scale, chosen: Chosen) -> list[Job]:
    jobs = grid(scale, chosen, (scale.probe, "knn", "cifar10c"))
    for name in scale.columns:
        # the paper has noisy views of CIFAR only
        settings = SETTINGS if name.startswith("cifar") else ("standard",)
        jobs += grid(scale, chosen, (scale.probe, "knn"), settings, data=scale.others[name])
    return _by_seed(scale, jobs)


def cifar10(scale: Scale, chosen: Chosen) -> list[Job]:
    return grid(scale, chosen, (scale.probe, "knn"))


def cifar100(scale: Scale, chosen: Chosen) -> list[Job]:
    return grid(scale, chosen, (scale.probe, "knn"), data=scale.others.get("cifar100", scale.images))


def cifar10c(scale: Scale, chosen: Chosen) -> list[Job]:
    return grid(scale, chosen, ("cifar10c",))


def align_uniform(scale: Scale, chosen: Chosen) -> list[Job]:
    return grid(scale, chosen, ("align-uniform",))


def noise(scale: Scale, chosen: Chosen) -> list[Job]:
    return [
        make_job(
            scale,
            chosen,
            method,
            seed,
            (scale.probe, "knn"),
            labels={"noise": noise},
            words=(f"pairs.noise={noise:g}",) if noise else (),
        )
        for seed in scale.seeds
        for noise in scale.noise
        for method in METHODS
    ]


def plans(scale: Scale, chosen: Chosen) -> list[Job]:
    return [make_job(scale, chosen, method, scale.seeds[0], ("plan",)) for method in PLANNED]


def epsilon(scale: Scale, chosen: Chosen) -> list[Job]:
    # one set of weights for every plan, as in the paper
    return [make_job(scale, chosen, "ince", scale.seeds[0], ("plans-epsilon",))]


def sensitivity(scale: Scale, chosen: Chosen) -> list[Job]:
    points = {"iterations": ITERATIONS, "eps": EPSILONS}
    return _by_seed(
        scale,
        (
            job
            for knob, values in points.items()
            for job in _varied(
                scale,
                chosen,
                "gca-ince",
                (scale.probe, "compactness"),
                [{knob: value} for value in values],
                labels={"varied": knob},
            )
        ),
    )


def q_lambda(scale: Scale, chosen: Chosen) -> list[Job]:
    knobs = [{"q": q, "lam": lam} for q, lam in Q_LAMBDA]
    line = [make_job(scale, chosen, "ince", seed, (scale.probe,), setting="C1") for seed in scale.seeds]
    return _by_seed(scale, [*line, *_varied(scale, chosen, "gca-rince", (scale.probe,), knobs, setting="C1")])


def time(scale: Scale, chosen: Chosen) -> list[Job]:
    return _varied(scale, chosen, "gca-ince", (scale.probe,), [{"iterations": n} for n in ITERATIONS])


def blocks(scale: Scale, seed: int, alpha: float, beta: float, measures: tuple[str, ...], **more: Any) -> Job:
    """GCA-INCE with weight α on pairs within a domain and β on pairs across domains."""
    return make_job(
        scale,
        {"gca-ince": (f"method.eps={DOMAIN_EPS}",)},
        "gca-ince",
        seed,
        measures,
        data=joined(scale.domains, more.get("words", ())),
        labels={"alpha": alpha, "beta": beta, **more.get("labels", {})},
        words=("target.name=blocks", f"target.alpha={alpha}", f"target.beta={beta}"),
    )


def ptgt(scale: Scale, chosen: Chosen) -> list[Job]:
    return [blocks(scale, seed, alpha, beta, DOMAINS) for seed in scale.domain_seeds for alpha, beta in ALPHA_BETA]


def same_eps(scale: Scale, chosen: Chosen) -> list[Job]:
    # the search may give a method and its GCA version different ε, which alone moves alignment and uniformity
    knobs = [{"eps": eps} for eps in SAME_EPS]
    none: Chosen = dict.fromkeys(EXTENDED, ())
    measures = (scale.probe, "align-uniform")
    return _by_seed(scale, (job for method in EXTENDED for job in _varied(scale, none, method, measures, knobs)))
