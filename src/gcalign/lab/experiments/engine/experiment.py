"""What an experiment is, how large it is at each scale, and where experiments are. Light to import."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.errors import one_of
from gcalign.lab.outside import imported

if TYPE_CHECKING:
    import pandas as pd

    from gcalign.lab.experiments.engine.claims import EmpiricalClaim
    from gcalign.lab.experiments.engine.measures import Measure
    from gcalign.lab.experiments.engine.records import Record

FOLDERS = ("gcalign.lab.experiments.paper", "gcalign.lab.experiments.studies")
PAPER_SEEDS = (71, 68, 42, 36, 15)  # of appendix:dgsetting


@dataclass(frozen=True)
class Search:
    """Which settings are tried for every method, on held-out training images; `engine.search` does it."""

    name: str = "search"  # of its result file
    words: tuple[str, ...] = ()  # of its runs, over those of the experiment
    seeds: tuple[int, ...] = (100, 101, 102)  # no experiment is tested with them
    eps: tuple[float, ...] = (0.1, 0.2, 0.05, 0.5, 0.025)  # the middle first: of equals the first is chosen
    momentum: tuple[float, ...] = (0.98, 0.95, 0.99, 0.9, 0.996)  # of BYOL, for which ε is a factor of the loss
    refined: bool = True  # whether four more settings follow, at the best of these


@dataclass(frozen=True)
class Scale:
    """How much of an experiment is done. Words are those of `gcalign train`."""

    name: str
    images: tuple[str, ...]  # the data set that stands for CIFAR-10
    domains: tuple[str, ...]  # the one that stands for PACS
    train: tuple[str, ...]  # of every run
    seeds: tuple[int, ...]
    domain_seeds: tuple[int, ...]
    probe: str  # the protocol of every accuracy
    corrupted: int | None  # test images of each corruption and severity, no image in two; None is all in each
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # words of the other data sets, by name
    noise: tuple[float, ...] = (0.0, 0.3, 0.6)  # shares of pairs with a wrong partner
    readout: Mapping[str, Any] = field(default_factory=dict)  # of the domain probes, over the paper's
    splits: int = 5  # by which a linear layer's penalty is chosen: one is a draw of luck, worth up to three points
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # words of settings compared, by name
    search: Search = Search()


# 256 rendered digits, a quarter of the small encoder, 1 epoch, 2 seeds: the path, not the result
TINY = Scale(
    name="tiny",
    images=("data=scenes", "data.limit=256"),
    domains=("data=scenes", "data.limit=256"),
    train=("model.width=0.25", "model.hidden=64", "model.out=32", "batch_size=64", "epochs=1"),
    seeds=(0, 1),
    domain_seeds=PAPER_SEEDS[:2],
    probe="linear-fast",
    corrupted=5,
    readout={"exact": True},
    search=Search(seeds=(100,)),
)
# 5000 training images, half of the small encoder, 6 epochs of batches of 128, 3 seeds
SMALL = Scale(
    name="small",
    images=("data=cifar10", "data.limit=5000"),
    domains=("data=pacs", "data.size=32", "epochs=8"),
    train=("model.width=0.5", "model.hidden=512", "batch_size=128", "epochs=6", "optimizer.lr=2e-3"),
    seeds=(0, 1, 2),
    domain_seeds=PAPER_SEEDS,
    probe="linear-fast",
    corrupted=105,
    others={"cifar100": ("data=cifar100", "data.limit=5000")},
    readout={"exact": True},
    noise=(0.0, 0.2, 0.4, 0.6),
    # the first search, with which the committed tables were made: three values of one option, one seed, one split
    splits=1,
    search=Search("search-1", seeds=(0,), eps=(0.2, 0.5, 0.1), momentum=(0.98, 0.996, 0.9), refined=False),
)
# the paper's own encoders, epochs and data, 5 seeds
PAPER = Scale(
    name="paper",
    images=("data=cifar10", "recipe=cifar"),
    # appendix:dgsetting pretrains on a fifth of the images
    domains=("data=pacs", "recipe=pacs", "data.size=224", "data.limit=1998"),
    train=(),
    seeds=(0, 1, 2, 3, 4),
    domain_seeds=PAPER_SEEDS,
    probe="linear",
    corrupted=None,
    others={
        "cifar100": ("data=cifar100", "recipe=cifar"),
        "svhn": ("data=svhn", "recipe=svhn"),
        "imagenet100": ("data=imagenet100", "recipe=imagenet100"),
    },
    noise=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
)
SCALES: Mapping[str, Scale] = {scale.name: scale for scale in (TINY, SMALL, PAPER)}


@dataclass(frozen=True)
class Job:
    """A training run and what is measured of it."""

    labels: Mapping[str, Any]
    words: tuple[str, ...]  # of `gcalign train`, seed included
    measures: tuple[str, ...]
    seed: int = 0


Chosen = Mapping[str, tuple[str, ...]]  # method -> the words its search chose
Draw = Callable[["pd.DataFrame", Path], list[Path]]  # records, folder -> the files it wrote


@dataclass(frozen=True)
class Computing:
    """Where numbers that are of no job are computed, and those that the result file has already."""

    scale: Scale
    runs: str
    known: Sequence[Record] = ()

    def has(self, seed: int, **labels: Any) -> bool:
        """Whether there is a record with this seed and these labels."""
        return any(r.seed == seed and r.labels | labels == r.labels for r in self.known)


@dataclass(frozen=True)
class Experiment:
    """Jobs, or numbers to compute, and a drawing of the records they leave; what it claims is judged by them.

    One without either is drawn from the library alone.
    """

    name: str
    draw: Draw
    jobs: Callable[[Scale, Chosen], list[Job]] | None = None
    compute: Callable[[Computing], Iterable[list[Record]]] | None = None  # what is of no job; filed as it comes
    searched: tuple[str, ...] = ()  # methods whose hyper-parameters its jobs take from the search
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields of a scale, by the scale's name
    measures: Mapping[str, Measure] = field(default_factory=dict)  # its own, beside those of the engine
    claims: Callable[[], Iterable[EmpiricalClaim]] = tuple
    place: float = 100  # in lists of experiments

    @property
    def does(self) -> str:
        """One line, for --help: the docstring of what makes its jobs or its numbers, else of its drawing."""
        text = " ".join(((self.jobs or self.compute or self.draw).__doc__ or "").split()).rstrip(".")
        return text if text[1:2].isupper() else text[:1].lower() + text[1:]  # CIFAR-10 stays as it is

    def at(self, scale: str, overrides: Sequence[str] = ()) -> Scale:
        """A scale as this experiment has it; `overrides` are words of `gcalign train` for every run."""
        own = dataclasses.replace(SCALES[one_of("scale", scale, SCALES)], **self.changes.get(scale, {}))
        return dataclasses.replace(
            own,
            images=overridden(own.images, overrides),
            domains=overridden(own.domains, overrides),
            others={data: overridden(words, overrides) for data, words in own.others.items()},
            variants={name: joined(words, overrides) for name, words in own.variants.items()},
        )


def joined(*groups: Iterable[str]) -> tuple[str, ...]:
    """The words of all groups; of several with one key the last."""
    return tuple({word.partition("=")[0]: word for group in groups for word in group}.values())


def value_of(words: Iterable[str], key: str) -> str | None:
    """The value of a word."""
    return next((word.partition("=")[2] for word in words if word.startswith(f"{key}=")), None)


def overridden(words: Sequence[str], overrides: Sequence[str]) -> tuple[str, ...]:
    """The words of a data set under those for every run; a table in the folder of data sets is looked for in theirs."""
    table, root = value_of(words, "data.root"), value_of(overrides, "data.root")
    if table is None or root is None:
        return joined(words, overrides)
    return joined(words, overrides, (f"data.root={Path(root) / table}",))


# --- grids of jobs: every method in every variant, with every seed --------------------------------------------------

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


def method_words(method: str) -> tuple[str, ...]:
    """The method as in the paper: `gca-uot` with a given λ has no bound on its mass, as all results here had."""
    return (f"method={method}", "method.relax=[0.2,0.2]") if method == "gca-uot" else (f"method={method}",)


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
        for before in [(method_words(method), scale.train, data, chosen[method])]
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


# --- where they are ------------------------------------------------------------------------------------------------


_OWN: dict[str, Experiment] = {}


@cache
def _experiments() -> dict[str, Experiment]:
    """Those of every module in FOLDERS that has EXPERIMENTS."""
    every = [experiment for module in _modules() for experiment in getattr(module, "EXPERIMENTS", ())]
    every.sort(key=lambda experiment: (experiment.place, experiment.name))
    names = [experiment.name for experiment in every]
    assert len(set(names)) == len(names), names
    return {experiment.name: experiment for experiment in every}


@cache
def _modules() -> list[Any]:
    packages = [importlib.import_module(folder) for folder in FOLDERS]
    names = [
        f"{package.__name__}.{info.name}" for package in packages for info in pkgutil.iter_modules(package.__path__)
    ]
    return [importlib.import_module(name) for name in names]


def names() -> tuple[str, ...]:
    return tuple(_experiments())


def named(name: str) -> Experiment:
    """The experiment of this name; `module:EXPERIMENT` is one of the user's own, which then is known by its name."""
    if ":" not in name:
        known = _experiments() | _OWN
        return known[one_of("experiment", name, known)]
    own = imported("experiment", name, "it must be an Experiment of a module that Python finds here")
    if not isinstance(own, Experiment):
        raise TypeError(f"experiment={name!r} is a {type(own).__name__}; it must be a gcalign.lab Experiment")
    if own.name in _experiments():
        raise ValueError(f"experiment={name!r} is called {own.name!r}, as one of gcalign's; give it another name")
    _OWN[own.name] = own
    return own


def every_claim() -> list[EmpiricalClaim]:
    """The claims of all experiments, and of modules that have claims alone, by the place of their family."""
    claims = [claim for experiment in _experiments().values() for claim in experiment.claims()]
    claims += [claim for module in _modules() for claim in getattr(module, "CLAIMS", ())]
    return sorted(claims, key=lambda claim: claim.family.place)


def own_measures() -> dict[str, Measure]:
    """What experiments measure themselves, by name."""
    return {name: measure for experiment in _experiments().values() for name, measure in experiment.measures.items()}
