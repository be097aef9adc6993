"""P_tgt: which pairs belong together, with what weight. Positives follow from ids, not from positions in the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from gcalign.batch import Sides
from gcalign.constraints import Columns, Rows
from gcalign.errors import CallRepr, positive
from gcalign.geometry import Entropic
from gcalign.kernels import Cosine
from gcalign.plan import Reads
from gcalign.transport.operator import solve
from gcalign.transport.operators.sources import Inner
from gcalign.transport.problem import Options, Problem
from gcalign.transport.support import (
    Full,
    Groups,
    Pairs,
    Support,
    check_no_self_pairs,
    check_weights,
    join,
    shared_codes,
    spans,
    true_if_eager,
)

Codes = tuple[Tensor, Tensor]  # of rows and of columns
DENSE_ENTRIES = 1 << 22  # a teacher's plan with more entries is not stored


class Target(CallRepr, ABC):
    """Base class of targets, P_tgt in Eq. 8 (eq:mainobj). Your own target sets `reads` and overrides `on`.

    Example:
        >>> import torch, gcalign
        >>> class Everything(gcalign.Target):
        ...     reads = frozenset()
        ...     def on(self, sides, dtype):
        ...         return gcalign.Full(torch.ones(sides.shape, dtype=dtype))
        >>> gcalign.method("gca-ince", target=Everything())(torch.eye(3), torch.eye(3)).shape
        torch.Size([])
    """

    reads: ClassVar[frozenset[str]] = frozenset({"ids"})  # fields of `Side` that it reads
    rule: ClassVar[str] = "give every row a positive entry, or drop the row from the batch"  # if a row has none

    @abstractmethod
    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        """T for the embeddings of these two sides."""

    def names(self, sides: Sides) -> Tensor | None:  # [n]
        """What an error calls a row: its id or label."""
        return None


@dataclass(frozen=True, repr=False)
class Identity(Target):
    """T_ij = 1 if i and j are views of one sample, else 0: the target I of Theorem 1 (thm:cl_eq_ot). The default.

    Reads `ids`; without ids, z1[k] and z2[k] are one sample. A sample can have any number of views.

    Example:
        >>> import torch, gcalign
        >>> plan = gcalign.method("ince").plan(torch.eye(3), torch.eye(3), ids=([7, 8, 9], [9, 8, 7]))
        >>> plan.target.j  # the column of each row's positive
        tensor([2, 1, 0])
    """

    rule: ClassVar[str] = (
        "every id must belong to two embeddings; drop single ones, sample batches by ids, or relax the rows, e.g. "
        "gcalign.Rows(1.0)"
    )

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        if sides.partner is not None:
            n, m = len(sides.rows.features), len(sides.columns.features)
            ones = sides.rows.features.new_ones(n, dtype=dtype)
            i = torch.arange(n, device=ones.device)
            j = i.roll(-sides.partner) if sides.partner else i
            return Pairs(i, j, ones, (n, m), complete=True, ordinary=True, shift=sides.partner, unit=True)
        if torch.compiler.is_compiling():  # the number of pairs is not known there
            return _grouped(sides, [_codes(sides, "ids")], (0.0, 1.0), dtype)
        i, j = join(*_both(sides, "ids"), sides.joint)
        return Pairs(i, j, sides.rows.features.new_ones(len(i), dtype=dtype), sides.shape, ordinary=True, unit=True)

    def names(self, sides: Sides) -> Tensor | None:
        return sides.rows.ids


@dataclass(frozen=True, repr=False)
class Labels(Target):
    """T_ij = 1 if i and j have the same label: a supervised target. Reads `labels`.

    Args:
        normalized: whether each row is divided by its number of positives.

    Example:
        >>> import torch, gcalign
        >>> criterion = gcalign.method("gca-uot", target=gcalign.Labels())
        >>> criterion(torch.eye(4), torch.eye(4), labels=[0, 0, 1, 1]).shape
        torch.Size([])
    """

    normalized: bool = True
    reads: ClassVar[frozenset[str]] = frozenset({"labels"})
    rule: ClassVar[str] = (
        "every label must belong to two embeddings; drop single ones, sample batches by labels, or relax the rows, "
        "e.g. gcalign.Rows(1.0)"
    )

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        support = _grouped(sides, [_codes(sides, "labels")], (0.0, 1.0), dtype)
        if not self.normalized:
            return support
        return replace(support, left=1 / torch.where(support.mu > 0, support.mu, 1))

    def names(self, sides: Sides) -> Tensor | None:
        return sides.rows.labels


@dataclass(frozen=True, repr=False)
class Blocks(Target):
    """T = I + α·1(D_i = D_j, i ≠ j) + β·1(D_i ≠ D_j, i ≠ j), where D is the domain (Section 3.4, sec:ptgt).

    Reads `ids` and `domains`; "i = j" means two views of one sample.

    Args:
        alpha: α ≥ 0, the weight of pairs within a domain.
        beta: β ≥ 0, the weight of pairs across domains.

    Example:
        >>> import torch, gcalign
        >>> criterion = gcalign.method("gca-ince", target=gcalign.Blocks(alpha=0.5))
        >>> criterion.plan(torch.eye(3), torch.eye(3), domains=[0, 0, 1]).target.dense()[0]
        tensor([1.0000, 0.5000, 0.0000])
    """

    alpha: float
    beta: float = 0.0
    reads: ClassVar[frozenset[str]] = frozenset({"ids", "domains"})

    def __post_init__(self) -> None:
        positive("alpha", self.alpha, "the weight of pairs within a domain", zero=True)
        positive("beta", self.beta, "the weight of pairs across domains", zero=True)

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        levels = (self.beta, self.alpha - self.beta)
        return _grouped(sides, [_codes(sides, "domains")], levels, dtype, same_sample=1.0)


@dataclass(frozen=True, repr=False)
class Hierarchy(Target):
    """T_ij = w_l, the weight of the finest level l that i and j share. Reads `ids` and `labels` [B, levels].

    Args:
        weights: the weight of each level, coarsest first, e.g. (superclass, class).
        identity: the weight of two views of one sample.

    Example:
        >>> import torch, gcalign
        >>> criterion = gcalign.method("gca-ince", target=gcalign.Hierarchy((0.1, 0.5)))
        >>> criterion(torch.eye(3), torch.eye(3), labels=torch.tensor([[0, 0], [0, 1], [1, 2]])).shape
        torch.Size([])
    """

    weights: tuple[float, ...]
    identity: float = 1.0
    reads: ClassVar[frozenset[str]] = frozenset({"ids", "labels"})

    def __post_init__(self) -> None:
        if not self.weights:
            raise ValueError("weights=() must have a value for each level; try Hierarchy((0.1, 0.5))")
        for weight in self.weights:
            positive("weights", weight, "one value per level, coarsest first", zero=True)
        positive("identity", self.identity, "the weight of two views of one sample")

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        y, other = _both(sides, "labels")
        if y.dim() != 2 or y.shape[1] != len(self.weights):
            raise ValueError(
                f"labels of shape {tuple(y.shape)} must be [B, {len(self.weights)}], one column for each of "
                f"weights={self.weights}, coarsest first; stack them with torch.stack([superclass, class_], 1)"
            )
        codes: list[Codes] = []
        for level in range(len(self.weights)):
            g, h = shared_codes(y[:, level], other[:, level])
            if codes:  # the same class only within the same superclass
                many = sum(sides.shape)
                g, h = shared_codes(codes[-1][0] * many + g, codes[-1][1] * many + h)
            codes.append((g, h))
        steps = [b - a for a, b in pairwise((0.0, *self.weights))]
        return _grouped(sides, codes, (0.0, *steps), dtype, same_sample=self.identity)


def _both(sides: Sides, what: str) -> tuple[Tensor, Tensor]:
    left, right = getattr(sides.rows, what), getattr(sides.columns, what)
    if left is None or right is None:
        raise ValueError(f"this target reads {what}, and none were given; call criterion(z1, z2, {what}=...)")
    return left, right


def _codes(sides: Sides, what: str) -> Codes:
    left, right = _both(sides, what)
    if left.dim() != 1:
        raise ValueError(f"{what} of shape {tuple(left.shape)} must be [B]; for levels use gcalign.Hierarchy")
    return shared_codes(left, right)


def _grouped(
    sides: Sides, codes: Sequence[Codes], levels: Sequence[float], dtype: torch.dtype, same_sample: float | None = None
) -> Any:
    """T of nested groups. `same_sample` is the value for two views of one sample; the joint diagonal is 0."""
    n, m = sides.shape
    like = sides.rows.features.new_zeros((), dtype=dtype)
    i = torch.arange(n, device=like.device)
    wanted = [(i, i, like.new_zeros(n))] if sides.joint else []
    if same_sample is not None:
        pairs = Identity().on(sides, dtype)
        if not isinstance(pairs, Pairs):  # ids under torch.compile
            return Full(torch.where(pairs.dense() > 0, same_sample, _grouped(sides, codes, levels, dtype).dense()))
        wanted.append((pairs.i, pairs.j, like.new_full((len(pairs.i),), same_sample)))
    shift = sides.partner if len(wanted) == 1 and same_sample is not None else 0 if len(wanted) == 1 else None
    on, to, value = map(torch.cat, zip((i[:0], i[:0], like.new_zeros(0)), *wanted, strict=True))
    if len(wanted) > 1:
        order = torch.argsort(on, stable=True)
        on, to, value = on[order], to[order], value[order]
    g, h = (torch.stack(side) for side in zip(*codes, strict=True))
    values = torch.tensor(levels, dtype=dtype, device=like.device)
    pairs = Pairs(on, to, value, sides.shape, shift=shift)
    groups = Groups(g, h, values, pairs, like.new_ones(n), like.new_ones(m), sides.shape)
    return replace(groups, pairs=replace(pairs, weight=value - groups.on_pairs()))


@dataclass(frozen=True, repr=False, eq=False)
class Soft(Target):
    """T as a matrix, dense or sparse (P_tgt in Eq. 8, eq:mainobj). `criterion(z1, z2, target=matrix)` wraps it for you.

    With `torch.compile(fullgraph=True)`, wrap a sparse matrix yourself, outside compiled code: torch cannot read it.

    Args:
        matrix: [n, m], non-negative, without an empty row.

    Example:
        >>> import torch, gcalign
        >>> criterion = gcalign.method("gca-ince", target=gcalign.Soft(0.9 * torch.eye(3) + 0.1 / 3))
        >>> criterion(torch.eye(3), torch.eye(3)).shape
        torch.Size([])
    """

    matrix: Tensor
    pairs: Pairs | None = field(default=None, init=False)  # of a sparse matrix, which torch.compile cannot read
    reads: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        matrix = self.matrix
        if not isinstance(matrix, Tensor) or matrix.dim() != 2:
            shape = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ValueError(f"target={shape} must be a matrix [n, m]; pass a dense or sparse tensor")
        if matrix.layout == torch.strided:
            check_weights(matrix)
        else:
            matrix = matrix.to_sparse_coo().coalesce()
            (i, j), weight = matrix.indices(), matrix.values().clone()  # torch.compile fails on the view
            check_weights(weight)
            i, j, weight = (x[weight > 0] for x in (i, j, weight))  # sorted by row
            object.__setattr__(self, "pairs", Pairs(i, j, weight, (matrix.shape[0], matrix.shape[1])))

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        shape = tuple(self.matrix.shape) if self.pairs is None else self.pairs.shape
        if shape != sides.shape:
            layout = "joint" if sides.joint else "cross"
            raise ValueError(
                f"target of shape {shape} must be {sides.shape}: the {layout} layout has "
                f"{sides.shape[0]} rows and {sides.shape[1]} columns; give T in that shape"
            )
        where = sides.rows.features.device
        support: Full | Pairs
        if self.pairs is None:
            support = Full(self.matrix.to(where, dtype))
        else:
            i, j, weight = self.pairs.i.to(where), self.pairs.j.to(where), self.pairs.weight.to(where, dtype)
            support = Pairs(i, j, weight, shape)
        if sides.joint:
            check_no_self_pairs(support)
        return support


@dataclass(frozen=True, repr=False)
class Weighted(Target):
    """Another target S with weighted samples: T_ij = S_ij √(w_i w_j).

    `criterion(z1, z2, weights=w)` does this to any target.

    Example:
        >>> import torch, gcalign
        >>> criterion = gcalign.method("gca-ince", target=gcalign.Weighted(gcalign.Identity()))
        >>> criterion.plan(torch.eye(2), torch.eye(2), weights=[1.0, 3.0]).mu
        tensor([1., 3.])
    """

    base: Target = Identity()

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]  # a property here
        return self.base.reads | {"weights"}

    @property
    def rule(self) -> str:  # type: ignore[override]  # a property here
        return self.base.rule

    def names(self, sides: Sides) -> Tensor | None:
        return self.base.names(sides)

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        w, other = (side.to(dtype) for side in _both(sides, "weights"))
        for side in (w, other):
            if true_if_eager(~((side > 0) & torch.isfinite(side)).all()):
                k = int(torch.where(torch.isfinite(side), side, -torch.inf).argmin())
                raise ValueError(f"weights[{k}]={float(side[k]):g} must be > 0 and finite; to ignore a sample, drop it")
        support = self.base.on(sides, dtype)
        if isinstance(support, Groups) and true_if_eager(other.max() * torch.finfo(dtype).eps ** 0.5 > other.min()):
            # a group's sum would lose a small weight beside a large one that is taken off again
            support = Full(support.dense())
        return support.scaled(w.sqrt(), other.sqrt())


@dataclass(frozen=True, repr=False)
class Teacher(Target):
    """T is the plan between other embeddings of the same samples, which a teacher made (P_tgt in Eq. 8, eq:mainobj).

    The plan has hard marginals; no gradient flows to it. With KL, this is the KLOT loss of SOTAlign. Reads `teacher`,
    and `ids` if pairs are known.

    Args:
        eps: temperature of the teacher's plan.
        weight: how much known pairs count: T = (1 − weight)·plan + weight·pairs.
        iterations: the most, for the teacher's plan.
        tol: ends them early.

    Example:
        >>> import torch, gcalign
        >>> criterion = gcalign.method("gca-ince", target=gcalign.Teacher(eps=0.1))
        >>> t = torch.randn(6, 5)
        >>> criterion(torch.randn(6, 3), torch.randn(6, 3), teacher=(t, t)).shape
        torch.Size([])
    """

    eps: float = 0.05
    weight: float = 0.0
    iterations: int = 100
    tol: float = 1e-6

    def __post_init__(self) -> None:
        positive("eps", self.eps, "the temperature of the teacher's plan, e.g. 0.05")
        if not 0 <= positive("weight", self.weight, "how much known pairs count, from 0 to 1", zero=True) <= 1:
            raise ValueError(f"weight={self.weight:g} must be at most 1; 1 takes the known pairs alone")

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]  # a property here
        return frozenset({"teacher", "ids"} if self.weight > 0 else {"teacher"})

    @torch.no_grad()
    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        kernel = Cosine(self.eps)
        x, y = (kernel.features(t.to(dtype)) for t in _both(sides, "teacher"))
        factors = kernel.factors(x, y)
        assert factors is not None
        source, eps = Inner(*factors, exclude_self=sides.joint), x.new_tensor(self.eps)
        problem = Problem.of(source, (Rows(), Columns()), Entropic(), eps, eps_value=self.eps)
        plan = solve(problem, Options(self.iterations, self.tol, block="auto"), Reads(plan=True))
        pairs = Identity().on(sides, dtype) if self.weight > 0 else None
        if pairs is not None and not isinstance(pairs, Pairs):
            raise ValueError("Teacher(weight=…) reads ids, which torch.compile cannot join; leave one of them out")
        solved = Solved(source, plan.log_u, plan.log_v, pairs, self.weight)
        return solved if source.shape[0] * source.shape[1] > DENSE_ENTRIES else Full(solved.dense())


@dataclass(frozen=True)
class Solved(Support):
    """T = (1 − weight) diag(u) K diag(v) + weight·pairs; rows are made again when they are needed, not stored."""

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

    def tdot(self, x: Tensor) -> Tensor:
        total = x.new_zeros(self.shape[1], *x.shape[1:])
        for start, stop in spans(self.shape):
            total += self.rows(start, stop).T @ x[start:stop]
        return total

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


def as_target(target: Target | Tensor) -> Target:
    """Return a target unchanged; wrap a matrix in `Soft`."""
    if isinstance(target, Target):
        return target
    if isinstance(target, Tensor):
        return Soft(target)
    raise TypeError(f"target={target!r} must be a Target or a matrix [n, m]; try gcalign.Identity()")
