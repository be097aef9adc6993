"""Where the scalars of a run are shown: any Lightning logger, by name or as module:Class."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gcalign.errors import did_you_mean
from gcalign.lab.outside import imported


@dataclass(frozen=True)
class Named:
    """A logger of Lightning's, the package it needs, and its arguments for a run."""

    where: str
    package: str
    arguments: Callable[[Path], dict[str, Any]]
    resumed: Callable[[Path, int], dict[str, Any]] = lambda run, step: {}  # more, for one that continues after a step


def _purged(run: Path, step: int) -> dict[str, Any]:
    """TensorBoard hides what a killed process logged after `step`, if this one's file has a later name than its.

    A process that was killed before its first checkpoint has logged something too, and the run starts again at 0.
    """
    seconds = [path.name.split(".")[3] for path in (run / "tensorboard").glob("events.out.tfevents.*")]
    if not seconds:
        return {}
    last = max((int(text) for text in seconds if text.isdigit()), default=0)
    while last >= int(time.time()) >= last - 5:  # a clock that was turned back is not waited for
        time.sleep(0.1)
    return {"purge_step": step + 1}


LOGGERS = {
    "tensorboard": Named(
        "lightning.pytorch.loggers:TensorBoardLogger",
        "tensorboard",
        lambda run: {"save_dir": run, "name": "", "version": "tensorboard"},
        _purged,
    ),
    "csv": Named(
        "gcalign.lab.training.rows:RowsLogger",
        "lightning",
        lambda run: {"save_dir": run, "name": "", "version": "csv"},
        lambda run, step: {"resume_at": step},
    ),
    # a version is W&B's id of a run: under the same one, a resumed run is drawn on
    "wandb": Named(
        "lightning.pytorch.loggers:WandbLogger",
        "wandb",
        lambda run: {"save_dir": run, "name": run.name, "version": run.name, "project": "gcalign"},
    ),
    "mlflow": Named(
        "lightning.pytorch.loggers:MLFlowLogger",
        "mlflow",
        lambda run: {"save_dir": str(run / "mlflow"), "run_name": run.name, "experiment_name": "gcalign"},
    ),
}


def check(name: str) -> None:
    """That there is such a logger and its package is installed."""
    if name in LOGGERS:
        package = LOGGERS[name].package
        if find_spec(package) is None:
            raise ValueError(
                f"logger={name} needs the package {package}, which is not installed; pip install {package}, or choose "
                "logger=csv"
            )
    elif ":" in name:
        _imported(name)
    elif name != "none":
        raise ValueError(
            f"logger={name!r} is unknown; {did_you_mean(name, (*LOGGERS, 'none'))}; or module:Class of a Lightning "
            "logger"
        )


def logger_of(name: str, arguments: dict[str, Any], run: Path, resume_at: int = 0) -> Any:
    """The logger of a run, which writes below its folder unless `arguments` say otherwise; None is none.

    Logs of a run that continues after step `resume_at` continue there.
    """
    check(name)
    if name == "none":
        return None
    named = LOGGERS.get(name)
    kind = _imported(named.where if named else name)
    own = named.arguments(run) if named else {"save_dir": run}
    own |= named.resumed(run, resume_at) if named else {}
    known = inspect.signature(kind).parameters
    if not named and "save_dir" not in known:
        own = {}
    try:
        return kind(**own | arguments)
    except (TypeError, ImportError) as error:
        raise ValueError(
            f"logger={name} with logger_args={arguments} cannot be made ({error}); it takes {', '.join(known)}"
        ) from error


def _imported(name: str) -> Callable[..., Any]:
    from lightning.pytorch.loggers import Logger

    kind: Callable[..., Any] = imported("logger", name, "pip install its package, or choose logger=csv")
    if not (isinstance(kind, type) and issubclass(kind, Logger)):
        raise ValueError(
            f"logger={name} must be a class of Lightning loggers, such as lightning.pytorch.loggers:CSVLogger"
        )
    return kind
