"""Classifiers on features [N, D] with classes coded 0…K−1; each is fitted to a function [M, D] -> [M] codes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from gcalign.errors import count, one_of, positive
from gcalign.lab.models.state import seeded

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, momentum=0.9),  # app:hpdetails
    "adam": torch.optim.Adam,
}


@dataclass(frozen=True)
class Affine:
    """x ↦ argmax_k ((x − shift) / scale) W + b."""

    weight: Tensor  # [D, K]
    bias: Tensor  # [K]
    shift: Tensor | float = 0.0  # [D]
    scale: Tensor | float = 1.0  # [D]

    def __call__(self, x: Tensor) -> Tensor:  # [M, D] -> [M]
        return (((x - self.shift) / self.scale) @ self.weight + self.bias).argmax(1)


@dataclass(frozen=True)
class NearestNeighbours:
    """argmax_k Σ_{j ∈ k nearest, y_j = k} exp(cos(x, x_j) / T), as in Wu et al. 2018 and DINO."""

    memory: Tensor  # [N, D], of length one
    codes: Tensor  # [N]
    classes: int
    k: int
    temperature: float

    def __call__(self, x: Tensor) -> Tensor:  # [M, D] -> [M]
        block = max(1, 2**24 // len(self.memory))  # of the matrix of similarities, 64 MB at a time
        return torch.cat([self._nearest(rows) for rows in functional.normalize(x, dim=1).split(block)])

    def _nearest(self, rows: Tensor) -> Tensor:
        similarity, index = (rows @ self.memory.T).topk(self.k, dim=1)
        # relative to the nearest: the winner is the same, and a small T cannot overflow
        weight = ((similarity - similarity[:, :1]) / self.temperature).exp()
        votes = weight.new_zeros(len(rows), self.classes).scatter_add_(1, self.codes[index], weight)
        return votes.argmax(1)


def neighbours(
    x: Tensor, y: Tensor, classes: int, *, k: int | None = None, temperature: float = 0.07
) -> NearestNeighbours:
    """Weighted k nearest neighbours; by default the published 200, of fewer than 1000 samples a fifth."""
    k = min(200, max(1, len(x) // 5)) if k is None else count("k", k, "the published value is 200")
    positive("temperature", temperature, "the published value is 0.07")
    return NearestNeighbours(functional.normalize(x, dim=1), y, classes, min(k, len(x)), temperature)


def standardisation(x: Tensor) -> tuple[Tensor, Tensor]:  # [D], [D]
    """Mean and standard deviation of each feature; 1 for one that is constant up to rounding."""
    mean, std = x.mean(0), x.std(0, correction=0)
    constant = std <= torch.finfo(x.dtype).eps * 10 * mean.abs()
    return mean, torch.where(constant, torch.ones_like(std), std)


def principal(x: Tensor) -> Tensor:  # [N, D] -> [D, min(N, D)]
    """The principal axes of x. In them a logistic regression needs a third of the steps; W lies in their span."""
    if len(x) < x.shape[1]:
        return torch.linalg.svd(x, full_matrices=False)[2].T
    return torch.linalg.eigh(x.T @ x)[1]


def logistic(
    x: Tensor,
    y: Tensor,
    classes: int,
    l2: float,
    *,
    start: Affine | None = None,
    iterations: int = 200,
    tolerance: float = 1e-6,  # of the largest entry of the gradient
) -> Affine:
    """min_{W,b} mean cross-entropy(xW + b, y) + l2/2 ‖W‖², the bias free: scikit-learn's with C = 1/(N l2); L-BFGS.

    In coordinates where every feature curves the loss about equally, which is exact for `principal` features.
    """
    positive("l2", l2, "1e-3 suits standardised features")
    # with equal probabilities the second derivative in W_d is E[x_d²]/K, up to the classes, and l2
    unit = (x.square().mean(0) / classes + l2).rsqrt()[:, None]
    inputs = x * unit.T
    weight = (x.new_zeros(x.shape[1], classes) if start is None else start.weight / unit).requires_grad_()
    bias = (x.new_zeros(classes) if start is None else start.bias.clone()).requires_grad_()
    solver = torch.optim.LBFGS(
        [weight, bias],
        max_iter=iterations,
        history_size=10,
        line_search_fn="strong_wolfe",
        tolerance_grad=tolerance,
        tolerance_change=0.1 * torch.finfo(x.dtype).eps,
    )

    def closure() -> float:
        solver.zero_grad()
        value = functional.cross_entropy(inputs @ weight + bias, y) + 0.5 * l2 * (weight * unit).square().sum()
        value.backward()
        return value.item()

    solver.step(closure)
    return Affine(weight.detach() * unit, bias.detach())


def descent(
    x: Tensor,
    y: Tensor,
    classes: int,
    *,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: str,
    lr: float,
    epochs: int,
    decay: float = 1.0,
    batch_size: int | None = None,
    seed: int = 0,
) -> Affine:
    """A linear layer by gradients, of the whole set unless there is a `batch_size`; lr falls linearly to `decay`·lr."""
    one_of("optimizer", optimizer, OPTIMISERS)
    positive("lr", lr, "the paper uses 0.2 with sgd")
    count("epochs", epochs, "the paper uses 200")
    positive("decay", decay, "the paper uses 1e-3; 1 keeps the rate constant")
    size = len(x) if batch_size is None else count("batch_size", batch_size, "512 is the default")
    with seeded(seed):
        layer = nn.Linear(x.shape[1], classes)
    layer.to(x.device, x.dtype)
    solver = OPTIMISERS[optimizer](layer.parameters(), lr=lr)
    steps = epochs * math.ceil(len(x) / size)
    schedule = torch.optim.lr_scheduler.LambdaLR(solver, lambda step: 1 - (1 - decay) * step / steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for batch in order.split(size):
            solver.zero_grad()
            loss(layer(x[batch]), y[batch]).backward()
            solver.step()
            schedule.step()
    weight, bias = layer.weight.detach().T, layer.bias.detach()
    if not (weight.isfinite().all() and bias.isfinite().all()):
        raise ValueError(f"the linear layer diverged at lr={lr:g}; use a smaller one, or protocol linear-fast")
    return Affine(weight, bias)


def squared_error(out: Tensor, y: Tensor) -> Tensor:  # [B, K], [B] -> []
    """Mean squared distance to the one-hot code, the supervised loss of appendix:dgsetting."""
    return functional.mse_loss(out, functional.one_hot(y, out.shape[1]).to(out.dtype))


def regression(x: Tensor, y: Tensor, classes: int) -> Affine:
    """The linear layer of least squared error; of several the smallest."""
    inputs = functional.pad(x.double().cpu(), (0, 1), value=1.0)
    codes = functional.one_hot(y, classes).double().cpu()
    found = torch.linalg.lstsq(inputs, codes, driver="gelsd").solution.to(x)
    return Affine(found[:-1], found[-1])
