"""`gcalign train`: from a config to a finished run; a run that was interrupted is continued."""

from __future__ import annotations

import logging
import math
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader

from gcalign.lab.data.images import Images, Subset, described
from gcalign.lab.data.sources import labels_of, load
from gcalign.lab.data.splits import long_tailed
from gcalign.lab.data.views import make_views
from gcalign.lab.limits import within
from gcalign.lab.models import Factory, outside
from gcalign.lab.training.callbacks import Keeper, OnlineKNN
from gcalign.lab.training.checkpoints import checkpoint_step
from gcalign.lab.training.config import Config, Data
from gcalign.lab.training.loggers import logger_of
from gcalign.lab.training.module import Pretraining, Training
from gcalign.lab.training.owner import BusyError, owned
from gcalign.lab.training.progress import Watch
from gcalign.lab.training.runs import Run, brief, save_weights
from gcalign.lab.training.stream import Stream
from gcalign.lab.training.weights import weights_of_pairs
from gcalign.lab.words import quoted


def images_of(data: Data, split: str, **more: Any) -> Images:
    """A split of a config's data set; a long tail is that of the training images alone."""
    about: dict[str, Any] = {"root": data.root, "size": data.size, "on_error": data.on_error, **more}
    if split != "train" or data.tail == 1:
        return load(data.name, split, limit=data.limit, **about)
    whole = load(data.name, split, **about)
    return Subset(whole, long_tailed(labels_of(whole, "data.tail"), data.tail, data.limit, seed=0))


@dataclass(frozen=True)
class ImageTask:
    """What a run on images with views trains, and on what."""

    config: Config
    run: Run
    images: Images
    members: Tensor | None = None
    encoder: str | Factory | None = None

    def made(self, rank: int, world: int) -> tuple[Stream, Pretraining]:
        """The batches of this rank and the module, before anything is written."""
        config, images = self.config, self.images
        augment = make_views(config.view_name, images.shape, images.mean, images.std)
        stream = Stream(
            images,
            batch_size=config.batch_size // config.accumulate,
            epochs=config.epochs,
            seed=config.seed,
            noise=config.pairs.noise,
            views=config.pairs.views,
            mislabelled=config.target.noise,
            rank=rank,
            world=world,
            augment=augment if config.augment_in == "workers" else None,
            fixed=config.pairs.fixed,
            weights=weights_of_pairs(config.pairs, len(images)),
            members=self.members,
        )
        pixels = 4 * stream.views * stream.batch_size * math.prod(images.shape)
        within("BATCH_BYTES", pixels, f"batch_size={config.batch_size} of images {images.shape}: the number of bytes")
        module = Pretraining(config, images.shape, augment, stream.total, self.encoder or outside(config.model.encoder))
        module.check(images)
        return stream, module

    def save(self, module: Pretraining) -> None:
        save_weights(self.run, self.config, module.encoder, module.projector, self.images)


def train(
    config: Config,
    *,
    images: Images | None = None,
    members: Tensor | None = None,
    encoder: str | Factory | Sequence[str | Factory] | None = None,
    quiet: bool = False,
    announce: bool = True,
) -> Run:
    """Run it, continue it, or say that it is done; `quiet` shows nothing, without `announce` only the progress.

    An encoder of the user's own is imported by its name in `config`, which a command or a call made; for a config out
    of a file, `encoder` is what to use instead (of a run on pairs, one for each side). `members` are the pairs to train
    on, for cross-fitting; the run's config does not have them.
    """
    run = Run.of(config)
    if run.done:
        return _finished(run, quiet or not announce)
    if config.data.paired:
        from gcalign.lab.training.pair_runs import Task

        task: Any = Task(config, run, members, encoder)  # type: ignore[arg-type]  # one for each side
    else:
        images = images_of(config.data, "train") if images is None else images
        task = ImageTask(config, run, images, members, encoder)  # type: ignore[arg-type]  # one
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its greetings and tips
    keeper = Keeper(run)
    try:
        trainer = _trainer(config, run, task.images, keeper, quiet)
    except MisconfigurationException as error:
        raise ValueError(
            f"accelerator={config.accelerator} devices={config.devices} precision={config.precision}: {error}; "
            "accelerator=cpu precision=32-true works everywhere"
        ) from error
    if trainer.is_global_zero and task.images is not None:
        _say(described(task.images), quiet or not announce)
    stream, module = task.made(trainer.global_rank, trainer.world_size)
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
        _continued(config, run, task.save, trainer, module, stream, keeper.resume_at, quiet)
    if trainer.is_global_zero:
        _say(f"done: {run.path}\n{_next(run, task.images)}", quiet or not announce)
    return run


def _next(run: Run, images: Images | None) -> str:
    """What can be done with a finished run; there is no accuracy without labels."""
    if images is None or images.labels is not None:
        return f"evaluate it with: {quoted('gcalign', 'probe', f'run={run.path}')}"
    report = quoted("gcalign", "report", str(run.path), "-o", "report.html")
    embed = quoted("gcalign", "embed", f"run={run.path}", "-o", "features.parquet")
    return f"look at neighbours and pairs with: {report}\nembed the images with: {embed}"


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
    save: Callable[[Any], None],  # of the weights
    trainer: L.Trainer,
    module: Training,
    stream: Any,  # of batches, each with its step
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
            save(module)
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
    """Say so; and remove what a process left that was killed after its last step."""
    if run.checkpoint_file.exists() or (run.path / "owner.json").exists() or any(run.path.glob(".*.part")):
        with suppress(BusyError, OSError), owned(run.path):
            run.finish()
    again = quoted("gcalign", "probe", f"run={run.path}")
    _say(f"{run.path} is finished already; nothing to do. Evaluate it with: {again}", quiet)
    return run


_LOST = re.compile("gloo|nccl|connection|peer", re.IGNORECASE)  # what torch says of a rank that does not answer


class WorkerError(Exception):
    """A process that training needs is gone."""


def _fit(trainer: L.Trainer, module: Training, loader: DataLoader[Any]) -> None:
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
        except (RuntimeError, ConnectionError, EOFError) as error:
            if trainer.world_size > 1 and _LOST.search(str(error)):
                said = f"a rank of devices={trainer.world_size} is gone ({brief(error)})"
                raise WorkerError(said) from error
            # seen by the loader itself, or by what fetches a batch from its worker
            if not loader.num_workers or (isinstance(error, RuntimeError) and "DataLoader worker" not in str(error)):
                raise
            said = f"a worker of the data loader is gone ({brief(error)}); too little memory, perhaps: try workers=0"
            raise WorkerError(said) from error
        finally:
            if main:
                signal.signal(signal.SIGINT, handler)
    if module.done < module.total:
        raise KeyboardInterrupt


def _trainer(config: Config, run: Run, images: Images | None, keeper: Keeper, quiet: bool) -> L.Trainer:
    callbacks: list[Callback] = [keeper, Watch(config.epochs, config.log_every, shown=not quiet)]
    # before the keeper, whose checkpoint is the last that is written of a step
    if config.knn_every and images is not None and images.labels is None:
        warnings.warn(f"knn_every={config.knn_every} has no effect: {images.name} has no labels", stacklevel=2)
    elif config.knn_every and images is not None:
        callbacks.insert(0, OnlineKNN(run, images, config.knn_every))
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
        enable_progress_bar=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
    )


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, flush=True)
