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
from pathlib import Path

import torch

from gcalign.lab.data.images import InMemory
from gcalign.lab.training import runs
from gcalign.lab.training.config import configured
from gcalign.lab.training.train import train

WORDS = ["epochs=4", "batch_size=16", "log_every=1", "checkpoint_every=1", "model.hidden=16", "model.out=8",
         "model.width=0.25", "accelerator=cpu", "views=plain", "logger=csv", "knn_every=2"]  # fmt: skip
os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # for the server
CONTEXT = mp.get_context("forkserver")  # a server that has imported everything, and forks a process for each job
CONTEXT.set_forkserver_preload(["faults"])


def images(n: int = 64) -> InMemory:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, 3, 12, 12), generator=generator, dtype=torch.uint8)
    return InMemory(pixels, name="tiny", split="train", labels=torch.arange(n) % 4, domains=torch.arange(n) % 2)


def config_of(folder: Path, *more: str):
    return configured([*WORDS, f"runs={folder}", *more])


def quietly() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


class Touches:
    """Counts what a process does to files below a folder, and does `act` at the k-th of them."""

    def __init__(self, folder: Path, k: int, act) -> None:
        self.folder, self.k, self.act, self.seen = str(folder), k, act, 0
        self.write, self.fsync = os.write, os.fsync
        os.write, os.fsync = self._write, self._fsync
        sys.addaudithook(self._audited)

    def _audited(self, event: str, args) -> None:
        if event in ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir") and self.folder in str(args[0]):
            self._count(None)

    def _write(self, descriptor: int, data: bytes) -> int:
        self._count(lambda: self.write(descriptor, data[: len(data) // 2]))
        return self.write(descriptor, data)

    def _fsync(self, descriptor: int) -> None:
        self._count(None)
        self.fsync(descriptor)

    def _count(self, half) -> None:
        self.seen += 1
        if self.seen == self.k:
            if half is not None:
                half()
            self.act()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def trained(folder: str, words: list[str], kill_at: int | None, delay: float | None, start=None, said=None) -> None:
    """Train in this process, which dies at the k-th touch of a file or after a while; say how it ended."""
    quietly()
    config = config_of(Path(folder), *words)
    if kill_at is not None:
        Touches(runs.Run.of(config).path, kill_at, die)
    if start is not None:
        start.wait()
    if delay is not None:
        threading.Thread(target=lambda: (time.sleep(delay), die()), daemon=True).start()
    try:
        train(config, images=images(), quiet=True)
        how = "done"
    except ValueError as error:
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


def same_as(run: runs.Run, whole: runs.Run) -> None:
    """Weights byte for byte; result lines and logs but for the clock; nothing left over."""
    assert run.weights_file.read_bytes() == whole.weights_file.read_bytes()
    assert lines_of(run) == lines_of(whole)
    assert table_of(run) == table_of(whole)
    assert sorted(p.name for p in run.path.iterdir()) == sorted(p.name for p in whole.path.iterdir())


def full(monkeypatch, folder: Path, after: int) -> dict:
    """From the `after`-th write on, a disk without room: half of the bytes, then ENOSPC. Counts the writes."""
    state = {"writes": 0, "full": False}
    write, opened = os.write, Path.open

    def refuse() -> bool:
        state["writes"] += 1
        state["full"] = state["full"] or state["writes"] >= after
        return state["full"]

    def os_write(descriptor, data):
        return write(descriptor, data[: len(data) // 2]) if refuse() else write(descriptor, data)

    class File:
        def __init__(self, file) -> None:
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *error) -> None:
            self.file.close()

        def write(self, data):
            if refuse():
                self.file.write(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(data)

    def path_open(self, mode="r", *rest, **more):
        file = opened(self, mode, *rest, **more)
        return File(file) if "r" not in mode and str(folder) in str(self) else file

    monkeypatch.setattr(os, "write", os_write)
    monkeypatch.setattr(Path, "open", path_open)
    return state


def flipped(data: bytes, random_: random.Random, most: int = 3) -> bytes:
    """The same bytes but for a few bits."""
    found = bytearray(data)
    for _ in range(random_.randint(1, most)):
        found[random_.randrange(len(found))] ^= 1 << random_.randrange(8)
    return bytes(found)


def report(name: str, **figures) -> None:
    """What a test of faults found, for the log of the slow suite."""
    print(f"\n{name}: {json.dumps(figures)}", flush=True)
