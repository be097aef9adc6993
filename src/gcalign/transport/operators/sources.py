"""Where log K comes from: the factors of a kernel, or a matrix."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gcalign.transport.support import Pairs, Support


class Source(ABC):
    """log K as a function of tensors."""

    exclude_self: bool  # whether row i and column i are one embedding and never matched
    bound: float  # no entry of what `write` writes and no offset is larger in size, as far as is known without looking
    shape: tuple[int, int]
    tensors: tuple[Tensor, ...]  # everything a gradient may be wanted for
    offsets: tuple[Tensor, Tensor]  # [n] or [1], [m] or [1]: what `write` leaves out of log K

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """Rows start:stop of log K, differentiable."""

    @abstractmethod
    def write(self, start: int, stop: int, out: Tensor) -> None:
        """Rows start:stop of log K, without the offsets, into `out`."""

    @abstractmethod
    def measured_bound(self) -> float:
        """The bound, by looking; waits for the device."""

    @abstractmethod
    def on_pairs(self, pairs: Pairs) -> Tensor:  # [k]
        """log K on a target's pairs, without the offsets and divided by `scale`."""

    scale: float = 1.0

    def log_on_pairs(self, pairs: Pairs) -> Tensor:  # [k]
        """log K on a target's pairs."""
        r, c = self.offsets
        r = r if len(r) == 1 else pairs.along_rows(r)
        c = c if len(c) == 1 else pairs.along_columns(c)
        return torch.add(r + c, self.on_pairs(pairs), alpha=self.scale)

    @abstractmethod
    def against(self, target: Support) -> Tensor:  # [n]
        """Σ_j T_ij log K_ij."""

    @abstractmethod
    def pull(self, start: int, stop: int, weights: Tensor, into: list[Tensor | None]) -> None:
        """Add the gradient of Σ weights·(rows start:stop of log K), the weights held constant."""

    @abstractmethod
    def pull_pairs(self, pairs: Pairs, weights: Tensor, into: list[Tensor | None]) -> None:
        """The same for weights on a list of pairs."""

    @abstractmethod
    def pull_target(self, target: Support, weights: Tensor, into: list[Tensor | None]) -> None:  # [n]
        """The same for Σ_i weights_i Σ_j T_ij log K_ij."""


@dataclass(frozen=True)
class Mask:
    """Pairs that are left out of the kernel."""

    allowed: Tensor | None = None  # [n, m]  False: left out
    row_codes: Tensor | None = None  # [n]  pairs with equal codes are left out, except for positives
    column_codes: Tensor | None = None  # [m]
    target: Support | None = None

    def forbidden(self, start: int, stop: int) -> Tensor:  # [stop − start, m]
        """Which pairs of these rows are left out."""
        left_out = None if self.allowed is None else ~self.allowed[start:stop]
        if self.row_codes is None or self.column_codes is None or self.target is None:
            assert left_out is not None
            return left_out
        same = (self.row_codes[start:stop, None] == self.column_codes) & (self.target.rows(start, stop) == 0)
        return same if left_out is None else same | left_out


@dataclass
class Inner(Source):
    """log K = scale·φ ψᵀ + r ⊕ c: products with K and its gradient are matrix products with two tall matrices.

    `own` are the entries of the last columns, divided by `scale` and without r; ψ is 0 and c is 0 there.
    """

    phi: Tensor  # [n, d]
    psi: Tensor  # [m, d]
    r: Tensor  # [n] or [1]
    c: Tensor  # [m] or [1]
    scale: float = 1.0
    bound: float = math.inf
    exclude_self: bool = False
    own: Tensor | None = None  # [n, k]
    mask: Mask | None = None

    def __post_init__(self) -> None:
        self.shape = (len(self.phi), len(self.psi))
        self.tensors = (self.phi, self.psi, self.r, self.c, *(() if self.own is None else (self.own,)))
        self.offsets = (self.r, self.c)

    def rows(self, start: int, stop: int) -> Tensor:
        r = self.r if len(self.r) == 1 else self.r[start:stop]
        inner = self.phi[start:stop] @ self.psi.T
        if self.own is not None:
            inner = torch.cat([inner[:, : -self.own.shape[1]], self.own[start:stop]], 1)
        log_k = self.scale * inner + r[:, None] + self.c
        if self.mask is not None:
            log_k = log_k.masked_fill(self.mask.forbidden(start, stop), -torch.inf)
        return without_itself(log_k, start) if self.exclude_self else log_k

    def write(self, start: int, stop: int, out: Tensor) -> None:
        phi = self.phi if stop - start == self.shape[0] else self.phi[start:stop]
        out.addmm_(phi, self.psi.T, beta=0, alpha=self.scale)
        if self.own is not None:
            torch.mul(self.own.detach()[start:stop], self.scale, out=out[:, -self.own.shape[1] :])
        if self.mask is not None:
            out.masked_fill_(self.mask.forbidden(start, stop), -torch.inf)
        if self.exclude_self:
            out.diagonal(start).fill_(-torch.inf)

    def measured_bound(self) -> float:
        phi, psi = (torch.linalg.vector_norm(x.detach(), dim=1).max() for x in (self.phi, self.psi))
        sizes = [abs(self.scale) * phi * psi, self.r.detach().abs().max(), self.c.detach().abs().max()]
        sizes += [] if self.own is None else [abs(self.scale) * self.own.detach().abs().max()]
        return float(torch.stack(sizes).max())

    def on_pairs(self, pairs: Pairs) -> Tensor:
        return (pairs.along_rows(self.phi) * pairs.along_columns(self.psi)).sum(1)

    def against(self, target: Support) -> Tensor:
        inner = self.scale * (self.phi * target.dot(self.psi)).sum(1)
        return inner + self.r * target.mu + target.dot(self.c.expand(self.shape[1]))

    def pull(self, start: int, stop: int, weights: Tensor, into: list[Tensor | None]) -> None:
        phi, psi, r, c, *own = into
        if phi is not None:
            phi[start:stop].addmm_(weights, self.psi, alpha=self.scale)
        if own and own[0] is not None:
            own[0][start:stop].add_(weights[:, -own[0].shape[1] :], alpha=self.scale)
        if psi is not None:
            psi.addmm_(weights.T, self.phi[start:stop], alpha=self.scale)
        if r is not None:
            add_offset(r, slice(start, stop), weights.sum(1))
        if c is not None:
            add_offset(c, slice(None), weights.sum(0))

    def pull_pairs(self, pairs: Pairs, weights: Tensor, into: list[Tensor | None]) -> None:
        phi, psi, r, c = into[:4]
        if pairs.shift is None:
            if phi is not None:
                phi.index_add_(0, pairs.i, weights[:, None] * self.psi[pairs.j], alpha=self.scale)
            if psi is not None:
                psi.index_add_(0, pairs.j, weights[:, None] * self.phi[pairs.i], alpha=self.scale)
        else:
            if phi is not None:
                phi.addcmul_(weights[:, None], pairs.along_columns(self.psi), value=self.scale)
            if psi is not None:
                psi.addcmul_(pairs.sum_columns(weights)[:, None], pairs.sum_columns(self.phi), value=self.scale)
        if r is not None:
            add_offset(r, slice(None), pairs.sum_rows(weights))
        if c is not None:
            add_offset(c, slice(None), pairs.sum_columns(weights))

    def pull_target(self, target: Support, weights: Tensor, into: list[Tensor | None]) -> None:
        phi, psi, r, c = into[:4]
        if phi is not None:
            phi.addcmul_(weights[:, None], target.dot(self.psi), value=self.scale)
        if psi is not None:
            psi.add_(target.tdot(weights[:, None] * self.phi), alpha=self.scale)
        if r is not None:
            add_offset(r, slice(None), weights * target.mu)
        if c is not None:
            add_offset(c, slice(None), target.tdot(weights))


def add_offset(into: Tensor, which: slice, sums: Tensor) -> None:
    """Add to the gradient of an offset: one number for each row (column), or one for all."""
    if len(into) == 1:
        into += sums.sum()
    else:
        into[which] += sums


def without_itself(log_k: Tensor, start: int = 0) -> Tensor:
    """Rows from `start` on, row i and column i never matched."""
    i = torch.arange(start, start + len(log_k), device=log_k.device)
    return log_k.masked_fill(i[:, None] == torch.arange(log_k.shape[1], device=log_k.device), -torch.inf)


@dataclass
class Given(Source):
    """log K as a matrix."""

    log_k: Tensor  # [n, m]
    bound: float = math.inf
    exclude_self: bool = False  # the matrix has −∞ there

    def __post_init__(self) -> None:
        self.shape = (self.log_k.shape[0], self.log_k.shape[1])
        self.tensors = (self.log_k,)

    @cached_property
    def offsets(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # looked for once
        """The middle of all entries, so that what is left is small; the largest one if they are far apart."""
        low, high = torch.aminmax(self.log_k.detach())
        # far below the largest entry nothing counts; the middle would round the entries that do
        near = high - low <= 2 / 3 * math.log(torch.finfo(self.log_k.dtype).max)
        return torch.where(near, 0.5 * (low + high), high).view(1), torch.zeros_like(high).view(1)

    def rows(self, start: int, stop: int) -> Tensor:
        return self.log_k if (start, stop) == (0, self.shape[0]) else self.log_k[start:stop]

    def write(self, start: int, stop: int, out: Tensor) -> None:
        torch.sub(self.log_k.detach()[start:stop], self.offsets[0], out=out)

    def measured_bound(self) -> float:
        low, high = torch.aminmax(self.log_k.detach())
        return float(0.5 * (high - low))

    def on_pairs(self, pairs: Pairs) -> Tensor:
        return self.log_k[pairs.i, pairs.j] - self.offsets[0]

    def against(self, target: Support) -> Tensor:
        t = target.dense()
        return (t * self.log_k.masked_fill(t == 0, 0)).sum(1)

    def pull(self, start: int, stop: int, weights: Tensor, into: list[Tensor | None]) -> None:
        if into[0] is not None:
            into[0][start:stop] += weights

    def pull_pairs(self, pairs: Pairs, weights: Tensor, into: list[Tensor | None]) -> None:
        if into[0] is not None:
            into[0].index_put_((pairs.i, pairs.j), weights, accumulate=True)

    def pull_target(self, target: Support, weights: Tensor, into: list[Tensor | None]) -> None:
        if into[0] is not None:
            into[0].addcmul_(weights[:, None], target.dense())
