"""Seventy small faults, planted one at a time: the quick tests named beside each must fail.

    python tests/mutations.py               # all of them, a few minutes
    python tests/mutations.py sinkhorn      # those of files with this word in their path

`mutations.txt` has them: a file and its tests, a text that stands there once, and what replaces it. A fault is planted
in a copy of `src`. One that no test notices shows a promise without a test.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 600  # a fault may also make a test run for ever
PRELOADED = ("pytest", "torch", "scipy.optimize", "ot", "sklearn", "lightning", "pyarrow", "PIL.Image")
FAILED = 1  # pytest's code if tests fail; others say that it could not run them


class Mutation(NamedTuple):
    """A fault: a text that stands once in a file, what replaces it, and the tests that must notice."""

    file: str  # below src/gcalign
    tests: str  # below tests
    old: str
    new: str


def mutations() -> list[Mutation]:
    blocks = (ROOT / "tests" / "mutations.txt").read_text(encoding="utf-8").strip("\n").split("\n\n")
    found = []
    for block in blocks:
        place, old, new = block.split("\n")
        assert (old[0], new[0]) == ("-", "+"), place
        file, _, tests = place.partition(": ")
        found.append(Mutation(file, tests, old[1:], new[1:]))
    return found


def verdict(mutation: Mutation, source: Path) -> str:
    """ "killed", or what is wrong."""
    path = source / "gcalign" / mutation.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        return f"STALE: its text is there {text.count(mutation.old)} times"
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        code = tested(mutation.tests, source)
    finally:
        path.write_text(text, encoding="utf-8")
    return {FAILED: "killed", 0: "SURVIVED"}.get(code, f"NOT RUN: pytest ended with code {code}")


def tested(tests: str, source: Path) -> int:
    """The code with which the quick tests end, in a fork of this process, which has imported all but this package."""
    files = [str(ROOT / "tests" / name) for name in tests.split()]
    child = os.fork()
    if child == 0:
        code = -1
        try:
            code = _pytest(files, source)
        finally:
            os._exit(code)  # whatever happens: what the parent began is the parent's to end
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return FAILED


def _pytest(files: Sequence[str], source: Path) -> int:
    import pytest

    os.chdir(ROOT)
    os.environ |= {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(source))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    return int(pytest.main(["-x", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider", *files]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only files with this word in their path")
    word = parser.parse_args(argv).word
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    chosen = [mutation for mutation in mutations() if word in mutation.file]
    killed = 0
    with tempfile.TemporaryDirectory(prefix="gcalign-mutations-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for mutation in chosen:
            start = time.perf_counter()
            found = verdict(mutation, source)
            killed += found == "killed"
            print(f"{found:9} {time.perf_counter() - start:4.0f} s  {mutation.file}: {mutation.new}", flush=True)
    print(f"{killed} of {len(chosen)} killed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
