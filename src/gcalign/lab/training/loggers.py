"""Where the scalars of a run are shown: any Lightning logger, by name or as module:Class.

The result lines of a run are its record, and a log is made from them: that of a run that is continued starts again with
the lines it has.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gcalign.errors import did_you_mean
from gcalign.lab.outside import imported
from gcalign.lab.words import explained

LOCAL = ("tensorboard", "csv")  # write to a folder of their own in the run


def _own_arguments(name: str, run: Path) -> dict[str, Any]:
    if name == "wandb":  # a version is W&B's id of a run: under the same one, a resumed run is drawn on
        return {"save_dir": run, "name": run.name, "version": run.name, "project": "gcalign"}
    if name == "mlflow":
        return {"save_dir": str(run / "mlflow"), "run_name": run.name, "experiment_name": "gcalign"}
    return {"save_dir": run, "name": "", "version": name} | ({"flush_logs_every_n_steps": 1} if name == "csv" else {})


# by name, which is that of the package, too
LOGGERS = {
    "tensorboard": "lightning.pytorch.loggers:TensorBoardLogger",
    "csv": "lightning.pytorch.loggers:CSVLogger",
    "wandb": "lightning.pytorch.loggers:WandbLogger",
    "mlflow": "lightning.pytorch.loggers:MLFlowLogger",
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


def logger_of(name: str, arguments: dict[str, Any], run: Path) -> Any:
    """The logger of a run, which writes below its folder unless `arguments` say otherwise; None is none."""
    check(name)
    if name == "none":
        return None
    kind = _imported(LOGGERS.get(name, name))
    if name in LOGGERS:
        own = _own_arguments(name, run)
    else:
        own = {"save_dir": run} if "save_dir" in inspect.signature(kind).parameters else {}
    remedy = f"it takes {', '.join(inspect.signature(kind).parameters)}"
    with explained(f"logger={name} with logger_args={arguments} cannot be made", remedy, TypeError, ImportError):
        return kind(**own | arguments)


def restart(name: str, logger: Any, run: Path, lines: Iterable[tuple[int, dict[str, float]]]) -> None:
    """Log again what a run has, by step; what a killed process logged after its last checkpoint is forgotten."""
    if name in LOCAL:
        folder = Path(logger.log_dir)
        if folder != run and folder.is_relative_to(run):
            shutil.rmtree(folder, ignore_errors=True)
    if logger is not None and name != "wandb":  # which knows the steps of its own runs
        for step, scalars in lines:
            logger.log_metrics(scalars, step)


def _imported(name: str) -> Callable[..., Any]:
    from lightning.pytorch.loggers import Logger

    kind: Callable[..., Any] = imported("logger", name, "pip install its package, or choose logger=csv")
    if not (isinstance(kind, type) and issubclass(kind, Logger)):
        raise ValueError(f"logger={name} must be a class of Lightning loggers like lightning.pytorch.loggers:CSVLogger")
    return kind
