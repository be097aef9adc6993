"""Who sits on each side of a plan, and the plan itself once it is solved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Side:
    """The embeddings along one side of a plan and what is known of each; `ids` None means "by position"."""

    features: Tensor  # [n, d]
    ids: Tensor | None = None  # [n]
    labels: Tensor | None = None  # [n] or [n, levels]
    domains: Tensor | None = None  # [n]
    weights: Tensor | None = None  # [n]

    def __len__(self) -> int:
        return len(self.features)

    def joined(self, other: Side) -> Side:
        """Both sides in one, for the joint layout."""

        def cat(x: Tensor | None, y: Tensor | None) -> Tensor | None:
            return None if x is None or y is None else torch.cat([x, y])

        return Side(
            torch.cat([self.features, other.features]),
            cat(self.ids, other.ids),
            cat(self.labels, other.labels),
            cat(self.domains, other.domains),
            cat(self.weights, other.weights),
        )


@dataclass(frozen=True)
class Sides:
    """Rows and columns. Where pairs go by position, row i belongs to column i + `partner` modulo their number; in the
    joint layout `own` is the column of row 0 itself (row i is then column own + i, and never matched with it)."""

    rows: Side
    columns: Side
    own: int | None = None
    partner: int | None = None

    @staticmethod
    def cross(rows: Side, columns: Side) -> Sides:
        """Rows are the first views, columns the second."""
        return Sides(rows, columns, partner=0 if rows.ids is None else None)

    @staticmethod
    def joint(first: Side, second: Side) -> Sides:
        """Rows and columns are all embeddings; none is matched with itself."""
        everyone = first.joined(second)
        return Sides(everyone, everyone, own=0, partner=len(first) if first.ids is None else None)

    def turned(self) -> Sides:
        """Columns as rows and rows as columns, in the cross layout."""
        return Sides.cross(self.columns, self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.columns)

    @property
    def allowed(self) -> int:
        """How many pairs may carry mass."""
        n, m = self.shape
        return n * m - (n if self.own is not None else 0)


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """P_θ with its scalings and diagnostics. Numbers are 0-dim tensors, so that reading none of them costs no sync."""

    log_u: Tensor  # [n]
    log_v: Tensor  # [m]
    mu: Tensor  # [n]  the marginals asked for
    nu: Tensor  # [m]
    eps: Tensor  # []
    iterations: int
    converged: bool
    blocks: Callable[[], Iterator[Tensor]]  # log P, some rows at a time

    @cached_property
    def log(self) -> Tensor:  # [n, m]
        blocks = list(self.blocks())
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    @property
    def matrix(self) -> Tensor:  # [n, m]
        return self.log.exp()

    @property
    def u(self) -> Tensor:  # [n]
        return self.log_u.exp()

    @property
    def v(self) -> Tensor:  # [m]
        return self.log_v.exp()

    @property
    def f(self) -> Tensor:  # [n]
        """ε log u, the potential of the rows."""
        return self.eps * self.log_u

    @property
    def g(self) -> Tensor:  # [m]
        """ε log v, the potential of the columns."""
        return self.eps * self.log_v

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row sums, column sums and entropy, in one pass over the blocks."""
        rows, columns, entropy = [], torch.zeros_like(self.log_v), torch.zeros_like(self.eps)
        for log_p in self.blocks():
            p = log_p.exp()
            rows.append(p.sum(1))
            columns = columns + p.sum(0)
            entropy = entropy - (p * log_p.masked_fill(p == 0, 0)).sum()
        return torch.cat(rows), columns, entropy

    @property
    def row_sums(self) -> Tensor:  # [n]
        return self._sums[0]

    @property
    def column_sums(self) -> Tensor:  # [m]
        return self._sums[1]

    @property
    def mass(self) -> Tensor:
        return self.row_sums.sum()

    @property
    def entropy(self) -> Tensor:
        """H(P) = −Σ P log P (eq:eot)."""
        return self._sums[2]

    @property
    def row_error(self) -> Tensor:
        """‖P1 − μ‖₁ / ‖μ‖₁: what is missed where rows are hard, what is given where they are relaxed."""
        return (self.row_sums - self.mu).abs().sum() / self.mu.sum()

    @property
    def column_error(self) -> Tensor:
        """‖Pᵀ1 − ν‖₁ / ‖ν‖₁."""
        return (self.column_sums - self.nu).abs().sum() / self.nu.sum()

    def __repr__(self) -> str:
        n, m = len(self.log_u), len(self.log_v)
        mass, entropy, rows, columns = (x.item() for x in (self.mass, self.entropy, self.row_error, self.column_error))
        return (
            f"Plan({n}×{m}, mass={mass:.6g}, entropy={entropy:.6g}, row_error={rows:.1e}, column_error={columns:.1e}, "
            f"iterations={self.iterations}, converged={self.converged})"
        )
