"""Times that can be compared: torch's timer, with contestants taking turns, so that noise hits all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.utils.benchmark import Measurement, Timer

from gcalign.lab.terminal import Progress

BUDGET = 60.0  # seconds after which a job leaves the rounds


def interleaved(
    jobs: Mapping[str, Callable[[], object]], repeats: int, progress: Progress | None = None
) -> dict[str, Measurement]:
    """Time every job in `repeats` rounds; in each, torch's timer runs a job once uncounted and once counted."""
    timers = {
        name: Timer("job()", globals={"job": job}, label=name, num_threads=torch.get_num_threads())
        for name, job in jobs.items()
    }
    times: dict[str, list[Measurement]] = {name: [] for name in jobs}
    turns = [name for _ in range(repeats) for name in jobs]
    for name in turns if progress is None else progress.over(turns, str):
        if sum(part.median for part in times[name]) < BUDGET:
            times[name].append(timers[name].blocked_autorange(min_run_time=0.0))
    return {name: Measurement.merge(parts)[0] for name, parts in times.items()}


def median_seconds(job: Callable[[], object], repeats: int) -> float:
    """The median of several runs."""
    return float(interleaved({"job": job}, repeats)["job"].median)


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
