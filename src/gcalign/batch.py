"""The embeddings on each side of a plan and what is known of them, with checks of the inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gcalign.errors import did_you_mean

if TYPE_CHECKING:
    from gcalign.entries import Queue
    from gcalign.targets import Target

PER_SIDE = ("labels", "domains", "ids", "weights", "groups", "teacher")  # one value for each sample; first of `Inputs`
PerSide = Tensor | Sequence[int] | tuple[Any, Any]  # one value for each sample, or a pair: for z1 and for z2


class Inputs(NamedTuple):
    """The optional inputs of a criterion; `Objective` describes them."""

    labels: PerSide | None = None
    domains: PerSide | None = None
    ids: PerSide | None = None
    weights: PerSide | None = None
    groups: PerSide | None = None
    teacher: tuple[Tensor, Tensor] | None = None
    target: Tensor | Target | None = None
    queue: Queue | tuple[Queue, Queue] | None = None
    negatives: Tensor | None = None
    allowed: Tensor | None = None

    def exchanged(self) -> Inputs:
        """The same for exchanged sides; `target` and `queue` are left to the caller."""
        turned: dict[str, Any] = {name: per_side(value)[::-1] for name, value in per_sample(self).items()}
        return self._replace(allowed=None if self.allowed is None else self.allowed.T, **turned)


def inputs_of(given: Mapping[str, Any]) -> Inputs:
    """Inputs by their names; raises if a name is unknown."""
    for name in given:
        if name not in Inputs._fields:
            raise TypeError(f"{name}= is not an input of a criterion; {did_you_mean(name, Inputs._fields)}")
    return Inputs(**given)


def per_sample(inputs: Inputs) -> dict[str, Any]:
    """What is given for each sample."""
    return {name: value for name, value in zip(PER_SIDE, inputs, strict=False) if value is not None}


@dataclass(frozen=True)
class Side:
    """The embeddings on one side of a plan, and what is known of each. A `Target` of your own reads it.

    Example:
        >>> import torch, gcalign
        >>> side = gcalign.Side(torch.eye(3), labels=torch.tensor([0, 0, 1]))
        >>> len(side)
        3
    """

    features: Tensor  # [n, d]
    ids: Tensor | None = None  # [n]  the sample of each; None: by position
    labels: Tensor | None = None  # [n] or [n, levels]
    domains: Tensor | None = None  # [n]
    weights: Tensor | None = None  # [n]
    groups: Tensor | None = None  # [n]  within which there are no negatives
    teacher: Tensor | None = None  # [n, d']  other embeddings of the same items

    def __len__(self) -> int:
        return len(self.features)

    def joined(self, other: Side) -> Side:
        """Both sides as one, for the joint layout."""
        known = {name: (getattr(self, name), getattr(other, name)) for name in PER_SIDE}
        both = {name: torch.cat([x, y]) for name, (x, y) in known.items() if x is not None and y is not None}
        return Side(torch.cat([self.features, other.features]), **both)


@dataclass(frozen=True)
class Sides:
    """Rows and columns of a plan. A `Target` or `Constraint` of your own reads them.

    Example:
        >>> import torch, gcalign
        >>> first, second = gcalign.Side(torch.eye(3)), gcalign.Side(torch.eye(3))
        >>> gcalign.Sides.in_cross(first, second).shape, gcalign.Sides.in_joint(first, second).shape
        ((3, 3), (6, 6))
    """

    rows: Side
    columns: Side
    joint: bool = False  # whether both are the same embeddings; none is then matched with itself
    partner: int | None = None  # row i belongs to column (i + partner) modulo m; None: pairs follow from ids

    @staticmethod
    def in_cross(rows: Side, columns: Side) -> Sides:
        """The cross layout: rows are the first views, columns the second."""
        return Sides(rows, columns, partner=0 if rows.ids is None else None)

    @staticmethod
    def in_joint(first: Side, second: Side) -> Sides:
        """The joint layout: rows and columns are all embeddings."""
        everyone = first.joined(second)
        return Sides(everyone, everyone, joint=True, partner=len(first) if first.ids is None else None)

    def exchanged(self) -> Sides:
        """Columns as rows and rows as columns, in the cross layout."""
        return Sides.in_cross(self.columns, self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return len(self.rows), len(self.columns)


def check_embeddings(z1: Tensor, z2: Tensor, *, alone: bool) -> None:
    """Raise if z1 and z2 are not matrices of embeddings that can be compared."""
    for name, z in (("z1", z1), ("z2", z2)):
        if not isinstance(z, Tensor):
            raise TypeError(f"{name} is a {type(z).__name__}; it must be a tensor [B, D] of embeddings")
        shape = z.shape
        if len(shape) != 2 or shape[1] == 0 or (alone and shape[0] == 0):  # one of several ranks may have no rows
            raise ValueError(f"{name} of shape {tuple(z.shape)} must be [B, D] with B, D ≥ 1; flatten other dimensions")
        if not z.is_floating_point():
            raise TypeError(f"{name} has dtype {z.dtype}; embeddings must be real floating-point, try {name}.float()")
    if z1.shape[1] != z2.shape[1]:
        raise ValueError(f"z1 has {z1.shape[1]} dimensions and z2 {z2.shape[1]}; project both sides to one size")
    if z1.dtype != z2.dtype:
        raise TypeError(f"z1 is {z1.dtype} and z2 {z2.dtype}; give both sides one dtype, e.g. z2.to(z1.dtype)")
    if z1.device != z2.device:
        raise ValueError(f"z1 is on {z1.device} and z2 on {z2.device}; move both to one device")


def _check_negatives(negatives: Tensor, z: Tensor) -> None:
    """Raise if negatives are not embeddings that can be compared with z."""
    shaped = isinstance(negatives, Tensor) and negatives.dim() in (2, 3) and negatives.shape[-1] == z.shape[1]
    if not shaped or not negatives.is_floating_point() or negatives.numel() == 0:
        got = f"{tuple(negatives.shape)}" if isinstance(negatives, Tensor) else type(negatives).__name__
        raise ValueError(
            f"negatives={got} must be embeddings of {z.shape[1]} numbers: [k, {z.shape[1]}] for all rows, or "
            f"[n, k, {z.shape[1]}] with k for each row"
        )
    if negatives.device != z.device:
        raise ValueError(f"negatives are on {negatives.device} and z1 on {z.device}; move both to one device")


def refuse_non_finite(**embeddings: Any) -> None:
    """Raise if one of these embeddings, if they are tensors, is not finite; the message has its row."""
    for name, z in embeddings.items():
        finite = torch.isfinite(z.detach()) if isinstance(z, Tensor) else torch.ones(1, 1)
        if not bool(finite.all()):
            row = int((~finite.flatten(1)).any(1).nonzero()[0])
            raise ValueError(
                f"{name}[{row}] has NaN or Inf; embeddings must be finite: lower the learning rate, clip "
                "gradients, or pass check_finite=False to skip this test"
            )


def as_sides(z1: Tensor, z2: Tensor, inputs: Inputs, reads: Collection[str]) -> tuple[Side, Side]:
    """Both sides with what is known of them; `reads` are the fields that the target needs."""
    one: dict[str, Tensor] = {}
    two: dict[str, Tensor] = {}
    for name, value in per_sample(inputs).items():
        first, second = per_side(value)
        one[name], two[name] = _column(name, first, z1, "z1"), _column(name, second, z2, "z2")
    if len(z1) != len(z2) and "ids" in reads and "ids" not in one:
        raise ValueError(
            f"z1 has {len(z1)} rows and z2 {len(z2)}, so pairs cannot follow from positions; "
            "give ids=(ids1, ids2) or target=T"
        )
    if inputs.negatives is not None:
        _check_negatives(inputs.negatives, z1)
    return Side(z1, **one), Side(z2, **two)


def per_side(value: Any) -> tuple[Any, Any]:
    """(for z1, for z2): a tuple of two columns is split; anything else is used for both."""
    paired = isinstance(value, tuple) and len(value) == 2 and not any(isinstance(v, Real) for v in value)
    return (value[0], value[1]) if paired else (value, value)


def _column(name: str, value: Any, z: Tensor, which: str) -> Tensor:
    if name == "teacher":
        if not isinstance(value, Tensor) or value.dim() != 2 or len(value) != len(z) or not value.is_floating_point():
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"teacher={got} must be a tensor [{len(z)}, D], an embedding for each row of {which}; pass "
                "teacher=(t1, t2)"
            )
        return value.detach().to(z.device, z.dtype)
    try:
        column = torch.as_tensor(value, device=z.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be whole numbers, one for each row of {which}; number them first") from error
    if column.dim() not in (1, 2) or len(column) != len(z) or (column.dim() == 2 and name != "labels"):
        raise ValueError(
            f"{name} of shape {tuple(column.shape)} must have one value for each of the {len(z)} rows of {which}; "
            f"if the sides differ, pass {name}=(for z1, for z2)"
        )
    if name == "weights":
        if column.requires_grad:
            raise ValueError("weights require a gradient, but they are data; pass weights.detach()")
        return column.to(z.dtype)
    if column.is_floating_point() or column.is_complex():
        raise TypeError(f"{name} has dtype {column.dtype}; it must be whole numbers, try {name}.long()")
    return column.long()
