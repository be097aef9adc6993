"""Appendix table tab:cifar100: nine methods on CIFAR-100, with standard views and with each of three extreme ones."""

from __future__ import annotations

from collections.abc import Iterable

from gcalign.lab.experiments.engine.claims import EmpiricalClaim
from gcalign.lab.experiments.engine.experiment import Chosen, Experiment, Job, Scale, grid, views
from gcalign.lab.experiments.paper.columns import CIFAR100, claims_best, comparison
from gcalign.lab.paper import METHODS


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """CIFAR-100: standard, erase, crop and brightness."""
    return grid(scale, chosen, (scale.probe, "knn"), METHODS, views(), data=scale.others.get("cifar100", ()))


def claims() -> Iterable[EmpiricalClaim]:
    return [
        claims_best(
            ", CIFAR-100", "tab:cifar100", "… under every condition on CIFAR-100", CIFAR100, "tableA-cifar100", "table1"
        )
    ]


EXPERIMENTS = (
    Experiment(
        "tableA-cifar100",
        comparison("tableA-cifar100", "tab:cifar100", CIFAR100),
        jobs,
        searched=METHODS,
        claims=claims,
        place=3,
    ),
)
