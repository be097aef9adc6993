"""The Lightning module: encoder, head and criterion, one step at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
import torch
from torch import Tensor, nn

from gcalign import methods
from gcalign.alignment import Alignment
from gcalign.lab.data.images import Images
from gcalign.lab.models import Factory, Twin, encoder, momentum_at, predictor, projector
from gcalign.lab.training.config import Config, Optimizer
from gcalign.lab.training.progress import collapse
from gcalign.lab.training.stream import Augment, Batch, seed_of
from gcalign.metrics import alignment, uniformity
from gcalign.objective import Objective
from gcalign.symmetric import Symmetric
from gcalign.targets import Blocks, Labels


def criterion_of(config: Config) -> Objective:
    """The method with the options that were chosen; None leaves a default alone."""
    chosen = {k: v for k, v in config.method.items() if v is not None and k != "name"}
    if isinstance(chosen.get("relax"), list):
        chosen["relax"] = tuple(chosen["relax"])
    if config.target.name == "labels":
        chosen["target"] = Labels()
    elif config.target.name == "blocks":
        chosen["target"] = Blocks(config.target.alpha, config.target.beta)
    return methods.method(config.method["name"], **chosen)


def lr_at(step: int, total: int, o: Optimizer) -> float:
    """Linear warm-up, then the schedule down to `final` of lr."""
    warm = round(o.warmup * total)
    if step < warm:
        return o.lr * (step + 1) / warm
    along = (step - warm) / max(1, total - warm)
    if o.schedule == "linear":
        return o.lr * (1 - (1 - o.final) * along)
    if o.schedule == "cosine":
        return o.lr * (o.final + (1 - o.final) * 0.5 * (1 + math.cos(math.pi * along)))
    return o.lr


def optimizer_of(o: Optimizer, trained: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    if o.name == "sgd":
        return torch.optim.SGD(trained, lr=o.lr, momentum=o.momentum, weight_decay=o.weight_decay)
    return torch.optim.Adam(trained, lr=o.lr, weight_decay=o.weight_decay)


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
        return optimizer_of(self.config.optimizer, [p for p in self.parameters() if p.requires_grad])

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        rate = lr_at(batch.step, self.total, self.config.optimizer)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.one_way[0].kernel.clamp_()  # of a learnable ε


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
                    f"the target {self.target!r} reads {name}, and {images.name} has none; choose other data or "
                    "another target"
                )

    def views(self, batch: Batch) -> list[Tensor]:
        """Every view of this rank's batch, augmented on the device."""
        if self.config.augment_in == "workers":
            return list(batch.bases)
        return [self.augment(base, seed) for base, seed in zip(batch.bases, batch.seeds, strict=True)]

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        # whatever an encoder draws (dropout) follows from the step, so that a resumed run draws it again
        torch.manual_seed(seed_of(self.config.seed, "model", batch.step, self.global_rank))
        views = self.views(batch)
        z = self.projector(self.encoder(torch.cat(views))).chunk(len(views))
        known = self._known(batch, len(views))
        loss = self._byol(z, views) if self.twin is not None else self.criterion(z[0], torch.cat(z[1:]), **known)
        self.record(loss, z, batch.step, **known)
        return loss

    def _known(self, batch: Batch, views: int) -> dict[str, Any]:
        """What the target reads of this batch: labels, domains, and ids where there are more than two views."""
        read = {*self.target.reads, "weights"}  # weights go with any target
        known: dict[str, Tensor] = {name: x for name, x in batch.known.items() if name in read}
        if views > 2:
            known["ids"] = batch.index
        return {name: (value, value.repeat(views - 1)) for name, value in known.items()}

    def _byol(self, z: tuple[Tensor, ...], views: list[Tensor]) -> Tensor:
        assert self.predictor is not None
        assert self.twin is not None
        with torch.no_grad():
            targets = self.twin(torch.cat(views)).chunk(2)
        p = self.predictor(torch.cat(z)).chunk(2)
        return 0.5 * (self.criterion(p[0], targets[1]) + self.criterion(p[1], targets[0]))

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        if self.twin is not None:  # after the step: the twin follows what the optimiser made
            self.twin.update(momentum_at(self.done, self.total, self.config.model.momentum))
