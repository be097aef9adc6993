"""Appendix table tab:cifar10c: nine methods on CIFAR-10-C, with standard views and with each of three extreme ones."""

from __future__ import annotations

from collections.abc import Iterable

from gcalign.lab.experiments.engine.claims import EmpiricalClaim
from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, grid, views
from gcalign.lab.experiments.paper.columns import CIFAR10C, claims_best, comparison
from gcalign.lab.paper import METHODS


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """CIFAR-10-C: standard, erase, crop and brightness."""
    return grid(scale, chosen, ("cifar10c",), METHODS, views())


def claims() -> Iterable[EmpiricalClaim]:
    return [
        claims_best(
            ", CIFAR-10C",
            "tab:cifar10c",
            "… under all but large erase on CIFAR-10C",
            CIFAR10C,
            "tableA-cifar10c",
            "table1",
        )
    ]


EXPERIMENTS = (
    Experiment(
        "tableA-cifar10c",
        comparison("tableA-cifar10c", "tab:cifar10c", CIFAR10C),
        jobs,
        searched=METHODS,
        claims=claims,
        place=4,
    ),
)
