"""Products with K by matrix–vector products, block by block of its rows.

The matrix that is multiplied is K̂ = diag(e^α) K diag(e^β): potentials α, β are absorbed so that its entries are
in the range of the floating-point type, and are moved when a product would leave that range. Then one half-step is
done in log space, and leaves the potentials where K̂ is good again: with a tiny ε that is every half-step, and the
iteration is the log-space one; with ε ≥ 0.035 in float32 it is none, and K̂ is K up to constants.

One pass does a whole iteration: a block gives its row sums, which give its row scalings, which it sends back to
the columns while it is still in the cache.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Source

RowStep = Callable[[Tensor, slice], Tensor]  # (log(K v) of some rows, which) -> log u of those rows
TAME = 1 / 4.2  # of the dtype's logarithmic range: up to this bound plain scalings stay inside it, as do their products


class State(NamedTuple):
    """What an operator has made, so that the backward pass need not make it again."""

    kept: Tensor  # rows of K̂, or nothing
    alpha: Tensor  # [n]
    beta: Tensor  # [m]
    raw: bool


class Blocked(ABC):
    """K̂ by blocks of rows; a subclass says where a block is found when it is wanted again."""

    most_raw: ClassVar[float] = math.inf  # besides a third of the logarithmic range: up to here K̂ is K but for offsets

    def __init__(self, source: Source, block: int, shard: Shard | None = None, state: State | None = None) -> None:
        self.source, self.shape, self.shard = source, source.shape, shard
        first, last = (0, self.shape[0]) if shard is None else shard.rows(self.shape[0])
        self.first, self.last = first, last  # the rows that are mine
        self.spans = list(pairwise([*range(first, last, block), last])) if last > first else []
        self.block = min(block, last - first)
        self.like = source.tensors[0].detach()
        info = torch.finfo(self.like.dtype)
        self._range = -math.log(info.tiny)  # 87 for float32, 708 for float64
        # entries below e^−0.8R are set to zero: a product may lose that much times the largest factor, so its
        # results must lie this far above
        self._least = -0.8 * self._range + math.log(max(self.shape)) - math.log(info.eps)
        self._most = 0.45 * self._range
        self._unit = 0.0  # log of the largest entry of a row of K̂, where alpha is found
        self.bound = source.bound
        self.r, self.c = source.offsets
        self.made: list[tuple[int, int, Tensor]] | None = None  # every block, where all are stored
        if state is not None and not state.raw:
            self.alpha, self.beta = state.alpha, state.beta
            self._raw, self._placed = False, True
            return
        if state is not None:
            self._raw = self._placed = True
            return
        if math.isinf(self.bound):
            self.bound = source.measured_bound()
        # absorbed nothing but the offsets: true as long as no entry can leave the range
        self._raw = self.bound <= min(self._range / 3, self.most_raw)
        self._placed = self._raw  # whether alpha is known; else the first pass finds it

    @cached_property
    def alpha(self) -> Tensor:  # [n]
        return -self.r.expand(self.shape[0])

    @cached_property
    def beta(self) -> Tensor:  # [m]
        return -self.c.expand(self.shape[1])

    @property
    def tame(self) -> bool:
        """Whether plain scalings cannot leave the range: K̂ is K but for its offsets, and its entries are moderate."""
        return self._raw and self.bound <= TAME * self._range

    @property
    def state(self) -> State:
        """For the backward pass."""
        if self._raw:
            return State(self._kept(), self.like.new_empty(self.shape[0]), self.like.new_empty(self.shape[1]), raw=True)
        return State(self._kept(), self.alpha, self.beta, raw=False)

    def _kept(self) -> Tensor:
        return self.like.new_empty(0, 0)

    def log_blocks(self) -> Iterator[tuple[int, int, Tensor]]:
        """log K, some rows at a time."""
        for start, stop in self.spans:
            yield start, stop, self.source.rows(start, stop)

    # --- blocks of K̂ ------------------------------------------------------------------------------------------

    @abstractmethod
    def _take(self, start: int, stop: int) -> Tensor:
        """Rows of K̂, found or made."""

    @abstractmethod
    def release(self) -> None:
        """Give back what is stored; it is made again if it is wanted again."""

    def blocks(self) -> Iterator[tuple[int, int, Tensor]]:
        """K̂, some rows at a time; a block is valid until the next is taken. Where all are stored, `made` has them."""
        if self.made is not None:
            yield from self.made
            return
        for start, stop in self.spans:
            yield start, stop, self._take(start, stop)
        self._placed = True
        self._complete()

    def _complete(self) -> None:  # noqa: B027  # nothing to do where nothing is stored
        """After a pass: a subclass that stores blocks lists them in `made`."""

    def _make(self, start: int, stop: int, out: Tensor) -> Tensor:
        """Rows of K̂ into `out`; where alpha is not yet known, it becomes minus the largest entry of each row."""
        self.source.write(start, stop, out)
        if not self._raw:
            r, c = self.r, self.c
            out += self.beta + c
            if self._placed:
                out += (self.alpha[start:stop] + (r if len(r) == 1 else r[start:stop]))[:, None]
            else:
                top = out.amax(1)
                top = torch.where(torch.isfinite(top), top, 0)
                top = top - self._unit
                out -= top[:, None]
                self.alpha[start:stop] = -top - (r if len(r) == 1 else r[start:stop])
        out.exp_()
        if not self._raw:  # subnormal numbers are slow, and nothing that counts
            torch.threshold_(out, math.exp(-0.8 * self._range), 0.0)
        return out

    def _absorb(self, alpha: Tensor | None, beta: Tensor) -> None:
        """Move the potentials; without alpha, the next pass takes each row's largest entry for its unit."""
        self.release()
        self._raw, self._placed, self.made = False, alpha is not None, None
        self.alpha = torch.zeros_like(self.alpha) if alpha is None else alpha.clone()
        self.beta = beta.clone()

    # --- products ---------------------------------------------------------------------------------------------

    def log_matvec(self, b: Tensor) -> Tensor:  # [m] -> [n]
        """log(K eᵇ)."""
        if not self._placed:
            self._absorb(None, b)
        log_kv, _, _ = self._pass(b, None)
        if self._trusted(b - self.beta, log_kv + self.alpha):
            return log_kv
        self._absorb(None, b)
        return self._pass(b, None)[0]

    def log_rmatvec(self, a: Tensor) -> Tensor:  # [n] -> [m]
        """log(Kᵀ eᵃ)."""
        if self._placed:
            z, w = (a - self.alpha).exp(), torch.zeros_like(self.beta)
            for start, stop, k in self.blocks():
                w.addmv_(k.T, z[start:stop])
            (w,) = self.summed(w)
            log_ktu = w.log() - self.beta
            if self._trusted(a - self.alpha, log_ktu + self.beta):
                return log_ktu
        log_ktu = self._log_column_sums(a)
        self._absorb(a, -log_ktu)
        return log_ktu

    def sweep(self, b: Tensor, step: RowStep) -> tuple[Tensor, Tensor, Tensor]:
        """log(K eᵇ), the a that `step` makes of it, and log(Kᵀ eᵃ): one iteration of any scaling algorithm."""
        if not self._placed:
            self._absorb(None, b)
        log_kv, a, log_ktu = self._pass(b, step)
        if self._trusted(b - self.beta, log_kv + self.alpha, a - self.alpha, log_ktu + self.beta):
            return log_kv, a, log_ktu
        log_kv = self.log_matvec(b)
        a = step(log_kv, slice(None))
        return log_kv, a, self.log_rmatvec(a)

    def _pass(self, b: Tensor, step: RowStep | None) -> tuple[Tensor, Tensor, Tensor]:
        fresh, x = not self._placed, (b - self.beta).exp()
        log_kv, a, w = (torch.zeros_like(t) for t in (self.alpha, self.alpha, self.beta))
        for start, stop, k in self.blocks():
            mine = slice(start, stop)
            log_kv[mine] = torch.mv(k, x).log_() - self.alpha[mine]
            if step is not None:
                a[mine] = step(log_kv[mine], mine)
                w.addmv_(k.T, (a[mine] - self.alpha[mine]).exp_())
        if step is None:
            (log_kv,) = self.summed(log_kv)
        else:
            log_kv, a, w = self.summed(log_kv, a, w)
        if fresh:  # each rank found the potentials of its own rows
            (self.alpha,) = self.summed(self.alpha)
        return log_kv, a, w.log() - self.beta

    def _trusted(self, *pairs: Tensor) -> bool:
        """Whether products were in range: (log factors, log results), and again."""
        ends = [(factors.max(), *results.aminmax()) for factors, results in zip(pairs[::2], pairs[1::2], strict=True)]
        found = torch.stack([end for three in ends for end in three]).view(-1, 3).tolist()  # waits for the device once
        return all(top <= self._most and low >= top + self._least and high < math.inf for top, low, high in found)

    def _log_column_sums(self, a: Tensor) -> Tensor:
        """log(Kᵀ eᵃ) with nothing but log-sum-exps."""
        parts = [(log_k + a[start:stop, None]).logsumexp(0) for start, stop, log_k in self.log_blocks()]
        none = torch.full_like(self.beta, -torch.inf)
        total = torch.stack([none, *parts]).logsumexp(0)
        return total if self.shard is None else self.shard.logsumexp(total)

    def round_trip(self, x: Tensor, middle: Callable[[Tensor, slice], Tensor]) -> tuple[Tensor, Tensor]:
        """y = K̂ x [n] and K̂ᵀ middle(y) [m] in one pass, for signed vectors."""
        y, w = torch.zeros_like(self.alpha), torch.zeros_like(self.beta)
        for start, stop, k in self.blocks():
            mine = slice(start, stop)
            y[mine] = torch.mv(k, x)
            w.addmv_(k.T, middle(y[mine], mine))
        y, w = self.summed(y, w)
        return y, w

    def shift(self) -> Tensor:
        """The size of what is taken off logarithms inside, and rounds them."""
        return self.alpha.abs().max() + self.beta.abs().max()

    def frame(self, alpha: Tensor, beta: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
        """e^{alpha − α}, e^{beta − β}: what makes diag(e^alpha) K diag(e^beta) of K̂; vectors, or columns of them.

        Where they are out of range K̂ is moved to a, b; None where they are so from there, too.
        """
        for _ in range(2):
            left = alpha - (self.alpha if alpha.dim() == 1 else self.alpha[:, None])
            right = beta - (self.beta if beta.dim() == 1 else self.beta[:, None])
            if self._placed and bool(torch.maximum(left.abs().max(), right.abs().max()) <= self._most):
                return left.exp_(), right.exp_()
            self._absorb(a, b)
        return None

    def by_rows(self, parts: list[Tensor], width: int) -> Tensor:
        """[n, width] from a part for each block."""
        if self.shard is None:
            return torch.cat(parts)
        whole = self.like.new_zeros(self.shape[0], width)
        for (start, stop), part in zip(self.spans, parts, strict=True):
            whole[start:stop] = part
        return self.summed(whole)[0]

    def summed(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Sums over all ranks of what each has from its own rows."""
        return parts if self.shard is None else self.shard.sum(*parts)


BLOCK_ENTRIES = {"cpu": 1 << 20}  # some rows at a time, so that temporaries stay in the cache, not beside the matrix
ELSEWHERE = 1 << 26


class Stored(Blocked):
    """One matrix [n, m]; the first pass makes it and uses each block while it is in the cache."""

    def __init__(self, source: Source, shard: Shard | None = None, state: State | None = None) -> None:
        entries = BLOCK_ENTRIES.get(source.tensors[0].device.type, ELSEWHERE)
        super().__init__(source, max(1, entries // source.shape[1]), shard, state)
        kept = None if state is None or not len(state.kept) else state.kept
        self._matrix: Tensor | None = kept
        self._made = self.first if kept is None else self.last  # rows of it that are there
        if kept is not None:
            self._complete()

    def _complete(self) -> None:
        if self._matrix is not None:
            self.made = []
            for start, stop in self.spans:
                self.made.append((start, stop, self._matrix[start - self.first : stop - self.first]))

    def _take(self, start: int, stop: int) -> Tensor:
        if self._matrix is None:
            self._matrix = self.like.new_empty(self.last - self.first, self.shape[1])
            self._made = start
        out = self._matrix[start - self.first : stop - self.first]
        if stop > self._made:
            self._make(start, stop, out)
            self._made = stop
        return out

    def _kept(self) -> Tensor:
        if self._matrix is None or self._made < self.last:
            for _ in self.blocks():  # which makes them
                pass
        return self.like.new_empty(0, self.shape[1]) if self._matrix is None else self._matrix

    def release(self) -> None:
        self._matrix = None
