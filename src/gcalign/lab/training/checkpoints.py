"""Everything a step starts from, in one file: the state of the module, the optimiser and mixed precision."""

from __future__ import annotations

import json
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
import torch
from lightning.pytorch.plugins import Precision
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from gcalign.lab import files
from gcalign.lab.training.runs import Run, brief, read, save
from gcalign.lab.training.sums import check_crc32, crc32


def save_checkpoint(
    run: Run, module: L.LightningModule, optimizer: torch.optim.Optimizer, precision: Precision, step: int, config: str
) -> None:
    """Everything step `step` starts from, written by the first process; `config` is the hash of the run's config."""
    tensors = {f"model.{k}": v for k, v in whole_state(module).items()}
    numbers: dict[str, dict[str, float]] = {}
    for index, slots in optimizer.state_dict()["state"].items():
        for name, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = _whole(value)
            elif value is not None:
                numbers.setdefault(str(index), {})[name] = value
    if module.global_rank:
        return
    scaler = precision.state_dict()
    about = {"step": str(step), "numbers": json.dumps(numbers), "scaler": json.dumps(scaler), "config": config}
    save(run.checkpoint_file, tensors, {**about, "crc32": crc32(tensors, json.dumps(about, sort_keys=True))})


def load_checkpoint(run: Run, module: nn.Module, optimizer: torch.optim.Optimizer, precision: Precision) -> int:
    """Put the state back and return the step that comes next."""
    tensors, metadata = read(run.checkpoint_file)
    code = metadata.pop("crc32", None)
    check_crc32(run.checkpoint_file, tensors, json.dumps(metadata, sort_keys=True), code)
    try:
        own = module.state_dict()
        saved = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        module.load_state_dict({k: _divided(v, own[k]) if k in own else v for k, v in saved.items()})
        state = _state(tensors, files.from_json(metadata["numbers"]), optimizer)
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        scaler = files.from_json(metadata.get("scaler", "{}"))
        if not all(type(value) in (int, float) for value in scaler.values()):
            raise ValueError(f"its scaler is {scaler}")
        precision.load_state_dict(scaler)
        return _step(metadata)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _foreign(run, error) from error


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """The state of a module, also if its processes have parts of it; all of them must call it."""
    return {name: _whole(value) for name, value in module.state_dict().items()}


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _divided(value: Tensor, like: Tensor) -> Tensor:
    """A tensor as `like` is: divided among processes by fsdp, or in its memory layout, e.g. channels-last."""
    if isinstance(like, DTensor):
        return distribute_tensor(value, like.device_mesh, like.placements)
    return torch.empty_like(like, dtype=value.dtype).copy_(value).detach() if value.shape == like.shape else value


def _state(tensors: dict[str, Tensor], numbers: Any, optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        if not key.startswith("optimizer."):
            continue
        _, index, name = key.split(".", 2)
        if int(index) >= len(trained) or (value.dim() and value.shape != trained[int(index)].shape):
            raise ValueError(f"{key} has shape {tuple(value.shape)}")
        state.setdefault(int(index), {})[name] = _divided(value, trained[int(index)]) if value.dim() else value
    for index, slots in numbers.items():
        state.setdefault(int(index), {}).update(slots)
    return state


def checkpoint_step(run: Run, config: str | None = None) -> int:
    """The step that a run continues with, 0 if it has no checkpoint; `config` is the hash that it must have."""
    if not run.checkpoint_file.exists():
        return 0
    metadata = read(run.checkpoint_file, tensors=False)[1]
    try:
        if config is not None and metadata.get("config", config) != config:
            raise ValueError(f"its config is {metadata['config']}, not {config}")
        return _step(metadata)
    except (ValueError, KeyError) as error:
        raise _foreign(run, error) from error


def _step(metadata: dict[str, str]) -> int:
    if not metadata["step"].isdigit():
        raise ValueError(f"its step is {metadata['step']!r}")
    return int(metadata["step"])


def _foreign(run: Run, error: Exception) -> ValueError:
    said = f"{type(error).__name__}: {brief(error)}"
    return ValueError(f"{run.checkpoint_file} is no checkpoint of this run ({said}); delete it to start the run again")
