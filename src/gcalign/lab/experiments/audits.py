"""`table-audit`: how well each score finds mismatched pairs, on embeddings of several kinds; records, then a table."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from gcalign.auditing.pairs import SCORES, audit
from gcalign.lab.audit.cells import WAYS, Clean, fixed, gaussians, mismatch
from gcalign.lab.audit.crossfit import projected
from gcalign.lab.audit.emoji import emoji_images, emoji_names
from gcalign.lab.experiments.records import Record, read, write
from gcalign.lab.experiments.registry import Scale
from gcalign.lab.experiments.scales import joined
from gcalign.lab.experiments.sheets import Sheet, marked
from gcalign.lab.experiments.statistics import spread
from gcalign.lab.training.config import configured
from gcalign.lab.training.samples import images_of
from gcalign.lab.training.train import train

NAME = "table-audit"
SHARES = (0.05, 0.1, 0.3, 0.5)
PAIRS = {"tiny": 150, "small": 1500, "paper": 10_000}
RIVALS = tuple(score for score in SCORES if score != "plan")
LANGUAGES = (("en", "de"), ("es", "pt"))


def table_audit(scale: Scale) -> list[Record]:
    """AUROC of every score in every cell; the records also have average precision, threshold and share.

    Each cell is filed beside the runs when it is done, and not done again.
    """
    filed = Path("runs") / scale.name / f"{NAME}.jsonl"
    found = read(filed) if filed.exists() else []
    for seed in scale.seeds:
        for clean in _sets(scale, seed):
            print(f"{NAME}, seed {seed}: {clean.name}, {len(clean)} pairs", file=sys.stderr, flush=True)
            for kind, share in itertools.product(WAYS, SHARES):
                cell = {"data": clean.name, "wrong": kind, "share": share}
                if not any(r.seed == seed and r.labels | cell == r.labels for r in found):
                    found += _measured(scale, clean, kind, share, seed)
                    write(filed, found)
    return found


def _sets(scale: Scale, seed: int) -> Iterator[Clean]:
    """Embeddings of each kind, as far as their data is there."""
    n = PAIRS[scale.name]
    yield gaussians(n, seed)
    words = dict(word.partition("=")[::2] for word in scale.images)
    table = Path(words.get("data.root", "")) / "emoji" / "pairs.parquet"
    if scale.name != "tiny" and table.is_file():
        for first, second in LANGUAGES:
            yield emoji_names(table, first, second, n, seed)
        yield emoji_images(table, "en", n, seed)
    elif scale.name != "tiny":
        print(f"{table} is not there; {NAME} continues without emoji", file=sys.stderr, flush=True)
    yield _views(scale, scale.images, n, seed)
    if words["data"] != "scenes":
        yield _views(scale, ("data=scenes", "epochs=30"), n, seed)  # they are few


def _views(scale: Scale, images: Sequence[str], n: int, seed: int) -> Clean:
    """Two views of test images, by a model that was trained on the training images."""
    words = ("method=gca-ince", *scale.train, *images, f"seed={seed}", "logger=none", f"runs=runs/{scale.name}")
    config = configured(joined(words))
    run = train(config, quiet=True)
    test = images_of(dataclasses.replace(config.data, limit=None), "test")
    index = torch.randperm(len(test), generator=torch.Generator().manual_seed(seed))[:n]
    a, b = (projected(run, config, test, index, side, views=1) for side in (0, 1))
    labels = torch.zeros(len(index), dtype=torch.int64) if test.labels is None else test.labels[index]
    return fixed(f"{config.data.name}, two views of test images", a, b, labels)


def _measured(scale: Scale, clean: Clean, kind: str, share: float, seed: int) -> list[Record]:
    from sklearn.metrics import average_precision_score, roc_auc_score

    partners, wrong = mismatch(clean, kind, share, seed)
    if not bool(wrong.any()) or bool(wrong.all()):
        return []
    a, b, folds = clean.embed(partners)
    records = []
    for score in SCORES:
        found = audit(a, b, score=score, folds=folds, seed=seed)
        suspicion = found.suspicion.double().numpy()
        flagged = int(found.flagged.sum())
        about = {
            "pairs": len(clean),
            "mismatched": _rounded(wrong.double().mean()),
            "average_precision": _rounded(average_precision_score(wrong, suspicion)),
            "flagged": flagged,
            "precision": _rounded(wrong[found.flagged].double().mean()) if flagged else None,
            "recall": _rounded(found.flagged[wrong].double().mean()),
            "expected_precision": _rounded(found.precision) if flagged else None,
            "share": _rounded(found.share),
            "share_at_most": _rounded(found.share_at_most),
            "expected_auroc": None if math.isnan(found.auroc) else _rounded(found.auroc),
            "eps": _rounded(found.settings["eps"]) if "eps" in found.settings else None,
        }
        labels = {"data": clean.name, "wrong": kind, "share": share, "score": score}
        value = _rounded(roc_auc_score(wrong, suspicion))
        records.append(Record(NAME, scale.name, "auroc", value, labels, seed=seed, about=about))
    return records


def _rounded(value: float | Tensor) -> float:
    return float(f"{float(value):.5g}")


# --- the table ---------------------------------------------------------------------------------------------------

HEADINGS = {"plan": "plan", "csls": "CSLS", "softmax": "softmax", "cosine": "cosine", "neighbours": "neighbours"}
AUROC, PRECISION = "auroc", "average_precision"
SCORED = [*(f"AUROC {name}" for name in HEADINGS.values()), "AP plan", "AP best other"]  # headings of `_scored`
Key = tuple[str, str, float]


def draw_audit(records: Sequence[Record], folder: Path) -> list[Path]:
    """A row for each kind of embeddings, of mismatch, and share."""
    if not records:
        raise ValueError(f"{NAME} has no records to show; `gcalign reproduce {NAME} scale=small` makes some")
    cells: dict[Key, dict[str, list[Record]]] = {}
    for record in sorted(records, key=lambda r: r.seed or 0):
        labels = record.labels
        key = (labels["data"], labels["wrong"], labels["share"])
        cells.setdefault(key, {}).setdefault(labels["score"], []).append(record)
    order = {kind: k for k, kind in enumerate(WAYS)}
    keys = sorted(cells, key=lambda key: (key[0], order[key[1]], key[2]))
    rows = [_row(key, cells[key]) for key in keys]
    header = ["embeddings", "wrong partners", "share", *SCORED, "flagged", "precision", "expected", "share found"]
    notes = _notes(records, cells)
    whole = Sheet(NAME, [*header, "at most"], rows, notes)
    return [*whole.write(folder), *_brief(keys, cells, notes).write(folder)]


def _brief(keys: Sequence[Key], cells: Mapping[Key, Mapping[str, Sequence[Record]]], notes: Sequence[str]) -> Sheet:
    """A row for each kind of embeddings and of mismatch: means over the shares."""
    groups: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for key in keys:
        for score, records in cells[key].items():
            groups.setdefault(key[:2], {}).setdefault(score, []).extend(records)
    rows = []
    for (data, kind), by in groups.items():
        told = _told(by["plan"], precision=".2f", expected_precision=".2f")
        error = spread(abs(r.about["share"] - r.about["mismatched"]) for r in by["plan"]).mean
        rows.append([data, kind, *_scored(by, 3), *told, f"{error:.3f}"])
    header = ["embeddings", "wrong partners", *SCORED, "precision", "expected", "error of the share"]
    about = f"Means over the shares {', '.join(f'{share:g}' for share in SHARES)}."
    return Sheet(f"{NAME}-brief", header, rows, [about, *notes[:1]])


def _row(key: Key, by: Mapping[str, Sequence[Record]]) -> list[str]:
    shown = {"flagged": ".0f", "precision": ".2f", "expected_precision": ".2f", "share": ".3f", "share_at_most": ".3f"}
    return [*key[:2], *_told(by["plan"], mismatched=".3f"), *_scored(by, 4), *_told(by["plan"], **shown)]


def _scored(by: Mapping[str, Sequence[Record]], digits: int) -> list[str]:
    """AUROC of each score with so many digits, then average precision of the plan and of the best other score."""
    means = {score: round(_mean(by[score], AUROC), digits) for score in HEADINGS}
    plan, rival = _mean(by["plan"], PRECISION), max(_mean(by[score], PRECISION) for score in RIVALS)
    return [
        *(marked(f"{m:.{digits}f}", "best" if m == max(means.values()) else "") for m in means.values()),
        marked(f"{plan:.3f}", "best" if plan >= rival else ""),
        marked(f"{rival:.3f}", "best" if rival >= plan else ""),
    ]


def _told(records: Sequence[Record], **formats: str) -> list[str]:
    means = {name: _mean(records, name) for name in formats}
    return ["–" if math.isnan(means[name]) else f"{means[name]:{how}}" for name, how in formats.items()]


def _notes(records: Sequence[Record], cells: Mapping[Key, Mapping[str, Sequence[Record]]]) -> list[str]:
    seeds = sorted({r.seed for r in records if r.seed is not None})
    pairs = sorted({int(r.about["pairs"]) for r in records})
    wins = 0
    losses: list[str] = []
    for key, by in cells.items():
        plan = _mean(by["plan"], AUROC)
        name, best = max(((s, _mean(by[s], AUROC)) for s in RIVALS), key=lambda item: item[1])
        wins += all(_first(by["plan"], by[s]) for s in RIVALS)
        if round(plan, 4) < round(best, 4):
            losses.append(f"{key[0]}, {key[1]}, {key[2]:g} ({name} by {best - plan:.4f})")
    errors, inside = [], []
    for key, by in cells.items():
        low, truth, high = (_mean(by["plan"], name) for name in ("share", "mismatched", "share_at_most"))
        inside.append(low - 0.02 <= truth <= high + 0.02)
        errors += [abs(low - truth)] if key[1] == "random" else []
    worst = f" Where another score is better in the mean: {'; '.join(sorted(losses))}." if losses else ""
    return [
        f"Mean over {len(seeds)} seed(s) of {', '.join(f'{n:,}' for n in pairs)} pairs. AUROC of the suspicion for "
        "mismatched against true pairs; AP is average precision. The best of a row is in bold. Every score has the "
        "settings it has by default: the plan and the softmax choose ε without labels.",
        f"The plan has the largest AUROC with every seed in {wins} of {len(cells)} rows; "
        f"{len({data for data, _, _ in cells})} data sets, wrong partners by exchange only.{worst}",
        "Flagged, precision and expected precision are those of the plan at its suggested threshold. “Share found” "
        "assumes random wrong partners, “at most” near-duplicates of the right ones: for random ones the mean error is "
        f"{sum(errors) / max(1, len(errors)):.3f}; the true share is between the two, or within 0.02 of them, in "
        f"{sum(inside)} of {len(inside)} rows.",
    ]


def _first(plan: Sequence[Record], rival: Sequence[Record]) -> bool:
    """Whether the plan has the larger AUROC with every seed."""
    rivals = {r.seed: r.value or 0.0 for r in rival}
    return all((r.value or 0.0) > rivals[r.seed] for r in plan)


def _mean(records: Sequence[Record], name: str) -> float:
    """Of the value, or of what else is known by this name."""
    values = [r.value if name == AUROC else r.about.get(name) for r in records]
    known = [value for value in values if value is not None]
    return spread(known).mean if known else math.nan
