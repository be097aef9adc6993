"""A result file that grows: what it has is not done again, not even on a machine that has none of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gcalign.lab.experiments import records, sweep
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.registry import Job, Scale


class Archive:
    """The records of one experiment's jobs: from their runs or, where those are gone, from its result file."""

    def __init__(self, name: str, file: Path, scale: Scale, runs: str) -> None:
        self.name, self.file, self.scale, self.runs = name, file, scale, runs
        self._filed: dict[str, list[Record]] = {}
        for record in records.read(file) if file.exists() else []:
            if record.run is not None:
                self._filed.setdefault(record.run, []).append(record)
        self._read: dict[tuple[str, ...], list[Record]] = {}

    def of(self, job: Job) -> list[Record]:
        """The records of a job; none where it is not finished."""
        key = (*job.words, *map(str, job.labels.items()))
        if key not in self._read:
            if not sweep.finished(job, self.scale, self.runs):
                return self._from_file(job)
            self._read[key] = sweep.records_of(self.name, job, self.scale, self.runs)
        return self._read[key]

    def _from_file(self, job: Job) -> list[Record]:
        if not self._filed:
            return []
        mine = self._filed.get(sweep.run_of(job, self.runs).path.name, [])
        mine = [r for r in mine if r.labels | dict(job.labels) == r.labels]
        # files of before measurements had keys have the measure's name alone
        have = {r.about.get("key", r.measure) for r in mine}
        return mine if set(sweep.keys(job, self.scale)) <= have else []

    def collect(self, jobs: Sequence[Job]) -> list[Record]:
        """The records of those jobs that are finished."""
        return [record for job in jobs for record in self.of(job)]

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs that are still to be done."""
        return [job for job in jobs if not self.of(job)]

    def save(self, jobs: Sequence[Job], more: Sequence[Record] = ()) -> list[Record]:
        """Write what there is of these jobs, and what belongs beside them."""
        found = [*self.collect(jobs), *more]
        records.write(self.file, found)
        return found
