"""Appendix tables tab:cifar10, tab:cifar100 and tab:cifar10c: nine methods, standard views and each of three others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, grid, views
from gcalign.lab.experiments.paper.columns import CIFAR10, CIFAR10C, CIFAR100, Column, claims_best, comparison
from gcalign.lab.paper import METHODS


def cifar10(scale: Scale, chosen: Chosen) -> list[Job]:
    """CIFAR-10: standard, erase, crop and brightness."""
    return grid(scale, chosen, (scale.probe, "knn"), METHODS, views())


def cifar100(scale: Scale, chosen: Chosen) -> list[Job]:
    """CIFAR-100: standard, erase, crop and brightness."""
    return grid(scale, chosen, (scale.probe, "knn"), METHODS, views(), data=scale.others.get("cifar100", ()))


def cifar10c(scale: Scale, chosen: Chosen) -> list[Job]:
    """CIFAR-10-C: standard, erase, crop and brightness."""
    return grid(scale, chosen, ("cifar10c",), METHODS, views())


Jobs = Callable[[Scale, Chosen], list[Job]]


def _table(name: str, jobs: Jobs, columns: Sequence[Column], data: str, says: str, place: int) -> Experiment:
    label = name.replace("tableA-", "tab:")
    claim = claims_best(f", {data}", label, f"… under {says} on {data}", columns, name, "table1")
    draw = comparison(name, label, columns)
    return Experiment(name, draw, jobs, searched=METHODS, claims=lambda: [claim], place=place)


EXPERIMENTS = (
    _table("tableA-cifar10", cifar10, CIFAR10, "CIFAR-10", "every condition", 2),
    _table("tableA-cifar100", cifar100, CIFAR100, "CIFAR-100", "every condition", 3),
    _table("tableA-cifar10c", cifar10c, CIFAR10C, "CIFAR-10C", "all but large erase", 4),
)
