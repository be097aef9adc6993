"""`gcalign report`: the runs of a folder and the results drawn from such runs, as one page."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gcalign import methods
from gcalign.errors import count, one_of
from gcalign.lab import files
from gcalign.lab.data.catalogue import OF_USERS
from gcalign.lab.experiments.engine import experiment, records
from gcalign.lab.experiments.engine.claims import Judgement, Results, judged
from gcalign.lab.experiments.engine.records import Record
from gcalign.lab.experiments.engine.statistics import estimates
from gcalign.lab.pages import markdown, pack
from gcalign.lab.pages.page import Grid, Json
from gcalign.lab.report.accuracies import bars, protocol_names
from gcalign.lab.report.page import DrawnResult, Study, render
from gcalign.lab.report.retrieval import pair_results
from gcalign.lab.report.runs import Entry, Showcase, choose, names, one_way
from gcalign.lab.training.config import Config, configured
from gcalign.lab.training.runs import Run
from gcalign.lab.words import path_of, quoted

MOST = 1024  # images: plans of so many rows are still solved while a slider moves
ROWS = 400  # of a figure's numbers


def report(
    folder: str,
    output: str,
    *,
    results: str | None = None,
    shown: int = 9,
    images: int = 256,
    encoders: Sequence[str] = (),
    roots: Sequence[str] = (),
) -> Path:
    """Write the page and return where it is.

    Of runs that others made, `encoders` of the user's own are imported and data within `roots` is read; nothing else.
    """
    path = files.writable("-o", output, (".html",))
    count("--runs-shown", shown, "9 is one of each method of the paper", least=0)
    if not 2 <= count("--images", images, "256 is usual") <= MOST:
        raise ValueError(f"--images={images} must be between 2 and {MOST}; 256 is usual")
    runs, notes = _readable(path_of(folder))
    if not runs:
        said = f" that can be read ({notes[0]})" if notes else ""
        raise ValueError(f"{folder} has no runs{said}; make one with: gcalign train method=gca-uot data=scenes")
    chosen = choose(runs, shown)
    gallery = Showcase(images, encoders, [path_of(root) for root in roots])
    drawn = drawn_results(path_of(results), notes) if results else []
    drawn += pair_results(chosen, names(chosen))
    interactive = [gallery.show(entry, name) for entry, name in zip(chosen, names(chosen), strict=True)]
    words = ["gcalign", "report", folder, "-o", path.name, *(["--results", results] if results else [])]
    words += ["--runs-shown", str(shown), "--images", str(images)]
    words += [word for name in encoders for word in ("--encoder", name)]
    words += [word for root in roots for word in ("--data-root", root)]
    # in key=value words, as `gcalign probe` takes them; here they are options
    options = {"add encoder=": "add --encoder ", "data.root=": "--data-root "}
    remedies = [re.sub("|".join(options), lambda found: options[found[0]], note) for note in gallery.notes]
    probed = [line for entry in chosen[:1] for line in probe_commands(entry)]
    study = Study(
        title="gcalign report",
        lead="Contrastive learning as distribution alignment: what was run, what was measured, and the plans of the "
        "encoders. Everything is in this file; nothing is loaded from the network.",
        runs=_table(runs, path_of(folder)),
        facts=_facts(runs),
        notes=notes + remedies,
        results=drawn,
        samples=gallery.samples,
        pairings=gallery.pairings,
        shown=interactive,
        planes=_planes(runs, path_of(results) if results else None),
        bars=bars(runs),
        seen=gallery.seen,
        claims=_claims(path_of(results), notes) if results else [],
        commands={
            "This page": [quoted(*words)],
            "The runs shown above": [train_command(entry.config) for entry in chosen],
            **({"Accuracies of a run": probed} if probed else {}),
        },
    )
    files.write(path, render(study))
    return path


def _readable(folder: Path) -> tuple[list[Entry], list[str]]:
    """Runs in the order of their methods, and what is wrong with the others."""
    entries, notes = [], []
    for place in sorted(folder.rglob("config.json")):
        run = Run(place.parent)
        try:
            entry = Entry(run, run.config(), run.results())
            one_of("method", entry.method, methods.names())
            one_way(entry.config)  # its options are a method's
            entries.append(entry)
        except (ValueError, TypeError, OSError) as error:
            notes.append(f"Left out: {run.path}: {error}")
    return sorted(entries, key=lambda e: (methods.names().index(e.method), e.config.seed, str(e.run.path))), notes


def probe_commands(entry: Entry) -> list[str]:
    """The words of `gcalign probe` with a protocol that fits the run; none if its images may have no labels."""
    data, model = entry.config.data, entry.config.model
    measured = [r["protocol"] for r in entry.results if r["kind"] == "probe"]
    if not (data.paired or measured) and (data.name in OF_USERS or "/" in data.name):
        return []
    usual = "retrieval" if data.paired else "linear-fast"
    protocol = usual if usual in measured or not measured else measured[0]
    own = model.encoders or model.encoder
    words = [f"encoder={own}"] if ":" in own else []
    return [quoted("gcalign", "probe", f"run={entry.run.path}", f"protocol={protocol}", *words)]


def train_command(config: Config) -> str:
    """The words of `gcalign train` that make this run again."""
    name, data = config.method["name"], config.data.name
    usual = _flat(configured([f"method={name}"]).as_dict())
    own = _flat({**config.identity, "runs": config.runs, "name": config.name})
    named = ("method.name", "data.name")
    words = [f"{key}={_word(value)}" for key, value in own.items() if key not in named and usual.get(key) != value]
    return quoted("gcalign", "train", f"method={name}", f"data={data}", *words)


def _flat(content: dict[str, Any], before: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in content.items():
        out |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return out


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":")).replace("Infinity", "inf")


def _facts(runs: Sequence[Entry]) -> dict[str, str]:
    configs = [entry.config for entry in runs]
    return {
        "runs": str(len(runs)),
        "finished": str(sum(entry.run.done for entry in runs)),
        "methods": str(len({c.method["name"] for c in configs})),
        "seeds": str(len({c.seed for c in configs})),
        "data": ", ".join(sorted({c.data.name for c in configs})),
    }


def _table(runs: Sequence[Entry], folder: Path) -> Grid:
    rows: list[dict[str, str]] = []
    called = protocol_names(runs)
    for entry in runs:
        run, config, results = entry.run, entry.config, entry.results
        steps = [r["step"] for r in results if r["kind"] == "train"]
        probes = {called(r): f"{100 * r['accuracy']:.1f}" for r in results if r["kind"] == "probe"}
        rows.append(
            {
                "method": entry.method,
                "ε": f"{config.method.get('eps', '–')}",
                "data": config.data.name,
                "views": config.view_name,
                "noise": f"{config.pairs.noise:g}",
                "seed": str(config.seed),
                "epochs": str(config.epochs),
                "state": "done" if run.done else f"step {steps[-1] if steps else 0}",
                **probes,
                "objective": repr(one_way(config)),
                "folder": str(run.path.relative_to(folder)),
            }
        )
    head = list(dict.fromkeys(name for row in rows for name in row))
    head = [h for h in head if h not in ("folder", "objective")] + ["folder", "objective"]
    return Grid(head, [[row.get(name, "–") for name in head] for row in rows])


def drawn_results(folder: Path, notes: list[str]) -> list[DrawnResult]:
    """Every result of a folder that can be read, in the order of the experiments; the others are named in `notes`."""
    if not folder.is_dir():
        raise ValueError(f"--results {folder} must be a folder of results; `gcalign reproduce table1` makes one")
    stems = sorted(path.stem for path in folder.iterdir() if path.suffix in (".md", ".png", ".jsonl"))
    owners = {stem: _owner(stem) for stem in stems}
    order = [*experiment.names(), *(stem for stem in stems if owners[stem] == stem)]
    found = []
    for name in dict.fromkeys(order):
        if name in owners.values():
            try:
                found.append(_result(folder, name))
            except (ValueError, OSError) as error:
                notes.append(f"Left out: the results of {name}: {error}")
    return found


def _claims(folder: Path, notes: list[str]) -> list[Judgement]:
    """Every claim, judged by the result files of a scale."""
    if folder.resolve().name not in experiment.SCALES:
        return []
    try:
        return judged(Results.read(folder.resolve().parent, folder.resolve().name))
    except (ValueError, OSError) as error:
        notes.append(f"Left out: the claims of {folder}: {error}")
        return []


def _owner(stem: str) -> str:
    """The experiment a file belongs to: the longest name that it begins with, or its own."""
    fitting = [name for name in experiment.names() if stem == name or stem.startswith(f"{name}-")]
    return max(fitting, key=len, default=stem)


def _result(folder: Path, name: str) -> DrawnResult:
    does = experiment.named(name).does if name in experiment.names() else ""
    table, lines = (folder / f"{name}{suffix}" for suffix in (".md", ".jsonl"))
    pictures = [path for path in sorted(folder.glob("*.png"), key=lambda p: p.stem) if _owner(path.stem) == name]
    found = records.read(lines) if lines.is_file() else []
    scale = found[0].scale if found else folder.name
    numbers = None if table.is_file() else _numbers(found)
    told = f"{does}. The numbers follow in a table." if numbers or table.is_file() else f"{does}."
    text = files.read(table).decode() if table.is_file() else ""
    _, _, untitled = text.partition("\n") if text.startswith("#") else ("", "", text)  # the page has the heading
    return DrawnResult(
        name=name,
        does=does,
        command=quoted("gcalign", "reproduce", name, f"scale={scale}"),
        html=markdown.html(untitled) if table.is_file() else None,
        figures={f"{p.stem}: {told}": pack.figure(files.read(p, "IMAGE_BYTES")) for p in pictures},
        numbers=numbers,
    )


def _numbers(found: Sequence[Record]) -> Grid | None:
    """Means over seeds, with their spread: what a figure shows, in words."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    labels = list(dict.fromkeys(key for r in found for key in r.labels))
    for r in found:
        if r.value is not None:
            groups.setdefault((*(r.labels.get(key, "–") for key in labels), r.measure), []).append(r.value)
    rows = []
    for key, values in sorted(groups.items(), key=lambda group: [(str(type(x)), x) for x in group[0]])[:ROWS]:
        spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
        rows.append([*map(str, key), f"{statistics.fmean(values):.4g}{spread}", str(len(values))])
    return Grid([*labels, "measure", "mean", "n"], rows) if rows else None


def _planes(runs: Sequence[Entry], results: Path | None) -> dict[str, list[Json]]:
    """Where each run ended, and where the experiment put each method."""
    planes: dict[str, list[Json]] = {}

    def add(plane: str, name: str, method: str, setting: str, alignment: float, uniformity: float) -> None:
        point = {"name": name, "method": method, "setting": setting}
        planes.setdefault(plane, []).append(point | {"alignment": alignment, "uniformity": uniformity})

    for entry in runs:
        config = entry.config
        logged = [r for r in entry.results if r["kind"] == "train" and {"alignment", "uniformity"} <= r.keys()]
        if entry.run.done and logged:
            setting = f"{config.data.name} {config.view_name}, noise {config.pairs.noise:g}"
            name = f"{entry.method}, {setting}, seed {config.seed}"
            last = logged[-1]["alignment"], logged[-1]["uniformity"]
            add("the last training batch of each run", name, entry.method, setting, *last)
    lines = results / "fig-align-uniform.jsonl" if results else None
    if lines is None or not lines.is_file():
        return planes
    try:
        frame = records.frame(records.read(lines))
        labels = ("on", "method", "setting")
        places = [estimates(records.by_seed(frame, m, *labels)) for m in ("alignment", "uniformity")]
    except ValueError:  # it is named among the results
        return planes
    for on, method, setting in (key for key in places[0] if key in places[1]):
        means = [by[on, method, setting].mean for by in places]
        add(f"{on} test images", f"{method}, {setting}", method, setting, *means)
    return planes
