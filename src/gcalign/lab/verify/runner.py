"""Runs claims case by case and gathers what came out."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from gcalign.errors import count
from gcalign.lab.verify.claims import Claim, Draw, Word, labels, named


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
    cases: int
    violations: int
    worst: Outcome
    evidence: str
    replay: str


def planned(only: Sequence[str], cases: int) -> int:
    """How many cases `run` will try."""
    return sum(claim.cases or cases for claim in _chosen(only))


def _chosen(only: Sequence[str]) -> list[Claim]:
    return [named(label) for label in dict.fromkeys(only or labels())]


def run(
    only: Sequence[str] = (), *, seed: int = 0, cases: int = 200, advance: Callable[[str], None] = lambda label: None
) -> list[ClaimCheck]:
    """Check the claims named (all of them by default); `advance` hears the label of each case done."""
    count("--cases", cases, "200 take about 40 s")
    with one_thread():
        return [_verdict(claim, seed, cases, advance) for claim in _chosen(only)]


def replay(label: str, *, seed: int, case: int) -> Outcome:
    """One case of one claim, the same as in any run with that seed."""
    claim = named(label)
    count("--case", case, "the evidence of a verdict names one", least=0)
    if claim.cases is not None and case >= claim.cases:
        raise ValueError(f"--case={case} must be below {claim.cases} for {label}, which has that many {claim.unit}")
    with one_thread():
        return _outcome(claim, seed, case)


@contextmanager
def one_thread() -> Iterator[None]:
    """The matrices are too small to share, and sums come out the same on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _outcome(claim: Claim, seed: int, case: int) -> Outcome:
    found = claim.check(Draw(seed, case))
    excess = claim.excess(found)
    # not "excess > tolerance": a NaN is a violation
    violated = not excess <= claim.tolerance * (1 + 1e-9)
    return Outcome(case, found.left, found.right, excess, violated, dict(found.numbers))


def _verdict(claim: Claim, seed: int, cases: int, advance: Callable[[str], None]) -> ClaimCheck:
    outcomes = []
    for case in range(claim.cases or cases):
        outcomes.append(_outcome(claim, seed, case))
        advance(claim.label)
    violations = sum(o.violated for o in outcomes)
    worst = max(outcomes, key=lambda o: (o.violated, o.excess))
    command = f"gcalign verify --only {shlex.quote(claim.label)} --seed {seed} --case {worst.case}"
    told = claim.tell.format(**_aggregates(outcomes))
    evidence = f"violated in {violations} of {len(outcomes)} {claim.unit}; {told}"
    word = claim.holds
    if violations:
        word, evidence = "fails", f"{evidence}; replay: {command}"
    return ClaimCheck(claim.label, claim.words, word, len(outcomes), violations, worst, evidence, command)


def _aggregates(outcomes: Sequence[Outcome]) -> dict[str, SimpleNamespace]:
    over: dict[str, Callable[[Sequence[float]], float]] = {"worst": max, "median": statistics.median, "total": sum}
    columns = {"excess": [o.excess for o in outcomes]}
    for name in outcomes[0].numbers:
        columns[name] = [x for o in outcomes if isinstance(x := o.numbers[name], (int, float))]
    return {
        key: SimpleNamespace(**{name: f(column) for name, column in columns.items() if column})
        for key, f in over.items()
    }
