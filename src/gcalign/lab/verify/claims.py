"""What a claim is: two sides and a relation between them, as a function of one random draw; and how it is checked."""

from __future__ import annotations

import hashlib
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from gcalign.errors import count, one_of
from gcalign.lab.terminal import Progress
from gcalign.lab.timing import threads
from gcalign.public import method

Relation = Literal["=", "≤"]
Word = Literal["holds", "holds as a bound", "holds after correction", "fails"]
Kind = Literal["misprint", "slip", "substance"]
MEANS: Mapping[Word | Kind, str] = {
    "holds": "no case violates it",
    "holds as a bound": "an inequality holds where the paper has an equality",
    "holds after correction": "no case violates the corrected form, which the row states",
    "fails": "some case violates it; the replay prints the worst",
    "misprint": "the paper prints something else than it means; the right form is elsewhere in it, or obvious",
    "slip": "a condition, a factor or a row of a table is wrong; the correction that the evidence names mends it",
    "substance": "what is claimed is not true, and no small correction makes it so",
}
# each theorem with the rows that decide it
THEOREMS: Mapping[int, tuple[str, ...]] = {
    1: ("thm:cl_eq_ot",),
    2: ("thm:rince", "thm:rince d_M"),
    3: ("co:rince",),
    4: ("thm:byol",),
    5: ("thm:lowest",),
    6: ("thm:gcarince",),
    7: ("thm:uniformity",),
}
T = TypeVar("T")
THREADS = 1  # the matrices are too small to share, and sums come out the same on every machine


@dataclass(frozen=True)
class RandomBatch:
    """Two views [B, D] in float64 and a temperature; scores and log K are plain torch, not the library's."""

    z1: Tensor
    z2: Tensor
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


def loss(name: str, batch: RandomBatch, **options: Any) -> float:
    """What the library makes of a batch."""
    return float(method(name, **options)(batch.z1, batch.z2))


class Draw:
    """The randomness of one case: its own generator, so that case K is the same whatever else runs."""

    def __init__(self, seed: int, case: int) -> None:
        self.case = case
        self.numbers: dict[str, float] = {}  # of the batch, once there is one
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
        z2 = z1 + noise * self.normal(b, d)
        batch = RandomBatch(z1, z2, self.log_uniform(*eps))
        self.numbers = {"B": b, "D": d, "noise": noise, "eps": batch.eps}
        return batch


@dataclass(frozen=True)
class Case:
    """Both sides in one case, and the numbers beside the batch's own; differences are in units of `scale`."""

    left: float
    right: float
    numbers: Mapping[str, float | str] = field(default_factory=dict)
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
    unit: str = "batches"
    cases: int | None = None  # as many as asked for
    holds: Word = "holds"  # where no case violates it: a bound, or a corrected form, is less than the paper says
    kind: Kind | None = None  # of what is wrong with it, where something is
    tolerance: float = 1e-12

    def excess(self, case: Case) -> float:
        """By how much the relation is missed, relative to the size of the sides."""
        gap = case.left - case.right
        scale = max(1.0, abs(case.left), abs(case.right)) if case.scale is None else case.scale
        return (abs(gap) if self.relation == "=" else gap) / scale


CLAIMS: dict[str, Claim] = {}


def claim(
    label: str, words: str, *, sides: tuple[str, Relation, str], tell: str, **more: Any
) -> Callable[[Callable[[Draw], Case]], Callable[[Draw], Case]]:
    """Register a function of one draw as a claim of the paper; `more` are the last fields of `Claim`."""

    def add(check: Callable[[Draw], Case]) -> Callable[[Draw], Case]:
        assert label not in CLAIMS, label
        CLAIMS[label] = Claim(label, words, *sides, tell, check, **more)
        return check

    return add


def labels() -> tuple[str, ...]:
    """Every claim, in the order of the table."""
    return tuple(CLAIMS)


def named(label: str) -> Claim:
    """The claim with that label; an unknown one gets a suggestion."""
    return CLAIMS[one_of("--only", label, CLAIMS)]


@dataclass(frozen=True)
class Outcome:
    """Both sides of a claim in one case; it is violated where `excess` passes the claim's tolerance."""

    case: int
    left: float
    right: float
    excess: float
    violated: bool
    numbers: Mapping[str, float | str]


@dataclass(frozen=True)
class ClaimCheck:
    """What is true of a claim, and why; `replay` prints the worst case again."""

    label: str
    claim: str
    verdict: Word
    kind: Kind | None  # of what is wrong
    cases: int
    violations: int
    worst: Outcome
    evidence: str
    replay: str


def run(only: Sequence[str] = (), *, seed: int = 0, cases: int = 200) -> list[ClaimCheck]:
    """Check the claims named (all of them by default), with a progress bar in a terminal."""
    count("--cases", cases, "200 take about 40 s")
    chosen = [named(label) for label in dict.fromkeys(only or labels())]
    tasks = [(claim, case) for claim in chosen for case in range(claim.cases or cases)]
    outcomes: dict[str, list[Outcome]] = {claim.label: [] for claim in chosen}
    with threads(THREADS), Progress() as progress:
        for claim, case in progress.over(tasks, lambda task: task[0].label):
            outcomes[claim.label].append(_outcome(claim, seed, case))
    return [_verdict(claim, seed, outcomes[claim.label]) for claim in chosen]


def replay(label: str, *, seed: int, case: int) -> Outcome:
    """One case of one claim, the same as in any run with that seed."""
    claim = named(label)
    count("--case", case, "the evidence of a verdict names one", least=0)
    if claim.cases is not None and case >= claim.cases:
        raise ValueError(f"--case={case} must be below {claim.cases} for {label}, which has that many {claim.unit}")
    with threads(THREADS):
        return _outcome(claim, seed, case)


def _outcome(claim: Claim, seed: int, case: int) -> Outcome:
    draw = Draw(seed, case)
    found = claim.check(draw)
    excess = claim.excess(found)
    # not "excess > tolerance": a NaN is a violation
    violated = not excess <= claim.tolerance * (1 + 1e-9)
    return Outcome(case, found.left, found.right, excess, violated, {**draw.numbers, **found.numbers})


def _verdict(claim: Claim, seed: int, outcomes: Sequence[Outcome]) -> ClaimCheck:
    violations = sum(o.violated for o in outcomes)
    worst = max(outcomes, key=lambda o: (o.violated, o.excess))
    command = f"gcalign verify --only {shlex.quote(claim.label)} --seed {seed} --case {worst.case}"
    told = claim.tell.format(**_aggregates(outcomes))
    evidence = f"violated in {violations} of {len(outcomes)} {claim.unit}; {told}"
    word = claim.holds
    if violations:
        word, evidence = "fails", f"{evidence}; replay: {command}"
    return ClaimCheck(claim.label, claim.words, word, claim.kind, len(outcomes), violations, worst, evidence, command)


def summary(checks: Sequence[ClaimCheck]) -> str:
    """How many hold, what is wrong with the others, and what that means for the theorems, if all were checked."""
    words = Counter(c.verdict for c in checks)
    kinds = Counter(c.kind for c in checks if c.verdict == "fails")
    counts = ", ".join(f"{word} {words[word]}" for word in get_args(Word) if words[word])
    wrong = ", ".join(f"{kind} {kinds[kind]}" for kind in get_args(Kind) if kinds[kind])
    said = f"Of {len(checks)}: {counts}" + (f" ({wrong})" if wrong else "")
    by = {c.label: c for c in checks}
    if not all(label in by for rows in THEOREMS.values() for label in rows):
        return f"{said}."
    false = [n for n, rows in THEOREMS.items() if any(_refuted(by[label]) for label in rows)]
    corrected = [n for n, rows in THEOREMS.items() if n not in false and any(by[x].verdict != "holds" for x in rows)]
    right = len(THEOREMS) - len(false)
    return (
        f"{said}. Of the {len(THEOREMS)} theorems {right} hold, {len(corrected)} of them after correction "
        f"({_listed(corrected)}); {len(false)} do not ({_listed(false)})."
    )


def _refuted(check: ClaimCheck) -> bool:
    return check.verdict == "fails" and check.kind == "substance"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _aggregates(outcomes: Sequence[Outcome]) -> dict[str, SimpleNamespace]:
    over: dict[str, Callable[[Sequence[float]], float]] = {"worst": max, "median": statistics.median, "total": sum}
    columns = {"excess": [o.excess for o in outcomes]}
    for name in outcomes[0].numbers:
        columns[name] = [x for o in outcomes if isinstance(x := o.numbers[name], (int, float))]
    return {
        key: SimpleNamespace(**{name: f(column) for name, column in columns.items() if column})
        for key, f in over.items()
    }
