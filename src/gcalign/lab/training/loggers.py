"""Where the scalars of a run are shown: any Lightning logger, by name or as module:Class."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gcalign.errors import did_you_mean
from gcalign.lab.outside import imported
from gcalign.lab.words import explained


def _tensorboard(run: Path, step: int) -> dict[str, Any]:
    """TensorBoard hides what a killed process logged after `step`, if this one's file has a later name than its.

    A process that was killed before its first checkpoint has logged something too, and the run starts again at 0.
    """
    own = {"save_dir": run, "name": "", "version": "tensorboard"}
    seconds = [path.name.split(".")[3] for path in (run / "tensorboard").glob("events.out.tfevents.*")]
    if not seconds:
        return own
    last = max((int(text) for text in seconds if text.isdigit()), default=0)
    while last >= int(time.time()) >= last - 5:  # a clock that was turned back is not waited for
        time.sleep(0.1)
    return {**own, "purge_step": step + 1}


def _csv(run: Path, step: int) -> dict[str, Any]:
    return {"save_dir": run, "name": "", "version": "csv", "resume_at": step}


def _wandb(run: Path, step: int) -> dict[str, Any]:
    """A version is W&B's id of a run: under the same one, a resumed run is drawn on."""
    return {"save_dir": run, "name": run.name, "version": run.name, "project": "gcalign"}


def _mlflow(run: Path, step: int) -> dict[str, Any]:
    return {"save_dir": str(run / "mlflow"), "run_name": run.name, "experiment_name": "gcalign"}


# by name, which is that of the package, too: the logger and its arguments for a run that continues after a step
LOGGERS = {
    "tensorboard": ("lightning.pytorch.loggers:TensorBoardLogger", _tensorboard),
    "csv": ("gcalign.lab.training.rows:RowsLogger", _csv),
    "wandb": ("lightning.pytorch.loggers:WandbLogger", _wandb),
    "mlflow": ("lightning.pytorch.loggers:MLFlowLogger", _mlflow),
}


def check(name: str) -> None:
    """That there is such a logger and its package is installed."""
    if name in LOGGERS:
        if find_spec(name) is None:
            raise ValueError(
                f"logger={name} needs the package {name}, which is missing; pip install {name}, or choose logger=csv"
            )
    elif ":" in name:
        _imported(name)
    elif name != "none":
        raise ValueError(
            f"logger={name!r} is unknown; {did_you_mean(name, (*LOGGERS, 'none'))}; or write module:Class of a logger"
        )


def logger_of(name: str, arguments: dict[str, Any], run: Path, resume_at: int = 0) -> Any:
    """The logger of a run, which writes below its folder unless `arguments` say otherwise; None is none.

    Logs of a run that continues after step `resume_at` continue there.
    """
    check(name)
    if name == "none":
        return None
    if name in LOGGERS:
        where, arguments_of = LOGGERS[name]
        kind, own = _imported(where), arguments_of(run, resume_at)
    else:
        kind = _imported(name)
        own = {"save_dir": run} if "save_dir" in inspect.signature(kind).parameters else {}
    remedy = f"it takes {', '.join(inspect.signature(kind).parameters)}"
    with explained(f"logger={name} with logger_args={arguments} cannot be made", remedy, TypeError, ImportError):
        return kind(**own | arguments)


def _imported(name: str) -> Callable[..., Any]:
    from lightning.pytorch.loggers import Logger

    kind: Callable[..., Any] = imported("logger", name, "pip install its package, or choose logger=csv")
    if not (isinstance(kind, type) and issubclass(kind, Logger)):
        raise ValueError(f"logger={name} must be a class of Lightning loggers like lightning.pytorch.loggers:CSVLogger")
    return kind
