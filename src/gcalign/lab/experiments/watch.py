"""How far a sweep is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gcalign.lab.experiments.registry import Job


class SweepProgress:
    """A bar in a terminal, a line for each job elsewhere."""

    def __init__(self, title: str, total: int, done: int, workers: int, progress: Any) -> None:
        self.title, self.total, self.done, self.workers, self.progress = title, total, done, workers, progress
        self.times: list[float] = []
        self.task = progress.add_task(title, total=total, completed=done, left="", running="") if progress else None

    def running(self, jobs: Sequence[Job]) -> None:
        if self.progress:
            self.progress.update(self.task, running=" · ".join(map(called, jobs)))

    def ended(self, job: Job, seconds: float, said: str) -> None:
        self.done += 1
        self.times.append(seconds)
        mean = sum(self.times) / len(self.times)
        left = _span(mean * (self.total - self.done) / self.workers)
        if self.progress:
            self.progress.update(self.task, completed=self.done, left=left)
        else:
            how = f"failed: {said}" if said else f"{seconds:.0f} s"
            print(f"{self.title} {self.done}/{self.total}  {called(job)}: {how}; {left} left", flush=True)


@contextmanager
def watching(title: str, total: int, done: int, workers: int) -> Iterator[SweepProgress]:
    if not sys.stderr.isatty():
        yield SweepProgress(title, total, done, workers, None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    shown = ("{task.fields[left]}", "[dim]{task.fields[running]}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *map(TextColumn, shown))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield SweepProgress(title, total, done, workers, progress)


def called(job: Job) -> str:
    """A job in a few words."""
    return " ".join([*(str(value) for key, value in job.labels.items() if key != "data"), f"seed {job.seed}"])


def _span(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s" if seconds < 90 else f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.1f} h"
