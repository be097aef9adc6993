"""`gcalign train`: from a config to a finished run, or on with one that was interrupted."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
import warnings
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
import numpy as np
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, RichProgressBar
from torch import Tensor
from torch.utils.data import DataLoader

from gcalign.lab import files
from gcalign.lab.data.images import Images
from gcalign.lab.data.sources import labels_of, load
from gcalign.lab.data.splits import stratified
from gcalign.lab.data.views import make_views
from gcalign.lab.evaluation import evaluate, extract
from gcalign.lab.training.config import Config, Data
from gcalign.lab.training.loggers import logger_of
from gcalign.lab.training.module import Pretraining
from gcalign.lab.training.runs import Run, checkpoint_step, load_checkpoint, save_checkpoint, save_weights
from gcalign.lab.training.stream import Batch, Stream


def images_of(data: Data, split: str, **more: Any) -> Images:
    """A split of a config's data set."""
    return load(data.name, split, root=data.root, size=data.size, limit=data.limit, on_error=data.on_error, **more)


class Keeper(Callback):
    """Checkpoints, result lines and images/s; on one rank for all."""

    def __init__(self, run: Run, resume_at: int) -> None:
        self.run, self.resume_at = run, resume_at
        self.clock, self.clocked = time.perf_counter(), resume_at

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, Pretraining)
        if self.resume_at:
            module.done = load_checkpoint(self.run, module, trainer.optimizers[0])
        self.clock = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        assert isinstance(module, Pretraining)
        config, done = module.config, batch.step + 1
        module.done = done
        if trainer.is_global_zero and self._due(done, config, module.total):
            save_checkpoint(self.run, module, trainer.optimizers[0], done)
        if done % config.log_every and done != module.total:
            return
        rate = (done - self.clocked) * config.batch_size / max(1e-9, time.perf_counter() - self.clock)
        self.clock, self.clocked = time.perf_counter(), done
        module.log("images/s", rate, prog_bar=True)
        if not trainer.is_global_zero:
            return
        measured = {k: float(v) for k, v in trainer.callback_metrics.items()}
        files.append_json_lines(self.run.results_file, [{"kind": "train", "step": done, **measured, "images/s": rate}])

    @staticmethod
    def _due(done: int, config: Config, total: int) -> bool:
        # between accumulated batches half of a gradient is pending, which no file holds
        return done % config.checkpoint_every == 0 and done % config.accumulate == 0 and done != total


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
        record = {"kind": "knn", "step": batch.step + 1, "epoch": epoch, "accuracy": found.accuracy}
        files.append_json_lines(self.run.results_file, [record])
        module.log("knn", found.accuracy, prog_bar=True)


def weights_of_pairs(path: str | None, n: int) -> Tensor | None:  # [n]
    """The weights that `pairs.weights` names."""
    if path is None:
        return None
    try:
        weights = torch.tensor(np.load(path, allow_pickle=False)).float()
    except (ValueError, TypeError, EOFError) as error:
        raise ValueError(f"pairs.weights={path} cannot be read ({error}); it must be numbers in an npy file") from None
    if weights.shape != (n,) or not bool((weights >= 0).all() & weights.isfinite().all()):
        raise ValueError(
            f"pairs.weights={path} has the shape {tuple(weights.shape)}; it must have a finite weight ≥ 0 for each of "
            f"the {n} training images: audit this run's pairs, with the same data.limit"
        )
    return weights


def train(
    config: Config,
    *,
    images: Images | None = None,
    members: Tensor | None = None,
    quiet: bool = False,
    announce: bool = True,
) -> Run:
    """Run it, go on with it, or say that it is done; `quiet` shows nothing, without `announce` only the progress.

    `members` are the pairs to train on, for cross-fitting; the run's config does not have them.
    """
    run = Run.of(config)
    if run.done:
        _say(
            f"{run.path} is finished already; nothing to do. Evaluate it with: gcalign probe run={run.path}",
            quiet or not announce,
        )
        return run
    images = images_of(config.data, "train") if images is None else images
    resume_at = checkpoint_step(run)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its greetings and tips
    try:
        trainer = _trainer(config, run, images, resume_at, quiet)
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
        rank=trainer.global_rank,
        world=trainer.world_size,
        augment=augment if config.augment_in == "workers" else None,
        fixed=config.pairs.fixed,
        weights=weights_of_pairs(config.pairs.weights, len(images)),
        members=members,
    )
    module = Pretraining(config, images.shape, augment, stream.total)
    module.check(images)
    loader = DataLoader(
        stream,
        batch_size=None,
        sampler=range(resume_at, stream.total),
        num_workers=config.workers,
        persistent_workers=False,
    )
    run.start(config)  # the first thing that is written
    try:
        run.keep_results_before(resume_at)
        if resume_at:
            _say(f"{run.path}: going on at step {resume_at}", quiet)
        _fit(trainer, module, loader)
        if trainer.is_global_zero:
            save_weights(run, config, module.encoder, module.projector, images.shape)
            run.finish()
    except KeyboardInterrupt:
        said = f"\n{run.path}: interrupted at step {module.done} of {stream.total}; the same command goes on"
        _say(f"{said} at step {checkpoint_step(run)}", quiet or not trainer.is_global_zero)
        raise
    except OSError as error:  # a full disk, most of all
        raise ValueError(
            f"{run.path} stopped at step {module.done} of {stream.total}: {error}; when that is mended, the same "
            f"command goes on at step {checkpoint_step(run)}"
        ) from error
    if trainer.is_global_zero:
        _say(f"done: {run.path}\nevaluate it with: gcalign probe run={run.path}", quiet or not announce)
    return run


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
        finally:
            if main:
                signal.signal(signal.SIGINT, handler)
    if module.done < module.total:
        raise KeyboardInterrupt


def _trainer(config: Config, run: Run, images: Images, resume_at: int, quiet: bool) -> L.Trainer:
    watched = sys.stderr.isatty() and not quiet
    callbacks: list[Callback] = [Keeper(run, resume_at)]
    if config.knn_every:
        callbacks.append(OnlineKNN(run, images, config.knn_every))
    if watched:
        callbacks.append(RichProgressBar())
    return L.Trainer(
        max_epochs=1,  # the stream is every epoch in one
        accelerator=config.accelerator,
        devices=config.devices,
        strategy="ddp" if config.devices > 1 else "auto",
        precision=config.precision,  # type: ignore[arg-type]  # a string from the config; Lightning checks it
        accumulate_grad_batches=config.accumulate,
        logger=logger_of(config.logger, config.logger_args, run.path),
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
