"""What is done after a step: result lines, logs, checkpoints, the online accuracy, and what a person sees of it."""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
from lightning.pytorch.callbacks import Callback

from gcalign.lab import files
from gcalign.lab.data.images import Images
from gcalign.lab.data.sources import labels_of
from gcalign.lab.data.splits import stratified
from gcalign.lab.training.checkpoints import load_checkpoint, save_checkpoint
from gcalign.lab.training.module import Tower, Training
from gcalign.lab.training.runs import Run
from gcalign.lab.training.stream import Batch

EVERY = 30.0  # seconds between two lines where there is no terminal
COLLAPSED = 1e-3  # spread below which all embeddings are one point


class RunRecorder(Callback):
    """Result lines, logs, images/s and then, when the lines are on disk, checkpoints; on one rank for all."""

    def __init__(self, run: Run) -> None:
        self.run, self.resume_at = run, 0
        self.clock, self.clocked = time.perf_counter(), 0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, Training)
        first = trainer.strategy.broadcast(self.resume_at)
        if first != self.resume_at:
            raise ValueError(f"rank {trainer.global_rank} is at step {self.resume_at}, rank 0 at {first}; try again")
        if self.resume_at:
            module.done = load_checkpoint(self.run, trainer, module)
        self.clock, self.clocked = time.perf_counter(), self.resume_at

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(module, Training)
        config, done = module.config, batch.step + 1
        module.done = done
        if done % config.log_every == 0 or done == module.total:
            rate = (done - self.clocked) * config.batch_size / max(1e-9, time.perf_counter() - self.clock)
            self.clock, self.clocked = time.perf_counter(), done
            module.log("images/s", rate, prog_bar=True, logger=False)
            measured = {k: float(v) for k, v in trainer.callback_metrics.items()} | {"images/s": rate}
            record(trainer, self.run, {"step": done, "kind": "train", **measured})
        if done % config.checkpoint_every == 0 and done != module.total:
            save_checkpoint(self.run, trainer, module, done, config.hash)


def record(trainer: L.Trainer, run: Run, line: dict[str, Any]) -> None:
    """A result line, and the same numbers for the loggers, at the step of the run and not of the process."""
    if trainer.is_global_zero:
        files.append_json_lines(run.results_file, [line])
        for logger in trainer.loggers:
            logger.log_metrics(scalars(line), line["step"])


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """What a logger is shown of a result line."""
    if line["kind"] == "knn":
        return {"knn": line["accuracy"]}
    return {name: value for name, value in line.items() if name not in ("kind", "step")}


class OnlineKNN(Callback):
    """kNN accuracy as the encoder learns, on a fifth of the training images held out; the test split is not seen."""

    def __init__(self, run: Run, images: Images, every: int) -> None:
        self.run, self.images, self.every = run, images, every
        self.labels = labels_of(images, "online kNN")
        self.split = stratified(self.labels, 0.2, seed=0)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(module, Training)
        epoch, within = divmod(batch.step + 1, module.total // module.config.epochs)
        if within or epoch % self.every or not trainer.is_global_zero:
            return
        from gcalign.lab.evaluation import evaluate, extract

        (tower,) = module.towers
        assert isinstance(tower, Tower)
        features = extract(tower.encoder, self.images, device=module.device)
        known, asked = self.split
        result = evaluate(
            "knn", features[known], self.labels[known], features[asked], self.labels[asked], split="held out"
        )
        module.knn = result.accuracy
        record(trainer, self.run, {"step": batch.step + 1, "kind": "knn", "epoch": epoch, "accuracy": module.knn})


class ProgressCallback(Callback):
    """Epoch, step, loss, online kNN and time left of the whole run, also if it was continued.

    On a terminal a line that changes, elsewhere a line every half minute; and a warning if embeddings collapse.
    Lightning's bars know one process and one epoch, which is every epoch here, and fill log files.
    """

    def __init__(self, epochs: int, log_every: int, *, shown: bool) -> None:
        self.epochs, self.log_every, self.shown = epochs, log_every, shown
        self.begun, self.first, self.last = 0.0, 0, 0.0  # when it began, at which step; when it was shown last
        self.warned = False

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, Training)
        self.begun = self.last = time.monotonic()
        self.first = module.done

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(module, Training)
        if not trainer.is_global_zero:
            return
        done, total, now = batch.step + 1, module.total, time.monotonic()
        if "spread" in trainer.callback_metrics and not self.warned and done % self.log_every == 0:
            self._warn(done, float(trainer.callback_metrics["spread"]))
        terminal = sys.stderr.isatty()
        wait = 0.5 if terminal else EVERY  # reading the loss waits for the device, so it is done now and then
        if not self.shown or (now - self.last < wait and done < total):
            return
        self.last = now
        left = (now - self.begun) / (done - self.first) * (total - done)
        line = f"epoch {batch.step * self.epochs // total + 1}/{self.epochs}, step {done} of {total}"
        line += f", loss {float(trainer.callback_metrics.get('loss', float('nan'))):.4g}"
        line += "" if module.knn is None else f", kNN {100 * module.knn:.1f} %"
        if terminal:
            ending = "\n" if done == total else ""
            print(f"\r\x1b[K{line}, {_time(left)} left", end=ending, file=sys.stderr, flush=True)
        elif done < total:
            print(f"{line}, {_time(left)} left", file=sys.stderr, flush=True)

    def _warn(self, done: int, spread: float) -> None:
        if spread < COLLAPSED:
            self.warned = True
            warnings.warn(
                f"step {done}: the embeddings have collapsed to one point (spread {spread:.1e}); a lower "
                "optimizer.lr=, a warm-up or a higher method.eps= may help",
                stacklevel=2,
            )


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
