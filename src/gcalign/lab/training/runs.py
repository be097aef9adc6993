"""A run's folder: config, results, checkpoint, weights and the `done` marker; no pickles, nothing half-written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn

from gcalign.lab import files
from gcalign.lab.training.config import Config


@dataclass(frozen=True)
class Run:
    """`runs/<name>-<hash>/`."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @property
    def results_file(self) -> Path:
        return self.path / "results.jsonl"

    @property
    def weights_file(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def checkpoint_file(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def done(self) -> bool:
        return (self.path / "done").exists() and self.weights_file.exists()

    @staticmethod
    def of(config: Config) -> Run:
        return Run(Path(config.runs) / config.folder)

    @staticmethod
    def at(path: str | Path) -> Run:
        run = Run(Path(path))
        if not run.config_file.exists():
            raise ValueError(
                f"run={path} must be a folder with a config.json, as `gcalign train` makes; see `gcalign list`"
            )
        return run

    def start(self, config: Config) -> None:
        """Make the folder, if it can be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            files.write(self.config_file, json.dumps(config.as_dict(), indent=2, sort_keys=True) + "\n")
        except OSError as error:
            raise ValueError(f"runs={config.runs}: {error}; choose a folder that can be written with runs=…") from error

    def config(self) -> Config:
        try:
            return Config.from_dict(json.loads(self.config_file.read_text(encoding="utf-8")))
        except (ValueError, OmegaConfBaseException) as error:
            said = " ".join(str(error).split())
            raise ValueError(
                f"{self.config_file} cannot be read ({said}); the command that started this run writes it again"
            ) from error

    def check_writable(self) -> None:
        """That a result can be recorded, before the time it takes to find it."""
        try:
            self.results_file.open("a").close()
        except OSError as error:
            raise ValueError(
                f"run={self.path} cannot record results ({error}); make it writable, or probe a copy of it"
            ) from error

    def finish(self) -> None:
        files.write(self.path / "done", "")
        self.checkpoint_file.unlink(missing_ok=True)

    def results(self) -> list[dict[str, Any]]:
        return files.read_json_lines(self.results_file)

    def keep_results_before(self, step: int) -> None:
        """Forget what a killed process wrote after its last checkpoint: it will be written again."""
        if self.results_file.exists():
            kept = [r for r in self.results() if r.get("step", 0) <= step]
            files.write(self.results_file, "".join(map(files.to_json_line, kept)))


def save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Tensors as safetensors, whole or not at all."""
    from safetensors.torch import save as to_bytes

    files.write(path, to_bytes({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, metadata))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata; a damaged file is an error that says what to do."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {k: file.get_tensor(k) for k in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it to start this run again") from error


def save_checkpoint(run: Run, module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Everything step `step` starts from."""
    tensors = {f"model.{k}": v for k, v in module.state_dict().items()}
    state = optimizer.state_dict()["state"]
    numbers: dict[str, dict[str, float]] = {}
    for index, slots in state.items():
        for name, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            elif value is not None:
                numbers.setdefault(str(index), {})[name] = value
    save(run.checkpoint_file, _unshared(tensors), {"step": str(step), "numbers": json.dumps(numbers)})


def load_checkpoint(run: Run, module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Put the state back and return the step to go on with."""
    tensors, metadata = read(run.checkpoint_file)
    module.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    state: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".", 2)
            state.setdefault(int(index), {})[name] = value
    for index, slots in json.loads(metadata["numbers"]).items():
        state.setdefault(int(index), {}).update(slots)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return int(metadata["step"])


def checkpoint_step(run: Run) -> int:
    """The step a run would go on with; 0 if it has no checkpoint."""
    return int(read(run.checkpoint_file)[1]["step"]) if run.checkpoint_file.exists() else 0


def save_weights(
    run: Run, config: Config, encoder: nn.Module, projector: nn.Module, shape: tuple[int, int, int]
) -> None:
    """The encoder and its head, with the config inside."""
    tensors = {f"encoder.{k}": v for k, v in encoder.state_dict().items()}
    tensors |= {f"projector.{k}": v for k, v in projector.state_dict().items()}
    # one entry: safetensors writes several in any order, and the file should be the same byte for byte
    about = json.dumps({"config": config.identity, "shape": shape}, sort_keys=True)
    save(run.weights_file, _unshared(tensors), {"gcalign": about})


def weights_of(run: Run) -> tuple[dict[str, Tensor], Config, tuple[int, int, int]]:
    """The tensors of a finished run, what decided them, and the shape [C, H, W] they were trained on."""
    if not run.weights_file.exists():
        raise ValueError(f"run={run.path} has no weights yet; finish it with the command that started it")
    tensors, metadata = read(run.weights_file)
    about = json.loads(metadata["gcalign"])
    channels, height, width = about["shape"]
    return tensors, Config.from_dict(about["config"]), (channels, height, width)


def load(run: str | Path) -> nn.Module:
    """Load the trained encoder of a run, in eval mode. `gcalign.load` is this function.

    Args:
        run: the folder of a finished run, as `gcalign train` makes it.

    Returns:
        A module: normalised images [B, C, H, W] → features [B, D].

    Raises:
        ValueError: if the folder is not a run, or the run is not finished.

    Example:
        >>> encoder = gcalign.load("runs/gca-uot-cifar10-1a2b3c4d5e")  # doctest: +SKIP
        >>> features = encoder(images)  # doctest: +SKIP
    """
    from gcalign.lab.models import encoder

    tensors, config, shape = weights_of(Run.at(run))
    m = config.model
    network = encoder(m.encoder, shape=shape, width=m.width, stem=m.stem, seed=config.seed)
    network.load_state_dict({k.removeprefix("encoder."): v for k, v in tensors.items() if k.startswith("encoder.")})
    return network.eval()


def load_whole(run: str | Path) -> nn.Sequential:
    """Encoder and projector, in eval mode: what the loss saw."""
    from gcalign.lab.models import projector

    tensors, config, _ = weights_of(Run.at(run))
    m, body = config.model, load(run)
    assert isinstance(body.features, int)
    head = projector(m.projector, body.features, hidden=m.hidden, out=m.out, seed=config.seed)
    head.load_state_dict({k.removeprefix("projector."): v for k, v in tensors.items() if k.startswith("projector.")})
    return nn.Sequential(body, head).eval()


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory; a copy of each later one costs little."""
    seen: set[int] = set()
    out = {}
    for key, value in tensors.items():
        pointer = value.data_ptr()
        out[key] = value.clone() if pointer in seen else value
        seen.add(pointer)
    return out
