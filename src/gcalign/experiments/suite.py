"""The experiments: every table and figure of the paper, and one of ours, as jobs and a drawing. Light to import."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gcalign.experiments.records import Record
from gcalign.experiments.registry import Chosen, Experiment, Job, Scale, names, register
from gcalign.experiments.scales import joined

__all__ = ["METHODS", "SETTINGS", "names"]

METHODS = ("ince", "gca-ince", "rince", "gca-rince", "simclr", "byol", "iot", "iot-uni", "gca-uot")  # as in the paper
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "standard": (),
    "C1": ("views=C1",),  # large erase
    "C2": ("views=C2",),  # strong crop
    "C3": ("views=C3",),  # brightness
}
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
DOMAIN_EPS = 0.2  # appendix:dgsetting


def data_name(words: Sequence[str]) -> str:
    """The data set that words name."""
    return next(word.partition("=")[2] for word in words if word.startswith("data="))


def _job(scale: Scale, chosen: Chosen, method: str, seed: int, measures: tuple[str, ...], **more: Any) -> Job:
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


def _grid(
    scale: Scale, chosen: Chosen, measures: tuple[str, ...], settings: Iterable[str] = SETTINGS, **more: Any
) -> list[Job]:
    """Every method in every setting; seed by seed, so that a sweep cut short has whole grids."""
    return [
        _job(scale, chosen, method, seed, measures, setting=setting, **more)
        for seed in scale.seeds
        for setting in settings
        for method in METHODS
    ]


def _table1(scale: Scale, chosen: Chosen) -> list[Job]:
    jobs = _grid(scale, chosen, (scale.probe, "knn", "cifar10c"))
    for name in scale.columns:
        # the paper has noisy views of CIFAR only
        settings = SETTINGS if name.startswith("cifar") else ("standard",)
        jobs += _grid(scale, chosen, (scale.probe, "knn"), settings, data=scale.others[name])
    return sorted(jobs, key=lambda job: scale.seeds.index(job.seed))


def _cifar10(scale: Scale, chosen: Chosen) -> list[Job]:
    return _grid(scale, chosen, (scale.probe, "knn"))


def _cifar100(scale: Scale, chosen: Chosen) -> list[Job]:
    return _grid(scale, chosen, (scale.probe, "knn"), data=scale.others.get("cifar100", scale.images))


def _cifar10c(scale: Scale, chosen: Chosen) -> list[Job]:
    return _grid(scale, chosen, ("cifar10c",))


def _align_uniform(scale: Scale, chosen: Chosen) -> list[Job]:
    return _grid(scale, chosen, ("align-uniform",))


def _noise(scale: Scale, chosen: Chosen) -> list[Job]:
    return [
        _job(
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


def _plans(scale: Scale, chosen: Chosen) -> list[Job]:
    return [_job(scale, chosen, method, scale.seeds[0], ("plan",)) for method in PLANNED]


def _epsilon(scale: Scale, chosen: Chosen) -> list[Job]:
    # one set of weights for every plan, as in the paper
    return [_job(scale, chosen, "ince", scale.seeds[0], ("plans-epsilon",))]


def _sensitivity(scale: Scale, chosen: Chosen) -> list[Job]:
    measures = (scale.probe, "compactness")
    points = [("iterations", value) for value in ITERATIONS] + [("eps", value) for value in EPSILONS]
    return [
        _job(
            scale,
            chosen,
            "gca-ince",
            seed,
            measures,
            labels={"varied": knob, knob: value},
            words=(f"method.{knob}={value}",),
        )
        for seed in scale.seeds
        for knob, value in points
    ]


def _q_lambda(scale: Scale, chosen: Chosen) -> list[Job]:
    jobs = []
    for seed in scale.seeds:
        jobs.append(_job(scale, chosen, "ince", seed, (scale.probe,), setting="C1"))
        jobs += [
            _job(
                scale,
                chosen,
                "gca-rince",
                seed,
                (scale.probe,),
                setting="C1",
                labels={"q": q, "lam": lam},
                words=(f"method.q={q}", f"method.lam={lam}"),
            )
            for q, lam in Q_LAMBDA
        ]
    return jobs


def _time(scale: Scale, chosen: Chosen) -> list[Job]:
    return [
        _job(
            scale,
            chosen,
            "gca-ince",
            seed,
            (scale.probe,),
            labels={"iterations": iterations},
            words=(f"method.iterations={iterations}",),
        )
        for seed in scale.seeds
        for iterations in ITERATIONS
    ]


def _ptgt(scale: Scale, chosen: Chosen) -> list[Job]:
    fixed = {"gca-ince": (f"method.eps={DOMAIN_EPS}",)}
    return [
        _job(
            scale,
            fixed,
            "gca-ince",
            seed,
            ("domain", "across-domains"),
            data=scale.domains,
            labels={"alpha": alpha, "beta": beta},
            words=("target.name=blocks", f"target.alpha={alpha}", f"target.beta={beta}"),
        )
        for seed in scale.domain_seeds
        for alpha, beta in ALPHA_BETA
    ]


def _lazily(place: str) -> Callable[..., Any]:
    """A function `module:name` of this room, imported when it is called: drawing needs matplotlib, listing does not."""

    def call(*args: Any) -> Any:
        module, _, name = place.partition(":")
        return getattr(importlib.import_module(f"gcalign.experiments.{module}"), name)(*args)

    return call


def _nothing(scale: Scale) -> Iterable[Record]:
    """For what is drawn from the package itself."""
    return ()


def _add(name: str, does: str, label: str, draw: str, *what: Any, **more: Any) -> None:
    register(Experiment(name, does, label, _lazily(draw), *what, **more))


_add(
    "table1",
    "accuracy of nine methods in standard and noisy settings, with paired differences",
    "tab:new_combine",
    "tables:table1",
    _table1,
    searched=METHODS,
)
_add(
    "tableA-cifar10",
    "CIFAR-10: standard, erase, crop and brightness",
    "tab:cifar10",
    "tables:table_a_cifar10",
    _cifar10,
    searched=METHODS,
)
_add(
    "tableA-cifar100",
    "CIFAR-100: standard, erase, crop and brightness",
    "tab:cifar100",
    "tables:table_a_cifar100",
    _cifar100,
    searched=METHODS,
)
_add(
    "tableA-cifar10c",
    "CIFAR-10-C: standard, erase, crop and brightness",
    "tab:cifar10c",
    "tables:table_a_cifar10c",
    _cifar10c,
    searched=METHODS,
)
_add(
    "table-methods",
    "what each method is made of, read from the methods themselves",
    "tab:diff",
    "tables:table_methods",
    compute=_nothing,
)
_add(
    "fig-ptgt",
    "domain and class accuracy against α − β of the target plan",
    "fig:Ptgt",
    "figures.accuracy:fig_ptgt",
    _ptgt,
)
_add(
    "fig-time",
    "run time of each method and of iterations, and accuracy against iterations",
    "fig:time_comp",
    "figures.accuracy:fig_time",
    _time,
    _lazily("costs:times"),
    searched=("gca-ince",),
)
_add("flops", "floating-point operations of each loss", "app:time", "tables:flops", compute=_lazily("costs:flops"))
_add(
    "fig-align-uniform",
    "alignment and uniformity of each method, on clean and corrupted images",
    "app:representation",
    "figures.geometry:fig_align_uniform",
    _align_uniform,
    searched=METHODS,
)
_add(
    "fig-plans",
    "−log P of four methods, sorted by class",
    "fig:diagnolline",
    "figures.plans:fig_plans",
    _plans,
    searched=PLANNED,
)
_add(
    "fig-epsilon",
    "plans for ε from 0.01 to 1, INCE and GCA-UOT",
    "fig:epsilon_study",
    "figures.plans:fig_epsilon",
    _epsilon,
    searched=("ince",),
)
_add(
    "fig-sensitivity",
    "compactness and accuracy against iterations and ε",
    "fig:sensitivity_study",
    "figures.accuracy:fig_sensitivity",
    _sensitivity,
    searched=("gca-ince",),
)
_add(
    "fig-q-lambda",
    "accuracy of GCA-RINCE against q and λ",
    "fig:ablation_study",
    "figures.accuracy:fig_q_lambda",
    _q_lambda,
    searched=("ince", "gca-rince"),
)
_add("fig-prox", "what a proximal operator does", "fig:proximal", "figures.geometry:fig_prox", compute=_nothing)
_add(
    "fig-noise",
    "accuracy against the share of mismatched pairs (ours)",
    "",
    "figures.accuracy:fig_noise",
    _noise,
    searched=METHODS,
)
