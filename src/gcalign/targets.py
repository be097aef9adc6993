"""P_tgt: which pairs belong together, and how much. Positives follow from ids, never from positions in the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from gcalign.batch import Sides
from gcalign.errors import Terse, positive
from gcalign.transport.support import Full, Groups, Pairs, Support, join, refuse_bad_weights, seen, shared_codes

Kind = TypeVar("Kind", bound=Support)


class Target(Terse, ABC):
    """P_tgt on a batch. A target of your own says what it `reads` of the sides and gives a `Support`."""

    reads: ClassVar[frozenset[str]] = frozenset({"ids"})

    @abstractmethod
    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        """The plan for the embeddings that sit on the two sides."""


@dataclass(frozen=True, repr=False)
class Identity(Target):
    """T_ij = 1 where i and j are views of one sample, however many views there are."""

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        if sides.partner is not None:
            n, m = len(sides.rows.features), len(sides.columns.features)
            ones = sides.rows.features.new_ones(n, dtype=dtype)
            i = torch.arange(n, device=ones.device)
            j = i.roll(-sides.partner) if sides.partner else i
            return Pairs(i, j, ones, (n, m), complete=True, ordinary=True, shift=sides.partner, unit=True)
        left, right = _both(sides, "ids")
        if torch.compiler.is_compiling():  # how many pairs there are is not known
            return _grouped(sides, [_codes(sides, "ids", left, right)], (0.0, 1.0), dtype)
        i, j = join(left, right, sides.joint)
        pairs = Pairs(i, j, sides.rows.features.new_ones(len(i), dtype=dtype), sides.shape, ordinary=True, unit=True)
        rule = "every id must be shared by two embeddings; drop the lonely ones or sample batches by ids"
        return _full_rows(pairs, rule, left)


@dataclass(frozen=True, repr=False)
class Labels(Target):
    """T_ij = 1 where i and j have one label (supervised); `normalized` divides each row by its number of positives."""

    normalized: bool = True
    reads: ClassVar[frozenset[str]] = frozenset({"labels"})

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        left, right = _both(sides, "labels")
        support = _grouped(sides, [_codes(sides, "labels", left, right)], (0.0, 1.0), dtype)
        rule = "every label must be shared by two embeddings; drop the lonely ones or sample batches by labels"
        support = _full_rows(support, rule, left)
        return replace(support, left=1 / support.mu) if self.normalized else support


@dataclass(frozen=True, repr=False)
class Blocks(Target):
    """T = I + α·1(D_i = D_j, i ≠ j) + β·1(D_i ≠ D_j, i ≠ j) (sec:ptgt), where "i = j" means one sample."""

    alpha: float
    beta: float = 0.0
    reads: ClassVar[frozenset[str]] = frozenset({"ids", "domains"})

    def __post_init__(self) -> None:
        positive("alpha", self.alpha, "the weight of pairs within a domain", zero=True)
        positive("beta", self.beta, "the weight of pairs across domains", zero=True)

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        codes = _codes(sides, "domains", *_both(sides, "domains"))
        return _grouped(sides, [codes], (self.beta, self.alpha - self.beta), dtype, same_sample=1.0)


@dataclass(frozen=True, repr=False)
class Hierarchy(Target):
    """T_ij is the weight of the deepest level that i and j share: `weights` from the coarsest level to the finest
    (labels [B, levels], class within superclass), then `identity` for two views of one sample."""

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
        codes: list[tuple[Tensor, Tensor]] = []
        for level in range(len(self.weights)):
            g, h = shared_codes(y[:, level], other[:, level])
            if codes:  # the same class only within the same superclass
                many = sum(sides.shape)
                g, h = shared_codes(codes[-1][0] * many + g, codes[-1][1] * many + h)
            codes.append((g, h))
        steps = [b - a for a, b in pairwise((0.0, *self.weights))]
        return _grouped(sides, codes, (0.0, *steps), dtype, same_sample=self.identity)


def _codes(sides: Sides, what: str, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    if left.dim() != 1:
        raise ValueError(f"{what} of shape {tuple(left.shape)} must be [B]; for levels use gcalign.Hierarchy")
    return shared_codes(left, right)


def _grouped(
    sides: Sides,
    codes: Sequence[tuple[Tensor, Tensor]],
    levels: Sequence[float],
    dtype: torch.dtype,
    same_sample: float | None = None,
) -> Any:
    """T of these nested groups; `same_sample` is its value for two views of one sample, and an embedding has none with
    itself."""
    n, m = sides.shape
    like = sides.rows.features.new_zeros((), dtype=dtype)
    i = torch.arange(n, device=like.device)
    wanted: list[tuple[Tensor, Tensor, float]] = [(i, i, 0.0)] if sides.joint else []
    if same_sample is not None:
        pairs = Identity().on(sides, dtype)
        if not isinstance(pairs, Pairs):  # ids under torch.compile
            return Full(torch.where(pairs.dense() > 0, same_sample, _grouped(sides, codes, levels, dtype).dense()))
        wanted.append((pairs.i, pairs.j, same_sample))
    shift = sides.partner if len(wanted) == 1 and same_sample is not None else 0 if len(wanted) == 1 else None
    on = torch.cat([part[0] for part in wanted]) if wanted else i[:0]
    to = torch.cat([part[1] for part in wanted]) if wanted else i[:0]
    value = torch.cat([like.new_full((len(part[0]),), part[2]) for part in wanted]) if wanted else like.new_zeros(0)
    if len(wanted) > 1:
        order = torch.argsort(on, stable=True)
        on, to, value = on[order], to[order], value[order]
    groups = Groups(
        torch.stack([g for g, _ in codes]),
        torch.stack([h for _, h in codes]),
        torch.tensor(levels, dtype=dtype, device=like.device),
        Pairs(on, to, value, sides.shape, shift=shift),
        like.new_ones(n),
        like.new_ones(m),
        sides.shape,
    )
    return replace(groups, pairs=replace(groups.pairs, weight=value - groups.on_pairs()))


@dataclass(frozen=True, repr=False, eq=False)
class Soft(Target):
    """T as you give it: a dense [n, m] matrix or a sparse tensor, with non-negative entries and no empty row."""

    matrix: Tensor
    reads: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        matrix = self.matrix
        if not isinstance(matrix, Tensor) or matrix.dim() != 2:
            shape = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise ValueError(f"target={shape} must be a matrix [n, m]; dense or sparse tensors will do")
        refuse_bad_weights(matrix if matrix.layout == torch.strided else matrix.to_sparse_coo().coalesce().values())

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        if tuple(self.matrix.shape) != sides.shape:
            layout = "joint" if sides.joint else "cross"
            raise ValueError(
                f"target of shape {tuple(self.matrix.shape)} must be {sides.shape}: the {layout} layout has "
                f"{sides.shape[0]} rows and {sides.shape[1]} columns"
            )
        matrix = self.matrix.to(device=sides.rows.features.device, dtype=dtype)
        support: Support
        if matrix.layout == torch.strided:
            support = Full(matrix)
            itself = matrix.diagonal() if sides.joint else matrix.new_zeros(1)
        else:
            matrix = matrix.to_sparse_coo().coalesce()  # sorted by row, as Pairs wants it
            (i, j), weight = matrix.indices(), matrix.values()
            support = Pairs(i[weight > 0], j[weight > 0], weight[weight > 0], sides.shape)
            itself = weight[j == i] if sides.joint else weight.new_zeros(1)
        if seen((itself > 0).any()):
            raise ValueError(
                "target pairs an embedding with itself, which the joint layout forbids; "
                "set its diagonal to 0 or use layout='cross'"
            )
        return _full_rows(support, "give every row a positive entry, or drop the row from the batch")


@dataclass(frozen=True, repr=False)
class Weighted(Target):
    """Another target with each pair weighted: T_ij · √(w_i w_j), so a pair of weight w counts w (view quality).

    `criterion(z1, z2, weights=w)` does the same to any target.
    """

    base: Target = Identity()

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]  # what the base reads, and the weights
        return self.base.reads | {"weights"}

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        w, other = (side.to(dtype) for side in _both(sides, "weights"))
        for side in (w, other):
            if seen(~(side > 0).all()) or seen(~torch.isfinite(side).all()):
                worst = int(torch.where(torch.isfinite(side), side, -torch.inf).argmin())
                raise ValueError(
                    f"weights[{worst}]={float(side[worst]):g} must be > 0 and finite; drop a pair that must not count"
                )
        support = self.base.on(sides, dtype)
        return support.scaled(w.sqrt(), other.sqrt())


@dataclass(frozen=True, repr=False)
class Transposed(Target):
    """Another target for exchanged sides: Tᵀ."""

    base: Target

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]  # what the base reads
        return self.base.reads

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        # in the joint layout both sides are everyone, and only T is transposed
        support = self.base.on(sides if sides.joint else sides.exchanged(), dtype).transposed()
        remedy = "both ways need a positive for every row and every column; leave out what has none"
        return support if support.complete else _full_rows(support, remedy)


def as_target(target: Target | Tensor) -> Target:
    """A target as it is; a matrix as `Soft`."""
    if isinstance(target, Target):
        return target
    if isinstance(target, Tensor):
        return Soft(target)
    raise TypeError(f"target={target!r} must be a Target or a matrix [n, m]; try gcalign.Identity()")


def _both(sides: Sides, what: str) -> tuple[Tensor, Tensor]:
    found = [getattr(side, what) for side in (sides.rows, sides.columns)]
    if any(value is None for value in found):
        raise ValueError(f"this target reads {what}, and none were given; call criterion(z1, z2, {what}=...)")
    return found[0], found[1]


def _full_rows(support: Kind, remedy: str, names: Tensor | None = None) -> Kind:
    empty = support.mu == 0
    if seen(empty.any()):
        row = int(empty.nonzero()[0])
        who = "" if names is None else f" ({names[row].item()!r})"
        raise ValueError(f"row {row}{who} of the target has no positive ({int(empty.sum())} such rows); {remedy}")
    return support
