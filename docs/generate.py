"""Writes the pages that follow from the code: command-line.md, architecture.md and .svg, and studies/.

python docs/generate.py [FOLDER]
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import gcalign

HERE = Path(__file__).resolve().parent
PACKAGE = Path(gcalign.__file__).parent
NOTE = "<!-- Written by docs/generate.py; do not edit. -->\n\n"

# --- command line ---------------------------------------------------------------------------------------------


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]] | list[tuple[str, ...]]) -> str:
    lines = ["|" + "|".join(head) + "|", "|" + "---|" * len(head)]
    lines += ["|" + "|".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + "|" for row in rows]
    return "\n".join(lines)


def command_line() -> str:
    """Every command with its usage, from the parser itself; --help has the rest."""
    from gcalign.lab.arguments import parser

    parts = []
    for name, command in _commands(parser()):
        inner = [*_commands(command)]
        parts.append(_command(f"gcalign {name}", command))
        parts += [_command(f"gcalign {name} {below}", one) for below, one in inner]
    return f"""# Command line

{NOTE}`gcalign COMMAND --help` describes every argument, with defaults and an example. `train`, `probe`, `embed`, `export` and `reproduce` take `key=value` options in any order. With `train` and `reproduce`, `dry=true` shows what would run. Lists are written `method.relax=[2.0,2.0]`; `null` means no value.

* **Data sets** are looked for in the folder `data.root=`, then in the folder that the environment variable `GCALIGN_DATA` names, then on the Hugging Face hub.
* **Exit codes**: 0, the command ran, whatever its result; 1, some runs of `gcalign reproduce` failed; 2, an error, printed as one line with its remedy (`--debug` adds the traceback); 130, interrupted.
* **Output**: tables go to standard output, progress and warnings to standard error. `--json PATH` also writes the table as JSON; `--json -` prints only JSON.
* **Tab completion**: `gcalign completion bash >> ~/.bashrc`, or `zsh`, or `fish`.

{_table(("command", "what it does"), parts)}
"""


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _command(name: str, parser: argparse.ArgumentParser) -> tuple[str, str]:
    return f"`{name}`", (parser.description or "").rstrip(".")


# --- studies --------------------------------------------------------------------------------------------------

RESULTS = HERE / "results"
RULES = """Each study asks one question. Its plan was written before its runs; later changes are listed on its page, with the reason. Controls and exploratory studies have no page; the name in brackets is the NAME in `gcalign reproduce NAME scale=small`.

All studies are **small**: a small encoder or frozen ones, few images or texts, two CPU cores. Seeds change weights, batches and views, not the images, so intervals do not cover other images. "GCA-UOT" is the [Fenchel–Young form](../choose.md#gca-uot-and-the-published-code), not the loss of the published code. The plans are in telegraphic style: *compared* lists methods × conditions × seeds, *primary* is the question that was fixed in advance, and *cost* is computing time.

{table}

**Data.** Keep the data sets in one folder, and name it with `data.root=` or the variable `GCALIGN_DATA`. CIFAR-10 and PACS are otherwise read from the Hugging Face hub. The other files are not distributed, so you have to make them: `po/LANGUAGE.parquet` with `python -m gcalign.lab.experiments.po_pairs` (its docstring explains how); `emoji/pairs.parquet`, a table with the columns `emoji`, `image`, `name_en`, `name_de`, …, from the font Noto Color Emoji and the names in the PyPI package `emoji`; `icons/mdi.json`, the `icons.json` of the npm package `@iconify-json/mdi`.

Rules for all planned studies:

* **Pairing.** With the same seed, all methods start from the same weights and see the same batches and views. Differences are paired by seed.
* **Settings (E0).** Nine settings are tried for each method: five values of ε (0.025 to 0.5); then, with the best of them, four values of λ for GCA-UOT (0.05 to 2), of q for RINCE (0.05 to 0.9), or more values around the best ε for the others. Each is trained with seeds 100, 101 and 102, for fewer epochs than in the experiment, and judged by the linear accuracy on held-out training images. No test image is used.
* **Verdicts.** An answer is the mean paired difference with a 95 % interval, by Student's t. Comparisons that belong together (a *family*) are corrected by Holm's method. *Held*: after the correction, the difference is on the claimed side. *Failed*: it is on the other side. *Not shown*: neither. The printed intervals are simultaneous for a family (Bonferroni; until E1 to E5 were known, each was computed on its own). Holm's p decides, so a claim can be held although its interval includes zero."""


def studies() -> dict[str, str]:
    """A page for each planned study: its docstring, its tables and its verdicts; and the list of all."""
    import importlib
    import pkgutil

    from gcalign.lab.experiments import studies as package
    from gcalign.lab.experiments.engine import claims

    results = claims.Results.read(RESULTS, "small")
    judged, pages, rows = claims.judged(results), {}, []
    modules = [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]
    modules = [module for module in modules if hasattr(module, "EXPERIMENTS")]
    for module in sorted(modules, key=_place):
        title, _, text = (module.__doc__ or "").partition("\n\n")
        answer = " ".join(text.partition("\n\n")[0].split())
        if "## Plan" not in text:  # a control, or exploratory: its answer is all
            names = ", ".join(f"`{experiment.name}`" for experiment in module.EXPERIMENTS)
            rows.append((f"{title.rstrip('.')} ({names})", answer))
            continue
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        rows.append((f"[{title.rstrip('.')}]({name}.md)", re.split(r"(?<=\.) (?=[A-Z])", answer)[0]))
        pages[f"studies/{name}.md"] = _study(module, title, text, results, judged)
    rows.append(
        (
            "[The paper's tables and figures](paper-small.md)",
            "With 5000 images: what held, what failed, and what these runs cannot judge.",
        )
    )
    pages["studies/index.md"] = f"# Studies\n\n{NOTE}{RULES.format(table=_table(('question', 'answer'), rows))}\n"
    return pages


def _place(module: Any) -> tuple[int, str]:
    """E1 to E10 in their order, then the others."""
    number = re.match(r"E(\d+)", module.__doc__)
    return int(number[1]) if number else 99, module.__doc__


def _study(module: Any, title: str, text: str, results: Any, judged: list[Any]) -> str:
    from gcalign.lab.experiments.engine import ledger

    labels = {claim.label for experiment in module.EXPERIMENTS for claim in experiment.claims()}
    own = [j for j in judged if j.claim.label in labels and j.family.kind == "planned"]
    names = [experiment.name for experiment in module.EXPERIMENTS]
    also = f", and the same with {' and '.join(f'`{name}`' for name in names[1:])}" if names[1:] else ""
    text = re.sub(r"<!-- table ([\w-]+)(?: ([\w-]+))? -->", lambda match: _drawn(match[1], match[2], results), text)
    text = re.sub(
        r"<!-- means ([\w-]+) (.+?) -->", lambda match: _means(results.frames[match[1]], match[2].split()), text
    )
    verdicts = [
        f"### {family.title}\n\n{ledger.table([j for j in own if j.family == family and j.word != 'not measured'])}"
        for family in dict.fromkeys(j.family for j in own if j.word != "not measured")
    ]
    missing = dict.fromkeys(j.result for j in own if j.word == "not measured")
    verdicts += [f"Not measured yet: {', '.join(missing)}."] if missing else []
    parts = [
        f"# {title.rstrip('.')}",
        NOTE.strip(),
        _unwrapped(text),
        *(["## Verdicts", *verdicts] if verdicts else []),
    ]
    return (
        "\n\n".join([*parts, f"To reproduce it: `gcalign reproduce {names[0]} scale=small out=docs/results`{also}."])
        + "\n"
    )


def _unwrapped(text: str) -> str:
    """Paragraphs and items of a docstring on one line each."""
    return re.sub(r"(?<=[^\n|])\n +(?=\S)|(?<=[^\n|>])\n(?=[^\n|*# <])", " ", text.strip())


def _drawn(name: str, only: str | None, results: Any) -> str:
    """A table of a result file, perhaps only the rows with a word, and the first of its notes."""
    from gcalign.lab.experiments.engine import experiment

    of = max((frame for frame in results.frames if name.startswith(frame)), key=len)
    with tempfile.TemporaryDirectory() as folder:
        experiment.named(of).draw(results.frames[of], Path(folder))
        lines = (Path(folder) / f"{name}.md").read_text(encoding="utf-8").splitlines()
    rows = [re.sub(r"\s*\|\s*", "|", line) for line in lines if line.startswith("|")]
    rows = [row for k, row in enumerate(rows) if k < 2 or only is None or f"|{only}|" in row]
    note = next(line for line in lines[1:] if line and not line.startswith("|"))
    return "\n".join(rows) + f"\n\n{note}"


def _means(frame: Any, measures: list[str]) -> str:
    """Accuracy in %, mean over the seeds: methods × whatever else varies, for each measure."""
    from gcalign.lab.paper import NAMES

    varied = next(label for label in ("noise", "setting") if label in frame and frame[label].nunique() > 1)
    heads = {"knn": "kNN", "linear-fast": "linear"}
    wanted = frame[frame["measure"].isin(measures)]
    table = wanted.pivot_table(values="value", index="method", columns=["measure", varied])
    columns = [(measure, value) for measure in measures for value in sorted(wanted[varied].unique())]
    head = ("method", *(f"{heads[m]}, {f'{100 * v:.0f} %' if varied == 'noise' else v}" for m, v in columns))
    rows = [(NAMES[method], *(f"{100 * table.loc[method, c]:.1f}" for c in columns)) for method in table.index]
    return _table(head, rows)


# --- modules --------------------------------------------------------------------------------------------------

WHOLE = ("interop", "auditing", "aligning", "transport.operators")  # drawn as one box; so is each folder of the lab
SKIPPED = ("__main__", "__init__", "lab", "transport")
COLOURS = {"core": ("#E3F0F8", "#0072B2"), "transport": ("#FBEADF", "#D55E00"), "lab": ("#E0F3EC", "#009E73")}


def box_of(parts: list[str]) -> str:
    """The box in which a module is drawn: itself, or its folder."""
    parts = [part for part in parts if part != "__init__"] or ["__init__"]
    if parts[0] == "lab":
        return ".".join(parts[:2])
    return next((whole for whole in WHOLE if ".".join(parts).startswith(whole)), ".".join(parts))


def imports() -> dict[str, set[str]]:
    """Which box imports which, read from the source."""
    names = {".".join(p.relative_to(PACKAGE).with_suffix("").parts) for p in PACKAGE.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        here = box_of(list(path.relative_to(PACKAGE).with_suffix("").parts))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):  # what is imported for type checkers alone is no dependency
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                node.body = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gcalign":
                base = (node.module or "").removeprefix("gcalign").lstrip(".")
                for alias in node.names:
                    full = f"{base}.{alias.name}".lstrip(".")
                    other = full if full in names or f"{full}.__init__" in names else base
                    if other:
                        found.setdefault(here, set()).add(box_of(other.split(".")))
        found.setdefault(here, set())
    return {
        box: {o for o in others if o != box and o not in SKIPPED} for box, others in found.items() if box not in SKIPPED
    }


def is_lab(box: str) -> bool:
    return box.startswith("lab.") or box == "cli"


def heights(graph: dict[str, set[str]]) -> dict[str, int]:
    """How many boxes stand below each, one on another."""
    known: dict[str, int] = {}

    def height(box: str) -> int:
        if box not in known:
            known[box] = 1 + max(map(height, graph[box]), default=-1)
        return known[box]

    for box in sorted(graph):
        height(box)
    return known


def needed(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that do not follow from others."""

    def reach(box: str, seen: set[str]) -> set[str]:
        for other in graph.get(box, ()):
            if other not in seen:
                seen.add(other)
                reach(other, seen)
        return seen

    below = {box: reach(box, set()) for box in graph}
    return sorted(
        (a, b) for a in graph for b in graph[a] if not any(b in below[c] for c in graph[a] - {b} if c in below)
    )


def architecture_svg() -> str:
    """Boxes in rows, each above all that it imports; the lab above the library, without the arrows between them."""
    every = imports()
    graph = {box: {o for o in others if is_lab(o) == is_lab(box)} for box, others in every.items()}
    level, width, row, tall = heights(graph), 1080, 66, 30
    library = max(k for box, k in level.items() if not is_lab(box))
    level = {box: k + (library + 1 if is_lab(box) else 0) for box, k in level.items()}
    top = max(level.values())
    rows = {k: sorted(box for box in level if level[box] == k) for k in range(top + 1)}
    wide = {box: 8.1 * len(_short(box)) + 18 for box in level}
    place: dict[str, tuple[float, float]] = {}
    for k in range(top + 1):
        boxes = rows[k]

        def wanted(box: str) -> float:
            under = [place[o][0] for o in graph[box] if o in place]
            return sum(under) / len(under) if under else 0

        boxes.sort(key=lambda box: (wanted(box), box))
        gap = (width - sum(wide[b] for b in boxes)) / (len(boxes) + 1)
        x = gap
        for box in boxes:
            place[box] = (x + wide[box] / 2, 20 + (top - k) * row)
            x += wide[box] + gap
    lines = []
    for a, b in needed(graph):
        (x1, y1), (x2, y2) = place[a], place[b]
        y1, middle = y1 + tall, (y1 + tall + y2) / 2
        lines.append(f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"/>')
    marks = []
    for box, (x, y) in place.items():
        face, edge = COLOURS[
            "lab" if box.startswith("lab.") or box == "cli" else "transport" if box.startswith("transport") else "core"
        ]
        marks.append(
            f'<rect x="{x - wide[box] / 2:.0f}" y="{y:.0f}" width="{wide[box]:.0f}" height="{tall}" rx="5" fill="{face}" stroke="{edge}"/>'
            f'<text x="{x:.0f}" y="{y + 20:.0f}">{escape(_short(box))}</text>'
        )
    height, line = 20 + (top + 1) * row, 20 + (top - library) * row - 18
    said = "the lab imports the library, never vice versa"
    lines.append(f'<path d="M0 {line}H{width}" stroke="#009E73" stroke-dasharray="6 5"/>')
    marks.append(f'<text x="{width - 190}" y="{line + 17}" fill="#00694d" font-size="12">{said}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="Modules, each above those that it imports">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n<g fill="none" stroke="#8a8a90" stroke-width="1" stroke-opacity="0.75">\n'
        + "\n".join(lines)
        + '\n</g>\n<g font-family="DejaVu Sans Mono, monospace" font-size="13" text-anchor="middle">\n'
        + "\n".join(marks)
        + "\n</g>\n</svg>\n"
    )


def _short(box: str) -> str:
    return box.removeprefix("transport.").removeprefix("lab.") if box != "transport.operators" else "operators/"


def architecture() -> str:
    """The page of the picture."""
    return f"""# Modules

{NOTE}The library has one module per symbol of the paper (blue) and a small engine that solves and differentiates the objective (orange); the lab uses both for training, audits and experiments (green). Each box stands above everything that it imports; `tests/test_architecture.py` checks this.

![Modules of gcalign in rows, each above those that it imports](architecture.svg)

[Life of a call](life-of-a-call.md) follows one call through them.

## How a run goes through the lab

A run has *samples* with *sides*. Each side has a source, a preprocessing step and a tower (an encoder with its head). The views of an image are sides that share a tower; each column of a table has its own tower.

```text
key=value options ─ training/config ──▶ Config ── training/samples ──▶ Samples, each with its sides       data/sides
                                                                        │    images by name              data/sources ◀ stores ◀ tables
                                                                        │    columns of a table          data/table_sides ◀ tables
                                                                        ▼
          (seed, step) ─────────────── training/stream ──────────────▶ Batch: items of each side, what is known of each
                                                                        │    views, normalisation        data/views
                                                                        ▼
                                       training/module ── Towers ────▶ embeddings ── criterion (the library) ──▶ loss
                                                                        │    encoders, heads             models/
                                                                        ▼
          the run's folder ◀────────── training/callbacks: result lines, logs, then a checkpoint         training/runs, checkpoints, owner
                                                                        │
             gcalign.load ◀ training/load, encoder ◀────────────────────┤
             probe, embed, export ◀ training/probe, embed, export ◀ evaluation/                          accuracy, kNN, retrieval
             audit run= ◀ audit/crossfit: the same training, on the other folds
             reproduce, claims, report ◀ experiments/ ◀ results.jsonl of the runs
```

`train` in `training/train.py` does all of this in one function. The tests mirror the folders of the source: `lab/training/export.py` is tested in `tests/lab/training/test_export.py`.

## Which file would you open?

|you want to|open|
|---|---|
|add a relaxation of the marginals|`constraints.py`, or [one file of your own](add-your-own.md)|
|read images from another kind of file|`lab/data/stores.py`: a function that reads the records of each split, and its line in `STORES`; a new image format: `lab/pictures.py`|
|read a table in another format|`lab/data/table_sides.py`, `open_table`; a class beside `TextTable` in `lab/data/tables.py`|
|add an augmentation|`lab/data/views.py`: a function and a line in `POLICIES`|
|change how pairs are mismatched, ordered or put into batches|`lab/training/stream.py`|
|log another number in each step|`lab/training/module.py`, `_record`; it then appears in result files, loggers and reports|
|use another text encoder|`lab/models/encoders.py`, `side_encoder`; or `model.encoders=[small,module:function]` without a change|
|add an evaluation protocol|`lab/evaluation/protocols.py`: a function and a line in `PROTOCOLS`|
|export to another format|`lab/training/export.py`: a function and a line in `FORMATS`|
|add an experiment|one file in `lab/experiments/studies/`: [an example](add-your-own.md#an-experiment)|
|change how the audit scores a pair|`auditing/pairs.py`; its probabilities: `auditing/calibration.py`|
|change a size limit|`lab/limits.py`|
"""


PAGES = {
    "command-line.md": command_line,
    "architecture.md": architecture,
    "architecture.svg": architecture_svg,
}


def write(folder: Path) -> None:
    """Write all of them."""
    (folder / "studies").mkdir(exist_ok=True)
    for name, page in {**{name: made() for name, made in PAGES.items()}, **studies()}.items():
        (folder / name).write_text(page, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
