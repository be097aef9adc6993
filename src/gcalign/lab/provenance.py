"""Which code made a result."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import gcalign

ROOT = Path(__file__).parents[3]  # of a checkout


@functools.cache
def commit() -> str:
    """The commit of this checkout, with `+` where its code was changed since; the version where it is no checkout.

    An installed package may lie in the folder of another project, whose commit says nothing, and whose git settings can
    name programs to run.
    """
    if not (ROOT / ".git").exists():
        return gcalign.__version__
    try:
        head, changed = _git("rev-parse", "--short=10", "HEAD"), _git("status", "--porcelain", "--", "..")
    except (OSError, subprocess.CalledProcessError):
        return gcalign.__version__
    return f"{head}+" if changed else head


def _git(*words: str) -> str:
    folder = Path(__file__).parent
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
