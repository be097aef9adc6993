"""Heads from pairs and unpaired items: in closed form, by matches, by InfoNCE, or by it and the plan of a teacher."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.aligning.closed import Maps, closed_form
from gcalign.aligning.heads import SideHead
from gcalign.aligning.matching import matched_form
from gcalign.alignment import Alignment, Symmetric
from gcalign.constraints import Columns, Rows
from gcalign.divergences import KL, Robust
from gcalign.kernels import Cosine
from gcalign.targets import Teacher

Heads = tuple[SideHead, SideHead]
TRAINED = ("infonce", "plan")  # methods with steps
PLAN_ITERATIONS, PLAN_TOL = 50, 1e-3  # of the plans of a batch; more change the heads by nothing that can be measured
RINCE_LAM = 0.01  # the weight of negatives, as published


@dataclass(frozen=True)
class Settings:
    """How heads are made. The search of `align` chooses what is not given."""

    method: str = "matching"  # a closed form, "matching", "infonce", or "plan": InfoNCE and the plan of a teacher
    teacher: str = "cca"  # of the heads that are trained: they start from it
    ridge: float = 1.0  # of the closed form
    matched: float = 1.0  # weight of all matches between the pools, where that of all pairs is 1
    rounds: int = 4  # how often the pools are matched
    pool: int = 8000  # items of each pool that are matched
    dim: int = 256
    hidden: int = 0  # width of a hidden layer; 0: linear heads
    eps: float = 0.1  # of InfoNCE and of the student's plan
    sharpen: float = 5.0  # ε / the ε of the teacher's plan
    weight: float = 1.0  # of the loss on unpaired items
    q: float = 0.0  # of RINCE in place of InfoNCE on the pairs; 0 is InfoNCE
    relax: float = math.inf  # λ of the marginals of the student's plan
    renew: int = 1  # how often the student becomes the teacher
    steps: int = 100
    batch: int = 256
    lr: float = 3e-3

    @property
    def closed(self) -> str:
        """The closed form that these heads are, or start from."""
        return self.teacher if self.method in TRAINED else self.method


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
    trained = settings.method in TRAINED
    starts = [
        (mean, m / ((x - mean) @ m).norm(dim=1).mean())  # of length about 1, so that one learning rate fits all
        for mean, m, x in zip(examples.means(), _maps(examples, settings), (examples.x, examples.y), strict=True)
    ]
    a, b = (SideHead(mean, start, settings.hidden if trained else 0, generator) for mean, start in starts)
    if trained:
        _train((a, b), examples, settings, generator, tick)
    return a.eval().requires_grad_(False), b.eval().requires_grad_(False)


def _maps(examples: Examples, settings: Settings) -> Maps:
    """The linear maps that these heads are, or start from."""
    pairs, pools = (examples.x, examples.y), (examples.pool_a[: settings.pool], examples.pool_b[: settings.pool])
    if settings.closed != "matching":
        return closed_form(settings.closed, *pairs, examples.weights, settings.ridge, settings.dim)
    x, y, p, q = (z - mean for z, mean in zip((*pairs, *pools), 2 * examples.means(), strict=True))
    return matched_form(
        "cca", (x, y, examples.weights), (p, q), settings.matched, settings.rounds, settings.ridge, settings.dim
    )


def _train(
    heads: Heads, examples: Examples, settings: Settings, generator: torch.Generator, tick: Callable[[], None]
) -> None:
    """Minimise InfoNCE both ways on pairs + weight · KL(the teacher's plan ‖ the plan) on items of the pools."""
    a, b = heads
    divergence = Robust(settings.q, RINCE_LAM, "score") if settings.q > 0 else KL()
    on_pairs = Symmetric(Alignment(Cosine(settings.eps), (Rows(),), divergence))
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
