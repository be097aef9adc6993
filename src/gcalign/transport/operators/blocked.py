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
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Inner, Source, add_offset
from gcalign.transport.support import Pairs, Support

RowStep = Callable[[Tensor, slice], Tensor]  # (log(K v) of some rows, which) -> log u of those rows
TAME = 1 / 4.2  # of the dtype's logarithmic range: up to this bound plain scalings stay inside it, as do their products


@dataclass(frozen=True)
class State:
    """What an operator has made, so that the backward pass need not make it again."""

    kept: Tensor  # rows of K̂, or nothing
    alpha: Tensor  # [n]
    beta: Tensor  # [m]
    raw: bool


class Blocked(ABC):
    """K̂ by blocks of rows; a subclass says where a block is found when it is wanted again."""

    def __init__(self, source: Source, block: int, shard: Shard | None = None, state: State | None = None) -> None:
        self.source, self.shape, self.shard = source, source.shape, shard
        first, last = (0, self.shape[0]) if shard is None else shard.rows(self.shape[0])
        self.spans = [(start, min(start + block, last)) for start in range(first, last, block)]  # the rows that are mine
        self.first, self.last = first, last
        self.block = max((stop - start for start, stop in self.spans), default=0)
        self.like = source.tensors[0].detach()
        info = torch.finfo(self.like.dtype)
        self._range = -math.log(info.tiny)  # 87 for float32, 708 for float64
        # entries below e^−0.8R are set to zero: a product may lose that much times the largest factor, so its
        # results must lie this far above
        self._least = -0.8 * self._range + math.log(max(self.shape)) - math.log(info.eps)
        self._most = 0.45 * self._range
        self._unit = 0.0  # log of the largest entry of a row of K̂, where alpha is found
        self.bound = source.bound
        r, c = (t.detach() for t in source.offsets)
        self._offsets = r, c
        if state is not None:
            self.alpha, self.beta, self._raw, self._placed = state.alpha, state.beta, state.raw, True
            return
        self.alpha, self.beta = -r.expand(self.shape[0]), -c.expand(self.shape[1])
        if math.isinf(self.bound):
            self.bound = source.measured_bound()
        # absorbed nothing but the offsets: true as long as no entry can leave the range
        self._raw = self.bound <= self._raw_bound()
        self._placed = self._raw  # whether alpha is known; else the first pass finds it

    def _raw_bound(self) -> float:
        return self._range / 3

    @property
    def tame(self) -> bool:
        """Whether plain scalings cannot leave the range: K̂ is K but for its offsets, and its entries are moderate."""
        return self._raw and self.bound <= TAME * self._range

    @property
    def state(self) -> State:
        """For the backward pass."""
        return State(self._kept(), self.alpha.contiguous(), self.beta.contiguous(), self._raw)

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
        """K̂, some rows at a time; a block is valid until the next is taken."""
        for start, stop in self.spans:
            yield start, stop, self._take(start, stop)
        self._placed = True

    def _make(self, start: int, stop: int, out: Tensor) -> Tensor:
        """Rows of K̂ into `out`; where alpha is not yet known, it becomes minus the largest entry of each row."""
        self.source.write(start, stop, out)
        if not self._raw:
            r, c = self._offsets
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
        self._raw, self._placed = False, alpha is not None
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

    def scaled(self, a: Tensor, b: Tensor) -> Scaled:
        """diag(eᵃ) K diag(eᵇ) for products with signed vectors; its entries must be at most about 1, as a plan's."""
        return Scaled(self, a, b)

    def by_rows(self, parts: list[Tensor], width: int) -> Tensor:
        """[n, width] from a part for each block."""
        if self.shard is None:
            return torch.cat(parts)
        whole = self.like.new_zeros(self.shape[0], width)
        for (start, stop), part in zip(self.spans, parts, strict=True):
            whole[start:stop] = part
        return self.summed(whole)[0]

    # --- gradient ---------------------------------------------------------------------------------------------

    def pullback(
        self,
        wanted: list[bool],
        left: Tensor | None,  # [n, k]
        right: Tensor | None,  # [m, k]
        target: Support,
        on_target: Tensor | None,  # [k] on pairs, [n] for Σ_j T_ij log K_ij, or [n, m]
        extra: Callable[[int, int], Tensor] | None,
    ) -> list[Tensor | None]:
        """The gradient in each tensor of Σ W·log K for W = K̂ ∘ (left rightᵀ) + (on the target) + extra rows."""
        source = self.source
        grads = [torch.zeros_like(t) if want else None for t, want in zip(source.tensors, wanted, strict=True)]
        dense = on_target if on_target is not None and on_target.dim() == 2 else None
        if left is not None and left.shape[1] == 1 and dense is None and extra is None and isinstance(source, Inner):
            assert right is not None
            self._pull_rank_one(source, left[:, 0], right[:, 0], grads)
        elif left is not None or dense is not None or extra is not None:
            self._pull_blocks(left, right, dense, extra, grads)
        if self.shard is not None:
            whole = iter(self.summed(*(grad for grad in grads if grad is not None)))
            grads = [None if grad is None else next(whole) for grad in grads]
        if on_target is not None and isinstance(target, Pairs):
            source.pull_pairs(target, on_target, grads)
        elif on_target is not None and dense is None:
            source.pull_target(target, on_target, grads)
        return grads

    def _pull_rank_one(self, source: Inner, left: Tensor, right: Tensor, grads: list[Tensor | None]) -> None:
        """W = diag(left) K̂ diag(right) is never made: its products with the factors are products with K̂."""
        phi, psi, r, c = grads
        ahead = right[:, None] * source.psi if phi is not None else None
        for start, stop, k in self.blocks():
            mine = left[start:stop]
            scaled = source.scale * mine[:, None]
            if phi is not None and ahead is not None:
                torch.mm(k, ahead, out=phi[start:stop]).mul_(scaled)
            if psi is not None:
                psi.addmm_(k.T, scaled * source.phi[start:stop])
            add_offset(r, slice(start, stop), partial(_scaled_sums, k, mine, right))
            add_offset(c, slice(None), partial(_scaled_sums, k.T, right, mine))
        if psi is not None:
            psi *= right[:, None]

    def _pull_blocks(
        self,
        left: Tensor | None,
        right: Tensor | None,
        dense: Tensor | None,
        extra: Callable[[int, int], Tensor] | None,
        grads: list[Tensor | None],
    ) -> None:
        weights = self.like.new_empty(self.block, self.shape[1])
        found = self.blocks() if left is not None else ((*span, None) for span in self.spans)
        for start, stop, k in found:
            w = weights[: stop - start]
            if k is None or left is None or right is None:
                w.zero_()
            else:
                torch.mm(left[start:stop], right.T, out=w).mul_(k)
            if dense is not None:
                w += dense[start:stop]
            if extra is not None:
                w += extra(start, stop)
            self.source.pull(start, stop, w, grads)

    def summed(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Sums over all ranks of what each has from its own rows."""
        return parts if self.shard is None else self.shard.sum(*parts)


def _scaled_sums(k: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Row sums of diag(left) k diag(right)."""
    return left * torch.mv(k, right)


@dataclass(frozen=True)
class Scaled:
    """diag(eᵃ) K diag(eᵇ) as a linear map."""

    operator: Blocked
    a: Tensor  # [n]
    b: Tensor  # [m]

    def _frame(self) -> tuple[Tensor, Tensor]:
        frame = self.operator.frame(self.a, self.b, self.a, self.b)
        assert frame is not None  # from a, b themselves nothing is out of range
        return frame

    def matvec(self, x: Tensor) -> Tensor:  # [m] -> [n]
        left, right = self._frame()
        y = torch.zeros_like(self.a)
        for start, stop, k in self.operator.blocks():
            y[start:stop] = torch.mv(k, right * x)
        return left * self.operator.summed(y)[0]

    def rmatvec(self, z: Tensor) -> Tensor:  # [n] -> [m]
        left, right = self._frame()
        w, z = torch.zeros_like(self.b), left * z
        for start, stop, k in self.operator.blocks():
            w.addmv_(k.T, z[start:stop])
        return right * self.operator.summed(w)[0]

    def then(self, back: Scaled, x: Tensor, factor: Tensor, plus: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """y = self·x [n], and back ᵀ·(factor ∘ (y + plus)) [m]: in one pass if one K̂ serves both."""
        frame = self.operator.frame(torch.stack([self.a, back.a], 1), torch.stack([self.b, back.b], 1), self.a, self.b)
        if frame is None:
            y = self.matvec(x)
            return y, back.rmatvec(factor * (y if plus is None else y + plus))
        left, right = frame

        def middle(y: Tensor, rows: slice) -> Tensor:
            y = left[rows, 0] * y
            return left[rows, 1] * factor[rows] * (y if plus is None else y + plus[rows])

        y, w = self.operator.round_trip(right[:, 0] * x, middle)
        return left[:, 0] * y, right[:, 1] * w
