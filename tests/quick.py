"""Jobs that take a second: what several test modules train, also in processes of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gcalign.lab.experiments.engine.experiment import Job, Scale

WORDS = ("data=scenes", "data.limit=64", "model.width=0.25", "model.hidden=16", "model.out=8", "batch_size=32")


def quick(method: str = "ince", seed: int = 0, measures: tuple[str, ...] = ("knn",)) -> Job:
    return Job({"method": method}, (f"method={method}", *WORDS, "epochs=1", f"seed={seed}"), measures, seed)


# --- work for processes of a sweep, which import it by name -------------------------------------------------------


def half_fail(job: Job, scale: Scale, runs: str) -> bool:
    """Seed 1 is an error, seed 2 kills the process, the others leave a file."""
    if job.seed == 1:
        raise ValueError("seed=1 is unlucky")
    if job.seed == 2:
        os._exit(7)
    Path(runs, f"{job.seed}").touch()
    return True


def wait(job: Job, scale: Scale, runs: str) -> bool:
    """Says which process it is, and never ends."""
    Path(runs, str(os.getpid())).touch()
    time.sleep(600)
    return True
