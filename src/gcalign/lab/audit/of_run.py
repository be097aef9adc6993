"""The audit of a run: its words, then its images or its pairs of columns, cross-fitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gcalign.errors import count
from gcalign.lab.audit.crossfit import CrossFitted, crossfit
from gcalign.lab.audit.crossfit_pairs import crossfit_pairs
from gcalign.lab.training.runs import Run, factory_of
from gcalign.lab.training.use import check_trusted, words

FOLDS, VIEWS = 5, 4


def crossfitted(overrides: Sequence[str], *, progress: bool = False) -> CrossFitted:
    """`run=… folds=5 views=4 data.root=…`: train on the other folds, embed each. Finished folds are not done again."""
    given = words(overrides, ("run", "encoder", "folds", "views", "data", "data.root"), ("run",))
    numbers = {}
    for key, default in (("folds", FOLDS), ("views", VIEWS)):
        text = given.get(key, str(default))
        if not text.isdecimal():
            raise ValueError(f"{key}={text!r} must be a whole number; {default} is the default")
        numbers[key] = count(key, int(text), f"{default} is the default", least=2 if key == "folds" else 1)
    run = Run.at(given["run"])
    config = run.config()
    if config.pairs.noise and not config.pairs.fixed and not config.data.paired:
        raise ValueError(
            f"{run.path} mismatches other pairs in each step (pairs.noise={config.pairs.noise:g}), so it has "
            "no pairs to audit; train it with pairs.fixed=true"
        )
    if given.get("data", config.data.name) != config.data.name:
        raise ValueError(
            f"data={given['data']} is not the data of {run.path}, which is {config.data.name}; leave it out"
        )
    check_trusted(run, config.data, given)
    if "data.root" in given:
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, root=given["data.root"]))
    # nothing of the run's own watching: a logger can be a name to be imported
    config = dataclasses.replace(config, logger="none", logger_args={}, wait=False)
    config.check()
    if config.data.paired:
        return crossfit_pairs(config, run, folds=numbers["folds"], encoder=given.get("encoder"), progress=progress)
    encoder = factory_of(config.model.encoder, given.get("encoder"), f"run={run.path}")
    return crossfit(config, run, **numbers, encoder=encoder, progress=progress)
