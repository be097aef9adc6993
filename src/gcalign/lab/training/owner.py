"""One run, one owner: a file lock, which the system releases when its process ends. A file beside it says who it is."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from gcalign.lab import files
from gcalign.lab.words import printable

PATIENCE = 15.0  # seconds for the loader's workers of a killed process to notice that it is gone


class BusyError(ValueError):
    """Another process owns the run."""


@dataclass(frozen=True)
class Owner:
    host: str
    pid: int
    since: str

    def __str__(self) -> str:
        return printable(f"process {self.pid} on {self.host} since {self.since}")

    @property
    def has_ended(self) -> bool:
        """Whether it was a process of this machine, and is no more."""
        return self.host == socket.gethostname() and not files.is_alive(self.pid)


@contextmanager
def owned(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Within, this process alone writes to the run in `folder`. If another owns it: wait, or raise BusyError."""
    check_links(folder)
    lock = FileLock(folder / "lock", is_singleton=True)  # the same object in the whole process, so it nests
    if lock.is_locked:
        with lock:
            yield
        return
    _acquire(lock, folder, wait)
    beside = folder / "owner.json"
    try:
        me = Owner(socket.gethostname(), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S"))
        beside.unlink(missing_ok=True)
        files.append_json_lines(beside, [asdict(me)])
        yield
    finally:
        beside.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: FileLock, folder: Path, wait: bool) -> None:
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            owner = owner_of(folder)
            ended = owner is not None and owner.has_ended
            if wait:
                print(f"waiting: {_used(folder, owner)}", file=sys.stderr, flush=True)
            lock.acquire(timeout=-1 if wait else PATIENCE if ended else 0, poll_interval=0.2)
    except Timeout:
        remedy = "wait=true waits for it, another seed= or name= is another run"
        raise BusyError(f"{_used(folder, owner_of(folder))}; {remedy}") from None
    except OSError as error:
        raise ValueError(f"{folder / 'lock'} cannot be locked ({error}); it must be a writable file") from error


def owner_of(folder: Path) -> Owner | None:
    """Who owns a run, as far as the file beside its lock says. It is for messages: the lock alone decides."""
    try:
        content = files.from_json(files.read(folder / "owner.json"))
        return Owner(str(content["host"]), int(content["pid"]), str(content["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_links(folder: Path) -> None:
    """That nothing in a run's folder links outside: it would be written through to wherever it leads."""
    for path in folder.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{path} links outside the run; a run writes to its own folder alone: remove the link")


def _used(folder: Path, owner: Owner | None) -> str:
    return f"{folder} is used by {owner or 'another process'}"
