"""Faults that tests inject: kills at any moment, a full disk, flipped bits. Processes are forked, not started."""

from __future__ import annotations

import csv
import errno
import json
import multiprocessing as mp
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

from gcalign.lab.training import runs
from gcalign.lab.training.config import configured
from gcalign.lab.training.train import train
from small_runs import pictures

WORDS = ["epochs=4", "batch_size=16", "log_every=1", "checkpoint_every=1", "model.hidden=16", "model.out=8",
         "model.width=0.25", "accelerator=cpu", "views=plain", "logger=csv", "knn_every=2"]  # fmt: skip
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # for the server
CONTEXT = mp.get_context("forkserver")  # a server that has imported everything, and forks a process for each job
CONTEXT.set_forkserver_preload(["faults"])


def images():
    return pictures(64)


def config_of(folder: Path, *more: str):
    return configured([*WORDS, f"runs={folder}", *more])


def quietly() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


class Touches:
    """Counts what a process does to files below a folder, and dies at the k-th of them: whole, or half of it done."""

    EVENTS = ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir")

    def __init__(self, folder: Path, k: int, note: Path) -> None:
        self.folder, self.k, self.seen = str(folder), k, 0
        self.note = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self.write, self.fsync = os.write, os.fsync
        os.write, os.fsync = self._write, self._fsync
        sys.addaudithook(self._audited)

    def _audited(self, event: str, args) -> None:
        if event in self.EVENTS and self.folder in str(args[0]):
            self._count(str(args[0]))

    def _write(self, descriptor: int, data: bytes) -> int:
        self._count(descriptor, lambda: self.write(descriptor, data[: len(data) // 2]))
        return self.write(descriptor, data)

    def _fsync(self, descriptor: int) -> None:
        self._count(descriptor, lambda: os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2))
        self.fsync(descriptor)

    def _count(self, what: str | int, half=lambda: None) -> None:
        self.seen += 1
        if self.seen == self.k:
            half()
            path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what
            self.write(self.note, f"{path}\n".encode())
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def touched(note: Path) -> Counter:
    """At which files processes died, by the names that these have when they are whole."""
    paths = note.read_text().splitlines() if note.exists() else []
    names = [Path(path).name for path in paths]
    return Counter(name[1:].rsplit(".", 3)[0] if name.endswith(".part") else _short(name) for name in names)


def _short(name: str) -> str:
    return "tensorboard" if "tfevents" in name else name


def trained(folder: str, words: list[str], kill_at: int | None, delay: float | None, start=None, said=None) -> None:
    """Train in this process, which dies at the k-th touch of a file or after a while; say how it ended."""
    quietly()
    config = config_of(Path(folder), *words)
    if kill_at is not None:
        Touches(runs.Run.of(config).path, kill_at, Path(folder).parent / "touched")
    if start is not None:
        start.wait()
    if delay is not None:
        threading.Thread(target=lambda: (time.sleep(delay), die()), daemon=True).start()
    try:
        train(config, images=images(), quiet=True)
        how = "done"
    except ValueError as error:
        if said is None:
            raise
        how = str(error)
    if said is not None:
        said.put((os.getpid(), how))


def forked(*arguments, **more):
    process = CONTEXT.Process(target=trained, args=arguments, kwargs=more, daemon=False)
    process.start()
    return process


def ended(process, seconds: float = 300) -> None:
    """Wait for a process, but not for ever: one that hangs is a failure."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"a process still ran after {seconds} s")


def lines_of(run: runs.Run) -> list[dict]:
    return [{k: v for k, v in line.items() if k != "images/s"} for line in run.results()]


def table_of(run: runs.Run) -> list[dict]:
    with (run.path / "csv" / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "images/s"} for row in csv.DictReader(file)]


def scalars_of(run: runs.Run) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(run.path / "tensorboard"))
    seen.Reload()
    return [(event.step, event.value) for event in seen.Scalars("loss")]


def same_as(run: runs.Run, whole: runs.Run) -> None:
    """Weights byte for byte; result lines and logs but for the clock; nothing left over."""
    assert run.weights_file.read_bytes() == whole.weights_file.read_bytes()
    assert lines_of(run) == lines_of(whole)
    if (run.path / "csv").exists():
        assert table_of(run) == table_of(whole)
    else:
        losses = [(line["step"], line["loss"]) for line in run.results() if line["kind"] == "train"]
        logged = [step for step, _ in scalars_of(run)]
        assert logged == [step for step, _ in losses], logged
        assert all(abs(a - b) < 1e-6 * abs(b) for (_, a), (_, b) in zip(scalars_of(run), losses, strict=True))
    logs = {"csv", "tensorboard"}
    assert {p.name for p in run.path.iterdir()} - logs == {p.name for p in whole.path.iterdir()} - logs


class Full:
    """A disk that is full from the k-th write on: half of the bytes, then ENOSPC. Counts what needs room."""

    def __init__(self, patch, folder: Path, k: int = 10**9) -> None:
        self.folder, self.k, self.writes = str(folder), k, 0
        self.real = {"write": os.write, "fsync": os.fsync, "mkdir": os.mkdir, "os.open": os.open, "open": Path.open}
        for name in ("write", "fsync", "mkdir"):
            patch.setattr(os, name, getattr(self, f"_{name}"))
        patch.setattr(os, "open", self._os_open)
        full = self
        patch.setattr(Path, "open", lambda path, *rest, **more: full._open(path, *rest, **more))

    def is_full(self) -> bool:
        self.writes += 1
        return self.writes >= self.k

    def check(self) -> None:
        if self.is_full():
            raise OSError(errno.ENOSPC, "No space left on device")

    def _is_below(self, path) -> bool:
        return self.folder in str(path)

    def _write(self, descriptor: int, data: bytes) -> int:
        return self.real["write"](descriptor, data[: len(data) // 2] if self.is_full() else data)

    def _fsync(self, descriptor: int) -> None:
        self.check()
        self.real["fsync"](descriptor)

    def _mkdir(self, path, *rest, **more) -> None:
        if self._is_below(path) and not os.path.exists(path):
            self.check()
        self.real["mkdir"](path, *rest, **more)

    def _os_open(self, path, flags, *rest, **more) -> int:
        if flags & os.O_CREAT and self._is_below(path) and not os.path.exists(path):
            self.check()
        return self.real["os.open"](path, flags, *rest, **more)

    def _open(self, path: Path, mode: str = "r", *rest, **more):
        if "r" in mode or not self._is_below(path):
            return self.real["open"](path, mode, *rest, **more)
        self.check()
        file = self.real["open"](path, mode, *rest, **more)
        return _Watched(file, self)


class _Watched:
    """A file on such a disk."""

    def __init__(self, file, disk: Full) -> None:
        self.file, self.disk = file, disk

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self.file.close()

    def write(self, data) -> int:
        if self.disk.is_full():
            self.file.write(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)


def flipped(data: bytes, random_: random.Random, most: int = 3) -> bytes:
    """The same bytes but for a few bits."""
    found = bytearray(data)
    for _ in range(random_.randint(1, most)):
        found[random_.randrange(len(found))] ^= 1 << random_.randrange(8)
    return bytes(found)


def report(name: str, **figures) -> None:
    """What a test of faults found, for the log of the slow suite."""
    print(f"\n{name}: {json.dumps(figures)}", flush=True)
