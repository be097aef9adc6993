"""Jobs on every core or device: skips what is done, goes on with what was interrupted, reports what failed."""

from __future__ import annotations

import functools
import multiprocessing as mp
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING

from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.registry import Job, Scale
from gcalign.lab.experiments.watch import watching
from gcalign.lab.words import quoted

if TYPE_CHECKING:
    from gcalign.lab.training.config import Config
    from gcalign.lab.training.runs import Run

PATIENCE = 2.0  # seconds before a run that another process is training is looked at again
FAREWELL = 30.0  # seconds for workers to stop after Ctrl-C


@dataclass(frozen=True)
class Failure:
    job: Job
    said: str  # the last line of the traceback
    trace: str


def command(job: Job, runs: str) -> str:
    """What trains a job's run by hand."""
    return quoted("gcalign", "train", *job.words, "logger=none", f"runs={runs}")


def config_of(job: Job, runs: str) -> Config:
    """Of a job's words."""
    return _configured((*job.words, f"seed={job.seed}", "logger=none", f"runs={runs}"))


@functools.lru_cache(maxsize=4096)
def _configured(words: tuple[str, ...]) -> Config:
    from gcalign.lab.training.config import configured

    return configured(words)


def run_of(job: Job, runs: str) -> Run:
    """Where a job's run is. Naming it takes milliseconds, and a sweep asks for all jobs whenever one has ended."""
    return _named(job.words, job.seed, runs)


@functools.lru_cache(maxsize=2**16)
def _named(words: tuple[str, ...], seed: int, runs: str) -> Run:
    from gcalign.lab.training.runs import Run

    return Run.of(config_of(Job({}, words, (), seed), runs))


def keys(job: Job, scale: Scale) -> list[str]:
    """Under which the job's measurements are kept."""
    from gcalign.lab.experiments.measures import key

    return [key(name, scale) for name in job.measures]


def finished(job: Job, scale: Scale, runs: str) -> bool:
    """Trained, and everything measured."""
    from gcalign.lab.experiments.measures import kept

    run = run_of(job, runs)
    return run.done and set(keys(job, scale)) <= kept(run).keys()


def records_of(experiment: str, job: Job, scale: Scale, runs: str) -> list[Record]:
    """The measurements of a finished job as lines of a result file."""
    from gcalign.lab.experiments.measures import kept

    run = run_of(job, runs)
    have = kept(run)
    return [
        Record(
            experiment=experiment,
            scale=scale.name,
            measure=finding.measure,
            value=finding.value,
            labels={**job.labels, **finding.labels},
            seed=job.seed,
            about={**finding.about, "key": key},
            run=run.path.name,
            words=job.words,
        )
        for key in keys(job, scale)
        for finding in have[key]
    ]


def do(job: Job, scale: Scale, runs: str) -> bool:
    """Train and measure; False if another process is at it."""
    from gcalign.lab.experiments.measures import measure
    from gcalign.lab.experiments.subject import loaded
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
                measure(run, job.measures, scale, config)
    except BusyError:
        return False
    return True


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def devices() -> list[str]:
    """The GPUs this process may use, by the names CUDA_VISIBLE_DEVICES takes."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    return [str(k) for k in range(torch.cuda.device_count())]


Do = Callable[[Job, Scale, str], bool]


def _work(connection: Connection, threads: int, work: Do, scale: Scale, runs: str) -> None:
    """A worker: one job after another, until there are no more or whoever sends them is gone."""
    os.setpgid(0, 0)  # Ctrl-C in the terminal is the parent's, which passes it on once
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the parent was put in the background
    try:
        import torch

        torch.set_num_threads(threads)
        while True:
            job = connection.recv()
            if job is None:
                return
            try:
                connection.send(("done" if work(job, scale, runs) else "busy", "", ""))
            except Exception as error:  # a job that fails stops no other
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                connection.send(("failed", said, traceback.format_exc()))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return


class Worker:
    """A process and the pipe to it."""

    def __init__(self, threads: int, device: str | None, work: Do, scale: Scale, runs: str) -> None:
        context = mp.get_context("spawn")
        self.connection, other = context.Pipe()
        self.make = functools.partial(Worker, threads, device, work, scale, runs)
        self.process = context.Process(target=_work, args=(other, threads, work, scale, runs), daemon=True)
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        if device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device
        try:
            self.process.start()
        finally:
            if device is not None and before is None:
                del os.environ["CUDA_VISIBLE_DEVICES"]
            elif device is not None and before is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = before
        other.close()
        self.job: Job | None = None
        self.since = 0.0

    def give(self, job: Job) -> None:
        self.job, self.since = job, time.monotonic()
        self.connection.send(job)

    def take(self) -> tuple[str, str, str]:
        """How its job ended; a worker that died is a job that failed."""
        try:
            answer: tuple[str, str, str] = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            said = f"its process ended with code {self.process.exitcode}; too little memory, perhaps: try jobs=1"
            return "died", said, ""
        return answer


def sweep(
    jobs: Sequence[Job],
    scale: Scale,
    runs: str,
    *,
    workers: int | None = None,
    title: str = "",
    work: Do = do,
    after: Callable[[Job], None] | None = None,
) -> list[Failure]:
    """Does every job that is not finished, and calls `after` with each that ends well; returns those that failed."""
    waiting = deque(job for job in jobs if not finished(job, scale, runs))
    if not waiting:
        return []
    gpus = devices()
    number = min(workers or len(gpus) or cores(), len(waiting))
    threads = max(1, cores() // number)
    failures: list[Failure] = []
    staff: list[Worker] = []
    with watching(title, len(jobs), len(jobs) - len(waiting), number) as watch, _terminable():
        try:
            for k in range(number):
                worker = Worker(threads, gpus[k % len(gpus)] if gpus else None, work, scale, runs)
                staff.append(worker)
            not_before = 0.0  # when busy runs are worth another look
            while waiting or any(worker.job for worker in staff):
                for worker in staff:
                    if worker.job is None and waiting and time.monotonic() >= not_before:
                        worker.give(waiting.popleft())
                watch.running([worker.job for worker in staff if worker.job])
                for ready in wait([worker.connection for worker in staff if worker.job], timeout=PATIENCE):
                    k = next(k for k, worker in enumerate(staff) if worker.connection is ready)
                    worker = staff[k]
                    job = worker.job
                    assert job is not None
                    how, said, trace = worker.take()
                    worker.job = None
                    if how == "busy":
                        waiting.append(job)
                        not_before = time.monotonic() + PATIENCE
                        continue
                    if how != "done":
                        failures.append(Failure(job, said, trace))
                    elif after is not None:
                        after(job)
                    watch.ended(job, time.monotonic() - worker.since, said)
                    if how == "died":
                        staff[k] = worker.make()
        finally:
            _dismiss(staff)
    return failures


def _dismiss(staff: Sequence[Worker]) -> None:
    """Idle workers are told that there is no more; those at work are interrupted, as by Ctrl-C."""
    for worker in staff:
        if worker.job is None:
            try:
                worker.connection.send(None)
            except BrokenPipeError:
                continue
        elif worker.process.pid is not None and worker.process.is_alive():
            os.kill(worker.process.pid, signal.SIGINT)
    deadline = time.monotonic() + FAREWELL
    for worker in staff:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM, as a scheduler sends it, stops the workers as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
