"""The Lightning module: encoder, head and criterion, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from gcalign.alignment import Alignment
from gcalign.caching import cached_backward
from gcalign.lab.data.images import Images
from gcalign.lab.models import Factory, Twin, encoder, momentum_at, predictor, projector
from gcalign.lab.training.config import Config, criterion_of
from gcalign.lab.training.optimizers import lr_at, optimizer_of
from gcalign.lab.training.progress import collapse
from gcalign.lab.training.stream import Augment, Batch, seed_of
from gcalign.metrics import alignment, uniformity
from gcalign.symmetric import Symmetric

Encode = Callable[[Tensor], Tensor]  # a module, or a method of one


class Training(L.LightningModule):
    """What every run has: a config, a criterion, an optimiser with its schedule, and how far it is."""

    def __init__(self, config: Config, total: int) -> None:
        super().__init__()
        self.config, self.total = config, total
        self.criterion = criterion_of(config)
        one_way = self.criterion.alignment if isinstance(self.criterion, Symmetric) else self.criterion
        assert isinstance(one_way, Alignment)
        self.one_way = (one_way,)  # in a tuple: as a submodule its weights would be saved twice
        self.target = one_way.target
        self.done = 0  # steps, also those of earlier processes
        self.knn: float | None = None  # the latest online accuracy
        self.automatic_optimization = config.accumulate == 1  # else a step has several backward passes, as in `take`

    def prepare(self, networks: Sequence[nn.Module], compiled: Sequence[nn.Module]) -> None:
        """Memory layout and compilation of the networks, as the config says."""
        self.networks = list(networks)
        for network in networks if self.config.channels_last else ():
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in the stubs
        for network in compiled if self.config.compile else ():
            network.compile()

    def configure_model(self) -> None:
        """Lightning calls it where all processes are known, which fsdp divides the weights among."""
        if self.config.strategy == "fsdp":
            for network in self.networks:
                fully_shard(network, mesh=self.device_mesh["data_parallel"])  # type: ignore[index]  # set by Lightning

    def take(
        self, loss: Callable[..., Tensor], encoders: Sequence[Encode], inputs: Sequence[Tensor], samples: int
    ) -> Tensor:
        """The loss of the embeddings of all inputs; a batch in parts is also propagated and the optimiser's step done.

        In parts, the gradient is that of the whole batch: each part is encoded twice. BatchNorm sees a part at a time.
        """
        if self.automatic_optimization:
            return loss(*(encoder(x) for encoder, x in zip(encoders, inputs, strict=True)))
        optimizer, strategy = self.optimizers(), self.trainer.strategy
        assert isinstance(optimizer, LightningOptimizer)
        optimizer.zero_grad()
        with strategy.block_backward_sync() if isinstance(strategy, ParallelStrategy) else nullcontext():
            chunk = -(-samples // self.config.accumulate)
            found = cached_backward(loss, encoders, inputs, chunk=chunk, backward=self.manual_backward)
        if self.trainer.world_size > 1:  # the mean over ranks, once for all parts
            gradients = [p.grad for p in self.parameters() if p.grad is not None]
            joined = strategy.reduce(parameters_to_vector(gradients), reduce_op="mean")
            assert isinstance(joined, Tensor)
            vector_to_parameters(joined, gradients)
        optimizer.step()
        return found

    def record(self, loss: Tensor, z: Sequence[Tensor], step: int, **known: Any) -> None:
        """The loss and, where it is due, what else is known of this step: of the first view against all others."""
        self.log("loss", loss.detach(), prog_bar=True, logger=False)
        if (step + 1) % self.config.log_every and step + 1 != self.total:
            return
        (one_way,) = self.one_way
        with torch.no_grad():
            measures = {"uniformity": uniformity(z[0]), **collapse(z[0])}
            if len(z[0]) == len(z[1]):
                measures["alignment"] = alignment(z[0], z[1])
            if one_way.kernel.learnable:
                measures["eps"] = torch.as_tensor(one_way.kernel.eps)
            if isinstance(self.criterion, Alignment) and self.criterion.constraints:
                plan = self.criterion.plan(z[0], torch.cat(list(z[1:])), **known)
                measures |= {
                    "plan/row_error": plan.row_error,
                    "plan/column_error": plan.column_error,
                    "plan/mass": plan.mass / len(plan.mu),
                    "plan/entropy": plan.entropy,
                    "plan/iterations": torch.tensor(float(plan.iterations)),
                }
        self.log_dict(measures, logger=False)  # the loggers get what the result lines have
        self.log("lr", lr_at(step, self.total, self.config.optimizer), logger=False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = optimizer_of(self.config.optimizer, [p for p in self.parameters() if p.requires_grad])
        optimizer.register_step_post_hook(lambda *_: self.follow())
        return optimizer

    def follow(self) -> None:
        """What comes after each step of the optimiser."""
        self.one_way[0].kernel.clamp_()  # of a learnable ε

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        rate = lr_at(batch.step, self.total, self.config.optimizer)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate


class Pretraining(Training):
    """f_θ and g_θ minimising d_M(P_tgt ‖ P_θ); BYOL adds a predictor and a momentum twin."""

    def __init__(
        self,
        config: Config,
        shape: tuple[int, int, int],
        augment: Augment,
        total: int,
        build: str | Factory | None = None,  # what makes the encoder, if the config's name for it is not gcalign's
    ) -> None:
        super().__init__(config, total)
        self.augment = augment
        m = config.model
        self.encoder = encoder(build or m.encoder, shape=shape, width=m.width, stem=m.stem, seed=config.seed)
        features = self.encoder.features
        assert isinstance(features, int)
        self.projector = projector(m.projector, features, hidden=m.hidden, out=m.out, seed=config.seed)
        self.predictor: nn.Module | None = None
        self.twin: Twin | None = None
        if config.method["name"] == "byol":
            self.predictor = predictor(m.out, m.hidden, seed=config.seed)
            self.twin = Twin(nn.Sequential(self.encoder, self.projector), m.momentum)
        parts = (self.encoder, self.projector, self.predictor, self.twin)
        networks = [part for part in parts if part is not None]
        self.prepare(networks, networks)

    def check(self, images: Images) -> None:
        """That the data set has what the target reads."""
        if self.config.target.noise and "labels" not in self.target.reads:
            raise ValueError(
                f"target.noise={self.config.target.noise} needs a target that reads labels, and {self.target!r} does "
                "not; set target.name=labels"
            )
        for name in ("labels", "domains"):
            if name in self.target.reads and getattr(images, name) is None:
                raise ValueError(
                    f"the target {self.target!r} reads {name}, and {images.name} has none; choose other data"
                )

    def views(self, batch: Batch) -> list[Tensor]:
        """Every view of this rank's batch, augmented on the device."""
        if self.config.augment_in == "workers":
            return list(batch.bases)
        return [self.augment(base, seed) for base, seed in zip(batch.bases, batch.seeds, strict=True)]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        # whatever an encoder draws (dropout) follows from the step, so that a resumed run draws it again
        torch.manual_seed(seed_of(self.config.seed, "model", batch.step, self.global_rank))
        views = torch.stack(self.views(batch), 1)  # [B, V, C, H, W]
        known = self._known(batch, views.shape[1])

        def loss(z: Tensor, targets: Tensor | None = None) -> Tensor:  # each [B, V, D]; of BYOL, z is [B, V, 2 D]
            z, p = z.chunk(2, -1) if targets is not None else (z, z)
            first, *others = p.unbind(1)
            if targets is None:
                value = self.criterion(first, torch.cat(others), **known)
            else:
                value = 0.5 * (self.criterion(first, targets[:, 1]) + self.criterion(others[0], targets[:, 0]))
            self.record(value, z.unbind(1), batch.step, **known)
            return value

        encoders: list[Encode] = [self._online] if self.twin is None else [self._online, self._target]
        return self.take(loss, encoders, [views] * len(encoders), len(views))

    def _online(self, views: Tensor) -> Tensor:  # [B, V, C, H, W] -> [B, V, D]; of BYOL [B, V, 2 D], with predictions
        z = self.projector(self.encoder(_images(views)))
        z = z if self.predictor is None else torch.cat([z, self.predictor(z)], -1)
        return z.unflatten(0, (views.shape[1], -1)).transpose(0, 1)

    def _target(self, views: Tensor) -> Tensor:  # [B, V, C, H, W] -> [B, V, D]
        assert self.twin is not None
        return self.twin(_images(views)).unflatten(0, (views.shape[1], -1)).transpose(0, 1)

    def _known(self, batch: Batch, views: int) -> dict[str, Any]:
        """What the target reads of this batch: labels, domains, and ids where there are more than two views."""
        read = {*self.target.reads, "weights"}  # weights go with any target
        known: dict[str, Tensor] = {name: x for name, x in batch.known.items() if name in read}
        if views > 2:
            known["ids"] = batch.index
        return {name: (value, value.repeat(views - 1)) for name, value in known.items()}

    def follow(self) -> None:
        super().follow()
        if self.twin is not None:  # after the step: the twin follows what the optimiser made
            self.twin.update(momentum_at(self.done, self.total, self.config.model.momentum))


def _images(views: Tensor) -> Tensor:  # [B, V, C, H, W] -> [V B, C, H, W]
    """All views in one batch, so that BatchNorm sees them together."""
    return views.transpose(0, 1).flatten(0, 1)
