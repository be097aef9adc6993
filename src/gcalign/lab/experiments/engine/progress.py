"""How far a sweep is."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gcalign.lab.experiments.engine.experiment import Job


class SweepProgress:
    """A bar in a terminal, a line for each job elsewhere."""

    def __init__(self, title: str, total: int, done: int, workers: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.title, self.total, self.done, self.workers = title, total, done, workers
        self.times: list[float] = []
        shown = ("{task.fields[left]}", "[dim]{task.fields[running]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *map(TextColumn, shown))
        self.bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self.task = self.bar.add_task(title, total=total, completed=done, left="", running="")

    def __enter__(self) -> SweepProgress:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def running(self, jobs: Sequence[Job]) -> None:
        self.bar.update(self.task, running=" · ".join(map(called, jobs)))

    def ended(self, job: Job, seconds: float, message: str) -> None:
        self.done += 1
        self.times.append(seconds)
        left = _span(sum(self.times) / len(self.times) * (self.total - self.done) / self.workers)
        self.bar.update(self.task, completed=self.done, left=left)
        if self.bar.disable:
            how = f"failed: {message}" if message else f"{seconds:.0f} s"
            print(f"{self.title} {self.done}/{self.total}  {called(job)}: {how}; {left} left", flush=True)


def called(job: Job) -> str:
    """A job in a few words."""
    return " ".join([*(str(value) for key, value in job.labels.items() if key != "data"), f"seed {job.seed}"])


def _span(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"
