"""Where a target plan has mass: a list of pairs, or a full matrix, behind one face.

Everything a divergence asks of P_tgt is a sum over its support, so arrays "on the support" are all it sees:
[k] for a list of pairs, [n, m] for a full matrix. Formulas are written once for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor


class Support(ABC):
    """A non-negative matrix T [n, m] with no empty row."""

    weight: Tensor  # T on its support
    shape: tuple[int, int]
    complete: bool = False  # known, without looking, to have mass in every column

    @abstractmethod
    def gather(self, block: Tensor, start: int, stop: int) -> Tensor:
        """The entries of rows start:stop, given as a dense block, on the support."""

    @abstractmethod
    def scatter(self, values: Tensor, start: int, stop: int) -> Tensor:
        """The dense rows start:stop of a matrix given on the support."""

    @abstractmethod
    def along_rows(self, vector: Tensor) -> Tensor:
        """vector_i at each (i, j) of the support."""

    @abstractmethod
    def along_columns(self, vector: Tensor) -> Tensor:
        """vector_j at each (i, j) of the support."""

    @abstractmethod
    def sum_rows(self, values: Tensor) -> Tensor:  # -> [n]
        """Σ_j of a matrix given on the support."""

    @abstractmethod
    def sum_columns(self, values: Tensor) -> Tensor:  # -> [m]
        """Σ_i of a matrix given on the support."""

    @abstractmethod
    def where(self, values: Tensor, other: float) -> Tensor:
        """`values` where T > 0 and `other` elsewhere: a full matrix also holds the entries that T leaves empty."""

    @abstractmethod
    def scaled(self, factor: Tensor) -> Support:
        """The same pairs with weights times `factor`, which is given on the support."""

    @abstractmethod
    def transposed(self) -> Support:
        """Tᵀ."""

    @property
    def mu(self) -> Tensor:  # [n]
        """T·1."""
        return self.sum_rows(self.weight)

    @property
    def nu(self) -> Tensor:  # [m]
        """Tᵀ·1."""
        return self.sum_columns(self.weight)

    def dense(self) -> Tensor:  # [n, m]
        return self.scatter(self.weight, 0, self.shape[0])


@dataclass(frozen=True)
class Pairs(Support):
    """T as a list (i, j, weight), sorted by i."""

    i: Tensor  # [k]
    j: Tensor  # [k]
    weight: Tensor  # [k]
    shape: tuple[int, int]
    complete: bool = False
    shift: int | None = None  # where it is known that n = m and j = i + shift modulo n, each row once: no index needed

    def _span(self, start: int, stop: int) -> slice:
        if (start, stop) == (0, self.shape[0]):
            return slice(None)
        ends = torch.searchsorted(self.i, torch.tensor([start, stop], device=self.i.device))
        return slice(*ends.tolist())

    def gather(self, block: Tensor, start: int, stop: int) -> Tensor:
        span = self._span(start, stop)
        return block[self.i[span] - start, self.j[span]]

    def scatter(self, values: Tensor, start: int, stop: int) -> Tensor:
        span = self._span(start, stop)
        block = values.new_zeros(stop - start, self.shape[1])
        return block.index_put((self.i[span] - start, self.j[span]), values[span], accumulate=True)

    def along_rows(self, vector: Tensor) -> Tensor:
        return vector[self.i] if self.shift is None else vector

    def along_columns(self, vector: Tensor) -> Tensor:
        return vector[self.j] if self.shift is None else _rolled(vector, -self.shift)

    def sum_rows(self, values: Tensor) -> Tensor:
        if self.shift is not None:
            return values
        return values.new_zeros(self.shape[0]).index_add(0, self.i, values)

    def sum_columns(self, values: Tensor) -> Tensor:
        if self.shift is not None:
            return _rolled(values, self.shift)
        return values.new_zeros(self.shape[1]).index_add(0, self.j, values)

    def add_rows(self, into: Tensor, weights: Tensor, x: Tensor, scale: float) -> None:  # [n, d], [k], [m, d]
        """Add scale·W x to `into`, for the matrix W given on the support."""
        if self.shift is None:
            into.index_add_(0, self.i, weights[:, None] * x[self.j], alpha=scale)
        else:
            into.addcmul_(weights[:, None], self.along_columns(x), value=scale)

    def add_columns(self, into: Tensor, weights: Tensor, x: Tensor, scale: float) -> None:  # [m, d], [k], [n, d]
        """Add scale·Wᵀ x to `into`."""
        if self.shift is None:
            into.index_add_(0, self.j, weights[:, None] * x[self.i], alpha=scale)
        else:
            into.addcmul_(_rolled(weights, self.shift)[:, None], _rolled(x, self.shift), value=scale)

    def where(self, values: Tensor, other: float) -> Tensor:
        return values

    def scaled(self, factor: Tensor) -> Support:
        return replace(self, weight=self.weight * factor)

    def transposed(self) -> Support:
        order = torch.argsort(self.j, stable=True)
        return Pairs(self.j[order], self.i[order], self.weight[order], self.shape[::-1], self.complete)


def _rolled(x: Tensor, by: int) -> Tensor:
    return x.roll(by, 0) if by else x


@dataclass(frozen=True)
class Full(Support):
    """T as a matrix."""

    weight: Tensor  # [n, m]

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]  # the matrix has it already
        return self.weight.shape[0], self.weight.shape[1]

    @staticmethod
    def checked(matrix: Tensor, shape: tuple[int, int], like: Tensor) -> Full:
        """A user's dense matrix, if it can be a target of that shape."""
        if not isinstance(matrix, Tensor) or tuple(matrix.shape) != shape:
            got = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ValueError(f"target of shape {got} must be {shape}, as log_k")
        refuse_bad_weights(matrix)
        full = Full(matrix.to(like))
        if bool((full.mu == 0).any()):
            raise ValueError("a row of the target has no positive; give every row a positive entry, or drop the row")
        return full

    def gather(self, block: Tensor, start: int, stop: int) -> Tensor:
        return block

    def scatter(self, values: Tensor, start: int, stop: int) -> Tensor:
        return values[start:stop]

    def along_rows(self, vector: Tensor) -> Tensor:
        return vector[:, None].expand(self.shape)

    def along_columns(self, vector: Tensor) -> Tensor:
        return vector.expand(self.shape)

    def sum_rows(self, values: Tensor) -> Tensor:
        return values.sum(1)

    def sum_columns(self, values: Tensor) -> Tensor:
        return values.sum(0)

    def where(self, values: Tensor, other: float) -> Tensor:
        return values.masked_fill(self.weight == 0, other)

    def scaled(self, factor: Tensor) -> Support:
        return Full(self.weight * factor)

    def transposed(self) -> Support:
        return Full(self.weight.T)


def seen(flag: Tensor) -> bool:
    """Whether a test on values comes out true; never under torch.compile, where there are no values to look at."""
    return not torch.compiler.is_compiling() and bool(flag)


def refuse_bad_weights(values: Tensor) -> None:
    """Targets are data: non-negative, finite, without gradient."""
    if values.requires_grad:
        raise ValueError("target requires a gradient, but a target is data; pass target.detach()")
    if seen(~torch.isfinite(values).all()) or seen((values < 0).any()):
        raise ValueError("target has a negative or non-finite entry; every weight must be ≥ 0 and finite")


def join(left: Tensor, right: Tensor, own: int | None) -> tuple[Tensor, Tensor]:
    """Every (i, j) with left_i = right_j, sorted by i, without j = own + i: by sorting, never an n × m comparison."""
    order = torch.argsort(right, stable=True)
    ranked = right[order]
    first, last = torch.searchsorted(ranked, left), torch.searchsorted(ranked, left, right=True)
    many = last - first
    i = torch.repeat_interleave(torch.arange(len(left), device=left.device), many)
    within = torch.arange(len(i), device=left.device) - (many.cumsum(0) - many)[i]
    j = order[first[i] + within]
    if own is None:
        return i, j
    other = j != i + own
    return i[other], j[other]
