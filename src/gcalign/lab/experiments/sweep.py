"""Jobs on every core or device: skips what is done, continues what was interrupted, reports what failed."""

from __future__ import annotations

import functools
import multiprocessing as mp
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.registry import Job, Scale
from gcalign.lab.experiments.watch import SweepProgress
from gcalign.lab.words import quoted

if TYPE_CHECKING:
    from gcalign.lab.training.config import Config
    from gcalign.lab.training.runs import Run

PATIENCE = 2.0  # seconds before a run that another process is training is looked at again
FAREWELL = 30.0  # seconds for workers to stop after Ctrl-C


@dataclass(frozen=True)
class Failure:
    job: Job
    said: str  # the first line of the error


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


def _prepare(threads: int, device: str | None) -> None:
    """What a new worker does before its first job."""
    os.setpgid(0, 0)  # Ctrl-C in the terminal is the parent's, which passes it on once
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the parent was put in the background
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    threading.Thread(target=_end_with, args=(mp.parent_process(),), daemon=True).start()
    import torch

    torch.set_num_threads(threads)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


class Worker:
    """A pool of one process: if a job kills it, the others go on."""

    def __init__(self, threads: int, device: str | None) -> None:
        self.start = functools.partial(_started, threads, device)
        self.pool, self.process = self.start()

    def give(self, job: Job, work: Do, scale: Scale, runs: str) -> Future[bool]:
        self.job, self.since = job, time.monotonic()
        return self.pool.submit(work, job, scale, runs)

    def replace(self) -> str:
        """Another process for one that died, and what is known of the first."""
        self.process.join()
        said = f"its process ended with code {self.process.exitcode}; too little memory, perhaps: try jobs=1"
        self.pool, self.process = self.start()
        return said


def _started(threads: int, device: str | None) -> tuple[ProcessPoolExecutor, BaseProcess]:
    before, context = mp.active_children(), mp.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, initializer=_prepare, initargs=(threads, device))
    pool.submit(os.getpid)  # starts the process
    (process,) = (process for process in mp.active_children() if process not in before)
    return pool, process


def sweep(
    jobs: Sequence[Job],
    scale: Scale,
    runs: str,
    *,
    workers: int | None = None,
    title: str = "",
    work: Do = do,
    after: Callable[[Job], object] | None = None,
) -> list[Failure]:
    """Does every job that is not finished, and calls `after` with each that ends well; returns those that failed."""
    waiting = deque(job for job in jobs if not finished(job, scale, runs))
    if not waiting:
        return []
    gpus = devices()
    number = min(workers or len(gpus) or cores(), len(waiting))
    threads = max(1, cores() // number)
    failures: list[Failure] = []
    running: dict[Future[bool], Worker] = {}
    with SweepProgress(title, len(jobs), len(jobs) - len(waiting), number) as watch, _terminable():
        idle = [Worker(threads, gpus[k % len(gpus)] if gpus else None) for k in range(number)]
        try:
            not_before = 0.0  # when busy runs are worth another look
            while waiting or running:
                while idle and waiting and time.monotonic() >= not_before:
                    worker = idle.pop()
                    running[worker.give(waiting.popleft(), work, scale, runs)] = worker
                watch.running([worker.job for worker in running.values()])
                if not running:
                    time.sleep(PATIENCE / 10)
                for future in wait(running, PATIENCE, FIRST_COMPLETED).done:
                    worker, said = running.pop(future), ""
                    idle.append(worker)
                    try:
                        is_done = future.result()
                    except BrokenProcessPool:
                        said = worker.replace()
                    except Exception as error:  # a job that fails stops no other
                        said = f"{type(error).__name__}: {error}".splitlines()[0]
                    if said:
                        failures.append(Failure(worker.job, said))
                    elif not is_done:
                        waiting.append(worker.job)
                        not_before = time.monotonic() + PATIENCE
                        continue
                    elif after is not None:
                        after(worker.job)
                    watch.ended(worker.job, time.monotonic() - worker.since, said)
        finally:
            _dismiss(running, idle)
    return failures


def _dismiss(running: Mapping[Future[bool], Worker], idle: Sequence[Worker]) -> None:
    """Those at work are interrupted, as by Ctrl-C."""
    for worker in running.values():
        if worker.process.is_alive() and worker.process.pid is not None:
            os.kill(worker.process.pid, signal.SIGINT)
    wait(running, FAREWELL)
    for future, worker in running.items():
        if not future.done():
            worker.process.kill()
    for worker in (*running.values(), *idle):
        worker.pool.shutdown(cancel_futures=True)


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
