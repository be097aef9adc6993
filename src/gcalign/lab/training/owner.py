"""One run, one owner. The system releases the lock when its process ends; a file beside it says who the owner is."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from gcalign.lab import files
from gcalign.lab.words import printable

BEAT = 20.0  # seconds between signs of life
SILENCE = 120.0  # seconds without one after which an owner on another host is taken to be gone
PATIENCE = 15.0  # seconds for the loader's workers of a killed process to notice that it is gone
POLL = 0.2


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
    def is_here(self) -> bool:
        return self.host == socket.gethostname()


@contextmanager
def owned(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Within, this process alone writes to the run in `folder`. If another owns it: wait, or raise BusyError."""
    lock = FileLock(folder / "lock", is_singleton=True)  # the same object in the whole process, so it nests
    if lock.is_locked:
        with lock:
            yield
        return
    _acquire(lock, folder, wait)
    beside, stop = folder / "owner.json", threading.Event()
    me = Owner(socket.gethostname(), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S"))
    try:
        beside.unlink(missing_ok=True)
        files.append_json_lines(beside, [asdict(me)])
        threading.Thread(target=_beat, args=(beside, stop), daemon=True).start()
        yield
    finally:
        stop.set()
        beside.unlink(missing_ok=True)
        lock.release()


def _beat(beside: Path, stop: threading.Event) -> None:
    with suppress(OSError):
        while not stop.wait(BEAT):
            os.utime(beside)


def _acquire(lock: FileLock, folder: Path, wait: bool) -> None:
    begun, told = time.monotonic(), False
    while True:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            owner = owner_of(folder)
        except OSError as error:
            raise ValueError(f"{folder / 'lock'} cannot be locked ({error}); it must be a writable file") from error
        else:
            owner = _alive_elsewhere(folder)
            if owner is None:
                return
            lock.release()
        dying = owner is not None and owner.is_here and not files.is_alive(owner.pid)
        if not wait and not (dying and time.monotonic() - begun < PATIENCE):
            raise BusyError(_busy(folder, owner))
        if wait and not told:
            print(f"waiting: {_used(folder, owner)}", file=sys.stderr, flush=True)
            told = True
        time.sleep(POLL)


def owner_of(folder: Path) -> Owner | None:
    """Who owns a run, as far as the file beside its lock says."""
    try:
        content = files.from_json(files.read(folder / "owner.json"))
        return Owner(str(content["host"]), int(content["pid"]), str(content["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _alive_elsewhere(folder: Path) -> Owner | None:
    """An owner on another host that gives signs of life: some network file systems have locks for one host alone."""
    owner = owner_of(folder)
    try:
        silent = time.time() - (folder / "owner.json").stat().st_mtime
    except OSError:
        return None
    return None if owner is None or owner.is_here or silent > SILENCE else owner


def _used(folder: Path, owner: Owner | None) -> str:
    return f"{folder} is used by {owner or 'another process'}"


def _busy(folder: Path, owner: Owner | None) -> str:
    said = f"{_used(folder, owner)}; wait=true waits for it, another seed= or name= is another run"
    if owner is None or owner.is_here:
        return said
    return (
        f"{said} (if that process has ended, the run is free {SILENCE:.0f} s after its last sign of life; where the "
        f"file system has no locks, delete {folder / 'lock'})"
    )
