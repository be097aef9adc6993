"""Products with K by matrix–vector products, block by block of its rows.

The matrix that is multiplied is K̂ = diag(e^α) K diag(e^β). Its *frame* (α, β) is chosen so that the entries of K̂ are in
the range of the floating-point type. For ε ≥ 0.035 in float32 the frame takes off only the kernel's offsets. For a
smaller ε, a product that would leave the range is done in log space and gives a new frame, in which K̂ is good again.

One pass does a whole iteration: a block gives its row sums, which give its row scalings, which it sends back to the
columns while it is still in the cache.
"""

from __future__ import annotations

import math
import mmap
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gcalign.transport.distributed import Shard
from gcalign.transport.operators.sources import Source

RowStep = Callable[[Tensor, slice], Tensor]  # (log(K v) of some rows, which) -> log u of those rows
Block = tuple[int, int, Tensor]  # first row, last row, rows of K̂
TAME = 1 / 4.2  # of the dtype's logarithmic range: up to this bound plain scalings stay inside it, as do their products
BLOCK_ENTRIES = {"cpu": 1 << 20}  # some rows at a time, so that temporaries stay in the cache, not beside the matrix
ELSEWHERE = 1 << 26
_HALF = 10.5  # e^±10.5 is in the range of float16
_SMALL = 1 << 28  # bytes that nobody misses
_ENTRIES = 1 << 22  # of a block, where its rows are ours to choose
_warned = False


class Frame(NamedTuple):
    """α and β of K̂ = diag(e^α) K diag(e^β); one number for all, or one for each row (column)."""

    alpha: Tensor  # [n] or [1]
    beta: Tensor  # [m] or [1]
    plain: bool = False  # whether only the kernel's offsets are taken off


Kept = tuple[Frame, Tensor]  # and the rows of K̂ that are stored in it


class Blocked(ABC):
    """K̂ by blocks of rows; a subclass says where a block is stored.

    Args:
        source: log K.
        rows: how many are a block; 0 chooses.
        shard: the rows of this rank; None for all.
        saved: a frame and the rows of K̂ that were made in it earlier; None chooses a frame.
        exact: products by log-sum-exp alone: slower, but no value is read.
    """

    largest_plain: ClassVar[float] = math.inf  # besides a third of the logarithmic range: up to here a frame is plain
    stores: ClassVar[bool] = True  # whether blocks are stored when they are made
    unit: ClassVar[float] = 0.0  # log of the largest entry of each row in a frame that is not plain

    def __init__(
        self, source: Source, rows: int = 0, shard: Shard | None = None, saved: Kept | None = None, exact: bool = False
    ) -> None:
        self.source, self.shape, self.shard, self.exact = source, source.shape, shard, exact
        frame, kept = (None, None) if saved is None else saved
        self.first, self.last = (0, self.shape[0]) if shard is None else shard.rows(self.shape[0])  # this rank's rows
        self.like = source.tensors[0]
        rows = rows or max(1, BLOCK_ENTRIES.get(self.like.device.type, ELSEWHERE) // self.shape[1])
        self.spans = [*pairwise([*range(self.first, self.last, rows), self.last])] if self.last > self.first else []
        self.block = min(rows, self.last - self.first)
        self.keep(kept)
        self._range = -math.log(torch.finfo(self.like.dtype).tiny)  # 87 for float32, 708 for float64
        self._most = 0.45 * self._range
        self.r, self.c = source.offsets
        self.bound = source.bound
        if math.isinf(self.bound) and not exact and frame is None:
            self.bound = source.measured_bound()
        if frame is None and self.bound <= min(self._range / 3, self.largest_plain):
            frame = Frame(-self.r, -self.c, plain=True)
        self.frame = frame

    @property
    def tame(self) -> bool:
        """Whether plain scalings cannot leave the range: the frame is plain, and entries are moderate."""
        return self.frame is not None and self.frame.plain and self.bound <= TAME * self._range

    @property
    def _least(self) -> float:
        """How far results of a product must lie above its largest factor, since it may lose that much times it."""
        return self._lost() + math.log(max(self.shape))

    def saved(self) -> Kept:
        """The frame and what is stored in it, for the backward pass."""
        if self.frame is None:
            self._move(self.like.new_zeros(self.shape[0]), self.like.new_zeros(self.shape[1]))
        assert self.frame is not None
        if self.kept is None and self.stores and not self.exact:
            for _ in self.blocks():
                pass
        return self.frame, self._room() if self.kept is None else self.kept

    def keep(self, kept: Tensor | None) -> None:
        """Use the rows of K̂ that were made in this frame earlier, if there are any."""
        self.kept = None if kept is None or kept.shape[0] == 0 else kept
        self.whole: Tensor | None = None  # K̂, where it is one block that is stored as it is
        if self.kept is not None and len(self.spans) == 1 and self.shard is None and self.kept.dtype == self.like.dtype:
            self.whole = self.kept

    def _room(self) -> Tensor:
        """Room for what is stored."""
        return self.like.new_empty(0, 0)

    def _lost(self) -> float:
        """log of the largest entries that are set to zero, relative to the precision."""
        return -0.8 * self._range - math.log(torch.finfo(self.like.dtype).eps)

    # --- blocks -----------------------------------------------------------------------------------------------

    def blocks(self) -> Iterable[Block]:
        """K̂, some rows at a time; a block is valid until the next is taken."""
        return self._new_blocks(self._make)

    @abstractmethod
    def _new_blocks(self, fill: Callable[[int, int, Tensor], None]) -> Iterator[Block]:
        """K̂ made anew: `fill` writes the rows of a block."""

    def log_blocks(self) -> Iterator[Block]:
        """log K, some rows at a time."""
        for start, stop in self.spans:
            yield start, stop, self.source.rows(start, stop)

    def _make(self, start: int, stop: int, out: Tensor) -> None:
        """Write rows of K̂ in the current frame."""
        assert self.frame is not None
        self.source.write(start, stop, out)
        if self.frame.plain:
            out.exp_()
            return
        out += self.frame.beta + self.c
        out += (_part(self.frame.alpha, start, stop) + _part(self.r, start, stop))[:, None]
        self._exponentiate(out)

    def _exponentiate(self, out: Tensor) -> None:
        torch.threshold_(out.exp_(), math.exp(-0.8 * self._range), 0.0)  # subnormal numbers are slow, and do not count

    def _move(self, alpha: Tensor, beta: Tensor) -> None:
        """Change the frame; blocks are made again when they are next taken."""
        self.keep(None)
        self.frame = Frame(alpha + self.unit, beta.clone())

    # --- products in log space --------------------------------------------------------------------------------

    def log_matvec(self, b: Tensor) -> Tensor:  # [m] -> [n]
        """log(K eᵇ)."""
        if self.exact:
            return self.summed(self.joined([(log_k + b).logsumexp(1) for _, _, log_k in self.log_blocks()]))[0]
        if self.frame is not None:
            log_kv, _, _ = self._pass(self.frame, b, None)
            if self._in_range(b - self.frame.beta, log_kv + self.frame.alpha):
                return log_kv
        return self._move_to_columns(b)

    def log_rmatvec(self, a: Tensor) -> Tensor:  # [n] -> [m]
        """log(Kᵀ eᵃ)."""
        if self.exact:
            return self._log_column_sums(a)
        if self.frame is not None:
            log_ktu = self.rmatvec((a - self.frame.alpha).exp()).log_() - self.frame.beta
            if self._in_range(a - self.frame.alpha, log_ktu + self.frame.beta):
                return log_ktu
        log_ktu = self._log_column_sums(a)
        self._move(a, -log_ktu)
        return log_ktu

    def sweep(self, b: Tensor, step: RowStep) -> tuple[Tensor, Tensor, Tensor]:
        """log(K eᵇ), the a that `step` makes of it, and log(Kᵀ eᵃ): one iteration of any scaling algorithm."""
        if self.frame is not None and not self.exact:
            log_kv, a, log_ktu = self._pass(self.frame, b, step)
            alpha, beta, _ = self.frame
            if self._in_range(b - beta, log_kv + alpha, a - alpha, log_ktu + beta):
                return log_kv, a, log_ktu
        log_kv = self.log_matvec(b)
        a = step(log_kv, slice(None))
        return log_kv, a, self.log_rmatvec(a)

    def _pass(self, frame: Frame, b: Tensor, step: RowStep | None) -> tuple[Tensor, Tensor, Tensor]:
        x, (n, m) = (b - frame.beta).exp(), self.shape
        log_kv, a, w = (self.like.new_zeros(size) for size in (n, n, m))
        for start, stop, k in self.blocks():
            mine, alpha = slice(start, stop), _part(frame.alpha, start, stop)
            log_kv[mine] = torch.mv(k, x).log_() - alpha
            if step is not None:
                a[mine] = step(log_kv[mine], mine)
                w.addmv_(k.T, (a[mine] - alpha).exp_())
        log_kv, a, w = self.summed(log_kv, a, w)
        return log_kv, a, w.log() - frame.beta

    def _in_range(self, *pairs: Tensor) -> bool:
        """Whether products were in range: (log factors, log results), and again."""
        ends = [(factors.max(), *results.aminmax()) for factors, results in zip(pairs[::2], pairs[1::2], strict=True)]
        numbers = torch.stack([end for three in ends for end in three]).view(-1, 3).tolist()  # one wait for the device
        return all(top <= self._most and low >= top + self._least and high < math.inf for top, low, high in numbers)

    def _move_to_columns(self, b: Tensor) -> Tensor:
        """log(K eᵇ), and the frame with β = b in which each row of K̂ has a largest entry of e^unit, in one pass."""
        self.keep(None)
        n = self.shape[0]
        alpha, log_kv = self.like.new_zeros(n), self.like.new_zeros(n)

        def fill(start: int, stop: int, out: Tensor) -> None:
            self.source.write(start, stop, out)
            out += b + self.c
            top = out.amax(1)
            top = torch.where(torch.isfinite(top), top, 0) - self.unit
            out -= top[:, None]
            alpha[start:stop] = -top - _part(self.r, start, stop)
            self._exponentiate(out)

        for start, stop, k in self._new_blocks(fill):
            log_kv[start:stop] = k.sum(1).log_() - alpha[start:stop]
        alpha, log_kv = self.summed(alpha, log_kv)
        self.frame = Frame(alpha, b.clone())
        return log_kv

    def _log_column_sums(self, a: Tensor) -> Tensor:
        parts = [(log_k + a[start:stop, None]).logsumexp(0) for start, stop, log_k in self.log_blocks()]
        total = torch.stack([self.like.new_full((self.shape[1],), -torch.inf), *parts]).logsumexp(0)
        return total if self.shard is None else self.shard.logsumexp(total)

    # --- products with K̂ -------------------------------------------------------------------------------------

    def matvec(self, x: Tensor, blocks: Iterable[Block] | None = None) -> Tensor:  # [m] -> [n]
        """K̂ x in this rank's rows, 0 in all others; or of another matrix, given by blocks."""
        return self.joined([torch.mv(k, x) for _, _, k in blocks or self.blocks()])

    def rmatvec(self, z: Tensor, blocks: Iterable[Block] | None = None) -> Tensor:  # [n] -> [m]
        """K̂ᵀ z, or that of another matrix."""
        w = None
        for start, stop, k in blocks or self.blocks():
            part = z[start:stop]
            w = torch.mv(k.T, part) if w is None else w.addmv_(k.T, part)
        return self.over_ranks(w)

    def round_trip(self, x: Tensor, middle: Callable[[Tensor, slice], Tensor]) -> tuple[Tensor, Tensor]:
        """y = K̂ x in this rank's rows, and K̂ᵀ middle(y), in one pass."""
        ys, w = list[Tensor](), None
        for start, stop, k in self.blocks():
            ys.append(torch.mv(k, x))
            z = middle(ys[-1], slice(start, stop))
            w = torch.mv(k.T, z) if w is None else w.addmv_(k.T, z)
        return self.joined(ys), self.over_ranks(w)

    def joined(self, parts: list[Tensor], *width: int) -> Tensor:  # [n] or [n, width]
        """A vector or matrix from a part for each block, 0 in the rows of other ranks."""
        if self.shard is None:
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        whole = self.like.new_zeros(self.shape[0], *width)
        for (start, stop), part in zip(self.spans, parts, strict=True):
            whole[start:stop] = part
        return whole

    def over_ranks(self, w: Tensor | None) -> Tensor:  # [m]
        """The sum over the ranks of what each has from its own rows, None for nothing."""
        w = self.like.new_zeros(self.shape[1]) if w is None else w  # a rank may have no rows
        return self.summed(w)[0]

    # --- for gradients ----------------------------------------------------------------------------------------

    def shift(self) -> float:
        """The size of what a frame takes off logarithms; it rounds them."""
        return 0.0 if self.frame is None else float(self.frame.alpha.abs().max() + self.frame.beta.abs().max())

    def relative(self, alpha: Tensor, beta: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
        """e^{alpha − α}, e^{beta − β}: what makes diag(e^alpha) K diag(e^beta) of K̂; vectors, or columns of them.

        If they are out of range, the frame is moved to (a, b). None: they are out of range there, too.
        """
        for attempt in range(2):
            if self.frame is not None:
                left = alpha - (self.frame.alpha if alpha.dim() == 1 else self.frame.alpha[:, None])
                right = beta - (self.frame.beta if beta.dim() == 1 else self.frame.beta[:, None])
                inside = torch.maximum(left.abs().max(), right.abs().max()) <= self._most
                if not self.frame.plain:  # entries of K̂ that were set to zero must stay negligible
                    inside = inside & ((left.amax(0) + right.amax(0)).max() <= -self._least)
                if bool(inside):
                    return left.exp_(), right.exp_()
            if attempt == 0:
                self._move(a, b)
        return None

    def summed(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Sums over all ranks of what each has from its own rows."""
        return parts if self.shard is None else self.shard.sum(*parts)


def _part(x: Tensor, start: int, stop: int) -> Tensor:
    """Entries of a vector; one number stands for all."""
    return x if len(x) == 1 else x[start:stop]


class Stored(Blocked):
    """One matrix [n, m]; the first pass fills it and uses each block while it is in the cache."""

    def blocks(self) -> Iterable[Block]:
        if self.kept is None:
            return self._new_blocks(self._make)
        return [(i, j, self.kept[i - self.first : j - self.first]) for i, j in self.spans]

    def _new_blocks(self, fill: Callable[[int, int, Tensor], None]) -> Iterator[Block]:
        matrix = self._room()
        for start, stop in self.spans:
            rows = matrix if len(self.spans) == 1 else matrix[start - self.first : stop - self.first]
            fill(start, stop, rows)
            yield start, stop, rows
        self.keep(matrix)

    def _room(self) -> Tensor:
        return self.like.new_empty(self.last - self.first, self.shape[1])


class Streamed(Blocked):
    """Memory of `block` rows, whatever n; each pass costs the kernel once more."""

    stores: ClassVar[bool] = False

    def _new_blocks(self, fill: Callable[[int, int, Tensor], None]) -> Iterator[Block]:
        scratch = self.like.new_empty(self.block, self.shape[1])
        for start, stop in self.spans:
            rows = scratch[: stop - start]
            fill(start, stop, rows)
            yield start, stop, rows


class Cached(Blocked):
    """A float16 copy of K̂, half the memory of `Stored` and nearly its speed; the copy is then the kernel.

    Its entries are rounded by at most 5e-4 of their size, which averages out in sums: potentials are off by about
    5e-4/√m. A kernel within the range of float16, as with ε ≥ 0.1, is copied as it is (its smallest entries are
    rounded by up to 1e-3); rows of any other are scaled to a largest entry of 2¹⁴, so that what is lost below is
    1e-12 of it.
    """

    largest_plain: ClassVar[float] = _HALF
    unit: ClassVar[float] = 14 * math.log(2)

    def blocks(self) -> Iterable[Block]:
        if self.kept is None:
            return super().blocks()
        scratch, copy = self.like.new_empty(self.block, self.shape[1]), self.kept
        return ((i, j, scratch[: j - i].copy_(copy[i - self.first : j - self.first])) for i, j in self.spans)

    def _new_blocks(self, fill: Callable[[int, int, Tensor], None]) -> Iterator[Block]:
        scratch = self.like.new_empty(self.block, self.shape[1])
        copy = self._room()
        for start, stop in self.spans:
            rows, half = scratch[: stop - start], copy[start - self.first : stop - self.first]
            fill(start, stop, rows)
            yield start, stop, rows.copy_(half.copy_(rows))
        self.kept = copy

    def _move(self, alpha: Tensor, beta: Tensor) -> None:
        """Change the frame, lower where a row would have an entry above e^unit: float16 has no room for it."""
        tops = self.like.new_zeros(self.shape[0])

        def fill(start: int, stop: int, out: Tensor) -> None:
            self.source.write(start, stop, out)
            out += beta + self.c
            out += (_part(alpha, start, stop) + _part(self.r, start, stop))[:, None]
            tops[start:stop] = top = out.amax(1).clamp_(min=0)
            self._exponentiate(out.add_((self.unit - top)[:, None]))

        for _ in self._new_blocks(fill):
            pass
        self.frame = Frame(alpha + self.unit - self.summed(tops)[0], beta.clone())

    def _lost(self) -> float:
        return math.log(6e-8) - math.log(1e-4)

    def _room(self) -> Tensor:
        """In large pages where the system has them: gigabytes of small ones cost more time to get than to fill."""
        n, m, device = self.last - self.first, self.shape[1], self.like.device
        if device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
            return torch.empty(n, m, dtype=torch.float16, device=device)
        memory = mmap.mmap(-1, 2 * n * m)
        memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.float16).view(n, m)


def block_rows(source: Source, block: int | str | None, cache: str | None, shard: Shard | None) -> int:
    """How many rows are held at once; 0 stores them all, which "auto" does where half of the free memory is enough."""
    global _warned
    n, m = source.shape
    if isinstance(block, int):
        return block
    if cache is not None:
        return max(1, _ENTRIES // m)
    if block == "auto":
        like = source.tensors[0]
        size = (n if shard is None else n // shard.world + 1) * m * like.element_size()
        if size > _SMALL and size > _free(like.device) // 2:
            rows = max(1, _ENTRIES // m)
            if not _warned:
                _warned = True
                warnings.warn(
                    f"a kernel of {size / 2**30:.1f} GiB does not fit in half of the free memory, so block='auto' "
                    f"streams it, {rows} rows at a time; block={rows} does the same without this warning, block=None "
                    "stores it",
                    stacklevel=2,
                )
            return rows
    return 0


def _free(device: torch.device) -> int:
    """Bytes that can still be had."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 << 30  # nobody says: a modest machine


class Reference:
    """The oracle: log K whole, every product a log-sum-exp, which autograd can follow."""

    def __init__(self, source: Source) -> None:
        self.shape = source.shape
        self.log_k = source.rows(0, source.shape[0])

    def log_matvec(self, b: Tensor) -> Tensor:  # [m] -> [n]
        """log(K eᵇ)."""
        return torch.logsumexp(self.log_k + b, 1)

    def log_rmatvec(self, a: Tensor) -> Tensor:  # [n] -> [m]
        """log(Kᵀ eᵃ)."""
        return torch.logsumexp(self.log_k + a[:, None], 0)

    def sweep(self, b: Tensor, step: RowStep) -> tuple[Tensor, Tensor, Tensor]:
        """log(K eᵇ), the a that `step` makes of it, and log(Kᵀ eᵃ)."""
        log_kv = self.log_matvec(b)
        a = step(log_kv, slice(None))
        return log_kv, a, self.log_rmatvec(a)

    def shift(self) -> float:
        """Nothing is taken off logarithms."""
        return 0.0
