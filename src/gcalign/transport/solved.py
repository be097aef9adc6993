"""A solved plan as a target: its rows are made again from embeddings and scalings, so that it need not be stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gcalign.transport.operators.sources import Inner
from gcalign.transport.support import Pairs, Support

_ENTRIES = 1 << 22  # of the rows that are made at once


@dataclass(frozen=True)
class Solved(Support):
    """T = (1 − weight) diag(u) K diag(v) + weight·pairs."""

    source: Inner
    log_u: Tensor  # [n]
    log_v: Tensor  # [m]
    pairs: Pairs | None = None
    weight: float = 0.0
    complete: bool = True

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]  # a property here
        return self.source.shape

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.log_u, self.log_v, self.source.phi, self.source.psi

    def rows(self, start: int, stop: int) -> Tensor:
        plan = (self.source.rows(start, stop) + self.log_u[start:stop, None] + self.log_v).exp()
        return plan if self.pairs is None else torch.lerp(plan, self.pairs.rows(start, stop), self.weight)

    def _blocks(self) -> Iterator[tuple[int, int, Tensor]]:
        n, m = self.shape
        step = max(1, _ENTRIES // m)
        for start in range(0, n, step):
            stop = min(start + step, n)
            yield start, stop, self.rows(start, stop)

    def dot(self, x: Tensor) -> Tensor:
        return torch.cat([t @ x for _, _, t in self._blocks()])

    def tdot(self, x: Tensor) -> Tensor:
        total = x.new_zeros(self.shape[1], *x.shape[1:])
        for start, stop, t in self._blocks():
            total += t.T @ x[start:stop]
        return total

    def entropy(self) -> Tensor:
        return torch.cat([torch.xlogy(t, t).sum(1) for _, _, t in self._blocks()])

    def scaled(self, left: Tensor, right: Tensor | None = None) -> Support:
        pairs = None if self.pairs is None else self.pairs.scaled(left, right)
        assert pairs is None or isinstance(pairs, Pairs)
        log_v = self.log_v if right is None else self.log_v + right.log()
        return replace(self, log_u=self.log_u + left.log(), log_v=log_v, pairs=pairs)

    def transposed(self) -> Support:
        s = self.source
        turned = Inner(s.psi, s.phi, s.c, s.r, s.scale, s.bound, s.exclude_self)
        pairs = None if self.pairs is None else self.pairs.transposed()
        assert pairs is None or isinstance(pairs, Pairs)
        return Solved(turned, self.log_v, self.log_u, pairs, self.weight)
