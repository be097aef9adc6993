"""How far a run is: a bar on a terminal, elsewhere a line every half minute; and a warning if embeddings collapse."""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
import torch
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from gcalign.kernels import normalize
from gcalign.lab.training.stream import Batch

EVERY = 30.0  # seconds between two lines
COLLAPSED = 1e-3  # spread below which all embeddings are one point


def collapse(z: Tensor) -> dict[str, Tensor]:  # [B, D]
    """How embeddings fill their space: `spread` is 0 if all directions are one and 1 if their mean is 0; `rank` is
    the exponential of the entropy of their covariance's spectrum, the number of dimensions that are used."""
    x = normalize(z.detach().float())
    centred = x - x.mean(0)
    small = centred.T @ centred if x.shape[1] <= len(x) else centred @ centred.T
    share = torch.linalg.eigvalsh(small / len(x)).clamp(min=0)
    spread = share.sum()
    share = share / spread.clamp(min=1e-12)
    return {"spread": spread, "rank": torch.special.entr(share).sum().exp()}


class Watch(Callback):
    """Epoch, step, time left, loss and online kNN of the whole run, also if it was continued."""

    def __init__(self, epochs: int, log_every: int, *, shown: bool) -> None:
        self.epochs, self.log_every, self.shown = epochs, log_every, shown
        self.bar: Progress | None = None
        self.begun, self.first, self.told = 0.0, 0, 0.0
        self.warned = False

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.begun = self.told = time.monotonic()
        self.first = int(getattr(module, "done", 0))
        if not (self.shown and trainer.is_global_zero and sys.stderr.isatty()):
            return
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("step {task.completed}/{task.total}"),
                   TimeRemainingColumn(), TextColumn("{task.fields[said]}"))  # fmt: skip
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.bar.start()
        self.bar.add_task("epoch 1", total=_total(module), completed=self.first, said="")

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        done, total, now = batch.step + 1, _total(module), time.monotonic()
        if not trainer.is_global_zero:
            return
        if "spread" in trainer.callback_metrics and not self.warned and done % self.log_every == 0:
            self._warn(done, float(trainer.callback_metrics["spread"]))
        wait = EVERY if self.bar is None else 0.5  # reading the loss waits for the device, so it is done now and then
        if not self.shown or (now - self.told < wait and done < total):
            return
        self.told = now
        epoch = f"epoch {batch.step * self.epochs // total + 1}/{self.epochs}"
        loss, knn = trainer.callback_metrics.get("loss", float("nan")), getattr(module, "knn", None)
        said = f"loss {float(loss):.4g}" + ("" if knn is None else f", kNN {100 * knn:.1f} %")
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], description=epoch, completed=done, said=said)
        elif done < total:
            left = (now - self.begun) / (done - self.first) * (total - done)
            print(f"{epoch}, step {done} of {total}, {said}, {_time(left)} left", file=sys.stderr, flush=True)

    def _warn(self, done: int, spread: float) -> None:
        if spread < COLLAPSED:
            self.warned = True
            warnings.warn(
                f"step {done}: the embeddings have collapsed to one point (spread {spread:.1e}); a lower "
                "optimizer.lr=, a warm-up or a higher method.eps= may help",
                stacklevel=2,
            )

    def teardown(self, trainer: L.Trainer, module: L.LightningModule, stage: str) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, module, "fit")


def _total(module: L.LightningModule) -> int:
    return int(getattr(module, "total", 0))


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
