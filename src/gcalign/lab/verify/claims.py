"""What a claim is: two sides and a relation between them, as a function of one random draw."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from gcalign.errors import one_of
from gcalign.public import method

Relation = Literal["=", "≤"]
Word = Literal["holds", "holds as a bound", "holds after correction", "fails"]
T = TypeVar("T")


@dataclass(frozen=True)
class RandomBatch:
    """Two views [B, D] in float64 and a temperature; scores and log K are plain torch, not the library's."""

    z1: Tensor
    z2: Tensor
    noise: float
    eps: float

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """Unit rows of both views."""
        normalize = torch.nn.functional.normalize
        return normalize(self.z1), normalize(self.z2)

    @property
    def scores(self) -> Tensor:  # [B, B]
        """s_ij = cos(z'_i, z''_j)/ε (eq:INCE)."""
        x, y = self.pair
        return x @ y.T / self.eps

    @property
    def log_k(self) -> Tensor:  # [B, B]
        """−(1 − cos)/ε (def:gibbs)."""
        return self.scores - 1 / self.eps

    @property
    def numbers(self) -> dict[str, float]:
        return {"B": len(self.z1), "D": self.z1.shape[1], "noise": self.noise, "eps": self.eps}


def loss(name: str, batch: RandomBatch, **options: Any) -> float:
    """What the library makes of a batch."""
    return float(method(name, **options)(batch.z1, batch.z2))


class Draw:
    """The randomness of one case: its own generator, so that case K is the same whatever else runs."""

    def __init__(self, seed: int, case: int) -> None:
        self.case = case
        digest = hashlib.sha256(f"{seed}/{case}".encode()).digest()
        self.generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=self.generator, dtype=torch.float64))

    def log_uniform(self, low: float, high: float) -> float:
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def one_of(self, *options: T) -> T:
        return options[int(torch.randint(len(options), (), generator=self.generator))]

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def batch(
        self,
        sizes: tuple[int, ...] = (2, 8, 32),
        dims: tuple[int, ...] = (2, 8, 32),
        eps: tuple[float, float] = (0.05, 2.0),
    ) -> RandomBatch:
        """From pairs that are all but equal to pairs that are no pairs."""
        b, d, noise = self.one_of(*sizes), self.one_of(*dims), self.one_of(0.1, 0.5, 2.0)
        z1 = self.normal(b, d)
        return RandomBatch(z1, z1 + noise * self.normal(b, d), noise, self.log_uniform(*eps))


@dataclass(frozen=True)
class Case:
    """Both sides in one case, and the numbers that go with them; differences are in units of `scale`."""

    left: float
    right: float
    numbers: Mapping[str, float | str]
    scale: float | None = None


@dataclass(frozen=True)
class Claim:
    """`left relation right`, said by the paper in `words`; `tell` is what the evidence adds, as a format string.

    Its fields are `{worst.x}`, `{median.x}` and `{total.x}` of each number x of the cases, and of their `excess`.
    """

    label: str
    words: str
    left: str
    relation: Relation
    right: str
    tell: str
    check: Callable[[Draw], Case]
    unit: str
    cases: int | None  # None: as many as asked for
    holds: Word  # what is said where no case violates it: a bound, or a corrected form, is less than the paper says
    tolerance: float

    def excess(self, case: Case) -> float:
        """By how much the relation is missed, relative to the size of the sides."""
        gap = case.left - case.right
        scale = max(1.0, abs(case.left), abs(case.right)) if case.scale is None else case.scale
        return (abs(gap) if self.relation == "=" else gap) / scale


_CLAIMS: dict[str, Claim] = {}


def claim(
    label: str,
    words: str,
    *,
    sides: tuple[str, Relation, str],
    tell: str,
    unit: str = "batches",
    cases: int | None = None,
    holds: Word = "holds",
    tolerance: float = 1e-12,
) -> Callable[[Callable[[Draw], Case]], Callable[[Draw], Case]]:
    """Register a function of one draw as a claim of the paper."""

    def add(check: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
        assert label not in _CLAIMS, label
        _CLAIMS[label] = Claim(label, words, *sides, tell, check, unit, cases, holds, tolerance)
        return check

    return add


def labels() -> tuple[str, ...]:
    """Every claim, in the order of the table."""
    return tuple(_CLAIMS)


def named(label: str) -> Claim:
    """The claim with that label; an unknown one gets a suggestion."""
    return _CLAIMS[one_of("--only", label, _CLAIMS)]
