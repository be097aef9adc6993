"""What is done after a step: result lines, logs, checkpoints and the online accuracy."""

from __future__ import annotations

import time
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
from lightning.pytorch.callbacks import Callback

from gcalign.lab import files
from gcalign.lab.data.images import Images
from gcalign.lab.data.sources import labels_of
from gcalign.lab.data.splits import stratified
from gcalign.lab.evaluation import evaluate, extract
from gcalign.lab.training.checkpoints import load_checkpoint, save_checkpoint
from gcalign.lab.training.module import Pretraining, Training
from gcalign.lab.training.runs import Run
from gcalign.lab.training.stream import Batch


class Keeper(Callback):
    """Result lines, logs, images/s and then, when all of it is on disk, checkpoints; on one rank for all."""

    def __init__(self, run: Run) -> None:
        self.run, self.resume_at = run, 0
        self.clock, self.clocked = time.perf_counter(), 0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, Training)
        first = trainer.strategy.broadcast(self.resume_at)
        if first != self.resume_at:
            raise ValueError(f"rank {trainer.global_rank} is at step {self.resume_at}, rank 0 at {first}; try again")
        if self.resume_at:
            module.done = load_checkpoint(self.run, module, trainer.optimizers[0], trainer.precision_plugin)
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
            record(trainer, self.run, done, {"kind": "train", **measured}, measured)
        due = done % config.checkpoint_every == 0 and done != module.total
        if due:
            for logger in trainer.loggers if trainer.is_global_zero else ():
                logger.save()
            save_checkpoint(self.run, module, trainer.optimizers[0], trainer.precision_plugin, done, config.hash)


def record(trainer: L.Trainer, run: Run, step: int, line: dict[str, Any], scalars: dict[str, float]) -> None:
    """A result line, and the same numbers for the loggers, at the step of the run and not of the process."""
    if not trainer.is_global_zero:
        return
    files.append_json_lines(run.results_file, [{"step": step, **line}])
    for logger in trainer.loggers:
        logger.log_metrics(scalars, step)


class OnlineKNN(Callback):
    """kNN accuracy as the encoder learns, on a fifth of the training images held out; the test split is not seen."""

    def __init__(self, run: Run, images: Images, every: int) -> None:
        self.run, self.images, self.every = run, images, every
        self.labels = labels_of(images, "online kNN")
        self.split = stratified(self.labels, 0.2, seed=0)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(module, Pretraining)
        steps = module.total // module.config.epochs
        epoch, within = divmod(batch.step + 1, steps)
        if within or epoch % self.every or not trainer.is_global_zero:
            return
        features = extract(module.encoder, self.images, device=module.device)
        known, asked = self.split
        found = evaluate(
            "knn", features[known], self.labels[known], features[asked], self.labels[asked], split="held out"
        )
        module.knn = found.accuracy
        line = {"kind": "knn", "epoch": epoch, "accuracy": found.accuracy}
        record(trainer, self.run, batch.step + 1, line, {"knn": found.accuracy})
