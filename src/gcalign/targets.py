"""P_tgt: which pairs belong together, and how much. Positives follow from ids, never from positions in the batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gcalign.errors import Terse, positive
from gcalign.plan import Sides
from gcalign.support import Full, Pairs, Support, join, refuse_bad_weights, seen


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
            ones = sides.rows.features.new_ones(len(sides.rows), dtype=dtype)
            i = torch.arange(len(ones), device=ones.device)
            return Pairs(i, i.roll(-sides.partner), ones, sides.shape, complete=True, shift=sides.partner)
        return _matching(sides, "ids", dtype, "every id must be shared by two embeddings")


@dataclass(frozen=True, repr=False)
class Labels(Target):
    """T_ij = 1 where i and j have one label (supervised); `normalized` divides each row by its number of positives."""

    normalized: bool = True
    reads: ClassVar[frozenset[str]] = frozenset({"labels"})

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        support = _matching(sides, "labels", dtype, "every label must be shared by two embeddings")
        return support.scaled(support.along_rows(1 / support.mu)) if self.normalized else support


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
        same_sample = Identity().on(sides, dtype).dense() > 0
        d, e = _both(sides, "domains")
        alpha, beta = (torch.tensor(weight, dtype=dtype, device=d.device) for weight in (self.alpha, self.beta))
        level = torch.where(d[:, None] == e, alpha, beta)
        return Full(_without_self(torch.where(same_sample, 1, level), sides.own))


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
        table = torch.zeros(sides.shape, dtype=dtype, device=y.device)
        shared = torch.ones(sides.shape, dtype=torch.bool, device=y.device)
        for level, weight in enumerate(self.weights):
            shared = shared & (y[:, None, level] == other[:, level])
            table = torch.where(shared, weight, table)
        same_sample = Identity().on(sides, dtype).dense() > 0
        return Full(_without_self(torch.where(same_sample, self.identity, table), sides.own))


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
            layout = "joint" if sides.own is not None else "cross"
            raise ValueError(
                f"target of shape {tuple(self.matrix.shape)} must be {sides.shape}: the {layout} layout has "
                f"{sides.shape[0]} rows and {sides.shape[1]} columns"
            )
        matrix = self.matrix.to(device=sides.rows.features.device, dtype=dtype)
        support: Support
        if matrix.layout == torch.strided:
            support = Full(matrix)
            itself = matrix.diagonal(sides.own) if sides.own is not None else matrix.new_zeros(1)
        else:
            matrix = matrix.to_sparse_coo().coalesce()  # sorted by row, as Pairs wants it
            (i, j), weight = matrix.indices(), matrix.values()
            support = Pairs(i[weight > 0], j[weight > 0], weight[weight > 0], sides.shape)
            itself = weight[j == i + sides.own] if sides.own is not None else weight.new_zeros(1)
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
        return support.scaled((support.along_rows(w) * support.along_columns(other)).sqrt())


@dataclass(frozen=True, repr=False)
class Turned(Target):
    """Another target for exchanged sides: Tᵀ."""

    base: Target

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]  # what the base reads
        return self.base.reads

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        # in the joint layout both sides are everyone, and only the plan turns
        support = self.base.on(sides if sides.own is not None else sides.turned(), dtype).transposed()
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


def _matching(sides: Sides, what: str, dtype: torch.dtype, rule: str) -> Support:
    left, right = _both(sides, what)
    if left.dim() != 1:
        raise ValueError(f"{what} of shape {tuple(left.shape)} must be [B]; for levels use gcalign.Hierarchy")
    if torch.compiler.is_compiling():  # how many pairs there are is not known, so all are listed
        return Full(_without_self((left[:, None] == right).to(dtype), sides.own))
    i, j = join(left, right, sides.own)
    support = Pairs(i, j, sides.rows.features.new_ones(len(i), dtype=dtype), sides.shape)
    return _full_rows(support, f"{rule}; drop the lonely ones or sample batches by {what}", left)


def _full_rows(support: Support, remedy: str, names: Tensor | None = None) -> Support:
    empty = support.mu == 0
    if seen(empty.any()):
        row = int(empty.nonzero()[0])
        who = "" if names is None else f" ({names[row].item()!r})"
        raise ValueError(f"row {row}{who} of the target has no positive ({int(empty.sum())} such rows); {remedy}")
    return support


def _without_self(table: Tensor, own: int | None) -> Tensor:
    return table if own is None else table.fill_diagonal_(0)
