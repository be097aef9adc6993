"""Jobs and their results: where a job's run is, whether it is finished, how it is done; a result file that grows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab import files
from gcalign.lab.experiments.engine import records
from gcalign.lab.experiments.engine.experiment import DOMAINS, Job, Scale
from gcalign.lab.experiments.engine.records import Record
from gcalign.lab.provenance import commit
from gcalign.lab.words import quoted

if TYPE_CHECKING:
    from gcalign.lab.training.config import Config
    from gcalign.lab.training.runs import Run


def command(job: Job, runs: str) -> str:
    """What trains a job's run by hand."""
    return quoted("gcalign", "train", *job.words, "logger=none", f"runs={runs}")


def config_of(job: Job, runs: str) -> Config:
    """Of a job's words."""
    from gcalign.lab.training.config import configured

    return configured((*job.words, f"seed={job.seed}", "logger=none", f"runs={runs}"))


def run_of(job: Job, runs: str) -> Run:
    """Where a job's run is. Naming it takes milliseconds, and a sweep asks for all jobs whenever one has ended."""
    return _named(job.words, job.seed, runs)


@functools.lru_cache(maxsize=2**16)
def _named(words: tuple[str, ...], seed: int, runs: str) -> Run:
    from gcalign.lab.training.runs import Run

    return Run.of(config_of(Job({}, words, (), seed), runs))


def key(name: str, scale: Scale) -> str:
    """Under which a measurement is kept: its name and what of the scale it depends on."""
    reads: dict[str, Any] = {"cifar10c": scale.corrupted}
    if scale.splits > 1:
        reads |= dict.fromkeys(("linear-fast", "validation"), f"{scale.splits} splits")
    if name.startswith(DOMAINS):
        reads[name] = dict(scale.readout)
    return f"{name} {reads[name]}" if name in reads else name


def keys(job: Job, scale: Scale) -> list[str]:
    return [key(name, scale) for name in job.measures]


def kept(run: Run) -> dict[str, list[Record]]:
    """What has been measured of a run already."""
    lines = {line["key"]: line["findings"] for line in run.results() if line["kind"] == "measure"}
    return {key: [Record(**content) for content in contents] for key, contents in lines.items()}


def finished(job: Job, scale: Scale, runs: str) -> bool:
    """Trained, and everything measured."""
    run = run_of(job, runs)
    return run.done and set(keys(job, scale)) <= kept(run).keys()


def do(job: Job, scale: Scale, runs: str) -> bool:
    """Train and measure; False if another process is at it."""
    from gcalign.lab.experiments.engine.measures import MeasuredRun, loaded, measure_named
    from gcalign.lab.training.owner import BusyError, owned
    from gcalign.lab.training.train import train

    config = config_of(job, runs)
    run = run_of(job, runs)
    run.path.mkdir(parents=True, exist_ok=True)
    try:
        with owned(run.path):
            if not finished(job, scale, runs):
                if not run.done:
                    images = None if config.data.paired else loaded(config.data, "train")
                    train(config, images=images, quiet=True)
                subject, have = MeasuredRun(run, scale, config), kept(run)
                for name in job.measures:
                    if key(name, scale) not in have:
                        line = {"kind": "measure", "key": key(name, scale)}
                        made = [_finding(record) for record in measure_named(name)(subject)]
                        files.append_json_lines(run.results_file, [line | {"findings": made}])
    except BusyError:
        return False
    return True


def _finding(r: Record) -> dict[str, Any]:
    """A record as a run's own results have it: without what its job knows."""
    return {"measure": r.measure, "value": r.value, "labels": r.labels, "about": {**r.about, "commit": commit()}}


def records_of(experiment: str, job: Job, scale: Scale, runs: str) -> list[Record]:
    """The measurements of a finished job as lines of a result file."""
    run = run_of(job, runs)
    have = kept(run)
    return [
        dataclasses.replace(
            record,
            experiment=experiment,
            scale=scale.name,
            labels={**job.labels, **record.labels},
            seed=job.seed,
            about={**record.about, "key": key},
            run=run.path.name,
            words=job.words,
        )
        for key in keys(job, scale)
        for record in have[key]
    ]


class Archive:
    """The records of one experiment's jobs: from their runs or, where those are gone, from its result file.

    What the file has is not done again, not even on a machine that has none of the runs.
    """

    def __init__(self, name: str, file: Path, scale: Scale, runs: str) -> None:
        self.name, self.file, self.scale, self.runs = name, file, scale, runs
        self._filed: dict[frozenset[str], list[Record]] = {}  # those of no run have no words, or are of times
        for record in records.read(file) if file.exists() else []:
            words = _identity(record.words) if record.run is not None else frozenset()
            self._filed.setdefault(words, []).append(record)
        self._read: dict[tuple[str, ...], list[Record]] = {}

    def of(self, job: Job) -> list[Record]:
        """The records of a job; none where it is not finished."""
        key = (*job.words, *map(str, job.labels.items()))
        if key not in self._read:
            if mine := self._from_file(job):
                return mine
            if not finished(job, self.scale, self.runs):
                return []
            self._read[key] = records_of(self.name, job, self.scale, self.runs)
        return self._read[key]

    def _from_file(self, job: Job) -> list[Record]:
        # older files have no run in the records of some jobs
        every = self._filed.get(_identity(job.words)) or self._filed.get(frozenset(), [])
        mine = [r for r in every if _is_of(r, job)]
        keys_there = {r.about.get("key") for r in mine}
        # None: older files have no keys, and a job was filed when all of it was measured
        return mine if None in keys_there or set(keys(job, self.scale)) <= keys_there else []

    def computed(self, jobs: Sequence[Job]) -> list[Record]:
        """What the file has that is of none of these jobs."""
        return [r for r in self._filed.get(frozenset(), []) if not any(_is_of(r, job) for job in jobs)]

    def collect(self, jobs: Sequence[Job]) -> list[Record]:
        """The records of those jobs that are finished."""
        return [record for job in jobs for record in self.of(job)]

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs that are still to be done."""
        return [job for job in jobs if not self.of(job)]

    def save(self, jobs: Sequence[Job], more: Sequence[Record] = ()) -> list[Record]:
        """Write what there is of these jobs, and what belongs beside them."""
        every = [*self.collect(jobs), *more]
        records.write(self.file, every)
        return every


def _is_of(record: Record, job: Job) -> bool:
    return record.seed == job.seed and record.labels | dict(job.labels) == record.labels


def _identity(words: Sequence[str]) -> frozenset[str]:
    """The words of a run but for where its data lie, and for λ = 0.2, which older files do not write out."""
    return frozenset(word for word in words if not word.startswith(("data.root=", "method.relax=[0.2,0.2]")))
