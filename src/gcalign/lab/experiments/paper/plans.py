"""Plans of trained encoders on test images, sorted by class: how they are measured, and read from records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gcalign.lab.experiments.engine.claims import Results
from gcalign.lab.experiments.engine.records import Record

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from gcalign.lab.data.images import Images
    from gcalign.lab.experiments.engine.measures import MeasuredRun

PER_CLASS = 10  # images of each class in a plan
FORWARD = 5  # iterations of the plans that are drawn, as in fig:diagnolline and fig:epsilon_study


def measured_plan(of: MeasuredRun, **options: Any) -> Record:
    """The plan of the run's method, or another's with the run's weights, after the paper's five iterations."""
    from gcalign.lab.data.sources import labels_of
    from gcalign.lab.training.config import criterion_of

    test = of.images("test")
    index = _by_class(test)
    z1, z2 = of.pairs(test, index)
    method = {**(options or of.config.method), "iterations": FORWARD}
    criterion = criterion_of(dataclasses.replace(of.config, method=method))
    plan = criterion.plan(z1, z2)
    log = plan.log
    share = (log.diagonal() - log.logsumexp(1)).exp().mean().item()
    about = {
        "log_plan": [[round(value, 3) for value in row] for row in log.tolist()],
        "classes": [test.classes[label] for label in labels_of(test, "a plan")[index].tolist()],
        "eps": float(plan.eps),
        "iterations": plan.iterations,
        "objective": repr(criterion),
        "split": "test",
        "diagonal": share,
        "entropy": plan.entropy.item(),
    }
    return Record(measure="plan", about=about)


def _by_class(test: Images) -> Tensor:
    """As many images of each class, class by class."""
    from gcalign.lab.data.sources import labels_of
    from gcalign.lab.data.splits import subset

    labels = labels_of(test, "a plan")
    index = subset(labels, PER_CLASS * len(labels.unique()), seed=0)
    return index[labels[index].argsort(stable=True)]


def recorded(records: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The records of plans, as dictionaries of their labels and what is known about them."""
    for record in records[records["measure"] == "plan"].to_dict("records"):
        if "log_plan" in record["about"]:
            yield record


def matrices(results: Results, experiment: str) -> list[tuple[dict[str, Any], Any]]:
    """The records of plans, and P of each as an array."""
    import numpy as np

    return [(record, np.exp(record["about"]["log_plan"])) for record in recorded(results.of(experiment))]
