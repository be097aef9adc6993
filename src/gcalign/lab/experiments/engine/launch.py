"""Jobs on a cluster: a Hydra app whose multirun is over the jobs of an experiment, so any Hydra launcher does them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from gcalign.errors import one_of
from gcalign.lab import files
from gcalign.lab.experiments.engine.experiment import Job, Scale, Search
from gcalign.lab.experiments.engine.jobs import do, finished
from gcalign.lab.experiments.engine.processes import Failure
from gcalign.lab.words import path_of

LAUNCHERS: Mapping[str, str | None] = {  # and the plugin each comes with
    "basic": None,
    "joblib": "hydra-joblib-launcher",
    "ray": "hydra-ray-launcher",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
}
_log = logging.getLogger(__name__)


@dataclass
class LaunchedJob:
    """One job of those in a file."""

    file: str = MISSING
    digest: str = MISSING  # of that file, as the command wrote it: the words in it may name code
    index: int = 0


def check(launcher: str) -> None:
    """That a launcher is known and its plugin installed, before anything runs."""
    plugin = LAUNCHERS[one_of("launcher", launcher, LAUNCHERS)]
    try:
        if plugin:
            distribution(plugin)
    except PackageNotFoundError:
        raise ValueError(
            f"launcher={launcher} needs a plugin that is not installed; install it with: pip install {plugin} "
            "(or all of them, in a checkout: pip install -c constraints.txt '.[launch]')"
        ) from None


def launch(
    jobs: Sequence[Job], scale: Scale, runs: str, *, launcher: str, options: Sequence[str] = (), title: str = ""
) -> list[Failure]:
    """Does the jobs and waits for them; `options` are Hydra's: hydra.launcher.partition=…"""
    folder = path_of(runs) / "launch" / title
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "jobs.json"
    content = {"scale": dataclasses.asdict(scale), "runs": runs, "jobs": [dataclasses.asdict(job) for job in jobs]}
    text = json.dumps(content, indent=1)
    files.write(file, text)
    ConfigStore.instance().store(name="reproduce-task", node=LaunchedJob)
    words = [
        "--multirun",
        f"hydra/launcher={launcher}",
        f"hydra.sweep.dir={_literal(folder)}",
        "hydra.sweep.subdir=${index}",
        f"file={_literal(file)}",
        f"digest={_digest(text.encode())}",
        f"index={','.join(map(str, range(len(jobs))))}",
        *options,
    ]
    with _lent(["gcalign", *words]):
        hydra.main(version_base=None, config_path=None, config_name="reproduce-task")(task)()
    return [
        Failure(job, f"not finished; for the reason see {folder / str(k)}")
        for k, job in enumerate(jobs)
        if not finished(job, scale, runs)
    ]


def task(config: Any) -> None:
    """Train and measure the job of this index; what goes wrong is logged, so that it stops no other."""
    written = files.read(Path(config.file))
    if _digest(written) != config.digest:
        raise ValueError(f"{config.file} was changed after the command wrote it; start the command again")
    content = files.from_json(written)
    job = content["jobs"][config.index]
    mine = Job(job["labels"], tuple(job["words"]), tuple(job["measures"]), job["seed"])
    try:
        scale = Scale(**content["scale"] | {"search": Search(**content["scale"]["search"])})
        if not do(mine, scale, content["runs"]):
            _log.warning("another process is working on this run")
    except Exception:
        _log.error(traceback.format_exc())


def _digest(text: bytes) -> str:
    return f"sha256-{hashlib.sha256(text).hexdigest()}"


def _literal(path: Path) -> str:
    """A path as a quoted value of Hydra's, in which nothing is resolved."""
    text = re.sub(r"(\\*)('|$)", lambda end: 2 * end[1] + ("\\'" if end[2] else ""), str(path))
    return f"'{text}'".replace("${", "\\${")


@contextmanager
def _lent(words: list[str]) -> Iterator[None]:
    """The command line, which is where Hydra reads, and the log, which it sets up for the whole process."""
    root = logging.getLogger()
    argv, handlers, level = sys.argv, list(root.handlers), root.level
    sys.argv = words
    try:
        yield
    finally:
        sys.argv = argv
        root.handlers[:] = handlers
        root.setLevel(level)
