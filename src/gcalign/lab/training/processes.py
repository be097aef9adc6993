"""The processes of a run: Lightning starts those of one machine, torchrun or SLURM those of several."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import lightning as L  # noqa: N812  # Lightning's own habit
import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment

from gcalign.lab.training.config import Config

T = TypeVar("T")


def environment_of(config: Config) -> ClusterEnvironment:
    """What starts the processes of a run; an error if it started others than `devices` and `nodes` say."""
    environment = _environment()
    if isinstance(environment, LightningEnvironment):
        if config.nodes > 1:
            raise ValueError(
                f"nodes={config.nodes} needs torchrun or srun, which start the processes of all machines; "
                f"{_command(config, environment)}"
            )
        return environment
    world = environment.world_size()
    name = "torchrun" if isinstance(environment, TorchElasticEnvironment) else "the cluster"
    here = os.environ.get("LOCAL_WORLD_SIZE" if name == "torchrun" else "SLURM_NTASKS_PER_NODE", "")
    devices = int(here) if here.isdigit() else config.devices
    if (config.world, config.devices) != (world, devices):
        right = f"devices={devices} nodes={world // devices}" if world % devices == 0 else f"a product of {world}"
        raise ValueError(
            f"devices={config.devices} nodes={config.nodes} are {config.world} processes, and {name} started {world}, "
            f"{devices} on this machine; write {right}, or {_command(config, environment)}"
        )
    return environment


def _environment() -> ClusterEnvironment:
    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()
    # a batch script has SLURM's variables too; only `srun` starts tasks, and one task may start processes itself
    if "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_NTASKS", "1") != "1" and SLURMEnvironment.detect():
        if "SLURM_NTASKS_PER_NODE" not in os.environ:
            raise ValueError("SLURM does not say how many tasks a node has; start it with srun --ntasks-per-node=…")
        # not auto_requeue: it pickles; `gcalign train` continues from its own checkpoint
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


def _command(config: Config, environment: ClusterEnvironment) -> str:
    if isinstance(environment, SLURMEnvironment):
        return f"start it with: srun --nodes={config.nodes} --ntasks-per-node={config.devices} gcalign train …"
    return (
        f"start it with: torchrun --nnodes={config.nodes} --nproc-per-node={config.devices} --no-python gcalign train …"
    )


def started_together(config: Config, environment: ClusterEnvironment) -> bool:
    """Whether all processes of a run exist before the first of them decides anything."""
    return config.world > 1 and not isinstance(environment, LightningEnvironment)


def check_device(config: Config, device: torch.device) -> None:
    """What the CPU cannot do is refused."""
    if device.type == "cpu" and config.sync_batchnorm:
        raise ValueError("sync_batchnorm=true needs GPUs, and this run is on the CPU; leave it out")
    if device.type == "cpu" and config.precision in ("16-mixed", "16"):  # Lightning takes bfloat16 instead
        raise ValueError(f"precision={config.precision} needs a GPU, and this is a CPU; write precision=bf16-mixed")


def decided(trainer: L.Trainer, module: L.LightningModule, decide: Callable[[], T]) -> T:
    """What the first process decides, before anything is written, told to those that were started together with it."""
    trainer.strategy.connect(module)
    trainer.strategy.setup_environment()
    if not trainer.is_global_zero:
        result: T | None
        result, failed = trainer.strategy.broadcast((None, False))
        if failed:
            raise SystemExit(2)  # the first process says why
        return result  # type: ignore[return-value]  # None only if it failed
    try:
        result = decide()
    except Exception:
        trainer.strategy.broadcast((None, True))
        raise
    trainer.strategy.broadcast((result, False))
    return result
