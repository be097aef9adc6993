"""Runs on pairs: what they train on, what they leave, and the encoders of their sides, ready for use."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gcalign.errors import count, one_of
from gcalign.kernels import normalize
from gcalign.lab.data.pair_sources import load_pairs
from gcalign.lab.data.paired import KINDS, PairedData, PairedSide
from gcalign.lab.limits import within
from gcalign.lab.models import Factory, outside
from gcalign.lab.models.state import evaluating
from gcalign.lab.training.config import Config, Data
from gcalign.lab.training.pair_module import PairTraining, Tower, encoder_names, prepared
from gcalign.lab.training.pair_stream import PairStream
from gcalign.lab.training.ready import Encoder
from gcalign.lab.training.rules import encoders_of
from gcalign.lab.training.runs import Run, factory_of, filled, read_weights, save_weights, understood


def pairs_of(data: Data) -> PairedData:
    """The pairs of a config, read once by a process however many runs need them."""
    return _pairs(tuple(dataclasses.asdict(data).items()))


@functools.lru_cache(maxsize=4)
def _pairs(items: tuple[tuple[str, Any], ...]) -> PairedData:
    given = dict(items)
    columns = [name for name in given.pop("columns").split(",") if name]
    del given["tail"]
    return load_pairs(given.pop("name"), columns=columns, **given)


@dataclass(frozen=True)
class Task:
    """What a run on pairs trains, and on what."""

    config: Config
    run: Run
    members: Tensor | None = None  # the training pairs to use; None is all
    builds: Sequence[str | Factory] | None = None  # the encoders, if not by their names in the config
    images: None = None  # there is no data set of images alone

    def made(self, rank: int, world: int) -> tuple[PairStream, PairTraining]:
        """The batches of this rank and the module, before anything is written."""
        config, pairs = self.config, pairs_of(self.config.data)
        about = PairStream.settings(config, len(pairs.rows("train")))
        stream = PairStream(pairs, **about, rank=rank, world=world, members=self.members)
        items = sum(math.prod(side.shape) * len(side) / len(pairs) for side in pairs.sides)
        within(
            "BATCH_BYTES", int(4 * stream.batch_size * items), f"batch_size={config.batch_size}: the number of bytes"
        )
        names = encoder_names(pairs.sides, encoders_of(config))
        module = PairTraining(config, pairs, stream.total, self.builds or [outside(name) for name in names])
        return stream, module

    def save(self, state: Mapping[str, Tensor]) -> None:
        """The networks of all sides and ε, with the config and the preprocessing inside."""
        known = ("name", "kind", "shape", "mean", "std")
        sides = [{name: getattr(side, name) for name in known} for side in pairs_of(self.config.data).sides]
        save_weights(self.run, state, ("towers.", "criterion."), {"config": self.config.identity, "sides": sides})


class SideEncoder(nn.Module):
    """The network of one side with its preprocessing; `embed` takes items as they are."""

    def __init__(self, side: PairedSide, network: Tower) -> None:
        super().__init__()
        self.side, self.network = side, network

    def forward(self, x: Any) -> Tensor:
        """Items as the network takes them → embeddings [B, D], not normalised."""
        return self.network(x)

    def embed(self, items: Any, *, batch_size: int = 256) -> Tensor:  # [N, D] float32 on the CPU
        """The embeddings of items, as unit rows: their products are the cosines that training compared.

        Args:
            items: of an image side, what `Encoder.embed` takes: PIL images, paths or arrays of uint8. Of a text side, a
                list of texts. Of a side of arrays, [N, D] numbers.
            batch_size: items that are encoded at once.

        Returns:
            The embeddings [N, D].
        """
        count("batch_size", batch_size, "256 is the default")
        side = self.side
        if side.kind == "image":
            shape = (side.shape[0], side.shape[1], side.shape[2])
            network = Encoder(self.network, shape, (side.mean, side.std))
            return normalize(network.embed(items, batch_size=batch_size))
        return self.embed_items(_texts(items) if side.kind == "text" else self._arrays(items), batch_size)

    def embed_items(self, items: Tensor | tuple[str, ...], batch_size: int = 256) -> Tensor:
        """The same for items as a table of pairs holds them."""
        device, parts = next(self.network.parameters()).device, []
        with evaluating(self), torch.inference_mode():
            for start in range(0, len(items), batch_size):
                some = items[start : start + batch_size]
                some = some.to(device) if isinstance(some, Tensor) else some
                parts.append(self(prepared(self.side, some)).float().cpu())
        return normalize(torch.cat(parts)).clone()

    def _arrays(self, items: Any) -> Tensor:
        found = torch.as_tensor(np.asarray(items), dtype=torch.float32)
        found = found[None] if found.dim() == 1 else found
        if found.dim() != 2 or found.shape[1:] != self.side.shape or not len(found):
            raise ValueError(f"items of shape {tuple(found.shape)} must be [N, {self.side.shape[0]}], as in training")
        return found


def _texts(items: Any) -> tuple[str, ...]:
    items = [items] if isinstance(items, str) else list(items)
    for k, text in enumerate(items):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"items[{k}]={text!r} must be a text with a character; leave it out")
    if not items:
        raise ValueError("items is empty; pass at least one text")
    return tuple(items)


class Encoders(nn.Module):
    """The encoders of a run on pairs, by column: `model["name_en"].embed(["red heart"])`. `gcalign.load` returns one.

    All sides share one space: the product of two embeddings is their cosine.
    """

    def __init__(self, sides: Sequence[SideEncoder], eps: float) -> None:
        super().__init__()
        self.sides, self.eps = nn.ModuleList(sides), eps

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the sides."""
        return tuple(side.side.name for side in self.sides)  # type: ignore[union-attr, misc]  # each is a SideEncoder

    def __getitem__(self, column: str) -> SideEncoder:
        parts = {part: k for k, name in enumerate(self.columns) for part in (name, *name.split("+"))}
        found = self.sides[parts[one_of("column", column, parts)]]
        assert isinstance(found, SideEncoder)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.sides)


def load_encoders(run: Run, given: str | Factory | Sequence[str | Factory | None] | None = None) -> Encoders:
    """The encoders of a finished run on pairs, in eval mode; `given` has those that are the user's own, by side."""
    tensors, about = read_weights(run)
    with understood(run.weights_file):
        config = Config.from_dict(about["config"])
        sides = [_side(content) for content in about["sides"]]
    names = encoder_names(sides, encoders_of(config))
    if len(names) != len(sides):
        raise ValueError(f"{run.weights_file} has {len(sides)} sides and {len(names)} encoders; train the run again")
    made = []
    for k, (side, factory) in enumerate(zip(sides, builds_of(names, given, run), strict=True)):
        make = functools.partial(Tower, config, side.kind, side.shape, factory, k)
        network = filled(make, f"towers.{k}.", tensors, run.weights_file, lazily=isinstance(factory, str))
        assert isinstance(network, Tower)
        made.append(SideEncoder(side, network))
    eps = next((float(v.exp()) for key, v in tensors.items() if key.endswith("log_eps")), None)
    return Encoders(made, float(config.method["eps"]) if eps is None else eps).eval()


def builds_of(names: Sequence[str], given: Any, run: Run) -> list[str | Factory]:
    """What makes the encoder of each side: its name if it is one of gcalign's, else what the user gives."""
    if isinstance(given, str) and "," in given:
        given = [part.strip() for part in given.strip("[]").split(",")]
    own = given if isinstance(given, (list, tuple)) else [given] * len(names)  # one, for the only side that needs one
    if len(own) != len(names):
        raise ValueError(f"encoder={list(own)} must have one for each of the {len(names)} sides")
    what = f"run={run.path}"
    return [factory_of(name, mine if ":" in name else None, what) for name, mine in zip(names, own, strict=True)]


def _side(content: Mapping[str, Any]) -> PairedSide:
    """A side as a file describes it, without items."""
    kind, shape = one_of("kind", content["kind"], KINDS), tuple(content["shape"])
    for size in shape:
        count("a side of shape", size, "sizes of an item")
    wanted = {"image": 3, "text": 0, "array": 1}[kind]
    numbers = [float(x) for part in ("mean", "std") for x in content[part]]
    if len(shape) != wanted or not all(map(math.isfinite, numbers)) or min(content["std"], default=1) <= 0:
        raise ValueError(f"{kind} of shape {shape} with mean and std of {len(numbers)} numbers")
    items: Any = torch.empty((0, *shape), device="meta") if shape else ()
    mean, std = (tuple(map(float, content[part])) for part in ("mean", "std"))
    return PairedSide(str(content["name"]), kind, items, torch.zeros(0, dtype=torch.int64), mean, std)
