"""`table-feedback`: train on mismatched pairs, audit them, and train again with what the audit says."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcalign.auditing.calibration import separation
from gcalign.auditing.pairs import audit
from gcalign.lab.audit.crossfit import crossfit
from gcalign.lab.experiments.paper import NAMES
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.registry import Scale
from gcalign.lab.experiments.scales import joined
from gcalign.lab.experiments.sheets import Cell, Sheet
from gcalign.lab.experiments.statistics import by_seed, difference, spread
from gcalign.lab.experiments.tables import delta
from gcalign.lab.training.config import configured
from gcalign.lab.training.runs import Run
from gcalign.lab.training.train import train
from gcalign.lab.training.use import probe

NAME = "table-feedback"
METHODS = ("ince", "gca-ince")
NOISE, FOLDS, VIEWS = 0.3, 3, 4
ARMS = {
    "as it is": "all pairs alike",
    "weighted": "weights of the audit",
    "dropped": "without the pairs that the audit flags",
    "dropped by cosine": "without as many pairs of the smallest cosine",
    "dropped in truth": "without the mismatched pairs, which nobody knows",
    "clean": "no pair mismatched",
}


def table_feedback(scale: Scale) -> list[Record]:
    """Accuracy of every arm; what is finished already is not trained again."""
    return [record for method in METHODS for seed in scale.seeds for record in _measured(scale, method, seed)]


def _measured(scale: Scale, method: str, seed: int) -> list[Record]:
    words = joined(
        (f"method={method}", *scale.images, *scale.train, f"seed={seed}", "logger=none", f"runs=runs/{scale.name}")
    )
    noisy = (*words, f"pairs.noise={NOISE}", "pairs.fixed=true")

    def trained(arm: str, chosen: Sequence[str]) -> Run:
        print(f"{NAME}, {method}, seed {seed}: {arm}", file=sys.stderr, flush=True)
        return train(configured(chosen), quiet=True)

    runs = {"as it is": trained("as it is", noisy)}
    base = runs["as it is"]
    fitted = crossfit(configured(noisy), base, folds=FOLDS, views=VIEWS, progress=False)
    found = audit(fitted.a, fitted.b, folds=fitted.folds)
    flagged = int(found.flagged.sum())
    by_cosine = (-found.similarity).argsort(descending=True)[:flagged]
    about = {
        "auroc": separation(found.suspicion[fitted.wrong], found.suspicion[~fitted.wrong]),
        "cosine": separation(-found.similarity[fitted.wrong], -found.similarity[~fitted.wrong]),
        "share": found.share,
        "flagged": flagged,
        "precision": float(fitted.wrong[found.flagged].double().mean()) if flagged else None,
        "folds": FOLDS,
        "views": VIEWS,
    }
    weights: Mapping[str, Tensor] = {
        "weighted": found.weights,
        "dropped": (~found.flagged).float(),
        "dropped by cosine": torch.ones(len(found)).index_fill(0, by_cosine, 0.0),
        "dropped in truth": (~fitted.wrong).float(),
    }
    for arm, weight in weights.items():
        path = base.path / "audit" / f"{arm.replace(' ', '-')}.npy"
        np.save(path, weight.numpy().astype(np.float32), allow_pickle=False)
        runs[arm] = trained(arm, (*noisy, f"pairs.weights={path}"))
    runs["clean"] = trained("clean", words)
    return [_record(scale, method, seed, arm, run, about) for arm, run in runs.items()]


def _record(scale: Scale, method: str, seed: int, arm: str, run: Run, about: dict[str, Any]) -> Record:
    result = probe([f"run={run.path}", f"protocol={scale.probe}"])
    labels = {"method": method, "arm": arm}
    more = about if arm == "as it is" else {}
    return Record(NAME, scale.name, "accuracy", result.accuracy, labels, seed, {"protocol": scale.probe, **more})


def draw_feedback(records: Sequence[Record], folder: Path) -> list[Path]:
    """Arms against methods, each with its paired difference to training as it is."""
    if not records:
        raise ValueError(f"{NAME} has no records to show; `gcalign reproduce {NAME} scale=small` makes some")
    methods = [m for m in METHODS if any(r.labels["method"] == m for r in records)]
    rows = []
    for arm, does in ARMS.items():
        row = [Cell(arm), Cell(does)]
        for m in methods:
            values = by_seed(records, "accuracy", method=m, arm=arm)
            found = spread(values.values())
            wide = "" if found.std is None else f" ± {100 * found.std:.2f}"
            gap = difference(values, by_seed(records, "accuracy", method=m, arm="as it is"))
            row += [Cell(f"{100 * found.mean:.2f}{wide}"), Cell("–") if arm == "as it is" else delta(gap)]
        rows.append(row)
    header = ["training", "on", *(title for m in methods for title in (NAMES[m], f"Δ, {NAMES[m]}"))]
    audits = [r.about for r in records if r.labels["arm"] == "as it is"]
    means = {k: spread([a[k] for a in audits]).mean for k in ("auroc", "cosine", "share", "flagged")}
    seeds = sorted({r.seed for r in records if r.seed is not None})
    notes = [
        f"Test accuracy in % ({records[0].about['protocol']}) at scale {records[0].scale}, {NOISE:.0%} of the training "
        f"pairs mismatched once, seeds {', '.join(map(str, seeds))}. Δ is paired by seed, with its 95 % interval.",
        f"The audit, cross-fitted in {FOLDS} folds: AUROC {means['auroc']:.3f} (cosine of the same embeddings "
        f"{means['cosine']:.3f}), expected share {means['share']:.3f}, {means['flagged']:,.0f} pairs flagged.",
    ]
    return [*Sheet(NAME, header, rows, notes).write(folder)]
