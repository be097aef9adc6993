"""`gcalign train`: from a config to a finished run; a run that was interrupted is continued."""

from __future__ import annotations

import logging
import math
import re
import signal
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader

from gcalign.lab.data.images import Images, Subset, described
from gcalign.lab.data.sources import labels_of, load
from gcalign.lab.data.splits import long_tailed
from gcalign.lab.limits import within
from gcalign.lab.models import Factory, outside
from gcalign.lab.training.callbacks import Keeper, OnlineKNN
from gcalign.lab.training.checkpoints import checkpoint_step, whole_state
from gcalign.lab.training.config import Config, Data
from gcalign.lab.training.loggers import logger_of
from gcalign.lab.training.module import Pretraining, Training
from gcalign.lab.training.owner import BusyError, owned
from gcalign.lab.training.processes import check_device, decided, environment_of, started_together, strategy_of
from gcalign.lab.training.progress import Watch
from gcalign.lab.training.runs import Run, save_weights
from gcalign.lab.training.stream import Stream, augment_of
from gcalign.lab.words import brief, explained, printable, quoted


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
        augment = augment_of(config, images)
        stream = Stream.of(config, images, augment, rank=rank, world=world, members=self.members)
        pixels = 4 * stream.views * stream.batch_size * math.prod(images.shape)
        within("BATCH_BYTES", pixels, f"batch_size={config.batch_size} of images {images.shape}: the number of bytes")
        network = self.encoder or outside(config.model.encoder)
        module = Pretraining(config, images.shape, augment, stream.total, network)
        module.check(images)
        return stream, module

    def save(self, state: Mapping[str, Tensor]) -> None:
        """The encoder and its head, with the config and the preprocessing inside."""
        images = self.images
        about = {"config": self.config.identity, "shape": images.shape, "mean": images.mean, "std": images.std}
        save_weights(self.run, state, ("encoder.", "projector."), about)


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
    run, environment = Run.of(config), environment_of(config)
    together = started_together(config, environment)
    if run.done and not together:
        return _finished(run, quiet or not announce)
    if config.data.paired:
        from gcalign.lab.training.pair_runs import Task

        task: Any = Task(config, run, members, encoder)  # type: ignore[arg-type]  # one for each side
    else:
        images = images_of(config.data, "train") if images is None else images
        task = ImageTask(config, run, images, members, encoder)  # type: ignore[arg-type]  # one
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)  # greetings and tips
    keeper = Keeper(run)
    trainer = _trainer(config, run, environment, task.images, keeper, quiet)
    quiet = quiet or not trainer.is_global_zero
    silent = quiet or not announce
    if task.images is not None:
        _say(described(task.images), silent)
    stream, module = task.made(trainer.global_rank, trainer.world_size)
    with ExitStack() as stack:
        if trainer.is_global_zero or together:
            decide = partial(_first, run, config, stream.total, stack)
            first = decided(trainer, module, decide) if together else decide()
        else:  # Lightning started it after the first process had decided
            first = checkpoint_step(run, config.hash)
        if first is None:
            return _finished(run, silent) if trainer.is_global_zero else run
        keeper.resume_at = first
        if config.compile:
            _say("compile=true: the first step compiles encoder and head, which takes a while", quiet)
        _continued(config, run, task.save, trainer, module, stream, first, quiet)
    _say(f"done: {run.path}\n{_next(run, task.images)}", silent)
    return run


def _next(run: Run, images: Images | None) -> str:
    """What can be done with a finished run; there is no accuracy without labels."""
    if images is None or images.labels is not None:
        return f"evaluate it with: {quoted('gcalign', 'probe', f'run={run.path}')}"
    report = quoted("gcalign", "report", str(run.path), "-o", "report.html")
    embed = quoted("gcalign", "embed", f"run={run.path}", "-o", "features.parquet")
    return f"look at neighbours and pairs with: {report}\nembed the images with: {embed}"


def _first(run: Run, config: Config, total: int, stack: ExitStack) -> int | None:
    """Own the run and write its config; the step that comes next, None if the process that was waited for did them."""
    remedy = "choose a folder that can be written with runs=…"
    with explained(f"runs={config.runs} cannot be used", remedy, OSError):
        run.path.mkdir(parents=True, exist_ok=True)
        stack.enter_context(owned(run.path, wait=config.wait))
        if run.done:
            return None
        run.start(config)
    first = checkpoint_step(run, config.hash)
    if first > total:
        raise ValueError(f"{run.checkpoint_file} is of step {first} of {total}; delete it to start the run again")
    return first


def _continued(
    config: Config,
    run: Run,
    save: Callable[[Mapping[str, Tensor]], None],  # of the weights
    trainer: L.Trainer,
    module: Training,
    stream: Any,  # of batches, each with its step
    resume_at: int,
    quiet: bool,
) -> None:
    """From the last checkpoint, or the start, to the weights."""
    steps = range(resume_at, stream.total)
    loader: DataLoader[Any] = DataLoader(stream, batch_size=None, sampler=steps, num_workers=config.workers)
    try:
        if trainer.is_global_zero:
            run.keep_results_before(resume_at)
        if resume_at:
            trainer.logger = logger_of(config.logger, config.logger_args, run.path, resume_at)
            _say(f"{run.path}: continues at step {resume_at}", quiet)
        _fit(trainer, module, loader)
        state = whole_state(module)
        if trainer.is_global_zero:
            save(state)
            run.finish()
    except KeyboardInterrupt:
        said = f"\n{run.path}: interrupted at step {module.done} of {stream.total}; the same command continues"
        _say(f"{said} at step {checkpoint_step(run)}", quiet)
        raise
    except (OSError, WorkerError) as error:  # a full disk, most of all
        raise ValueError(
            f"{run.path} stopped at step {module.done} of {stream.total}: {error}; when that is corrected, the same "
            f"command continues at step {checkpoint_step(run)}"
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
    """A process that training needs has ended."""


def _fit(trainer: L.Trainer, module: Training, loader: DataLoader[Any]) -> None:
    """Lightning's loop, but Ctrl-C is a KeyboardInterrupt: Lightning makes it exit(1) and ignores the next one."""
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    with warnings.catch_warnings():
        # the loader has as many workers as the config says, and a run is one pass over its steps
        for said in ("does not have many workers", "The number of training batches", "Trying to infer the `batch_size`",
                     "treespec, LeafSpec", "`srun` command is available"):  # fmt: skip
            warnings.filterwarnings("ignore", message=f".*{said}.*")
        try:
            trainer.fit(module, loader)
        except SystemExit:
            raise KeyboardInterrupt from None
        except (RuntimeError, ConnectionError, EOFError) as error:
            if trainer.world_size > 1 and _LOST.search(str(error)):
                raise WorkerError(f"a rank of {trainer.world_size} has ended ({brief(error)})") from error
            if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                raise ValueError(f"compile=true: torch.compile failed ({brief(error)}); leave it out") from error
            # seen by the loader itself, or by what fetches a batch from its worker
            if not loader.num_workers or (isinstance(error, RuntimeError) and "DataLoader worker" not in str(error)):
                raise
            said = f"a worker of the data loader has ended ({brief(error)}); too little memory, perhaps: try workers=0"
            raise WorkerError(said) from error
        finally:
            if main:
                signal.signal(signal.SIGINT, handler)
    if module.done < module.total:
        raise KeyboardInterrupt


def _trainer(
    config: Config, run: Run, environment: ClusterEnvironment, images: Images | None, keeper: Keeper, quiet: bool
) -> L.Trainer:
    callbacks: list[Callback] = [keeper, Watch(config.epochs, config.log_every, shown=not quiet)]
    # before the keeper, whose checkpoint is the last that is written of a step
    if config.knn_every and images is not None and images.labels is None:
        warnings.warn(f"knn_every={config.knn_every} has no effect: {images.name} has no labels", stacklevel=2)
    elif config.knn_every and images is not None:
        callbacks.insert(0, OnlineKNN(run, images, config.knn_every))
    logger = logger_of(config.logger, config.logger_args, run.path) or False
    asked = " ".join(f"{key}={getattr(config, key)}" for key in ("accelerator", "devices", "precision", "strategy"))
    remedy = "accelerator=cpu precision=32-true strategy=auto works everywhere"
    failures = (MisconfigurationException, ValueError, RuntimeError)
    with explained(f"{asked} cannot be used", remedy, *failures), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*AMP with fp16 is not supported on CPU.*")  # refused below
        trainer = L.Trainer(
            max_epochs=1,  # the stream is every epoch in one
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=config.nodes,
            strategy=strategy_of(config),
            precision=config.precision,
            sync_batchnorm=config.sync_batchnorm,
            plugins=[environment],
            logger=logger,
            log_every_n_steps=config.log_every,
            callbacks=callbacks,
            default_root_dir=run.config_file,  # no folder: on SLURM, Lightning unpickles its hpc_ckpt_*.ckpt
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
        )
    check_device(config, trainer.strategy.root_device)
    return trainer


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(printable(text), flush=True)
