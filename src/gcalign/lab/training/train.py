"""`gcalign train`: from a config to a finished run; a run that was interrupted is continued."""

from __future__ import annotations

import logging
import math
import re
import signal
import threading
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader

from gcalign.lab.data.images import Images
from gcalign.lab.data.sides import ColumnSide, Samples, ViewSide, described, views_of
from gcalign.lab.limits import within
from gcalign.lab.models import Factory
from gcalign.lab.training.callbacks import OnlineKNN, ProgressCallback, RunRecorder, scalars
from gcalign.lab.training.checkpoints import checkpoint_step, save_weights
from gcalign.lab.training.config import Config
from gcalign.lab.training.loggers import logger_of, restart
from gcalign.lab.training.module import Training, encoder_names, preprocessing_of
from gcalign.lab.training.owner import BusyError, owned
from gcalign.lab.training.places import places_of, remember
from gcalign.lab.training.processes import check_device, decided, environment_of, started_together
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import samples_of
from gcalign.lab.training.stream import Stream
from gcalign.lab.words import brief, explained, printable, quoted

FEW = 100  # steps after which a small encoder is hardly better than an untrained one


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
    of a file, `encoder` is what to use instead (of several towers, one for each). `images` are those of the config, if
    they are read already. `members` are the samples to train on, for cross-fitting; the run's config does not have
    them.
    """
    run, environment = Run.of(config), environment_of(config)
    together = started_together(config, environment)
    if run.done and not together:
        return _finished(run, quiet or not announce)
    samples = samples_of(config) if images is None else views_of(images, config.pairs.views)
    builds = [encoder] if isinstance(encoder, str) or callable(encoder) else encoder
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)  # greetings and tips
    recorder = RunRecorder(run)
    trainer = _trainer(config, run, environment, samples, recorder, quiet)
    quiet = quiet or not trainer.is_global_zero
    silent = quiet or not announce
    _say(described(samples), silent)
    stream = Stream.of(config, samples, rank=trainer.global_rank, world=trainer.world_size, members=members)
    _check_memory(config, samples)
    if stream.total < FEW:
        _say(f"only {stream.total} steps; lower batch_size or raise epochs", silent)
    module = Training(config, samples, stream.total, builds)
    with ExitStack() as stack:
        if trainer.is_global_zero or together:
            decide = partial(_first, run, config, stream.total, stack)
            first = decided(trainer, module, decide) if together else decide()
        else:  # Lightning started it after the first process had decided
            first = checkpoint_step(run, config.hash)
        if first is None:
            return _finished(run, silent) if trainer.is_global_zero else run
        recorder.resume_at = first
        if config.compile:
            _say("compile=true: the first step compiles encoder and head, which takes a while", quiet)
        _continued(run, trainer, module, stream, first, quiet)
    _say(f"done: {run.path}\n{_next(run, config, samples)}", silent)
    return run


def _check_memory(config: Config, samples: Samples) -> None:
    """That a batch is within the limit: of each side, its part of the items of a batch, in float32."""
    items = [(side, len(side) if isinstance(side, ColumnSide) else len(samples)) for side in samples.sides]
    size = 4 * config.batch_size * sum(math.prod(side.shape) * n for side, n in items) // len(samples)
    within("BATCH_BYTES", size, f"batch_size={config.batch_size} of {samples.name}: the number of bytes")


def _next(run: Run, config: Config, samples: Samples) -> str:
    """What can be done with a finished run; of images there is no accuracy without labels.

    An encoder of the user's own is named again, since names in files are not imported.
    """
    names = encoder_names(config, preprocessing_of(samples))
    name = names[0] if len(names) == 1 else f"[{','.join(names)}]"
    own = name if any(":" in part for part in names) else None
    word, option = ([f"encoder={own}"], ["--encoder", own]) if own else ([], [])
    if not samples.are_views or samples.labels is not None:
        return f"evaluate it with: {quoted('gcalign', 'probe', f'run={run.path}', *word)}"
    report = quoted("gcalign", "report", str(run.path), "-o", "report.html", *option)
    embed = quoted("gcalign", "embed", f"run={run.path}", "-o", "features.npy", *word)
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
    remember(*places_of(config.data, config.pairs.weights))
    first = checkpoint_step(run, config.hash)
    if first > total:
        raise ValueError(f"{run.checkpoint_file} is of step {first} of {total}; delete it to start the run again")
    return first


def _continued(run: Run, trainer: L.Trainer, module: Training, stream: Stream, resume_at: int, quiet: bool) -> None:
    """From the last checkpoint, or the start, to the weights."""
    config, steps = module.config, range(resume_at, stream.total)
    loader: DataLoader[Any] = DataLoader(stream, batch_size=None, sampler=steps, num_workers=config.workers)
    try:
        if trainer.is_global_zero:
            run.keep_results_before(resume_at)
            lines = [(line["step"], scalars(line)) for line in run.results() if line["kind"] in ("train", "knn")]
            restart(config.logger, trainer.logger, run.path, lines)
        if resume_at:
            _say(f"{run.path}: continues at step {resume_at}", quiet)
        _fit(trainer, module, loader)
        if trainer.is_global_zero:
            save_weights(run, module)
            run.finish()
    except KeyboardInterrupt:
        where = f"interrupted at step {module.done} of {stream.total}"
        _say(f"\n{run.path}: {where}; the same command continues at step {checkpoint_step(run)}", quiet)
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
    _say(f"{run.path} is finished already; nothing to do", quiet)
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
    config: Config, run: Run, environment: ClusterEnvironment, samples: Samples, recorder: RunRecorder, quiet: bool
) -> L.Trainer:
    callbacks: list[Callback] = [recorder, ProgressCallback(config.epochs, config.log_every, shown=not quiet)]
    first = samples.sides[0]
    if config.knn_every and samples.labels is None:
        warnings.warn(f"knn_every={config.knn_every} has no effect: {samples.name} have no labels", stacklevel=2)
    elif config.knn_every and isinstance(first, ViewSide):
        # before the recorder, whose checkpoint is the last that is written of a step
        callbacks.insert(0, OnlineKNN(run, first.images, config.knn_every))
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
            strategy="ddp" if config.world > 1 else "auto",
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
