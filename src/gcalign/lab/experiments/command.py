"""`gcalign reproduce`: search, run, measure, write the result file, draw from it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gcalign.errors import count, one_of
from gcalign.lab.experiments import records, search, suite, sweep
from gcalign.lab.experiments.jobs import data_name
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.registry import Chosen, Experiment, Job, Scale
from gcalign.lab.experiments.scales import scaled
from gcalign.lab.experiments.watch import called

OWN = ("scale", "runs", "out", "jobs", "redraw", "partial", "dry", "launcher")


@dataclass(frozen=True)
class Request:
    """What `gcalign reproduce` was asked for."""

    experiment: Experiment
    scale: Scale
    runs: str
    out: Path
    jobs: int | None = None
    redraw: bool = False
    partial: bool = False
    dry: bool = False
    launcher: str | None = None
    hydra: tuple[str, ...] = ()  # words of the launcher

    @property
    def folder(self) -> Path:
        return self.out / self.scale.name

    @property
    def file(self) -> Path:
        return self.folder / f"{self.experiment.name}.jsonl"


def parsed(name: str, overrides: Sequence[str]) -> Request:
    """`key=value` words: this command's own, and words of `gcalign train` for every run."""
    experiment = suite.named(name)
    own: dict[str, str] = {}
    words, options = [], []
    for word in overrides:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} must be key=value; e.g. scale=small, jobs=2 or data.root=…")
        if key in ("method", "data", "seed"):
            raise ValueError(f"{word!r} is decided by the experiment; train such a run with `gcalign train {word}`")
        if key in OWN:
            own[key] = value
        elif key.startswith("hydra"):
            options.append(word)
        else:
            words.append(word)
    scale = scaled(own.get("scale", "tiny"), words)
    return Request(
        experiment=experiment,
        scale=scale,
        runs=own.get("runs", f"runs/{scale.name}"),
        out=Path(own.get("out", "results")),
        jobs=_number(own["jobs"]) if "jobs" in own else None,
        redraw=_truth(own, "redraw"),
        partial=_truth(own, "partial"),
        dry=_truth(own, "dry"),
        launcher=own.get("launcher"),
        hydra=tuple(options),
    )


def _number(text: str) -> int:
    if not text.isdigit():
        raise ValueError(f"jobs={text!r} must be a whole number of processes; leave it out for one per core or GPU")
    return count("jobs", int(text), "leave it out for one per core or GPU")


def _truth(own: dict[str, str], key: str) -> bool:
    return one_of(key, own.get(key, "false").lower(), ("true", "false")) == "true"


def reproduce(name: str, overrides: Sequence[str]) -> None:
    """Runs what is missing, then writes and draws. Raises SystemExit(1) if a job failed."""
    request = parsed(name, overrides)
    if request.redraw:
        _draw(request, records.read(request.file))
        return
    if request.dry:
        _show(request)
        return
    if request.launcher:
        from gcalign.lab.experiments.launch import check

        check(request.launcher)
    trials = search.jobs(request.scale, request.experiment.searched)
    if not request.partial:
        _check_data(request, [*trials, *_jobs(request, search.first(request.experiment.searched))])
        _run(request, trials, "search")
    jobs = _jobs(request, _recorded(request, trials))
    if not request.partial:
        _run(request, jobs, name)
    have = [job for job in jobs if sweep.finished(job, request.scale, request.runs)]
    found = [r for job in have for r in sweep.records_of(name, job, request.scale, request.runs)]
    if request.experiment.compute:
        found += request.experiment.compute(request.scale)
    records.write(request.file, found)
    print(f"results: {request.file} ({len(found)} records, {len(have)} of {len(jobs)} runs)", flush=True)
    _draw(request, records.read(request.file))


def _jobs(request: Request, chosen: Chosen) -> list[Job]:
    return request.experiment.jobs(request.scale, chosen) if request.experiment.jobs else []


def _check_data(request: Request, jobs: Sequence[Job]) -> None:
    """That the data of every job can be read, before the first of them; and read once, if it must be downloaded."""
    for data in dict.fromkeys(data_name(job.words) for job in jobs):
        unfinished = (
            job for job in jobs if data_name(job.words) == data and not sweep.finished(job, request.scale, request.runs)
        )
        job = next(unfinished, None)
        if job:
            _read(request, job)


def _read(request: Request, job: Job) -> None:
    from gcalign.lab.experiments.subject import loaded

    try:
        loaded(sweep.config_of(job, request.runs).data, "train")
    except ValueError as error:
        raise ValueError(
            f"{request.experiment.name} at scale={request.scale.name} needs data={data_name(job.words)}: {error}. "
            "Say where it is with data.root=…"
        ) from error


def _run(request: Request, jobs: Sequence[Job], title: str) -> None:
    """Runs jobs here or on a cluster; if some fail, says how to do each alone and stops with code 1."""
    if request.launcher:
        from gcalign.lab.experiments.launch import launch

        where = {"launcher": request.launcher, "title": title}
        failures = launch(jobs, request.scale, request.runs, options=request.hydra, **where)
    else:
        failures = sweep.sweep(jobs, request.scale, request.runs, workers=request.jobs, title=title)
    for failure in failures:
        print(f"\nfailed: {called(failure.job)}: {failure.said}", file=sys.stderr)
        print(f"  try it alone: {sweep.command(failure.job, request.runs)}", file=sys.stderr)
    if failures:
        print(
            f"\n{len(failures)} of {len(jobs)} jobs failed; the same command does them again and skips what is done, "
            "partial=true draws what is there",
            file=sys.stderr,
        )
        raise SystemExit(1)


def _recorded(request: Request, trials: Sequence[Job]) -> Chosen:
    """The choice of every method, written beside the results."""
    if not trials:
        return {}
    missing = [job for job in trials if not sweep.finished(job, request.scale, request.runs)]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(trials)} runs of the search are not finished, and the others follow from it; "
            f"finish it with: gcalign reproduce {_again(request)} runs={request.runs}"
        )
    found = _trials(request, trials)
    file = request.folder / "search.jsonl"
    methods = {r.labels["method"] for r in found}
    others = [r for r in records.read(file) if r.labels["method"] not in methods] if file.exists() else []
    records.write(file, [*others, *found])
    return search.chosen(found)


def _trials(request: Request, trials: Sequence[Job]) -> list[Record]:
    return [r for job in trials for r in sweep.records_of("search", job, request.scale, request.runs)]


def _draw(request: Request, found: Sequence[Record]) -> None:
    for path in request.experiment.draw(found, request.folder):
        print(f"drawn: {path}")
    print(f"again from the results alone: gcalign reproduce {_again(request)} redraw=true", flush=True)


def _again(request: Request) -> str:
    return f"{request.experiment.name} scale={request.scale.name} out={request.out}"


def _show(request: Request) -> None:
    """The commands, one to a line, and on standard error how many there are."""
    scale, name = request.scale, request.experiment.name
    trials = search.jobs(scale, request.experiment.searched)
    over = all(sweep.finished(job, scale, request.runs) for job in trials)
    chosen = search.chosen(_trials(request, trials)) if over else search.first(request.experiment.searched)
    jobs = _jobs(request, chosen)
    commands = dict.fromkeys(sweep.command(job, request.runs) for job in [*trials, *jobs])
    if not commands:
        print(f"{name}: no training runs, it is computed", file=sys.stderr)
        return
    print("\n".join(commands))
    parts = []
    for what, asked in (("the search", trials), ("the experiment", jobs)):
        done = sum(sweep.finished(job, scale, request.runs) for job in asked)
        parts += [f"{done} of {len(asked)} in {what}"] if asked else []
    said = f"{name}: {len(commands)} different commands; finished: {', '.join(parts)}"
    caveat = "" if over else "; the experiment's words are the search's first until it is done"
    print(said + caveat, file=sys.stderr)
