"""Heads from pairs and unpaired items: in closed form, by InfoNCE, or by InfoNCE and the plan of a teacher."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.aligning.closed import CLOSED, Moments, closed_form
from gcalign.aligning.heads import SideHead
from gcalign.alignment import Alignment
from gcalign.constraints import Columns, Rows
from gcalign.divergences import KL
from gcalign.kernels import Cosine
from gcalign.symmetric import Symmetric
from gcalign.targets import Teacher

Heads = tuple[SideHead, SideHead]
PLAN_ITERATIONS, PLAN_TOL = 50, 1e-3  # of the plans of a batch; more change the heads by nothing that can be measured


@dataclass(frozen=True)
class Settings:
    """How heads are made. The search of `align` chooses what is not given."""

    method: str = "plan"  # "cca", "procrustes", "ridge", "infonce", or "plan": InfoNCE and the plan of a teacher
    teacher: str = "cca"
    ridge: float = 1.0  # of the closed form that starts the heads and teaches
    dim: int = 256
    hidden: int = 0  # width of a hidden layer; 0: linear heads
    eps: float = 0.1  # of InfoNCE and of the student's plan
    sharpen: float = 5.0  # ε / the ε of the teacher's plan
    weight: float = 1.0  # of the loss on unpaired items
    relax: float = math.inf  # λ of the marginals of the student's plan
    renew: int = 1  # how often the student becomes the teacher
    steps: int = 100
    batch: int = 512
    lr: float = 3e-3

    @property
    def closed(self) -> str:
        """The closed form that these heads are, or start from."""
        return self.method if self.method in CLOSED else self.teacher


@dataclass(frozen=True)
class Examples:
    """Unit rows that a fit may see: pairs (x_k, y_k) with their weights, and pools of items of each side."""

    x: Tensor  # [P, D₁]
    y: Tensor  # [P, D₂]
    weights: Tensor  # [P]
    group: Tensor  # [P], which pairs are joined by an item
    pool_a: Tensor  # [N, D₁]
    pool_b: Tensor  # [M, D₂]

    def __len__(self) -> int:
        return len(self.x)

    def take(self, which: Tensor, weights: Tensor | None = None) -> Examples:
        """Some of the pairs, with the same pools."""
        w = self.weights if weights is None else weights
        return Examples(self.x[which], self.y[which], w[which], self.group[which], self.pool_a, self.pool_b)

    def means(self) -> tuple[Tensor, Tensor]:
        """The mean of all items of each side."""
        return _mean(self.x, self.pool_a), _mean(self.y, self.pool_b)


def fit(examples: Examples, settings: Settings, seed: int, tick: Callable[[], None] = lambda: None) -> Heads:
    """Heads of both sides, made as the settings say. `tick` is called after each step."""
    generator = torch.Generator().manual_seed(seed)
    moments = Moments.of(examples.x, examples.y, examples.weights)
    maps = closed_form(settings.closed, moments, settings.ridge, settings.dim)
    starts = [
        (mean, m / ((x - mean) @ m).norm(dim=1).mean())  # of length about 1, so that one learning rate fits all
        for mean, m, x in zip(examples.means(), maps, (examples.x, examples.y), strict=True)
    ]
    hidden = 0 if settings.method in CLOSED else settings.hidden
    a, b = (SideHead(mean, start, hidden, generator) for mean, start in starts)
    if settings.method not in CLOSED:
        _train((a, b), examples, settings, generator, tick)
    return a.eval().requires_grad_(False), b.eval().requires_grad_(False)


def _train(
    heads: Heads, examples: Examples, settings: Settings, generator: torch.Generator, tick: Callable[[], None]
) -> None:
    """Minimise InfoNCE both ways on pairs + weight · KL(the teacher's plan ‖ the plan) on items of the pools."""
    a, b = heads
    on_pairs = Symmetric(Alignment(Cosine(settings.eps), (Rows(),), KL()))
    on_pools = plan_loss(settings)
    teacher = (copy.deepcopy(a), copy.deepcopy(b))
    parameters = [*a.parameters(), *b.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=settings.lr)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    renewals = {settings.steps * k // (settings.renew + 1) for k in range(1, settings.renew + 1)}
    several = len(examples.group.unique()) < len(examples)
    pools = torch.cat((examples.pool_a, examples.x)), torch.cat((examples.pool_b, examples.y))
    for step in range(settings.steps):
        if step in renewals:
            teacher = (copy.deepcopy(a), copy.deepcopy(b))
        k = _draw(len(examples), settings.batch, generator)
        known = {"ids": examples.group[k]} if several else {}
        loss = on_pairs(a(examples.x[k]), b(examples.y[k]), weights=examples.weights[k], **known)
        if settings.method == "plan" and settings.weight > 0:
            p, q = (pool[_draw(len(pool), settings.batch, generator)] for pool in pools)
            with torch.no_grad():
                taught = teacher[0](p), teacher[1](q)
            loss = loss + settings.weight * on_pools(a(p), b(q), teacher=taught)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
        tick()


def plan_loss(settings: Settings) -> Alignment:
    """KL(P_teacher ‖ P) between plans of unpaired items; a finite `relax` lets items stay without a partner."""
    return Alignment(
        Cosine(settings.eps),
        (Rows(settings.relax), Columns(settings.relax)),
        KL(),
        target=Teacher(settings.eps / settings.sharpen, iterations=PLAN_ITERATIONS, tol=PLAN_TOL),
        iterations=PLAN_ITERATIONS,
        tol=PLAN_TOL,
    )


def _draw(n: int, size: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(n, generator=generator)[:size]


def _mean(x: Tensor, pool: Tensor) -> Tensor:
    return (x.sum(0) + pool.sum(0)) / (len(x) + len(pool))
