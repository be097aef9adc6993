"""Jobs on every core or device: skips what is done, continues what was interrupted, reports what failed."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

from gcalign.lab.experiments.engine.experiment import Job, Scale
from gcalign.lab.experiments.engine.jobs import do, finished

PATIENCE = 2.0  # seconds before a run that another process is training is looked at again
FAREWELL = 30.0  # seconds for workers to stop after Ctrl-C


@dataclass(frozen=True)
class Failure:
    job: Job
    message: str  # the first line of the error


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

    torch.set_num_threads(min(threads, torch.get_num_threads()))  # which OMP_NUM_THREADS may have limited


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


class Worker:
    """A pool of one process: if a job kills it, the others go on."""

    def __init__(self, threads: int, device: str | None) -> None:
        self.prepared = threads, device
        self.start()

    def start(self) -> None:
        before, context = mp.active_children(), mp.get_context("spawn")
        self.pool = ProcessPoolExecutor(1, context, initializer=_prepare, initargs=self.prepared)
        self.pool.submit(os.getpid)  # starts the process
        (self.process,) = (process for process in mp.active_children() if process not in before)

    def give(self, job: Job, work: Do, scale: Scale, runs: str) -> Future[bool]:
        self.job, self.since = job, time.monotonic()
        return self.pool.submit(work, job, scale, runs)

    def result(self, future: Future[bool]) -> tuple[bool, str]:
        """Whether the job is done, and what went wrong; a process that died is replaced."""
        try:
            return future.result(), ""
        except BrokenProcessPool:
            self.process.join()
            code = self.process.exitcode
            self.start()
            return False, f"its process ended with code {code}; too little memory, perhaps: try jobs=1"
        except Exception as error:  # a job that fails stops no other
            return False, f"{type(error).__name__}: {error}".splitlines()[0]


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
                    worker = running.pop(future)
                    idle.append(worker)
                    is_done, message = worker.result(future)
                    if message:
                        failures.append(Failure(worker.job, message))
                    elif not is_done:
                        waiting.append(worker.job)
                        not_before = time.monotonic() + PATIENCE
                        continue
                    elif after is not None:
                        after(worker.job)
                    watch.ended(worker.job, time.monotonic() - worker.since, message)
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


# --- how far a sweep is ----------------------------------------------------------------------------------------------


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
