"""Times that can be compared: contestants take turns, so that noise hits all of them, and medians are kept."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from gcalign.lab.terminal import Progress


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
