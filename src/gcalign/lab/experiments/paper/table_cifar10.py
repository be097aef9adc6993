"""Appendix table tab:cifar10: nine methods on CIFAR-10, with standard views and with each of three extreme ones."""

from __future__ import annotations

from collections.abc import Iterable

from gcalign.lab.experiments.engine.claims import EmpiricalClaim
from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, grid, views
from gcalign.lab.experiments.paper.columns import CIFAR10, claims_best, comparison
from gcalign.lab.paper import METHODS


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """CIFAR-10: standard, erase, crop and brightness."""
    return grid(scale, chosen, (scale.probe, "knn"), METHODS, views())


def claims() -> Iterable[EmpiricalClaim]:
    return [
        claims_best(
            ", CIFAR-10", "tab:cifar10", "… under every condition on CIFAR-10", CIFAR10, "tableA-cifar10", "table1"
        )
    ]


EXPERIMENTS = (
    Experiment(
        "tableA-cifar10",
        comparison("tableA-cifar10", "tab:cifar10", CIFAR10),
        jobs,
        searched=METHODS,
        claims=claims,
        place=2,
    ),
)
