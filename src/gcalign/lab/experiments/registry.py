"""What an experiment is: jobs to run, or numbers to compute, and a drawing of the records they leave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcalign.errors import one_of
from gcalign.lab.experiments.records import Record


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
    does: str = ""  # in a sentence, for tables' captions
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # words of the other data sets, by name
    columns: tuple[str, ...] = ()  # those that table1 has beside `images`
    noise: tuple[float, ...] = (0.0, 0.3, 0.6)  # shares of mismatched pairs
    readout: Mapping[str, Any] = field(default_factory=dict)  # of the domain probes, over the paper's
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # words of settings compared, by name
    search: tuple[str, ...] = ()  # words of the search's runs, over `train`
    search_seeds: tuple[int, ...] = (100, 101, 102)  # no experiment is tested with them


@dataclass(frozen=True)
class Job:
    """A training run and what is measured of it."""

    labels: Mapping[str, Any]
    words: tuple[str, ...]  # of `gcalign train`, seed included
    measures: tuple[str, ...]
    seed: int = 0


Chosen = Mapping[str, tuple[str, ...]]  # method -> the words its search chose
Draw = Callable[[Sequence[Record], Path], list[Path]]  # records, folder -> the files it wrote


@dataclass(frozen=True)
class Experiment:
    name: str
    does: str  # one line, for --help
    label: str  # in the paper: tab:new_combine
    draw: Draw
    jobs: Callable[[Scale, Chosen], list[Job]] | None = None
    compute: Callable[[Scale], Iterable[Record]] | None = None  # what needs no training run
    searched: tuple[str, ...] = ()  # methods whose hyper-parameters its jobs take from the search
    search: str = "search"  # the name of that search, and of its result file
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # fields of a scale, by the scale's name

    def at(self, scale: Scale) -> Scale:
        """A scale as this experiment has it."""
        return dataclasses.replace(scale, **self.changes.get(scale.name, {}))


_REGISTRY: dict[str, Experiment] = {}


def register(experiment: Experiment) -> Experiment:
    """Make an experiment known to `gcalign reproduce`."""
    if experiment.name in _REGISTRY:
        raise ValueError(f"experiment {experiment.name!r} is registered twice; give one another name")
    _REGISTRY[experiment.name] = experiment
    return experiment


def names() -> tuple[str, ...]:
    return tuple(_REGISTRY)


def named(name: str) -> Experiment:
    return _REGISTRY[one_of("experiment", name, _REGISTRY)]
