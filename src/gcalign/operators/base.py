"""What a solver, a divergence and a gradient may ask of log K, written once on blocks of its rows.

A `Source` knows how to make any rows of log K from its leaves, with autograd. An `Operator` decides what is kept:
`Dense` stores the rows once, `Streamed` makes them again each time.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.kernels import Kernel
from gcalign.support import Support


class Source(ABC):
    """log K as a function of tensors, which are passed in, and of parameters, which it owns."""

    tensors: tuple[Tensor, ...]
    parameters: tuple[Tensor, ...] = ()
    shape: tuple[int, int]

    @abstractmethod
    def rows(self, start: int, stop: int, tensors: tuple[Tensor, ...]) -> Tensor:
        """Rows start:stop of log K, computed from `tensors`."""

    @abstractmethod
    def frozen(self) -> Source:
        """A copy without gradient that later changes do not reach."""

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """Everything a gradient may be wanted for."""
        return (*self.tensors, *self.parameters)


@dataclass(frozen=True)
class Pairwise(Source):
    """log K of a kernel on features; row i and column own + i are one embedding and never matched."""

    kernel: Kernel
    x: Tensor  # [n, d]
    y: Tensor  # [m, d]
    own: int | None = None

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]  # the features have it already
        return len(self.x), len(self.y)

    @property
    def tensors(self) -> tuple[Tensor, ...]:  # type: ignore[override]  # the features
        return self.x, self.y

    @property
    def parameters(self) -> tuple[Tensor, ...]:  # type: ignore[override]  # the kernel's own
        return tuple(p for p in self.kernel.parameters() if p.requires_grad)

    def rows(self, start: int, stop: int, tensors: tuple[Tensor, ...]) -> Tensor:
        log_k = self.kernel(tensors[0][start:stop], tensors[1])
        if self.own is None:
            return log_k
        i = torch.arange(start, stop, device=log_k.device)
        itself = i[:, None] + self.own == torch.arange(self.shape[1], device=log_k.device)
        return log_k.masked_fill(itself, -torch.inf)

    def frozen(self) -> Source:
        kernel = copy.deepcopy(self.kernel).requires_grad_(False)
        return Pairwise(kernel, self.x.detach().clone(), self.y.detach().clone(), self.own)


@dataclass(frozen=True)
class Given(Source):
    """log K as a matrix."""

    log_k: Tensor  # [n, m]

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]  # the matrix has it already
        return self.log_k.shape[0], self.log_k.shape[1]

    @property
    def tensors(self) -> tuple[Tensor, ...]:  # type: ignore[override]  # the matrix itself
        return (self.log_k,)

    def rows(self, start: int, stop: int, tensors: tuple[Tensor, ...]) -> Tensor:
        return tensors[0] if (start, stop) == (0, self.shape[0]) else tensors[0][start:stop]

    def frozen(self) -> Source:
        return Given(self.log_k.detach().clone())


class Operator(ABC):
    """K, asked only through sums over its rows and columns."""

    def __init__(self, source: Source, block: int) -> None:
        self.source = source
        self.shape = source.shape
        n = self.shape[0]
        self.spans = [(start, min(start + block, n)) for start in range(0, n, block)]

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """Rows start:stop of log K."""

    @abstractmethod
    def frozen(self) -> Operator:
        """The same operator, whatever happens later to embeddings and parameters."""

    def blocks(self) -> Iterator[tuple[int, int, Tensor]]:
        for start, stop in self.spans:
            yield start, stop, self.rows(start, stop)

    def log_matvec(self, b: Tensor) -> Tensor:  # [m] -> [n]
        """log(K eᵇ)."""
        return torch.cat([(log_k + b).logsumexp(1) for _, _, log_k in self.blocks()])

    def log_rmatvec(self, a: Tensor) -> Tensor:  # [n] -> [m]
        """log(Kᵀ eᵃ)."""
        parts = [(log_k + a[start:stop, None]).logsumexp(0) for start, stop, log_k in self.blocks()]
        return parts[0] if len(parts) == 1 else torch.stack(parts).logsumexp(0)

    def scaled(self, a: Tensor, b: Tensor) -> Scaled:
        """diag(eᵃ) K diag(eᵇ) for products with signed vectors. Its entries must not overflow: any plan's do not."""
        return Scaled(self, a, b)

    def kept(self, a: Tensor, b: Tensor) -> Scaled:
        """The same for many products: an operator that has the room stores it."""
        return Scaled(self, a, b)

    def gather(self, support: Support) -> Tensor:
        """log K on a target's support."""
        parts = [support.gather(log_k, start, stop) for start, stop, log_k in self.blocks()]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def pullback(self, weigh: Callable[[int, int, Tensor], Tensor]) -> list[Tensor | None]:
        """The gradient of Σ weigh(start, stop, log K rows)·(log K rows) in each leaf, the weights held constant.

        Each block is made again with autograd on, so a gradient costs the memory of one block and reaches the
        embeddings, ε and any parameter of the kernel alike.
        """
        source = self.source
        grads: list[Tensor | None] = [None] * len(source.leaves)
        wanted = [k for k, leaf in enumerate(source.leaves) if leaf.requires_grad]
        for start, stop in self.spans:
            with torch.enable_grad():
                # detached one by one: the two sides may be one tensor, and each has a gradient of its own
                tensors = tuple(t.detach().requires_grad_(t.requires_grad) for t in source.tensors)
                log_k = source.rows(start, stop, tensors)
            leaves = (*tensors, *source.parameters)
            found = torch.autograd.grad(
                log_k, [leaves[k] for k in wanted], weigh(start, stop, log_k.detach()), allow_unused=True
            )
            for k, grad in zip(wanted, found, strict=True):
                if grad is not None:
                    total = grads[k]
                    grads[k] = grad if total is None else total + grad
        return grads


class Scaled:
    """diag(eᵃ) K diag(eᵇ) as a linear map, its blocks made again at each product unless they were `store`d."""

    def __init__(self, operator: Operator, a: Tensor, b: Tensor, *, store: bool = False) -> None:
        self.operator, self.a, self.b = operator, a, b
        self._stored = list(self._made()) if store else None

    def _made(self) -> Iterator[tuple[int, int, Tensor]]:
        for start, stop, log_k in self.operator.blocks():
            yield start, stop, (log_k + self.a[start:stop, None] + self.b).exp()

    def blocks(self) -> Iterable[tuple[int, int, Tensor]]:
        return self._made() if self._stored is None else self._stored

    def matvec(self, x: Tensor) -> Tensor:  # [m] -> [n]
        return torch.cat([p @ x for _, _, p in self.blocks()])

    def rmatvec(self, x: Tensor) -> Tensor:  # [n] -> [m]
        total = torch.zeros_like(self.b)
        for start, stop, p in self.blocks():
            total = total + p.T @ x[start:stop]
        return total
