"""A target plan T, stored as pairs, as groups or as a matrix. Dense rows are made only when they are needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor


class Support(ABC):
    """Base class of target plans: a non-negative matrix T [n, m] without an empty row (P_tgt in Eq. 8, eq:mainobj).

    A `Target` makes one for each batch. `plan.target` is the one that a plan was compared with.

    Example:
        >>> import torch, gcalign
        >>> target = gcalign.method("ince").plan(torch.eye(3), torch.eye(3)).target
        >>> isinstance(target, gcalign.Support)
        True
        >>> target.mu  # its row sums
        tensor([1., 1., 1.])
    """

    shape: tuple[int, int]
    complete: bool = False  # True: known to have mass in every column
    ordinary: bool = False  # True: known to have marginals that are neither huge nor tiny

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:  # [stop − start, m]
        """Dense rows of T."""

    def dot(self, x: Tensor) -> Tensor:  # [m] or [m, d] -> [n] or [n, d]
        """T x."""
        return torch.cat([self.rows(*span) @ x for span in spans(self.shape)])

    def entropy(self) -> Tensor:  # [n]
        """Σ_j T_ij log T_ij of each row."""
        return torch.cat([torch.xlogy(t, t).sum(1) for t in (self.rows(*span) for span in spans(self.shape))])

    @abstractmethod
    def scaled(self, left: Tensor, right: Tensor | None = None) -> Support:  # [n], [m]
        """diag(left) T diag(right)."""

    @abstractmethod
    def transposed(self) -> Support:
        """Tᵀ."""

    def tdot(self, x: Tensor) -> Tensor:  # [n] or [n, d] -> [m] or [m, d]
        """Tᵀ x."""
        return self.transposed().dot(x)

    @property
    def mu(self) -> Tensor:  # [n]
        """T·1."""
        return self.dot(self.tensors[0].new_ones(self.shape[1]))

    @property
    def nu(self) -> Tensor:  # [m]
        """Tᵀ·1."""
        return self.tdot(self.tensors[0].new_ones(self.shape[0]))

    @property
    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """What T is made of; the first has its dtype."""

    def dense(self) -> Tensor:  # [n, m]
        """T as a matrix."""
        return self.rows(0, self.shape[0])


@dataclass(frozen=True)
class Pairs(Support):
    """A target plan (P_tgt in Eq. 8) as k pairs (i, j, weight), sorted by i. Values "on the pairs" are vectors [k].

    Args:
        i: row of each pair [k], in ascending order.
        j: column of each pair [k].
        weight: T_ij of each pair [k].
        shape: (n, m).
        complete, ordinary: known properties of T; see `Support`.
        shift: set if n = m and row i has the one pair (i, (i + shift) modulo n); indices are then not read.
        unit: whether every weight is known to be 1.

    Example:
        >>> import torch, gcalign
        >>> gcalign.Pairs(torch.tensor([0, 1]), torch.tensor([1, 0]), torch.ones(2), (2, 2)).rows(0, 1)
        tensor([[0., 1.]])
    """

    i: Tensor  # [k]
    j: Tensor  # [k]
    weight: Tensor  # [k]
    shape: tuple[int, int]
    complete: bool = False
    ordinary: bool = False
    shift: int | None = None
    unit: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,)

    def span(self, start: int, stop: int) -> slice:
        """The pairs of these rows."""
        if (start, stop) == (0, self.shape[0]):
            return slice(None)
        if self.shift is not None:
            return slice(start, stop)
        ends = torch.searchsorted(self.i, torch.tensor([start, stop], device=self.i.device))
        return slice(*ends.tolist())

    def gather(self, block: Tensor, start: int, stop: int) -> Tensor:
        """The entries of rows start:stop, given as a dense block, on the pairs."""
        span = self.span(start, stop)
        return block[self.i[span] - start, self.j[span]]

    def scatter(self, values: Tensor, start: int, stop: int) -> Tensor:
        """The dense rows start:stop of a matrix given on the pairs."""
        span = self.span(start, stop)
        block = values.new_zeros(stop - start, self.shape[1])
        return block.index_put((self.i[span] - start, self.j[span]), values[span], accumulate=True)

    def rows(self, start: int, stop: int) -> Tensor:
        return self.scatter(self.weight, start, stop)

    def dot(self, x: Tensor) -> Tensor:
        return self.sum_rows(_times(self.weight, self.along_columns(x)))

    def tdot(self, x: Tensor) -> Tensor:
        return self.sum_columns(_times(self.weight, self.along_rows(x)))

    @property
    def mu(self) -> Tensor:
        return self.sum_rows(self.weight)

    @property
    def nu(self) -> Tensor:
        return self.sum_columns(self.weight)

    def entropy(self) -> Tensor:
        return torch.zeros_like(self.mu) if self.unit else self.sum_rows(torch.xlogy(self.weight, self.weight))

    def weighted(self, values: Tensor) -> Tensor:  # [k] -> [n]
        """Σ_j T_ij values_ij."""
        return self.sum_rows(values if self.unit else self.weight * values)

    def distance(self, p: Tensor, mass: Tensor) -> Tensor:  # [k], [] -> []
        """‖P − T‖₁ of a plan with this mass and the entries p on the pairs."""
        return (self.weight - p).abs_().sum() + (mass - p.sum()).clamp_(min=0)

    def along_rows(self, x: Tensor) -> Tensor:
        """x_i at each pair (i, j)."""
        return x[self.i] if self.shift is None else x

    def along_columns(self, x: Tensor) -> Tensor:
        """x_j at each pair (i, j)."""
        return x[self.j] if self.shift is None else x.roll(-self.shift, 0) if self.shift else x

    def sum_rows(self, values: Tensor) -> Tensor:
        """Σ_j of a matrix given on the pairs."""
        if self.shift is not None:
            return values
        return values.new_zeros(self.shape[0], *values.shape[1:]).index_add(0, self.i, values)

    def sum_columns(self, values: Tensor) -> Tensor:
        """Σ_i of a matrix given on the pairs."""
        if self.shift is not None:
            return values.roll(self.shift, 0) if self.shift else values
        return values.new_zeros(self.shape[1], *values.shape[1:]).index_add(0, self.j, values)

    def scaled(self, left: Tensor, right: Tensor | None = None) -> Support:
        factor = self.along_rows(left)
        factor = factor if right is None else factor * self.along_columns(right)
        return replace(self, weight=self.weight * factor, ordinary=False, unit=False)

    def transposed(self) -> Support:
        order = torch.argsort(self.j, stable=True)
        i, j, weight = self.j[order], self.i[order], self.weight[order]
        return Pairs(i, j, weight, self.shape[::-1], self.complete, self.ordinary, unit=self.unit)


def _times(factor: Tensor, x: Tensor) -> Tensor:  # [k], [k] or [k, d]
    return factor * x if x.dim() == 1 else factor[:, None] * x


@dataclass(frozen=True)
class Groups(Support):
    """T of nested groups, coarse ones first; a product costs O(n + m):
    T_ij = left_i right_j (base + Σ level_l over the groups l that i and j share + pairs_ij)."""

    row_codes: Tensor  # [L, n]  as `shared_codes` gives them
    column_codes: Tensor  # [L, m]
    levels: Tensor  # [1 + L]  base first
    pairs: Pairs
    left: Tensor  # [n]
    right: Tensor  # [m]
    shape: tuple[int, int]
    complete: bool = False
    ordinary: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.levels, self.pairs.weight, self.left, self.right

    def rows(self, start: int, stop: int) -> Tensor:
        block = self.levels[0].expand(stop - start, self.shape[1])
        for g, h, level in self._each():
            block = block + level * (g[start:stop, None] == h)
        # added last, so that cancellation is exact
        return (block + self.pairs.rows(start, stop)) * self.left[start:stop, None] * self.right

    def _each(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return zip(self.row_codes, self.column_codes, self.levels[1:], strict=True)

    def dot(self, x: Tensor) -> Tensor:
        x = _times(self.right, x)
        total = self.levels[0] * x.sum(0) + self.pairs.dot(x)
        for g, h, level in self._each():
            total = total + level * x.new_zeros(sum(self.shape), *x.shape[1:]).index_add(0, h, x)[g]
        return _times(self.left, total)

    def on_pairs(self) -> Tensor:
        """T on the pairs, from the groups alone."""
        value = self.levels[0].expand(len(self.pairs.i))
        for g, h, level in self._each():
            value = value + level * (g[self.pairs.i] == h[self.pairs.j])
        return value

    def entropy(self) -> Tensor:
        # t log t has the same groups as t, with other levels
        values = self.levels.cumsum(0)
        values = torch.xlogy(values, values)
        before = self.on_pairs()
        after = (before + self.pairs.weight).clamp(min=0)
        added = torch.xlogy(after, after) - torch.xlogy(before, before)
        plain = replace(self, left=torch.ones_like(self.left), right=torch.ones_like(self.right))
        logs = replace(plain, levels=values.diff(prepend=values.new_zeros(1)), pairs=replace(self.pairs, weight=added))
        left, right = self.left, self.right
        return left * (left.log() * plain.dot(right) + plain.dot(torch.xlogy(right, right)) + logs.dot(right))

    def scaled(self, left: Tensor, right: Tensor | None = None) -> Support:
        right = self.right if right is None else self.right * right
        return replace(self, left=self.left * left, right=right, ordinary=False)

    def transposed(self) -> Support:
        pairs = self.pairs.transposed()
        assert isinstance(pairs, Pairs)
        return Groups(
            self.column_codes, self.row_codes, self.levels, pairs, self.right, self.left,
            self.shape[::-1], self.complete, self.ordinary,
        )  # fmt: skip


@dataclass(frozen=True)
class Full(Support):
    """A target plan as a matrix T (P_tgt in Eq. 8, eq:mainobj).

    Args:
        weight: T [n, m], non-negative, without an empty row.

    Example:
        >>> import torch, gcalign
        >>> gcalign.Full(torch.ones(2, 3)).mu
        tensor([3., 3.])
    """

    weight: Tensor  # [n, m]

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]  # a property here
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,)

    @staticmethod
    def checked(matrix: Tensor, shape: tuple[int, int], like: Tensor) -> Full:
        """A target from a user's matrix, dense or sparse; raise if it is not a valid one of this shape."""
        if not isinstance(matrix, Tensor) or tuple(matrix.shape) != shape:
            got = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ValueError(f"target of shape {got} must be {shape}, as log_k")
        full = Full(matrix.to_dense().to(like))
        check_weights(full.weight)
        if bool((full.mu == 0).any()):
            raise ValueError("a row of the target has no positive; give every row a positive entry, or drop the row")
        return full

    def rows(self, start: int, stop: int) -> Tensor:
        return self.weight[start:stop]

    def dot(self, x: Tensor) -> Tensor:
        return self.weight @ x

    def tdot(self, x: Tensor) -> Tensor:
        return self.weight.T @ x

    @property
    def mu(self) -> Tensor:
        return self.weight.sum(1)

    @property
    def nu(self) -> Tensor:
        return self.weight.sum(0)

    def entropy(self) -> Tensor:
        return torch.xlogy(self.weight, self.weight).sum(1)

    def scaled(self, left: Tensor, right: Tensor | None = None) -> Support:
        weight = self.weight * left[:, None]
        return Full(weight if right is None else weight * right)

    def transposed(self) -> Support:
        return Full(self.weight.T)


def spans(shape: tuple[int, int]) -> list[tuple[int, int]]:
    """(first row, last row) of blocks of a matrix that are small enough to be made at once."""
    step = max(1, (1 << 22) // shape[1])
    return [(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]


def shared_codes(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:  # [n], [m] -> [n], [m]
    """Numbers below n + m that are equal if and only if the values are. Shapes do not depend on the values."""
    both = torch.cat([left, right])
    codes = torch.searchsorted(both.sort().values, both)
    return codes[: len(left)], codes[len(left) :]


def join(left: Tensor, right: Tensor, distinct: bool) -> tuple[Tensor, Tensor]:
    """Every (i, j) with left_i = right_j, sorted by i; `distinct` leaves out i = j. It never makes an n × m matrix."""
    order = torch.argsort(right, stable=True)
    ranked = right[order]
    first, last = torch.searchsorted(ranked, left), torch.searchsorted(ranked, left, right=True)
    many = last - first
    i = torch.repeat_interleave(torch.arange(len(left), device=left.device), many)
    within = torch.arange(len(i), device=left.device) - (many.cumsum(0) - many)[i]
    j = order[first[i] + within]
    if not distinct:
        return i, j
    other = j != i
    return i[other], j[other]


def values_readable() -> bool:
    """Whether values of tensors can be read: not under torch.compile, nor while a CUDA graph is captured."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def true_if_eager(flag: Tensor) -> bool:
    """Whether a test on values is true; False where values cannot be read."""
    return values_readable() and bool(flag)


def check_weights(values: Tensor) -> None:
    """Raise unless the values of a target are non-negative, finite and without gradient."""
    if values.requires_grad:
        raise ValueError("target requires a gradient, but a target is data; pass target.detach()")
    if true_if_eager(~torch.isfinite(values).all()) or true_if_eager((values < 0).any()):
        raise ValueError("target has a negative or non-finite entry; every weight must be ≥ 0 and finite")


def check_no_self_pairs(support: Full | Pairs) -> None:
    """Raise if an embedding of the joint layout is its own positive."""
    w = support.weight  # [n, m], or [k] of pairs
    own = w.diagonal() if w.ndim == 2 else w * (support.i == support.j)  # type: ignore[union-attr]  # a vector: Pairs
    if true_if_eager((own > 0).any()):
        raise ValueError(
            "target pairs an embedding with itself, which the joint layout forbids; "
            "set its diagonal to 0 or use layout='cross'"
        )


def check_rows(support: Support, remedy: str, names: Tensor | None = None) -> None:
    """Raise if a row has no positive; `names` are the ids or labels of the rows."""
    empty = support.mu == 0
    if true_if_eager(empty.any()):
        row = int(empty.nonzero()[0])
        name = "" if names is None else f" ({names[row].item()!r})"
        raise ValueError(f"row {row}{name} of the target has no positive ({int(empty.sum())} such rows); {remedy}")
