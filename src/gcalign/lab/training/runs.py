"""A run's folder: config, results, checkpoint, weights and the `done` marker; no pickles, nothing half-written."""

from __future__ import annotations

import glob
import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gcalign.errors import count
from gcalign.lab import files
from gcalign.lab.data.catalogue import Normalisation
from gcalign.lab.models import Factory, encoder, outside, projector
from gcalign.lab.training import trust
from gcalign.lab.training.config import Config
from gcalign.lab.training.container import read_checked, save_checked
from gcalign.lab.training.ready import Encoder, normalisation_of
from gcalign.lab.words import explained, path_of, quoted

NEEDED: Mapping[str, Mapping[str, Any]] = {  # by the kind of a result line, what is read of it
    "train": {"step": int},
    "knn": {"step": int, "accuracy": (int, float)},
    "probe": {"protocol": str, "accuracy": (int, float)},
    "measure": {"key": str, "findings": list},
}
FINDING: Mapping[str, Any] = {"measure": str, "value": (int, float, type(None)), "labels": dict, "about": dict}


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
        return Run(path_of(config.runs) / config.folder)

    @staticmethod
    def at(path: str | Path) -> Run:
        run = Run(path_of(path))
        if not run.config_file.exists():
            named = sorted(run.path.parent.glob(f"{glob.escape(run.path.name)}-{'[0-9a-f]' * 10}/config.json"))
            if len(named) == 1:  # name=mine is runs/mine-<hash>
                return Run(named[0].parent)
            if named:
                found = ", ".join(str(file.parent) for file in named)
                raise ValueError(f"run={path} must name one run, and there are {len(named)}: {found}; choose one")
            raise ValueError(f"run={path} must be a folder with a config.json, of `gcalign train`; see `gcalign list`")
        return run

    def start(self, config: Config) -> None:
        """Write the config, signed, and remove what a killed process left half-written."""
        content = config.as_dict()
        signed = content | {"signature": trust.signature(content)}
        self.path.mkdir(parents=True, exist_ok=True)
        files.clean(self.path)
        files.write(self.config_file, json.dumps(signed, indent=2, sort_keys=True) + "\n")

    def config(self) -> Config:
        return self._read()[0]

    def is_own(self) -> bool:
        """Whether a command of this user wrote the config, so that the paths in it are the user's."""
        return self._read()[1]

    def _read(self) -> tuple[Config, bool]:
        remedy = "the command that started this run writes it again"
        with explained(f"{self.config_file} cannot be read", remedy, ValueError, OSError):
            content = files.from_json(files.read(self.config_file))
            given = content.pop("signature", None) if isinstance(content, dict) else None
            return Config.from_dict(content), trust.is_signed(content, given)

    def check_writable(self) -> None:
        """That a result can be recorded, before the time it takes to find it."""
        with explained(f"run={self.path} cannot record results", "make it writable, or probe a copy of it", OSError):
            files.append_json_lines(self.results_file, [])

    def finish(self) -> None:
        files.clean(self.path)
        files.write(self.path / "done", "")
        self.checkpoint_file.unlink(missing_ok=True)

    def results(self) -> list[dict[str, Any]]:
        """The result lines that are whole; others are named in a warning."""
        return files.read_json_lines(self.results_file, _fault)

    def keep_results_before(self, step: int) -> None:
        """Forget what a killed process wrote after its last checkpoint: it will be written again."""
        if self.results_file.exists():
            with warnings.catch_warnings():  # the line is written again, and whole
                warnings.filterwarnings("ignore", message=f".*{files.CUT_SHORT}")
                kept = [r for r in self.results() if r.get("step", 0) <= step]
            files.write(self.results_file, "".join(map(files.to_json_line, kept)))


def _fault(line: dict[str, Any]) -> str | None:
    """What keeps a line from being one of the kinds that are read."""
    kind = line.get("kind")
    needed = NEEDED.get(str(kind), {})
    wrong = [name for name, kinds in needed.items() if not isinstance(line.get(name), kinds)]
    if kind == "train":  # every other value is a curve
        wrong += [name for name, value in line.items() if name != "kind" and not isinstance(value, int | float)]
    if kind == "measure" and not wrong:
        wrong += [] if all(map(_is_finding, line["findings"])) else ["findings"]
    return (
        None if isinstance(kind, str) and not wrong else f"{wrong[0] if wrong else 'kind'} is missing or not a result"
    )


def _is_finding(content: Any) -> bool:
    """As `experiments.measures` writes them."""
    if not isinstance(content, dict) or not {"measure", "value"} <= content.keys() <= FINDING.keys():
        return False
    return all(isinstance(value, FINDING[name]) for name, value in content.items())


def save_weights(run: Run, state: Mapping[str, Tensor], parts: tuple[str, ...], about: dict[str, Any]) -> None:
    """Some parts of a module's state, with what is known about them inside."""
    tensors = {name: value for name, value in state.items() if name.startswith(parts)}
    save_checked(run.weights_file, tensors, about)


def read_weights(run: Run) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a finished run and what its file says about them."""
    if not run.weights_file.exists():
        raise ValueError(f"run={run.path} has no weights yet; finish it with the command that started it")
    return read_checked(run.weights_file)


def understood(file: Path) -> AbstractContextManager[None]:
    """Within, whatever is missing or odd in the content of `file` is an error that says what to do."""
    odd = (KeyError, TypeError, ValueError, AttributeError)
    return explained(f"{file} does not say what it holds", "train the run again", *odd)


@dataclass(frozen=True)
class Weights:
    """What a run on images trained, what decided it, and the images that it is for."""

    tensors: dict[str, Tensor]
    config: Config
    shape: tuple[int, int, int]  # [C, H, W]
    normalisation: Normalisation | None


def weights_of(run: Run) -> Weights:
    """The weights of a finished run on images."""
    tensors, about = read_weights(run)
    with understood(run.weights_file):
        if "sides" in about:
            raise ValueError("it is of a run on pairs; use gcalign.load(run)[column]")
        channels, height, width = (count("a side of shape", side, "[C, H, W]") for side in about["shape"])
        config = Config.from_dict(about["config"])
        statistics = normalisation_of(about, config.data.name, channels)
    return Weights(tensors, config, (channels, height, width), statistics)


def load_encoder(run: str | Path, *, encoder: str | Factory | None = None) -> Encoder:
    """The encoder of a run on images, in eval mode."""
    place = Run.at(run)
    return _body(place, weights_of(place), encoder).eval()


def load_whole(run: str | Path, *, encoder: str | Factory | None = None) -> nn.Sequential:
    """Encoder and projector, in eval mode: what the loss saw."""
    place = Run.at(run)
    weights = weights_of(place)
    body, m = _body(place, weights, encoder), weights.config.model
    head = filled(
        lambda: projector(m.projector, body.features, hidden=m.hidden, out=m.out),
        "projector.",
        weights.tensors,
        place.weights_file,
    )
    return nn.Sequential(body.network, head).eval()


def _body(run: Run, weights: Weights, given: str | Factory | None) -> Encoder:
    m, seed = weights.config.model, weights.config.seed
    factory = factory_of(m.encoder, given, f"run={run.path}")
    network = filled(
        lambda: encoder(factory, shape=weights.shape, width=m.width, stem=m.stem, seed=seed),
        "encoder.",
        weights.tensors,
        run.weights_file,
        lazily=isinstance(factory, str),
    )
    return Encoder(network, weights.shape, weights.normalisation)


def factory_of(own: str, given: str | Factory | None, what: str) -> str | Factory:
    """What makes an encoder whose name a file holds: that name if it is one of gcalign's, else what the user gives."""
    if ":" in own:
        if given is None or (isinstance(given, str) and ":" not in given):
            raise ValueError(
                f"{what} has the encoder {own!r}, which is not part of gcalign, and a name in a file is not imported; "
                f"if you know it, add {quoted(f'encoder={own}')}"
            )
        return outside(given) if isinstance(given, str) else given
    if given not in (None, own):
        raise ValueError(f"encoder={given!r} is not that of {what}, which was made with {own!r}; leave encoder out")
    return own


def filled(
    make: Callable[[], nn.Module], prefix: str, tensors: Mapping[str, Tensor], file: Path, *, lazily: bool = True
) -> nn.Module:
    """A module with the weights of a file. `lazily`, its own are never made: the file says how large it is."""
    mine = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    with explained(f"{file} does not fit the model in its config", "train the run again", RuntimeError, ValueError):
        if not lazily:  # it may have buffers that no file holds
            network = make()
            network.load_state_dict(mine)
            return network
        with torch.device("meta"):
            network = make()
        for key, value in network.state_dict().items():
            if key in mine and mine[key].dtype != value.dtype:
                raise RuntimeError(f"{key} is {mine[key].dtype}, not {value.dtype}")
        network.load_state_dict({key: value.clone() for key, value in mine.items()}, assign=True)
        return network
