"""Where log K comes from: the factors of a kernel, any other kernel on features, or a matrix."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gcalign.kernels import Kernel
from gcalign.support import Pairs, Support


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

    @property
    def offsets(self) -> tuple[Tensor, Tensor]:  # [n] or [1], [m] or [1]
        """What `write` leaves out of log K: one number for each row, one for each column."""
        zero = self.tensors[0].new_zeros(1)
        return zero, zero

    def write(self, start: int, stop: int, out: Tensor) -> None:
        """Rows start:stop of log K, without the offsets, into `out`."""
        out.copy_(self.rows(start, stop, self.tensors))

    def bound(self) -> Tensor | float:
        """No entry of what `write` writes is larger in size; infinity where that is not known."""
        return math.inf

    def gradients(self) -> list[Tensor | None]:
        """A zero for each leaf that wants a gradient."""
        return [torch.zeros_like(leaf) if leaf.requires_grad else None for leaf in self.leaves]

    def on(self, support: Support, spans: Sequence[tuple[int, int]]) -> Tensor:
        """log K on a target's support."""
        parts = [support.gather(self.rows(*span, self.tensors), *span) for span in spans]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def pull(self, start: int, stop: int, weights: Tensor, into: list[Tensor | None]) -> None:
        """Add the gradient of Σ weights·(log K rows) in each leaf, the weights held constant.

        The rows are made again with autograd on, so a gradient reaches the embeddings, ε and any parameter of
        the kernel alike.
        """
        wanted = [k for k, leaf in enumerate(self.leaves) if leaf.requires_grad]
        with torch.enable_grad():
            # detached one by one: the two sides may be one tensor, and each has a gradient of its own
            tensors = tuple(t.detach().requires_grad_(t.requires_grad) for t in self.tensors)
            log_k = self.rows(start, stop, tensors)
        leaves = (*tensors, *self.parameters)
        found = torch.autograd.grad(log_k, [leaves[k] for k in wanted], weights, allow_unused=True)
        for k, grad in zip(wanted, found, strict=True):
            total = into[k]
            if grad is not None and total is not None:
                total += grad


@dataclass(frozen=True)
class Inner(Source):
    """log K = scale·φ ψᵀ + r ⊕ c: products with K are matrix products with two tall matrices, and so is its gradient.

    Row i and column own + i are one embedding and never matched.
    """

    phi: Tensor  # [n, d]
    psi: Tensor  # [m, d]
    r: Tensor  # [n] or [1]
    c: Tensor  # [m] or [1]
    scale: float = 1.0
    own: int | None = None

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]  # the factors have it already
        return len(self.phi), len(self.psi)

    @property
    def tensors(self) -> tuple[Tensor, ...]:  # type: ignore[override]  # the factors
        return self.phi, self.psi, self.r, self.c

    def rows(self, start: int, stop: int, tensors: tuple[Tensor, ...]) -> Tensor:
        phi, psi, r, c = tensors
        log_k = self.scale * (phi[start:stop] @ psi.T) + (r if len(r) == 1 else r[start:stop])[:, None] + c
        return _without_itself(log_k, start, self.own)

    @property
    def offsets(self) -> tuple[Tensor, Tensor]:
        return self.r, self.c

    def write(self, start: int, stop: int, out: Tensor) -> None:
        out.addmm_(self.phi[start:stop], self.psi.T, beta=0, alpha=self.scale)
        if self.own is not None:
            out.diagonal(start + self.own).fill_(-torch.inf)

    def bound(self) -> Tensor:
        phi, psi = (torch.linalg.vector_norm(x.detach(), dim=1).max() for x in (self.phi, self.psi))
        return abs(self.scale) * phi * psi

    def on(self, support: Support, spans: Sequence[tuple[int, int]]) -> Tensor:
        pairs = self.few(support)
        if pairs is None:
            return super().on(support, spans)
        r, c = self.r.expand(self.shape[0]), self.c.expand(self.shape[1])
        inner = (pairs.along_rows(self.phi) * pairs.along_columns(self.psi)).sum(1)
        return self.scale * inner + pairs.along_rows(r) + pairs.along_columns(c)

    def few(self, support: Support) -> Pairs | None:
        """The support if going through it pair by pair costs little beside the factors themselves."""
        return support if isinstance(support, Pairs) and len(support.i) <= 4 * sum(self.shape) else None

    def frozen(self) -> Source:
        phi, psi, r, c = (t.detach().clone() for t in self.tensors)
        return Inner(phi, psi, r, c, self.scale, self.own)

    def pull(self, start: int, stop: int, weights: Tensor, into: list[Tensor | None]) -> None:
        phi, psi, r, c = into
        if phi is not None:
            phi[start:stop].addmm_(weights, self.psi, alpha=self.scale)
        if psi is not None:
            psi.addmm_(weights.T, self.phi[start:stop], alpha=self.scale)
        add_offset(r, slice(start, stop), lambda: weights.sum(1))
        add_offset(c, slice(None), lambda: weights.sum(0))

    def pull_pairs(self, pairs: Pairs, weights: Tensor, into: list[Tensor | None]) -> None:
        """The same for weights on a list of pairs."""
        phi, psi, r, c = into
        if phi is not None:
            pairs.add_rows(phi, weights, self.psi, self.scale)
        if psi is not None:
            pairs.add_columns(psi, weights, self.phi, self.scale)
        add_offset(r, slice(None), lambda: pairs.sum_rows(weights))
        add_offset(c, slice(None), lambda: pairs.sum_columns(weights))


def add_offset(into: Tensor | None, which: slice, sums: Callable[[], Tensor]) -> None:
    """Add to the gradient of an offset, if one is wanted: one number for each row (column), or one for all."""
    if into is not None and len(into) == 1:
        into += sums().sum()
    elif into is not None:
        into[which] += sums()


def _without_itself(log_k: Tensor, start: int, own: int | None) -> Tensor:
    """Rows from `start` on, row i and column own + i never matched."""
    if own is None:
        return log_k
    i = torch.arange(start, start + len(log_k), device=log_k.device)
    return log_k.masked_fill(i[:, None] + own == torch.arange(log_k.shape[1], device=log_k.device), -torch.inf)


@dataclass(frozen=True)
class Pairwise(Source):
    """log K of any kernel on features; row i and column own + i are one embedding and never matched."""

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
        return _without_itself(log_k, start, self.own)

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

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        return torch.aminmax(self.log_k.detach())

    @property
    def offsets(self) -> tuple[Tensor, Tensor]:
        """The middle of all entries, so that what is left is as small as it can be."""
        middle = (0.5 * (self._ends[0] + self._ends[1])).view(1)
        return torch.where(torch.isfinite(middle), middle, 0), torch.zeros_like(middle)

    def bound(self) -> Tensor:
        return 0.5 * (self._ends[1] - self._ends[0])

    def write(self, start: int, stop: int, out: Tensor) -> None:
        torch.sub(self.log_k.detach()[start:stop], self.offsets[0], out=out)

    def frozen(self) -> Source:
        return Given(self.log_k.detach().clone())

    def pull(self, start: int, stop: int, weights: Tensor, into: list[Tensor | None]) -> None:
        if into[0] is not None:
            into[0][start:stop] += weights
