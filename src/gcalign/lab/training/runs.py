"""A run's folder: config, results, checkpoint, weights and the `done` marker; no pickles, nothing half-written."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gcalign.errors import count
from gcalign.lab import files
from gcalign.lab.models import Factory, encoder, outside, projector
from gcalign.lab.training import trust
from gcalign.lab.training.config import Config
from gcalign.lab.training.ready import Encoder, Normalisation, normalisation_of
from gcalign.lab.training.sums import check_crc32, crc32
from gcalign.lab.words import path_of, quoted

if TYPE_CHECKING:
    from gcalign.lab.training.pair_runs import Encoders

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
            raise ValueError(
                f"run={path} must be a folder with a config.json, as `gcalign train` makes; see `gcalign list`"
            )
        return run

    def start(self, config: Config) -> None:
        """Write the config, signed, and remove what a killed process left half-written."""
        content = config.as_dict()
        signed = content | {"signature": trust.signature(content)}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            files.clean(self.path)
            files.write(self.config_file, json.dumps(signed, indent=2, sort_keys=True) + "\n")
        except OSError as error:
            raise ValueError(f"runs={config.runs}: {error}; choose a folder that can be written with runs=…") from error

    def config(self) -> Config:
        return self._read()[0]

    def is_own(self) -> bool:
        """Whether a command of this user wrote the config, so that the paths in it are the user's."""
        return self._read()[1]

    def _read(self) -> tuple[Config, bool]:
        try:
            content = files.from_json(files.read(self.config_file))
            given = content.pop("signature", None) if isinstance(content, dict) else None
            return Config.from_dict(content), trust.is_signed(content, given)
        except (ValueError, OSError) as error:
            raise ValueError(
                f"{self.config_file} cannot be read ({error}); the command that started this run writes it again"
            ) from error

    def check_writable(self) -> None:
        """That a result can be recorded, before the time it takes to find it."""
        try:
            files.append_json_lines(self.results_file, [])
        except OSError as error:
            raise ValueError(
                f"run={self.path} cannot record results ({error}); make it writable, or probe a copy of it"
            ) from error

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
    return None if isinstance(kind, str) and not wrong else f"{wrong[0] if wrong else 'kind'} is missing or no result"


def _is_finding(content: Any) -> bool:
    """As `experiments.measures` writes them."""
    if not isinstance(content, dict) or not {"measure", "value"} <= content.keys() <= FINDING.keys():
        return False
    return all(isinstance(value, FINDING[name]) for name, value in content.items())


def save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Tensors as safetensors, whole or not at all."""
    from safetensors.torch import save as to_bytes

    files.write(path, to_bytes(_unshared({k: v.detach().cpu().contiguous() for k, v in tensors.items()}), metadata))


def read(path: Path, *, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors (unless only the metadata is wanted) and metadata; a damaged file is an error that says what to do."""
    from safetensors import SafetensorError, safe_open

    try:
        if not path.is_file():
            raise OSError("it is no file")
        with safe_open(path, framework="pt") as file:
            keys = file.keys() if tensors else ()
            return {k: file.get_tensor(k) for k in keys}, dict(file.metadata() or {})
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it to start this run again") from error


def save_weights(run: Run, state: Mapping[str, Tensor], parts: tuple[str, ...], about: dict[str, Any]) -> None:
    """Some parts of a module's state, with what is known about them inside, and a checksum."""
    tensors = {name: value for name, value in state.items() if name.startswith(parts)}
    code = crc32(tensors, json.dumps(about, sort_keys=True))
    # one entry: safetensors writes several in any order, and the file should be the same byte for byte
    save(run.weights_file, tensors, {"gcalign": json.dumps({**about, "crc32": code}, sort_keys=True)})


def weights_of(run: Run) -> tuple[dict[str, Tensor], Config, tuple[int, int, int]]:
    """The tensors of a finished run, what decided them, and the shape [C, H, W] they were trained on."""
    return _weights(run)[:3]


def _weights(run: Run) -> tuple[dict[str, Tensor], Config, tuple[int, int, int], Normalisation | None]:
    if not run.weights_file.exists():
        raise ValueError(f"run={run.path} has no weights yet; finish it with the command that started it")
    tensors, metadata = read(run.weights_file)
    try:
        about = files.from_json(metadata["gcalign"])
        if "sides" in about:
            raise ValueError("it is of a run on pairs; use gcalign.load(run)[column]")
        code = about.pop("crc32", None)
        channels, height, width = (count("a side of shape", side, "[C, H, W]") for side in about["shape"])
        config = Config.from_dict(about["config"])
        statistics = normalisation_of(about, config.data.name, channels)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{run.weights_file} does not say what it holds ({type(error).__name__}: {error}); train the run again"
        ) from error
    check_crc32(run.weights_file, tensors, json.dumps(about, sort_keys=True), code)
    return tensors, config, (channels, height, width), statistics


def load(run: str | Path, *, encoder: Any = None) -> Encoder | Encoders:
    """Load what a run trained, in eval mode. `gcalign.load` is this function.

    Args:
        run: the folder of a finished run, as `gcalign train` makes it.
        encoder: the function that makes the network, or its name `module:function`, for a run with an encoder of your
            own; of a run on pairs, a list with one for each side. A name in the run's files is never imported.

    Returns:
        A module: normalised images [B, C, H, W] → features [B, D]. Its `embed` takes PIL images, arrays or paths. Of a
        run on pairs, such modules by column: `load(run)["name_en"].embed(["red heart"])`.

    Example:
        >>> encoder = gcalign.load("runs/gca-uot-cifar10-1a2b3c4d5e")  # doctest: +SKIP
        >>> features = encoder.embed(["one.png", "two.png"])  # doctest: +SKIP
    """
    if not Run.at(run).config().data.paired:
        return load_encoder(run, encoder=encoder)
    from gcalign.lab.training.pair_runs import load_encoders

    return load_encoders(Run.at(run), encoder)


def load_encoder(run: str | Path, *, encoder: str | Factory | None = None) -> Encoder:
    """The encoder of a run on images."""
    return _body(Run.at(run), encoder).eval()


def load_whole(run: str | Path, *, encoder: str | Factory | None = None) -> nn.Sequential:
    """Encoder and projector, in eval mode: what the loss saw."""
    place = Run.at(run)
    body, (tensors, config, _) = _body(place, encoder), weights_of(place)
    m, features = config.model, body.features
    head = filled(
        lambda: projector(m.projector, features, hidden=m.hidden, out=m.out), "projector.", tensors, place.weights_file
    )
    return nn.Sequential(body.network, head).eval()


def _body(run: Run, given: str | Factory | None) -> Encoder:
    tensors, config, shape, normalisation = _weights(run)
    m = config.model
    factory = factory_of(m.encoder, given, f"run={run.path}")

    def make() -> nn.Module:
        return encoder(factory, shape=shape, width=m.width, stem=m.stem, seed=config.seed)

    network = filled(make, "encoder.", tensors, run.weights_file, lazily=isinstance(factory, str))
    return Encoder(network, shape, normalisation)


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
    try:
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
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"{file} does not fit the model in its config ({brief(error)}); train the run again"
        ) from error
    return network


def brief(error: Exception) -> str:
    """What another library says, in a line."""
    return " ".join(str(error).split())[:200]


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory; a copy of each later one costs little."""
    seen: set[int] = set()
    out = {}
    for key, value in tensors.items():
        out[key] = value.clone() if value.data_ptr() in seen else value
        seen.add(value.data_ptr())
    return out
