"""`gcalign reproduce`: search, run, measure, write the result file, draw from it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gcalign.lab.experiments.engine import processes, records, search
from gcalign.lab.experiments.engine.experiment import Chosen, Computing, Experiment, Job, Scale, data_name, named
from gcalign.lab.experiments.engine.jobs import Archive, command, config_of
from gcalign.lab.experiments.engine.processes import called
from gcalign.lab.experiments.engine.records import Record
from gcalign.lab.training.typed import keys, option, read, typed
from gcalign.lab.words import path_of, printable, quoted


@dataclass(frozen=True)
class Words:
    """The words of this command; all others are words of `gcalign train`, for every run."""

    scale: Literal["tiny", "small", "paper"] = option("tiny", "how much is done")
    runs: str | None = option(None, "folder of the runs")
    out: str = option("results", "folder of the result files")
    jobs: int | None = option(None, "processes", least=1, remedy="leave it out for one per core or GPU")
    redraw: bool = option(False, "draw from the result file alone")
    partial: bool = option(False, "draw what is finished")
    dry: bool = option(False, "only show the commands")
    launcher: str | None = option(None, "of Hydra, for a cluster")


@dataclass(frozen=True)
class Reproduction:
    """What `gcalign reproduce` was asked for."""

    name: str  # of the experiment, as it was typed
    experiment: Experiment
    scale: Scale
    asked: Words
    hydra: tuple[str, ...] = ()  # words of the launcher

    @property
    def runs(self) -> str:
        return self.asked.runs or f"runs/{self.scale.name}"

    @property
    def folder(self) -> Path:
        return path_of(self.asked.out) / self.scale.name

    @property
    def file(self) -> Path:
        return self.folder / f"{self.experiment.name}.jsonl"

    def archive(self, name: str) -> Archive:
        """What there is of an experiment or of its search."""
        return Archive(name, self.folder / f"{name}.jsonl", self.scale, self.runs)


def parsed(name: str, overrides: Sequence[str]) -> Reproduction:
    """`key=value` words: this command's own, those of a launcher, and words of `gcalign train` for every run."""
    experiment, known = named(name), {key.name: key for key in keys(Words)}
    own: dict[str, Any] = {}
    words: list[str] = []
    hydra: list[str] = []
    for word in overrides:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} must be key=value; e.g. scale=small, jobs=2 or data.root=…")
        if key in ("method", "data", "seed"):
            raise ValueError(f"{word!r} is decided by the experiment; train such a run with `gcalign train {word}`")
        if key in known:
            own[key] = read(known[key], value)
        else:
            (hydra if key.startswith("hydra") else words).append(word)
    asked: Words = typed(Words, own)
    for key, value in own.items():
        known[key].check(value)
    if hydra and asked.launcher is None:
        raise ValueError(f"{hydra[0]!r} is an option of a launcher; say which with launcher=, or leave it out")
    return Reproduction(name, experiment, experiment.at(asked.scale, words), asked, tuple(hydra))


def reproduce(name: str, overrides: Sequence[str]) -> None:
    """Runs what is missing, then writes and draws. Raises SystemExit(1) if a job failed."""
    request = parsed(name, overrides)
    if request.asked.redraw:
        _draw(request)
        return
    if request.asked.dry:
        _show(request)
        return
    if request.asked.launcher:
        from gcalign.lab.experiments.engine.launch import check

        check(request.asked.launcher)
    if not request.asked.partial:
        _check_data(request)
        request.folder.mkdir(parents=True, exist_ok=True)  # better known before the work than after it
    chosen = _searched(request)
    jobs = _jobs(request, chosen)
    archive = request.archive(request.experiment.name)
    if not request.asked.partial:
        _run(request, jobs, archive, archive.computed(jobs))
    written = archive.save(jobs, _computed(request, jobs, archive))
    if request.experiment.compute and not written and not request.asked.partial:
        raise ValueError(
            f"{request.experiment.name} at scale={request.scale.name} found none of its data; say where they are with "
            "data.root=… or GCALIGN_DATA (docs/studies/index.md says how to make them), or try scale=tiny"
        )
    have = len(jobs) - len(archive.missing(jobs))
    print(f"results: {request.file} ({len(written)} records, {have} of {len(jobs)} runs)", flush=True)
    _draw(request)


def _computed(request: Reproduction, jobs: Sequence[Job], archive: Archive) -> list[Record]:
    """The numbers that are of no job, filed as they come, over those that the file has."""
    known = archive.computed(jobs)
    computed = {_place(record): record for record in known}
    if request.experiment.compute:
        for some in request.experiment.compute(Computing(request.scale, request.runs, known)):
            computed |= {_place(record): record for record in some}
            archive.save(jobs, [*computed.values()])
    return [*computed.values()]


def _place(record: Record) -> tuple[object, ...]:
    """What a number is of."""
    return record.measure, record.seed, *sorted(record.labels.items())


def _searched(request: Reproduction) -> Chosen:
    """What the search chose for every method; each stage follows from the one before it."""
    methods = request.experiment.searched
    if not methods:
        return {}
    archive = request.archive(request.scale.search.name)
    filed = records.read(archive.file) if archive.file.exists() else []
    others = [r for r in filed if r.labels["method"] not in methods]
    trials: list[Job] = []
    while len(trials) < len(further := search.jobs(request.scale, methods, archive.collect(trials))):
        trials = further
        missing = archive.missing(trials)
        if missing and request.asked.partial:
            raise ValueError(
                f"{len(missing)} of {len(trials)} runs of the search are not finished, and the others follow from it; "
                f"finish it with: {_again(request, f'runs={request.runs}')}"
            )
        _run(request, trials, archive, others)
        archive.save(trials, others)
    return search.chosen(archive.collect(trials), request.scale.search)


def _jobs(request: Reproduction, chosen: Chosen) -> list[Job]:
    return request.experiment.jobs(request.scale, chosen) if request.experiment.jobs else []


def _foreseen(request: Reproduction) -> tuple[list[Job], list[Job], bool]:
    """The jobs of the search as far as it is known, those of the experiment, and whether the search is over.

    Until then, those of the experiment have the first settings of the search.
    """
    scale, methods = request.scale, request.experiment.searched
    archive = request.archive(scale.search.name)
    trials = search.jobs(scale, methods)
    trials = search.jobs(scale, methods, archive.collect(trials))
    over = not archive.missing(trials)
    chosen = search.chosen(archive.collect(trials), scale.search) if over else search.first(methods, scale.search)
    return trials, _jobs(request, chosen), over


def _check_data(request: Reproduction) -> None:
    """That the data of every job can be read, before the first of them; and read once, if it must be downloaded."""
    trials, jobs, _ = _foreseen(request)
    groups = ((request.scale.search.name, trials), (request.experiment.name, jobs))
    unread = [job for name, jobs in groups for job in request.archive(name).missing(jobs)]
    for job in {data_name(job.words): job for job in unread}.values():
        _read(request, job)


def _read(request: Reproduction, job: Job) -> None:
    from gcalign.lab.experiments.engine.measures import loaded
    from gcalign.lab.training.samples import columns_of

    try:
        data = config_of(job, request.runs).data
        columns_of(data) if data.paired else loaded(data, "train")
    except ValueError as error:
        raise ValueError(
            f"{request.experiment.name} at scale={request.scale.name} needs data={data_name(job.words)}: {error}. "
            "Say where it is with data.root=… or GCALIGN_DATA"
        ) from error


def _run(request: Reproduction, jobs: Sequence[Job], archive: Archive, others: Sequence[Record] = ()) -> None:
    """Runs what is missing, here or on a cluster, and files each as it ends; says how to do alone what failed."""
    missing = archive.missing(jobs)
    if request.asked.launcher and missing:
        from gcalign.lab.experiments.engine.launch import launch

        where = {"launcher": request.asked.launcher, "title": archive.name}
        failures = launch(missing, request.scale, request.runs, options=request.hydra, **where)
    else:
        failures = processes.sweep(
            missing,
            request.scale,
            request.runs,
            workers=request.asked.jobs,
            title=archive.name,
            after=lambda job: archive.save(jobs, others),
        )
    for failure in failures:
        print(f"\nfailed: {called(failure.job)}: {printable(failure.message)}", file=sys.stderr)
        print(f"  try it alone: {command(failure.job, request.runs)}", file=sys.stderr)
    if failures:
        print(
            f"\n{len(failures)} of {len(jobs)} jobs failed; the same command retries them and skips what is done, "
            "partial=true draws what is finished",
            file=sys.stderr,
        )
        raise SystemExit(1)


def _draw(request: Reproduction) -> None:
    for path in request.experiment.draw(records.frame(records.read(request.file)), request.folder):
        print(f"drawn: {path}")
    print(f"to draw it again from the results alone: {_again(request, 'redraw=true')}", flush=True)


def _again(request: Reproduction, *more: str) -> str:
    words = (request.name, f"scale={request.scale.name}", f"out={path_of(request.asked.out)}", *more)
    return quoted("gcalign", "reproduce", *words)


def _show(request: Reproduction) -> None:
    """The commands, one to a line, and on standard error how many there are."""
    name = request.experiment.name
    trials, jobs, over = _foreseen(request)
    commands = dict.fromkeys(command(job, request.runs) for job in [*trials, *jobs])
    if not commands:
        print(f"{name}: no training runs, it is computed", file=sys.stderr)
        return
    print("\n".join(commands))
    parts = []
    for what, asked, file in (("the search", trials, request.scale.search.name), ("the experiment", jobs, name)):
        if asked:
            parts.append(f"{len(asked) - len(request.archive(file).missing(asked))} of {len(asked)} in {what}")
    caveat = "" if over else "; until the search is done, its first settings are shown"
    print(f"{name}: {len(commands)} different commands; finished: {', '.join(parts)}{caveat}", file=sys.stderr)
