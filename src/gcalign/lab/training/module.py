"""The Lightning module: a tower for each side, or one that views share, and the criterion; one step at a time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gcalign import metrics
from gcalign.alignment import Alignment, Symmetric
from gcalign.constraints import can_lose_mass
from gcalign.interop.caching import cached_backward
from gcalign.kernels import normalize
from gcalign.lab.data.sides import Preprocessing, Samples
from gcalign.lab.models import Factory, Twin, momentum_at, outside, predictor, projector
from gcalign.lab.models.encoders import USUAL, side_encoder
from gcalign.lab.training.config import Config, criterion_of, encoders_of
from gcalign.lab.training.optimizers import lr_at, optimizer_of
from gcalign.lab.training.stream import Batch, seed_of

logger = logging.getLogger(__name__)


class Tower(nn.Module):
    """The network of a side: items as the encoder takes them → embeddings in the space of all sides."""

    def __init__(self, config: Config, side: Preprocessing, build: str | Factory, k: int) -> None:
        super().__init__()
        m, seed = config.model, seed_of(config.seed, "side", k) if config.data.paired else config.seed
        self.encoder = side_encoder(build, side.kind, side.shape, width=m.width, stem=m.stem, seed=seed)
        features = self.encoder.features
        assert isinstance(features, int)
        self.projector = projector(m.projector, features, hidden=m.hidden, out=m.out, seed=seed)
        self.features = self.projector.features

    def forward(self, x: Any) -> Tensor:
        return self.projector(self.encoder(x))


def encoder_names(config: Config, sides: Sequence[Preprocessing]) -> list[str]:
    """The encoder of each tower by name: as it was given, or the usual one of its kind."""
    if not config.data.paired:
        return [config.model.encoder]
    return encoders_of(config) or [USUAL[side.kind] for side in sides]


class _WithPrediction(nn.Module):
    """BYOL's online branch: embeddings, and after them their predictions."""

    def __init__(self, tower: nn.Module, predictor: nn.Module) -> None:
        super().__init__()
        self.tower, self.predictor = tower, predictor

    def forward(self, x: Any) -> Tensor:  # -> [B, 2 D]
        z = self.tower(x)
        return torch.cat([z, self.predictor(z)], -1)


class _Encode(nn.Module):
    """The embeddings of some of a batch's items, given by their rows, on all sides that share a network."""

    def __init__(self, network: nn.Module, items: Sequence[Any]) -> None:
        super().__init__()
        self.network, self.items = network, items

    def forward(self, rows: Tensor) -> Tensor:  # [b] -> [b, sides, D]
        some = [_chosen(x, rows) for x in self.items]
        z = self.network(some[0] if len(some) == 1 else torch.cat(some))  # together: BatchNorm sees all views
        return z.unflatten(0, (len(some), -1)).transpose(0, 1)


def _chosen(items: Any, rows: Tensor) -> Any:
    if len(rows) == len(items):
        return items
    return items[rows] if isinstance(items, Tensor) else tuple(items[k] for k in rows.tolist())


class Training(L.LightningModule):
    """Towers minimising d_M(P_tgt ‖ P_θ) between the sides; BYOL adds a predictor and a momentum twin."""

    def __init__(
        self,
        config: Config,
        samples: Samples,
        total: int,
        builds: Sequence[str | Factory] | None = None,  # what makes the encoders, if not their names in the config
    ) -> None:
        super().__init__()
        self.config, self.total, self.samples = config, total, samples
        self.criterion = criterion_of(config)
        one_way = self.criterion.alignment if isinstance(self.criterion, Symmetric) else self.criterion
        assert isinstance(one_way, Alignment)
        self.one_way = (one_way,)  # in a tuple: as a submodule its weights would be saved twice
        self.target = one_way.target
        self.done = 0  # steps, also those of earlier processes
        self.knn: float | None = None  # the latest online accuracy
        self.first_cosine, self.warned = math.nan, False  # of embeddings that move together
        self.automatic_optimization = config.accumulate == 1  # else a step has several backward passes, as in `_take`
        self._check()
        sides = preprocessing_of(samples)
        builds = builds or [outside(name) for name in encoder_names(config, sides)]
        towers = [Tower(config, s, build, k) for k, (s, build) in enumerate(zip(sides, builds, strict=True))]
        if config.model.projector == "none" and len({tower.features for tower in towers}) > 1:
            raise ValueError("model.projector=none gives the sides different sizes; use mlp2, which brings both to one")
        self.towers = nn.ModuleList(towers)
        self.predictor: nn.Module | None = None
        self.twin: Twin | None = None
        if config.method["name"] == "byol":
            self.predictor = predictor(config.model.out, config.model.hidden, seed=config.seed)
            self.twin = Twin(towers[0], config.model.momentum)
        self.networks = [part for part in (*towers, self.predictor, self.twin) if part is not None]
        for network in self.networks if config.channels_last else ():
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in the stubs
        # an encoder of texts, which are no tensors, would be compiled again for each batch
        texts = [tower for tower, side in zip(towers, sides, strict=True) if side.kind == "text"]
        for network in self.networks if config.compile else ():
            if network not in texts:
                network.compile()

    def _check(self) -> None:
        """That the data have what the target reads."""
        reads, target, samples = self.target.reads, self.target, self.samples
        if self.config.target.noise and "labels" not in reads:
            raise ValueError(
                f"target.noise={self.config.target.noise} needs a target that reads labels, and {target!r} does not; "
                "set target.name=labels"
            )
        for name in ("labels", "domains"):
            if name in reads and samples.are_views and getattr(samples, name) is None:
                raise ValueError(f"the target {target!r} reads {name}, and {samples.name} have none; choose other data")
        if "domains" in reads and not samples.are_views and not samples.grouped:
            raise ValueError(f"the target {target!r} reads groups of near-duplicates; name them with data.group=")

    def inputs(self, batch: Batch) -> list[Any]:
        """The items of each side as its tower takes them, augmented on the device."""
        if self.config.augment_in == "workers":
            return list(batch.items)
        return [
            side.preprocessing(items, self.config.view_name, seed)
            for side, items, seed in zip(self.samples.sides, batch.items, batch.seeds, strict=True)
        ]

    def encoders(self, batch: Batch) -> list[_Encode]:
        """What embeds this batch, tower by tower; of BYOL with predictions, and the momentum twin after it."""
        items = self.inputs(batch)
        parts = [[items[k] for k in sides] for sides in self.samples.towers]
        if self.predictor is not None and self.twin is not None:
            online = _WithPrediction(self.towers[0], self.predictor)
            return [_Encode(online, parts[0]), _Encode(self.twin, parts[0])]
        return [_Encode(tower, part) for tower, part in zip(self.towers, parts, strict=True)]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        # whatever an encoder draws (dropout) follows from the step, so that a resumed run draws it again
        torch.manual_seed(seed_of(self.config.seed, "model", batch.step, self.global_rank))
        loss = self._byol_loss if self.twin is not None else self._loss
        return self._take(lambda *z: loss(batch, *z), self.encoders(batch))

    def _loss(self, batch: Batch, *parts: Tensor) -> Tensor:  # of each tower, [B, sides, D]
        sides = [side for part in parts for side in part.unbind(1)]
        read = {*self.target.reads, "ids", "weights"}  # ids and weights go with any target
        known: dict[str, Any] = {name: tuple(self._joined(x)) for name, x in batch.known.items() if name in read}
        z = self._joined(sides)
        if len(z) == 2:
            value = self.criterion(*z, **known)
        else:
            value = self.criterion(z, multi=self.config.pairs.multi, **known)
        self._record(value, sides, batch.step, **{name: x[:2] for name, x in known.items()})
        return value

    def _joined(self, sides: Sequence[Tensor]) -> list[Tensor]:
        """All views but the first are columns of one plan."""
        return [sides[0], torch.cat(list(sides[1:]))] if self.samples.are_views else list(sides)

    def _byol_loss(self, batch: Batch, online: Tensor, targets: Tensor) -> Tensor:  # [B, 2, 2 D], [B, 2, D]
        z, p = online.chunk(2, -1)
        value = 0.5 * (self.criterion(p[:, 0], targets[:, 1]) + self.criterion(p[:, 1], targets[:, 0]))
        self._record(value, z.unbind(1), batch.step)
        return value

    def _take(self, loss: Callable[..., Tensor], encoders: Sequence[_Encode]) -> Tensor:
        """The loss of all embeddings; a batch in parts is also propagated and the optimiser's step done.

        In parts, the gradient is that of the whole batch: each part is encoded twice. BatchNorm sees a part at a time.
        """
        rows = [torch.arange(len(encoder.items[0])) for encoder in encoders]
        if self.automatic_optimization:
            return loss(*(encoder(some) for encoder, some in zip(encoders, rows, strict=True)))
        optimizer, strategy = self.optimizers(), self.trainer.strategy
        assert isinstance(optimizer, LightningOptimizer)
        optimizer.zero_grad()
        with strategy.block_backward_sync() if isinstance(strategy, ParallelStrategy) else nullcontext():
            chunk = -(-len(rows[0]) // self.config.accumulate)
            value = cached_backward(loss, encoders, rows, chunk=chunk, backward=self.manual_backward)
        if self.trainer.world_size > 1:  # the mean over ranks, once for all parts
            gradients = [p.grad for p in self.parameters() if p.grad is not None]
            joined = strategy.reduce(parameters_to_vector(gradients), reduce_op="mean")
            assert isinstance(joined, Tensor)
            vector_to_parameters(joined, gradients)
        optimizer.step()
        return value

    def _record(self, loss: Tensor, z: Sequence[Tensor], step: int, **known: Any) -> None:
        """The loss and, where it is due, what else is known of this step: of the first side against the next."""
        self.log("loss", loss.detach(), prog_bar=True, logger=False)
        if (step + 1) % self.config.log_every and step + 1 != self.total:
            return
        (one_way,) = self.one_way
        with torch.no_grad():
            measures = {"uniformity": metrics.uniformity(z[0]), **collapse(z[0])}
            if len(z[0]) == len(z[1]):
                measures["alignment"] = metrics.alignment(z[0], z[1])
            if one_way.kernel.learnable:
                measures["eps"] = torch.as_tensor(one_way.kernel.eps)
            share = None
            if isinstance(self.criterion, Alignment) and self.criterion.constraints:
                plan = self.criterion.plan(*self._joined(z)[:2], **known)
                measures |= {
                    "plan/row_error": plan.row_error,
                    "plan/column_error": plan.column_error,
                    "plan/mass": plan.mass / len(plan.mu),
                    "plan/entropy": plan.entropy,
                    "plan/iterations": torch.tensor(float(plan.iterations)),
                }
                share = measures["plan/mass"] if can_lose_mass(self.criterion.constraints) else None
            if not self.warned and self.twin is None and 1 < len(z[0]) == len(z[1]):
                self._watch(z[0], z[1], share, step)
        self.log_dict(measures, logger=False)  # the loggers get what the result lines have
        self.log("lr", lr_at(step, self.total, self.config.optimizer), logger=False)

    def _watch(self, first: Tensor, second: Tensor, share: Tensor | None, step: int) -> None:
        """Log a warning, once, if the embeddings move together or the plan has lost most of its mass.

        Not in the first quarter of the steps: the first steps from random weights often raise all cosines for a while.
        """
        if math.isnan(self.first_cosine):
            self.first_cosine = float(metrics.negative_similarity(first, second))
        message = metrics.collapse(first, second, share, start=self.first_cosine)
        if message is not None and 4 * (step + 1) >= self.total:
            self.warned = True
            logger.warning("step %d: %s", step + 1, message)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = optimizer_of(self.config.optimizer, [p for p in self.parameters() if p.requires_grad])
        optimizer.register_step_post_hook(lambda *_: self.follow())
        return optimizer

    def follow(self) -> None:
        """What comes after each step of the optimiser."""
        self.one_way[0].kernel.clamp_()  # of a learnable ε
        if self.twin is not None:
            self.twin.update(momentum_at(self.done, self.total, self.config.model.momentum))

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        rate = lr_at(batch.step, self.total, self.config.optimizer)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate


def preprocessing_of(samples: Samples) -> list[Preprocessing]:
    """What each tower is given."""
    return [samples.sides[sides[0]].preprocessing for sides in samples.towers]


def collapse(z: Tensor) -> dict[str, Tensor]:  # [B, D]
    """How embeddings fill their space: `spread` is 0 if all directions are one and 1 if their mean is 0; `rank` is
    the exponential of the entropy of their covariance's spectrum, the number of dimensions that are used."""
    x = normalize(z.detach().float())
    centred = x - x.mean(0)
    small = centred.T @ centred if x.shape[1] <= len(x) else centred @ centred.T
    share = torch.linalg.eigvalsh(small / len(x)).clamp(min=0)
    spread = share.sum()
    share = share / spread.clamp(min=1e-12)
    return {"spread": spread, "rank": torch.special.entr(share).sum().exp()}
