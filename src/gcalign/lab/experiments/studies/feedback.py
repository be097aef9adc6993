"""Does an audit help training?

It depends on the data: without the flagged pairs, R@10 on emoji and their names rose by 2.9 [0.8, 5.1] points, and
accuracy on CIFAR-10 fell by 0.9 [0.3, 1.6]. Not planned; with an earlier version of the audit.

30 % of the training pairs are exchanged once, at random. The audit is cross-fitted: each fold of the pairs is embedded
by a model that never saw them. Arms: all pairs alike; weights of the audit; without the pairs that it flags; without as
many pairs of the smallest cosine; without the wrong pairs, which nobody knows; no pair wrong. Images are runs
of `gcalign train`, probed; emoji and their names are two small networks, by R@10 among other families.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab.experiments.engine.experiment import (
    Chosen,
    Computing,
    Experiment,
    Job,
    Scale,
    data_name,
    joined,
    value_of,
)
from gcalign.lab.experiments.engine.records import Record, by_seed, check_any, having
from gcalign.lab.experiments.engine.statistics import contrast, estimates
from gcalign.lab.experiments.engine.tables import NOTHING, Sheet, gap, percent
from gcalign.lab.paper import NAMES

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from gcalign.auditing.result import Audit
    from gcalign.lab.audit.emoji import Emoji
    from gcalign.lab.experiments.engine.measures import MeasuredRun
    from gcalign.lab.training.runs import Run

NAME = "table-feedback"
METHODS = ("ince", "gca-ince")
NOISE, FOLDS, VIEWS = 0.3, 3, 4
HELD_OUT, RECALL = 5, 10  # every fifth family of emoji is for testing; R@10
EMOJI = "emoji/pairs.parquet"  # in the folder of data sets
ARMS = {
    "as it is": "all pairs alike",
    "weighted": "weights of the audit",
    "dropped": "without the pairs that the audit flags",
    "dropped by cosine": "without as many pairs of the smallest cosine",
    "dropped in truth": "without the wrong pairs, which nobody knows",
    "clean": "no pair wrong",
}


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """Train on wrong pairs, audit, weight or drop them, train again (ours)."""
    noisy = (f"pairs.noise={NOISE}", "pairs.fixed=true")
    return [
        Job(
            {"data": data_name(scale.images), "method": method},
            joined((f"method={method}",), scale.images, scale.train, (f"seed={seed}",), noisy),
            ("feedback",),
            seed,
        )
        for seed in scale.seeds
        for method in METHODS
    ]


# --- what is measured ----------------------------------------------------------------------------------------------


def feedback(of: MeasuredRun) -> list[Record]:
    """The accuracy of every arm; `of` is the first, and the others are trained here, beside it."""
    import numpy as np

    from gcalign.auditing.door import audit
    from gcalign.lab.audit.crossfit import crossfit
    from gcalign.lab.training.probe import probe
    from gcalign.lab.training.train import train
    from gcalign.lab.training.weights import digest

    config = of.config
    runs: dict[str, Run] = {"as it is": of.run}
    fitted = crossfit(config, of.run, folds=FOLDS, views=VIEWS)
    assert fitted.wrong is not None
    result = audit(fitted.a, fitted.b, folds=fitted.folds)
    for arm, weight in _weights(result, fitted.wrong).items():
        if int((weight > 0).sum()) < config.batch_size:  # an audit of weak embeddings can flag most pairs
            print(f"{NAME}: {arm} leaves less than a batch", file=sys.stderr, flush=True)
            continue
        path = of.run.path / "audit" / f"{arm.replace(' ', '-')}.npy"
        np.save(path, weight.numpy(), allow_pickle=False)
        weighted = dataclasses.replace(config.pairs, weights=str(path), digest=digest(str(path)))
        runs[arm] = train(dataclasses.replace(config, pairs=weighted), quiet=True)
    clean = dataclasses.replace(config.pairs, noise=0.0, fixed=False)
    runs["clean"] = train(dataclasses.replace(config, pairs=clean), quiet=True)
    about = _about(result, fitted.wrong) | {"folds": FOLDS, "measure": f"accuracy ({of.scale.probe})"}
    probes = {arm: probe([f"run={run.path}", f"protocol={of.scale.probe}"]) for arm, run in runs.items()}
    return [
        Record(measure="test", value=result.accuracy, labels={"arm": arm}, about=about)
        for arm, result in probes.items()
    ]


def compute(of: Computing) -> Iterator[list[Record]]:
    """Pictures and English names of emoji, if their table is there; what is finished is not done again."""
    from gcalign.lab.data.catalogue import table_in

    table = None if of.scale.name == "tiny" else table_in(value_of(of.scale.images, "data.root"), EMOJI)
    for seed, method in itertools.product(of.scale.seeds, METHODS):
        cell = {"data": "emoji", "method": method}
        if table is not None and not of.has(seed, **cell):
            print(f"{NAME}: emoji, {method}, seed {seed}", file=sys.stderr, flush=True)
            values, about = _emoji(table, method, seed)
            yield [
                Record(NAME, of.scale.name, "test", value, cell | {"arm": arm}, seed, about)
                for arm, value in values.items()
            ]


def _emoji(table: Path, method: str, seed: int) -> tuple[dict[str, float], dict[str, Any]]:
    """R@10, both ways, among emoji of other families, of every arm; and how it was got."""
    import torch

    from gcalign.auditing.door import audit
    from gcalign.lab.audit.cells import fixed, spoil
    from gcalign.lab.audit.emoji import Emoji, EmojiModel, crossfitted

    every = Emoji.read(table, "en", 1_000_000, seed)
    test = every.family % HELD_OUT == 0
    clean, held = every.take(~test), every.take(test)
    partners, wrong = spoil(fixed("", clean.names, clean.names, clean.family), "random", NOISE, seed)
    noisy = clean.paired(partners)
    a, b, folds = crossfitted(noisy, method, seed)
    result = audit(a, b, folds=folds)

    def value(pairs: Emoji, weight: Tensor | None = None) -> float:
        kept = torch.ones(len(pairs), dtype=torch.bool) if weight is None else weight > 0
        weight = None if weight is None else weight[kept]
        return _recall(*EmojiModel(pairs.take(kept), method, seed, weight).embed(held))

    about = _about(result, wrong) | {"folds": int(folds.max()) + 1, "measure": f"R@{RECALL} of {len(held)} held out"}
    values = {"as it is": value(noisy)}
    values |= {arm: value(noisy, weight) for arm, weight in _weights(result, wrong).items()}
    return values | {"clean": value(clean)}, about


def _recall(a: Tensor, b: Tensor) -> float:
    """The share of items whose partner is among the `RECALL` most similar, mean of both directions."""
    from torch.nn.functional import normalize

    s = normalize(a, dim=1) @ normalize(b, dim=1).T
    own = s.diagonal()
    shares = [((t > own[:, None]).sum(1) < RECALL).double().mean() for t in (s, s.T)]
    return float(sum(shares) / 2)


def _weights(result: Audit, wrong: Tensor) -> Mapping[str, Tensor]:
    """The weight of each pair in each arm but the first and the last."""
    import torch

    by_cosine = result.similarity.argsort()[: int(result.flagged.sum())]
    return {
        "weighted": result.weights.float(),
        "dropped": (~result.flagged).float(),
        "dropped by cosine": torch.ones(len(result)).index_fill(0, by_cosine, 0.0),
        "dropped in truth": (~wrong).float(),
    }


def _about(result: Audit, wrong: Tensor) -> dict[str, Any]:
    from gcalign.auditing.calibration import separation

    flagged = int(result.flagged.sum())
    return {
        "auroc": separation(result.suspicion[wrong], result.suspicion[~wrong]),
        "cosine": separation(-result.similarity[wrong], -result.similarity[~wrong]),
        "share": result.summary()["share"],
        "pairs": len(result),
        "flagged": flagged,
        "precision": float(wrong[result.flagged].double().mean()) if flagged else None,
    }


# --- the table -----------------------------------------------------------------------------------------------------


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Arms against data and methods, each with its paired difference to training as it is."""
    check_any(records, NAME, "test values by arm")
    table = by_seed(records, "test", "data", "method", "arm")
    means = estimates(table)
    cells = sorted({(data, method) for data, method, _ in table.index}, key=lambda c: (c[0], METHODS.index(c[1])))
    rows = []
    for arm, does in ARMS.items():
        cols = [arm, does]
        for cell in cells:
            gaps = contrast(table, {(*cell, arm): 1, (*cell, "as it is"): -1})
            cols += [percent(means.get((*cell, arm))), NOTHING if arm == "as it is" else gap(gaps)]
        rows.append(cols)
    header = ["training", "on"]
    notes = [
        f"Test value in % at scale {records['scale'].iloc[0]}, {NOISE:.0%} of the training pairs exchanged once, at "
        "random. Δ is the paired difference to training as it is, with its 95 % interval.",
    ]
    for data, method in cells:
        header += [f"{data}, {NAMES[method]}", f"Δ, {data}, {NAMES[method]}"]
        mine = [*having(records, data=data, method=method, arm="clean")["about"]]
        mean = {
            k: statistics.fmean([x for about in mine if (x := about[k]) is not None] or [math.nan])  # it could not tell
            for k in ("auroc", "cosine", "share", "flagged")
        }
        notes.append(
            f"{data}, {NAMES[method]}: {mine[0]['measure']}, {len(mine)} seed(s). The audit, cross-fitted in "
            f"{mine[0]['folds']} folds: AUROC {mean['auroc']:.3f} (cosine of the same embeddings "
            f"{mean['cosine']:.3f}), expected share {mean['share']:.3f}, {mean['flagged']:,.0f} of "
            f"{mine[0]['pairs']:,} pairs flagged."
        )
    return [*Sheet(NAME, header, rows, notes).write(folder)]


EXPERIMENTS = (Experiment(NAME, draw, jobs, compute=compute, measures={"feedback": feedback}, place=24),)
