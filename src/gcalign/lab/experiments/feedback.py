"""`table-feedback`: train on mismatched pairs, audit them, and train again with what the audit says."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from gcalign.auditing.calibration import separation
from gcalign.auditing.pairs import audit
from gcalign.auditing.result import Audit
from gcalign.lab.audit.cells import fixed, mismatch
from gcalign.lab.audit.crossfit import crossfit
from gcalign.lab.audit.emoji import Emoji, EmojiModel, crossfitted
from gcalign.lab.experiments.records import Record, read, write
from gcalign.lab.experiments.registry import Scale
from gcalign.lab.experiments.scales import joined
from gcalign.lab.experiments.sheets import Sheet, percent
from gcalign.lab.experiments.statistics import by_seed, difference, spread
from gcalign.lab.experiments.tables import delta
from gcalign.lab.paper import NAMES
from gcalign.lab.training.config import configured
from gcalign.lab.training.probe import probe
from gcalign.lab.training.train import train

NAME = "table-feedback"
METHODS = ("ince", "gca-ince")
NOISE, FOLDS, VIEWS = 0.3, 3, 4
HELD_OUT, RECALL = 5, 10  # every fifth family of emoji is for testing; R@10
ARMS = {
    "as it is": "all pairs alike",
    "weighted": "weights of the audit",
    "dropped": "without the pairs that the audit flags",
    "dropped by cosine": "without as many pairs of the smallest cosine",
    "dropped in truth": "without the mismatched pairs, which nobody knows",
    "clean": "no pair mismatched",
}


def table_feedback(scale: Scale) -> list[Record]:
    """Accuracy or recall of every arm. What is finished is filed beside the runs, and not done again."""
    filed = Path("runs") / scale.name / f"{NAME}.jsonl"
    found = read(filed) if filed.exists() else []
    words = dict(word.partition("=")[::2] for word in scale.images)
    table = Path(words.get("data.root", "")) / "emoji" / "pairs.parquet"
    ways = {"emoji": _emoji} if scale.name != "tiny" and table.is_file() else {}
    ways[words["data"]] = _images
    for data, measured in ways.items():
        for seed, method in itertools.product(scale.seeds, METHODS):
            cell = {"data": data, "method": method}
            if not any(r.seed == seed and r.labels | cell == r.labels for r in found):
                print(f"{NAME}: {data}, {method}, seed {seed}", file=sys.stderr, flush=True)
                found += [
                    Record(NAME, scale.name, "test", value, cell | {"arm": arm}, seed, about)
                    for arm, value, about in measured(scale, table, method, seed)
                ]
                write(filed, found)
    return found


Measured = list[tuple[str, float, dict[str, Any]]]  # arm, accuracy or recall, how it was got


def _images(scale: Scale, table: Path, method: str, seed: int) -> Measured:
    """Two views of images: runs of `gcalign train`, probed."""
    words = joined(
        (f"method={method}", *scale.images, *scale.train, f"seed={seed}", "logger=none", f"runs=runs/{scale.name}")
    )
    noisy = (*words, f"pairs.noise={NOISE}", "pairs.fixed=true")
    runs = {"as it is": train(configured(noisy), quiet=True)}
    base = runs["as it is"]
    fitted = crossfit(configured(noisy), base, folds=FOLDS, views=VIEWS)
    assert fitted.wrong is not None
    found = audit(fitted.a, fitted.b, folds=fitted.folds)
    for arm, weight in _weights(found, fitted.wrong).items():
        if int((weight > 0).sum()) < configured(noisy).batch_size:  # an audit of weak embeddings can flag most pairs
            print(f"{NAME}: {arm} leaves less than a batch", file=sys.stderr, flush=True)
            continue
        path = base.path / "audit" / f"{arm.replace(' ', '-')}.npy"
        np.save(path, weight.numpy(), allow_pickle=False)
        runs[arm] = train(configured((*noisy, f"pairs.weights={path}")), quiet=True)
    runs["clean"] = train(configured(words), quiet=True)
    about = _about(found, fitted.wrong) | {"folds": FOLDS, "measure": f"accuracy ({scale.probe})"}
    return [(arm, probe([f"run={run.path}", f"protocol={scale.probe}"]).accuracy, about) for arm, run in runs.items()]


def _emoji(scale: Scale, table: Path, method: str, seed: int) -> Measured:
    """Pictures and English names: two small networks; R@10, both ways, among emoji of other families."""
    every = Emoji.read(table, "en", 1_000_000, seed)
    test = every.family % HELD_OUT == 0
    clean, held = every.take(~test), every.take(test)
    partners, wrong = mismatch(fixed("", clean.names, clean.names, clean.family), "random", NOISE, seed)
    noisy = clean.paired(partners)
    a, b, folds = crossfitted(noisy, method, seed)
    found = audit(a, b, folds=folds)

    def value(pairs: Emoji, weight: Tensor | None = None) -> float:
        kept = torch.ones(len(pairs), dtype=torch.bool) if weight is None else weight > 0
        weight = None if weight is None else weight[kept]
        return _recall(*EmojiModel(pairs.take(kept), method, seed, weight).embed(held))

    about = _about(found, wrong) | {"folds": int(folds.max()) + 1, "measure": f"R@{RECALL} of {len(held)} held out"}
    values = {"as it is": value(noisy)}
    values |= {arm: value(noisy, weight) for arm, weight in _weights(found, wrong).items()}
    values["clean"] = value(clean)
    return [(arm, found, about) for arm, found in values.items()]


def _recall(a: Tensor, b: Tensor) -> float:
    """The share of items whose partner is among the `RECALL` most similar, mean of both directions."""
    s = normalize(a, dim=1) @ normalize(b, dim=1).T
    own = s.diagonal()
    shares = [((t > own[:, None]).sum(1) < RECALL).double().mean() for t in (s, s.T)]
    return float(sum(shares) / 2)


def _weights(found: Audit, wrong: Tensor) -> Mapping[str, Tensor]:
    """The weight of each pair in each arm but the first and the last."""
    by_cosine = found.similarity.argsort()[: int(found.flagged.sum())]
    return {
        "weighted": found.weights.float(),
        "dropped": (~found.flagged).float(),
        "dropped by cosine": torch.ones(len(found)).index_fill(0, by_cosine, 0.0),
        "dropped in truth": (~wrong).float(),
    }


def _about(found: Audit, wrong: Tensor) -> dict[str, Any]:
    flagged = int(found.flagged.sum())
    return {
        "auroc": separation(found.suspicion[wrong], found.suspicion[~wrong]),
        "cosine": separation(-found.similarity[wrong], -found.similarity[~wrong]),
        "share": found.share,
        "pairs": len(found),
        "flagged": flagged,
        "precision": float(wrong[found.flagged].double().mean()) if flagged else None,
    }


def draw_feedback(records: Sequence[Record], folder: Path) -> list[Path]:
    """Arms against data and methods, each with its paired difference to training as it is."""
    if not records:
        raise ValueError(f"{NAME} has no records to show; `gcalign reproduce {NAME} scale=small` makes some")
    cells = sorted({(r.labels["data"], r.labels["method"]) for r in records}, key=lambda c: (c[0], METHODS.index(c[1])))
    rows = []
    for arm, does in ARMS.items():
        row = [arm, does]
        for data, method in cells:
            about = {"data": data, "method": method}
            values = by_seed(records, "test", **about, arm=arm)
            if not values:
                row += ["–", "–"]
                continue
            gap = difference(values, by_seed(records, "test", **about, arm="as it is"))
            row += [percent(spread(values.values())), "–" if arm == "as it is" else delta(gap)]
        rows.append(row)
    header = ["training", "on"]
    notes = [
        f"Test value in % at scale {records[0].scale}, {NOISE:.0%} of the training pairs mismatched once, at random. Δ "
        "is the paired difference to training as it is, with its 95 % interval.",
    ]
    for data, method in cells:
        header += [f"{data}, {NAMES[method]}", f"Δ, {data}, {NAMES[method]}"]
        mine = [
            r for r in records if (r.labels["data"], r.labels["method"], r.labels["arm"]) == (data, method, "clean")
        ]
        means = {k: spread([r.about[k] for r in mine]).mean for k in ("auroc", "cosine", "share", "flagged")}
        notes.append(
            f"{data}, {NAMES[method]}: {mine[0].about['measure']}, {len(mine)} seed(s). The audit, cross-fitted in "
            f"{mine[0].about['folds']} folds: AUROC {means['auroc']:.3f} (cosine of the same embeddings "
            f"{means['cosine']:.3f}), expected share {means['share']:.3f}, {means['flagged']:,.0f} of "
            f"{mine[0].about['pairs']:,} pairs flagged."
        )
    return [*Sheet(NAME, header, rows, notes).write(folder)]
