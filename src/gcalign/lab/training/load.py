"""What a run trained: how its weights are kept, and `gcalign.load`, which makes encoders of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcalign.aligning.aligner import ABOUT, Aligner
from gcalign.errors import count, one_of
from gcalign.lab.data.sides import KINDS, Preprocessing
from gcalign.lab.models import Factory, outside
from gcalign.lab.training.checkpoints import read
from gcalign.lab.training.config import Config
from gcalign.lab.training.encoder import Encoder, Encoders
from gcalign.lab.training.module import Tower, encoder_names
from gcalign.lab.training.runs import Run
from gcalign.lab.words import explained, path_of, quoted


@dataclass(frozen=True)
class Weights:
    """What a finished run trained, what decided it, and what its towers are given."""

    file: Path
    tensors: dict[str, Tensor]
    config: Config
    sides: list[Preprocessing]  # of each tower

    @property
    def eps(self) -> float:
        learnt = next((float(v.exp()) for key, v in self.tensors.items() if key.endswith("log_eps")), None)
        return float(self.config.method["eps"]) if learnt is None else learnt

    def towers(self, given: Any = None) -> list[Tower]:
        """The towers, in eval mode; `given` makes the encoders that are the user's own, one or one for each tower."""
        names = encoder_names(self.config, self.sides)
        if len(names) != len(self.sides):
            raise ValueError(f"{self.file} has {len(self.sides)} sides and {len(names)} encoders; train the run again")
        builds = builds_of(names, given, f"run={self.file.parent}")
        return [self._tower(k, side, build) for k, (side, build) in enumerate(zip(self.sides, builds, strict=True))]

    def _tower(self, k: int, side: Preprocessing, build: str | Factory) -> Tower:
        """A tower with the weights of the file. Its own are never made: the file says how large it is."""
        prefix, make = f"towers.{k}.", partial(Tower, self.config, side, build, k)
        mine = {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}
        odd, remedy = f"{self.file} does not fit the model in its config", "train the run again"
        with explained(odd, remedy, RuntimeError, ValueError):
            if not isinstance(build, str):  # it may have buffers that no file holds
                tower = make()
                tower.load_state_dict(mine)
                return tower.eval()
            with torch.device("meta"):
                tower = make()
            for key, value in tower.state_dict().items():
                if key in mine and mine[key].dtype != value.dtype:
                    raise RuntimeError(f"{key} is {mine[key].dtype}, not {value.dtype}")
            tower.load_state_dict({key: value.clone() for key, value in mine.items()}, assign=True)
            return tower.eval()


def weights_of(run: Run, *, tensors: bool = True) -> Weights:
    """The weights of a finished run, or only what is known about them."""
    file = run.weights_file
    if not file.exists():
        raise ValueError(f"run={run.path} has no weights yet; finish it with the command that started it")
    content, about = read(file, tensors=tensors)
    odd = (KeyError, TypeError, ValueError, AttributeError)
    with explained(f"{file} does not say what it holds", "train the run again", *odd):
        return Weights(file, content, Config.from_dict(about["config"]), [_side(each) for each in about["sides"]])


def load(run: str | Path, *, encoder: Any = None) -> Encoder | Encoders | Aligner:
    """Load what a run trained, in eval mode, or an aligner. `gcalign.load` is this function.

    Args:
        run: the folder of a finished run, as `gcalign train` makes it, or of a saved `Aligner`.
        encoder: the function that makes the network, or its name `module:function`, for a run with an encoder of your
            own; of a run on pairs, a list with one for each side. A name in the run's files is never imported.

    Returns:
        A module: normalised images [B, C, H, W] → features [B, D]. Its `embed` takes PIL images, arrays or paths. Of a
        run on pairs, such modules by column: `load(run)["name_en"].embed(["red heart"])`. Of an aligner, the aligner.

    Example:
        >>> import gcalign, numpy
        >>> encoder = gcalign.load("runs/first")  # after: gcalign train data=scenes name=first
        >>> images = numpy.zeros((2, 24, 24, 3), dtype="uint8")  # or paths, or PIL images
        >>> len(encoder.embed(images))
        2
    """
    return Aligner.load(path_of(run)) if (path_of(run) / ABOUT).is_file() else load_run(run, encoder=encoder)


def load_run(run: str | Path, *, encoder: Any = None) -> Encoder | Encoders:
    """The encoder of a run, or one for each of its columns."""
    weights = weights_of(Run.at(run))
    towers = weights.towers(encoder)
    if weights.config.data.paired:
        sides = [Encoder(tower, side, unit=True) for tower, side in zip(towers, weights.sides, strict=True)]
        return Encoders(sides, weights.eps).eval()
    return Encoder(towers[0].encoder, weights.sides[0]).eval()  # without the head, which the loss alone needs


def load_encoder(run: str | Path, *, encoder: Any = None) -> Encoder:
    """The encoder of a run on images."""
    loaded = load_run(run, encoder=encoder)
    if not isinstance(loaded, Encoder):
        raise ValueError(
            f"run={run} has an encoder for each of {', '.join(loaded.columns)}; use gcalign.load(run)[column]"
        )
    return loaded


def load_whole(run: str | Path, *, encoder: Any = None) -> Tower:
    """Encoder and projector of a run on images: what the loss saw."""
    (tower,) = weights_of(Run.at(run)).towers(encoder)
    return tower


def builds_of(names: Sequence[str], given: Any, what: str) -> list[str | Factory]:
    """What makes each encoder, by the names that a file holds and what the user gives."""
    if isinstance(given, str) and "," in given:
        given = [part.strip() for part in given.strip("[]").split(",")]
    own = given if isinstance(given, (list, tuple)) else [given] * len(names)  # one, for the only side that needs one
    if len(own) != len(names):
        raise ValueError(f"encoder={list(own)} must have one for each of the {len(names)} sides")
    several = len(names) > 1
    return [factory_of(n, mine if ":" in n or not several else None, what) for n, mine in zip(names, own, strict=True)]


def factory_of(own: str, given: str | Factory | None, what: str) -> str | Factory:
    """What makes an encoder whose name a file holds: that name if it is one of gcalign's, else what the user gives."""
    if ":" in own:
        if given is None or (isinstance(given, str) and ":" not in given):
            raise ValueError(
                f"{what} has the encoder {own!r}, which is not part of gcalign, and a name in a file is not imported; "
                f"if you trust it, add {quoted(f'encoder={own}')}"
            )
        return outside(given) if isinstance(given, str) else given
    if given not in (None, own):
        raise ValueError(f"encoder={given!r} is not that of {what}, which was made with {own!r}; leave encoder out")
    return own


def _side(content: Mapping[str, Any]) -> Preprocessing:
    """A side as a file describes it."""
    kind, shape = one_of("kind", content["kind"], KINDS), tuple(content["shape"])
    for size in shape:
        count("a side of shape", size, "sizes of an item")
    wanted, numbers = {"image": 3, "text": 0, "array": 1}[kind], shape[0] if shape else 0
    mean, std = (tuple(float(x) for x in content[part]) for part in ("mean", "std"))
    fits = len(shape) == wanted and len(mean) == len(std) == numbers
    if not fits or not all(map(math.isfinite, (*mean, *std))) or min(std, default=1) <= 0:
        raise ValueError(f"{kind} of shape {shape} with mean={mean} and std={std}")
    return Preprocessing(str(content["name"]), kind, shape, mean, std)
