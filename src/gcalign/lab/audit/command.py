"""`gcalign audit`: reads both sides, or cross-fits a run; prints the summary, writes ranking, page and weights."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gcalign.auditing.calibration import separation
from gcalign.auditing.door import audit as audited
from gcalign.auditing.result import Audit
from gcalign.errors import count
from gcalign.lab import files
from gcalign.lab.audit import inputs
from gcalign.lab.audit.inputs import AuditedPairs
from gcalign.lab.audit.outputs import TABLES, checked, rows, write_table
from gcalign.lab.audit.tables import FORMATS, TableColumns, write_suggestions
from gcalign.lab.commands import output
from gcalign.lab.terminal import console, fitting
from gcalign.lab.words import path_of, printable

WARNING = (
    "The embeddings must not come from a model trained on these very pairs: it has learnt the wrong pairs "
    "too. Use another model, or audit the run itself with run=…, which trains on the other pairs of each fold."
)
SHOWN = 8  # pairs that are printed
HEADINGS = {
    "pair": "pair",
    "suspicion": "suspicion",
    "probability": "probability",
    "similarity": "similarity",
    "other": "best other",
    "other_similarity": "its similarity",
}


def audit(args: argparse.Namespace) -> None:
    """Audit what was named. Everything is read and checked before anything is written."""
    given, columns = args.overrides, None
    ranking = checked("-o", args.output, TABLES)
    page, weights = checked("--html", args.html, (".html",)), checked("--feedback", args.feedback, (".npy",))
    outputs = {
        name: getattr(args, name.strip("-")) for name in ("--html", "--feedback", "--clean", "--suggest", "--json")
    }
    beside = (args.ids, args.show_a, args.show_b, args.folds)
    files.check_apart({"-o": args.output, **outputs}, [*given, *(name for name in beside if name is not None)])
    count("--worst", args.worst, "pairs on the page")
    shown = sys.stderr.isatty()
    if any("=" in word and not path_of(word.rpartition(":")[0] or word).exists() for word in given):
        subject = _of_run(args, shown)
    elif len(given) == 3:
        path, first, second = given
        columns = TableColumns(path, first, second, args.ids)
        subject = columns.pairs()
    else:
        subject = _of_files(args)
        print(f"note: {WARNING}", file=sys.stderr)
    clean = checked("--clean", args.clean, FORMATS if columns is None else (columns.path.suffix,))
    suggest = checked("--suggest", args.suggest, (".csv", ".jsonl"))
    if columns is None and (clean or suggest):
        raise ValueError("--clean and --suggest need a table; call gcalign audit TABLE COLUMN COLUMN")
    options = {name: getattr(args, name) for name in ("score", "eps", "batch", "passes", "seed", "fit")}
    try:
        result = audited(subject.a, subject.b, folds=subject.folds, progress=shown, **options)
    except (ValueError, TypeError) as error:
        raise ValueError(_named(str(error), given)) from error
    text = "" if page is None else _page(result, subject, args.worst)  # made before the first file is written
    if ranking is not None:
        write_table(ranking, result, subject.names, {} if columns is None else columns.texts())
    if page is not None:
        files.write(page, text)
    if weights is not None:
        files.write_npy(weights, result.weights.float().numpy())
    if columns is not None and clean is not None:
        columns.write_clean(clean, result)
    if columns is not None and suggest is not None:
        write_suggestions(suggest, columns.suggestions(result))
    wrong = subject.wrong
    known = None if wrong is None or not bool(wrong.any()) else _known(result, wrong)
    written = [str(path) for path in (ranking, page, weights, clean, suggest) if path is not None]

    def content() -> dict[str, Any]:
        worst = rows(result, subject.names, args.worst)
        return {"summary": result.summary(), "known": known, "worst": worst, "written": written}

    output(content, args.json, lambda: _show(result, subject, known, written))


def _show(result: Audit, subject: AuditedPairs, known: dict[str, float | None] | None, written: list[str]) -> None:
    """Summary, the worst pairs, how many known mismatches were found, and the files."""
    from rich.table import Table
    from rich.text import Text

    summary, _, _ = repr(result).partition("\n    pair")
    table, to = Table(), console(120)
    texts = [items for items in (subject.first, subject.second) if items is not None and isinstance(items[0], str)]
    print(summary)
    if len(texts) == 2:
        first, second = texts
        for k, heading in enumerate(("pair", "probability", *subject.sides, "fits better")):
            table.add_column(heading, justify="right" if k < 2 else "left")
        for row, k in zip(rows(result, subject.names, SHOWN), result.ranking[:SHOWN].tolist(), strict=True):
            better = second[int(result.other[k])] if result.other_similarity[k] > result.similarity[k] else ""
            cells = (str(row["pair"]), f"{row['probability']:.2f}", first[k], second[k], better)
            table.add_row(*(Text(_short(printable(cell))) for cell in cells))
    else:
        for heading in HEADINGS.values():
            table.add_column(heading, justify="right")
        for row in rows(result, subject.names, SHOWN):
            values = (row[name] for name in HEADINGS)
            table.add_row(*(Text(f"{x:.3f}" if isinstance(x, float) else printable(x)) for x in values))
    to.print(fitting(table, to))
    if known is not None:
        share, auroc, precision, recall = known.values()
        precise = "–" if precision is None else f"{precision:.2f}"
        print(f"known mismatches: {share:.1%}; AUROC {auroc:.3f}")
        print(f"at the threshold: precision {precise}, recall {recall:.2f}")
    for path in written:
        print(f"written: {path}")


def _short(text: str, most: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def _of_files(args: argparse.Namespace) -> AuditedPairs:
    given = args.overrides
    if len(given) != 2:
        raise ValueError(
            f"{len(given)} inputs were given; an audit takes a table with two columns, pairs.csv english romanian; two "
            "files of embeddings, a.npy b.npy; or run=runs/…"
        )
    a, b = map(inputs.embeddings, given)
    n = len(a)
    if n != len(b):
        raise ValueError(
            f"{given[0]} has {n} rows and {given[1]} has {len(b)}; row i of both must belong to the same pair: give "
            "files of the same length"
        )
    return AuditedPairs(
        title=f"Audit of {Path(given[0]).name} and {Path(given[1]).name}",
        a=a,
        b=b,
        note=WARNING,
        folds=None if args.folds is None else torch.tensor(inputs.vector(args.folds, n)),
        names=None if args.ids is None else inputs.ids(args.ids, n),
        first=None if args.show_a is None else inputs.items(args.show_a, n),
        second=None if args.show_b is None else inputs.items(args.show_b, n),
    )


def _named(message: str, inputs: Sequence[str]) -> str:
    """What is wrong with a side, by the name of its file."""
    for side, name in zip("ab", inputs, strict=False):
        if message.startswith((f"{side}[", f"{side} of dtype")):
            return f"{name}{message[1:]}"
    return message


def _of_run(args: argparse.Namespace, shown: bool) -> AuditedPairs:
    from gcalign.lab.audit.crossfit import crossfitted

    for name in ("ids", "show_a", "show_b"):
        if getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} is for files of embeddings; a run brings its own")
    words = args.overrides if args.folds is None else [*args.overrides, f"folds={args.folds}"]
    return crossfitted(words, progress=shown)


def _known(result: Audit, wrong: torch.Tensor) -> dict[str, float | None]:
    """How well mismatches that were made on purpose were found."""
    flagged = wrong[result.flagged]
    return {
        "share": float(wrong.double().mean()),
        "auroc": float(separation(result.suspicion[wrong], result.suspicion[~wrong])) if not bool(wrong.all()) else 0.5,
        "precision": float(flagged.double().mean()) if len(flagged) else None,
        "recall": float(result.flagged[wrong].double().mean()),
    }


def _page(result: Audit, subject: AuditedPairs, worst: int) -> str:
    from gcalign.lab.audit.page import rendered

    return rendered(
        result,
        subject.title,
        names=subject.names,
        first=subject.first,
        second=subject.second,
        worst=worst,
        commands=["gcalign " + shlex.join(sys.argv[1:])],
        note=subject.note,
        sides=subject.sides,
    )
