"""Times that can be compared: contestants take turns, so that noise hits all of them, and medians are kept."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

Item = TypeVar("Item")


@dataclass(frozen=True)
class Times:
    """Seconds of every counted run of one contestant."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def figures(self) -> dict[str, float | int]:
        """What a table and the JSON show of it."""
        least, most = min(self.seconds), max(self.seconds)
        return {"seconds": self.median, "least": least, "most": most, "repeats": len(self.seconds)}


class Progress:
    """One bar for each loop that is running, on standard error; silent where that is no terminal."""

    def __init__(self, *, shown: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, console=Console(stderr=True), transient=True, disable=not shown)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def over(self, items: Sequence[Item], describe: Callable[[Item], str]) -> Iterator[Item]:
        """The items one by one, each under its description."""
        task = self._bars.add_task("", total=len(items))
        try:
            for item in items:
                self._bars.update(task, description=describe(item))
                yield item
                self._bars.advance(task)
        finally:
            self._bars.remove_task(task)


def interleaved(
    jobs: Mapping[str, Callable[[], object]],
    repeats: int,
    progress: Progress,
    *,
    warm: Collection[str] = (),
    budget: float = 60.0,
) -> dict[str, Times]:
    """Run every job once uncounted (unless it is `warm`), then in `repeats` rounds, each beginning with the next job.

    A job that has spent more than `budget` seconds leaves the rounds after one counted run; `Times` says how many
    were counted.
    """
    names = list(jobs)
    found: dict[str, list[float]] = {name: [] for name in names}
    spent = dict.fromkeys(names, 0.0)
    turns = [(-1, name) for name in names if name not in warm]
    turns += [(k, name) for k in range(repeats) for name in names[k % len(names) :] + names[: k % len(names)]]
    for round_, name in progress.over(turns, lambda turn: turn[1]):
        if found[name] and spent[name] > budget:
            continue
        seconds = timed(jobs[name])
        spent[name] += seconds
        if round_ >= 0:
            found[name].append(seconds)
    return {name: Times(tuple(seconds)) for name, seconds in found.items()}


def timed(job: Callable[[], object]) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def median_seconds(job: Callable[[], object], repeats: int) -> float:
    """The median of several, after one that is not counted."""
    job()
    return statistics.median(timed(job) for _ in range(repeats))


@contextmanager
def threads(n: int | None) -> Iterator[None]:
    """torch on `n` threads inside, as before outside; None leaves it alone."""
    before = torch.get_num_threads()
    if n is not None:
        torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
