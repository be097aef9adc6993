"""`gcalign train`: from a config to a finished run; a run that was interrupted is continued."""

from __future__ import annotations

import logging
import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, RichProgressBar
from torch import Tensor
from torch.utils.data import DataLoader

from gcalign.lab import files
from gcalign.lab.data.images import Images, Subset
from gcalign.lab.data.sources import labels_of, load
from gcalign.lab.data.splits import long_tailed, stratified
from gcalign.lab.data.views import make_views
from gcalign.lab.evaluation import evaluate, extract
from gcalign.lab.limits import within
from gcalign.lab.models import Factory, outside
from gcalign.lab.training.checkpoints import checkpoint_step, load_checkpoint, save_checkpoint
from gcalign.lab.training.config import Config, Data
from gcalign.lab.training.loggers import logger_of
from gcalign.lab.training.module import Pretraining
from gcalign.lab.training.owner import owned
from gcalign.lab.training.runs import Run, brief, save_weights
from gcalign.lab.training.stream import Batch, Stream
from gcalign.lab.training.weights import weights_of_pairs
from gcalign.lab.words import quoted


def images_of(data: Data, split: str, **more: Any) -> Images:
    """A split of a config's data set; a long tail is that of the training images alone."""
    about: dict[str, Any] = {"root": data.root, "size": data.size, "on_error": data.on_error, **more}
    if split != "train" or data.tail == 1:
        return load(data.name, split, limit=data.limit, **about)
    whole = load(data.name, split, **about)
    return Subset(whole, long_tailed(labels_of(whole, "data.tail"), data.tail, data.limit, seed=0))


class Keeper(Callback):
    """Result lines, logs, images/s and then, when all of it is on disk, checkpoints; on one rank for all."""

    def __init__(self, run: Run) -> None:
        self.run, self.resume_at = run, 0
        self.clock, self.clocked = time.perf_counter(), 0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, Pretraining)
        first = trainer.strategy.broadcast(self.resume_at)
        if first != self.resume_at:
            raise ValueError(
                f"rank {trainer.global_rank} continues at step {self.resume_at}, rank 0 at {first}; try again"
            )
        if self.resume_at:
            module.done = load_checkpoint(self.run, module, trainer.optimizers[0])
        self.clock, self.clocked = time.perf_counter(), self.resume_at

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(module, Pretraining)
        config, done = module.config, batch.step + 1
        module.done = done
        if done % config.log_every == 0 or done == module.total:
            rate = (done - self.clocked) * config.batch_size / max(1e-9, time.perf_counter() - self.clock)
            self.clock, self.clocked = time.perf_counter(), done
            module.log("images/s", rate, prog_bar=True, logger=False)
            measured = {k: float(v) for k, v in trainer.callback_metrics.items()} | {"images/s": rate}
            record(trainer, self.run, done, {"kind": "train", **measured}, measured)
        # between accumulated batches half of a gradient is pending, which no file holds
        due = done % config.checkpoint_every == 0 and done % config.accumulate == 0 and done != module.total
        if trainer.is_global_zero and due:
            for logger in trainer.loggers:
                logger.save()
            save_checkpoint(self.run, module, trainer.optimizers[0], done, config.hash)


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
        line = {"kind": "knn", "epoch": epoch, "accuracy": found.accuracy}
        record(trainer, self.run, batch.step + 1, line, {"knn": found.accuracy})


def train(
    config: Config,
    *,
    images: Images | None = None,
    members: Tensor | None = None,
    encoder: str | Factory | None = None,
    quiet: bool = False,
    announce: bool = True,
) -> Run:
    """Run it, continue it, or say that it is done; `quiet` shows nothing, without `announce` only the progress.

    An encoder of the user's own is imported by its name in `config`, which a command or a call made; for a config out
    of a file, `encoder` is what to use instead. `members` are the pairs to train on, for cross-fitting; the run's
    config does not have them.
    """
    run = Run.of(config)
    if run.done:
        return _finished(run, quiet or not announce)
    images = images_of(config.data, "train") if images is None else images
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its greetings and tips
    keeper = Keeper(run)
    try:
        trainer = _trainer(config, run, images, keeper, quiet)
    except MisconfigurationException as error:
        raise ValueError(
            f"accelerator={config.accelerator} devices={config.devices} precision={config.precision}: {error}; "
            "accelerator=cpu precision=32-true works everywhere"
        ) from error
    augment = make_views(config.view_name, images.shape, images.mean, images.std)
    stream = Stream(
        images,
        batch_size=config.batch_size // config.accumulate,
        epochs=config.epochs,
        seed=config.seed,
        noise=config.pairs.noise,
        views=config.pairs.views,
        mislabelled=config.target.noise,
        rank=trainer.global_rank,
        world=trainer.world_size,
        augment=augment if config.augment_in == "workers" else None,
        fixed=config.pairs.fixed,
        weights=weights_of_pairs(config.pairs, len(images)),
        members=members,
    )
    pixels = 4 * stream.views * stream.batch_size * math.prod(images.shape)
    within("BATCH_BYTES", pixels, f"batch_size={config.batch_size} of images {images.shape}: the number of bytes")
    module = Pretraining(config, images.shape, augment, stream.total, encoder or outside(config.model.encoder))
    module.check(images)
    with _owned(run, config) if trainer.is_global_zero else nullcontext():
        if run.done:  # by the process that this one waited for
            return _finished(run, quiet or not announce)
        if trainer.is_global_zero:
            run.start(config)
        keeper.resume_at = checkpoint_step(run, config.hash)
        if keeper.resume_at > stream.total:
            raise ValueError(
                f"{run.checkpoint_file} is of step {keeper.resume_at}, and the run has {stream.total} steps; delete it "
                "to start the run again"
            )
        _continued(config, run, images, trainer, module, stream, keeper.resume_at, quiet)
    if trainer.is_global_zero:
        again = quoted("gcalign", "probe", f"run={run.path}")
        _say(f"done: {run.path}\nevaluate it with: {again}", quiet or not announce)
    return run


@contextmanager
def _owned(run: Run, config: Config) -> Iterator[None]:
    """The run's folder, made and owned: the first thing that is written."""
    with ExitStack() as stack:
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(owned(run.path, wait=config.wait))
        except OSError as error:
            raise ValueError(f"runs={config.runs}: {error}; choose a folder that can be written with runs=…") from error
        yield


def _continued(
    config: Config,
    run: Run,
    images: Images,
    trainer: L.Trainer,
    module: Pretraining,
    stream: Stream,
    resume_at: int,
    quiet: bool,
) -> None:
    """From the last checkpoint, or the start, to the weights."""
    loader = DataLoader(
        stream,
        batch_size=None,
        sampler=range(resume_at, stream.total),
        num_workers=config.workers,
        persistent_workers=False,
    )
    try:
        if trainer.is_global_zero:
            run.keep_results_before(resume_at)
        if resume_at:
            trainer.logger = logger_of(config.logger, config.logger_args, run.path, resume_at)
            _say(f"{run.path}: continues at step {resume_at}", quiet)
        _fit(trainer, module, loader)
        if trainer.is_global_zero:
            save_weights(run, config, module.encoder, module.projector, images)
            run.finish()
    except KeyboardInterrupt:
        said = f"\n{run.path}: interrupted at step {module.done} of {stream.total}; the same command goes on"
        _say(f"{said} at step {checkpoint_step(run)}", quiet or not trainer.is_global_zero)
        raise
    except (OSError, WorkerError) as error:  # a full disk, most of all
        raise ValueError(
            f"{run.path} stopped at step {module.done} of {stream.total}: {error}; when that is mended, the same "
            f"command goes on at step {checkpoint_step(run)}"
        ) from error


def _finished(run: Run, quiet: bool) -> Run:
    again = quoted("gcalign", "probe", f"run={run.path}")
    _say(f"{run.path} is finished already; nothing to do. Evaluate it with: {again}", quiet)
    return run


class WorkerError(Exception):
    """A process that training needs is gone."""


def _fit(trainer: L.Trainer, module: Pretraining, loader: DataLoader[Batch]) -> None:
    """Lightning's loop, but Ctrl-C is a KeyboardInterrupt: Lightning makes it exit(1) and ignores the next one."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    with warnings.catch_warnings():
        # the loader has as many workers as the config says, and a run is one pass over its steps
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=".*The number of training batches.*")
        warnings.filterwarnings("ignore", message=".*Trying to infer the `batch_size`.*")
        warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
        try:
            trainer.fit(module, loader)
        except SystemExit:
            raise KeyboardInterrupt from None
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise WorkerError(f"{brief(error)}; too little memory, perhaps: try workers=0") from error
        finally:
            if main:
                signal.signal(signal.SIGINT, handler)
    if module.done < module.total:
        raise KeyboardInterrupt


def _trainer(config: Config, run: Run, images: Images, keeper: Keeper, quiet: bool) -> L.Trainer:
    watched = sys.stderr.isatty() and not quiet
    callbacks: list[Callback] = [keeper]
    if config.knn_every:  # before the keeper, whose checkpoint is the last that is written of a step
        callbacks.insert(0, OnlineKNN(run, images, config.knn_every))
    if watched:
        callbacks.append(RichProgressBar())
    return L.Trainer(
        max_epochs=1,  # the stream is every epoch in one
        accelerator=config.accelerator,
        devices=config.devices,
        strategy="ddp" if config.devices > 1 else "auto",
        precision=config.precision,  # type: ignore[arg-type]  # a string from the config; Lightning checks it
        accumulate_grad_batches=config.accumulate,
        logger=logger_of(config.logger, config.logger_args, run.path) or False,
        log_every_n_steps=config.log_every,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=watched,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, flush=True)
