"""Tensors in safetensors files: the weights of a run, and checkpoints, which hold everything that a step starts from.

Lightning's own checkpoints are pickles, which run code when they are read. These hold the state of the module, the
optimiser and mixed precision; all else follows from the step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
import torch
from lightning.pytorch.plugins import Precision
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from gcalign.lab import files
from gcalign.lab.training.module import Training, preprocessing_of
from gcalign.lab.training.runs import Run
from gcalign.lab.words import explained

AGAIN = "delete it to start this run again"


def save(path: Path, tensors: Mapping[str, Tensor], about: dict[str, Any]) -> None:
    """Tensors and what is known about them, whole or not at all; the same content gives the same bytes."""
    seen: set[int] = set()
    plain = {}
    for key, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        plain[key] = value.clone() if value.data_ptr() in seen else value  # safetensors refuses shared memory
        seen.add(value.data_ptr())
    # one entry: safetensors writes several in any order
    files.write(path, to_bytes(plain, {"gcalign": json.dumps(about, sort_keys=True)}))


def read(path: Path, *, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (unless they are not wanted) and what is known about them; a damaged file is an error with a remedy."""
    with explained(f"{path} cannot be read", AGAIN, SafetensorError, OSError, RuntimeError, ValueError):
        if not path.is_file():
            raise OSError("it is not a file")
        with safe_open(path, framework="pt") as file:
            content = {k: file.get_tensor(k) for k in (file.keys() if tensors else ())}
            metadata = dict(file.metadata() or {})
    with explained(f"{path} does not say what it holds", AGAIN, ValueError, KeyError):
        about = files.from_json(metadata["gcalign"])
        if not isinstance(about, dict):
            raise ValueError(f"{about!r} instead of a mapping")
    return content, about


def save_weights(run: Run, module: Training) -> None:
    """The towers and ε, with the config and the preprocessing inside."""
    state = module.state_dict()
    tensors = {name: value for name, value in state.items() if name.startswith(("towers.", "criterion."))}
    sides = [asdict(side) for side in preprocessing_of(module.samples)]
    save(run.weights_file, tensors, {"config": module.config.identity, "sides": sides})


def save_checkpoint(run: Run, trainer: L.Trainer, module: L.LightningModule, step: int, config: str) -> None:
    """Everything step `step` starts from, written by the first process; `config` is the hash of the run's config."""
    if not trainer.is_global_zero:
        return
    tensors = {f"model.{k}": v for k, v in module.state_dict().items()}
    for index, slots in trainer.optimizers[0].state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": v for name, v in slots.items() if v is not None}
    about = {"step": step, "scaler": trainer.precision_plugin.state_dict(), "config": config}
    save(run.checkpoint_file, tensors, about)


def load_checkpoint(run: Run, trainer: L.Trainer, module: nn.Module) -> int:
    """Put the state back and return the step that comes next."""
    tensors, about = read(run.checkpoint_file)
    optimizer = trainer.optimizers[0]
    with _of(run):
        own = module.state_dict()
        saved = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        module.load_state_dict({k: _laid_out(v, own[k]) if k in own else v for k, v in saved.items()})
        optimizer.load_state_dict(
            {"state": _state(tensors, optimizer), "param_groups": optimizer.state_dict()["param_groups"]}
        )
        _restore(trainer.precision_plugin, about["scaler"])
        return _step(about)


def checkpoint_step(run: Run, config: str | None = None) -> int:
    """The step that a run continues with, 0 if it has no checkpoint; `config` is the hash that it must have."""
    if not run.checkpoint_file.exists():
        return 0
    _, about = read(run.checkpoint_file, tensors=False)
    with _of(run):
        if config is not None and about["config"] != config:
            raise ValueError(f"its config is {about['config']}, not {config}")
        return _step(about)


def _laid_out(value: Tensor, like: Tensor) -> Tensor:
    """A tensor in the memory layout of `like`, e.g. channels-last."""
    return torch.empty_like(like, dtype=value.dtype).copy_(value).detach() if value.shape == like.shape else value


def _state(tensors: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        if not key.startswith("optimizer."):
            continue
        _, index, name = key.split(".", 2)
        if int(index) >= len(trained) or (value.dim() and value.shape != trained[int(index)].shape):
            raise ValueError(f"{key} has shape {tuple(value.shape)}")
        state.setdefault(int(index), {})[name] = _laid_out(value, trained[int(index)]) if value.dim() else value
    return state


def _restore(precision: Precision, scaler: Any) -> None:
    if not all(type(value) in (int, float) for value in scaler.values()):
        raise ValueError(f"its scaler is {scaler}")
    precision.load_state_dict(scaler)


def _step(about: dict[str, Any]) -> int:
    if not str(about["step"]).isdigit():
        raise ValueError(f"its step is {about['step']!r}")
    return int(about["step"])


def _of(run: Run) -> AbstractContextManager[None]:
    """Within, whatever does not fit the run is an error that says what to do."""
    odd = (RuntimeError, ValueError, KeyError, TypeError, AttributeError)
    return explained(f"{run.checkpoint_file} is not a checkpoint of this run", AGAIN, *odd)
