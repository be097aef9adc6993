"""The Lightning module of a run on pairs: an encoder and a head for each side, and the criterion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gcalign.lab.data.paired import PairedData, PairedSide
from gcalign.lab.data.views import make_views
from gcalign.lab.models import Factory, projector
from gcalign.lab.models.modalities import USUAL, side_encoder
from gcalign.lab.training.config import Config
from gcalign.lab.training.module import Training
from gcalign.lab.training.pair_stream import Items, PairBatch
from gcalign.lab.training.stream import seed_of


class Tower(nn.Module):
    """The network of one side: items as the encoder takes them → embeddings in the space of all sides."""

    def __init__(self, config: Config, kind: str, shape: tuple[int, ...], build: str | Factory, k: int) -> None:
        super().__init__()
        m, seed = config.model, seed_of(config.seed, "side", k)
        self.encoder = side_encoder(build, kind, shape, width=m.width, seed=seed)
        features = self.encoder.features
        assert isinstance(features, int)
        self.projector = projector(m.projector, features, hidden=m.hidden, out=m.out, seed=seed)
        self.features = self.projector.features

    def forward(self, x: Any) -> Tensor:
        return self.projector(self.encoder(x))


def prepared(side: PairedSide, items: Items, views: str = "plain", seed: int = 0) -> Any:
    """Items as an encoder takes them: augmented and normalised images, texts, standardised arrays."""
    if not isinstance(items, Tensor):
        return items
    if side.kind == "image":
        shape = side.shape
        return make_views(views, (shape[0], shape[1], shape[2]), side.mean, side.std)(items, seed)
    mean, std = (torch.tensor(x, device=items.device, dtype=items.dtype) for x in (side.mean, side.std))
    return (items - mean) / std


class _Rows(nn.Module):
    """The embeddings of some of a batch's items, given by their rows: texts are no tensors."""

    def __init__(self, network: nn.Module, items: Any) -> None:
        super().__init__()
        self.network, self.items = network, items

    def forward(self, rows: Tensor) -> Tensor:
        if len(rows) == len(self.items):
            return self.network(self.items)
        some = self.items[rows] if isinstance(self.items, Tensor) else tuple(self.items[k] for k in rows.tolist())
        return self.network(some)


class PairTraining(Training):
    """An encoder and a head for each side, minimising d_M(P_tgt ‖ P_θ) between them."""

    def __init__(self, config: Config, pairs: PairedData, total: int, builds: Sequence[str | Factory]) -> None:
        super().__init__(config, total)
        self.sides = pairs.sides
        towers = [
            Tower(config, s.kind, s.shape, build, k)
            for k, (s, build) in enumerate(zip(pairs.sides, builds, strict=True))
        ]
        self.towers = nn.ModuleList(towers)
        # torch.compile would compile an encoder of texts, which are no tensors, again for each batch
        self.prepare(towers, [t for t, side in zip(towers, pairs.sides, strict=True) if side.kind != "text"])
        if config.model.projector == "none" and len({tower.projector.features for tower in towers}) > 1:
            raise ValueError("model.projector=none gives the sides different sizes; use mlp2, which brings both to one")
        if "domains" in self.target.reads and not pairs.grouped:
            raise ValueError(f"the target {self.target!r} reads groups of near-duplicates; name them with data.group=")

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        # whatever an encoder draws (dropout) follows from the step, so that a resumed run draws it again
        torch.manual_seed(seed_of(self.config.seed, "model", batch.step, self.global_rank))
        views = self.config.view_name
        items = [
            prepared(side, some, views, seed)
            for side, some, seed in zip(self.sides, batch.items, batch.seeds, strict=True)
        ]
        read = {*self.target.reads, "ids", "weights"}  # ids and weights go with any target
        known: dict[str, Any] = {name: x for name, x in batch.known.items() if name in read}

        def loss(*z: Tensor) -> Tensor:
            if len(z) == 2:
                value = self.criterion(z[0], z[1], **known)
            else:
                value = self.criterion(list(z), multi=self.config.pairs.multi, **known)
            self.record(value, z[:2], batch.step, **{name: x[:2] for name, x in known.items()})
            return value

        encoders = [_Rows(tower, some) for tower, some in zip(self.towers, items, strict=True)]
        rows = [torch.arange(len(some)) for some in items]
        return self.take(loss, encoders, rows, len(rows[0]))


def encoder_names(sides: Sequence[PairedSide], given: Sequence[str]) -> list[str]:
    """The encoder of each side by name: as it was given, or the usual one of its kind."""
    return list(given) or [USUAL[side.kind] for side in sides]
