"""From two sides and pairs to heads and a report: read, hold out, search, measure, fit to all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gcalign.aligning.doubts import LEAST_AUDITED, probabilities, weights_of
from gcalign.aligning.inputs import (
    Items,
    check_different,
    checked_pairs,
    enough,
    folds_of,
    groups_of,
    kept_together,
)
from gcalign.aligning.report import AlignmentReport
from gcalign.aligning.retrieval import Recall, recall
from gcalign.aligning.search import DISTRACTORS, FOLDS, CrossValidation, Tick, held_out_ranks
from gcalign.aligning.training import Examples, Heads, Settings, fit

MOST_PAIRS = 50_000  # more are sampled
POOL = 20_000  # unpaired items of each side that are held in memory
FEW = 20  # pairs below which a note says what to expect
HELD_SHARE, MOST_HELD = 5, 1000  # a fifth of the pairs is held out for the report, and at most 1,000
# InfoNCE has the ε with which it did best in trials with few pairs
RIVALS: dict[str, dict[str, Any]] = {"cca": {}, "procrustes": {}, "infonce": {"eps": 0.05}}
CHANCE = 3.0  # standard deviations from it
SUSPECTS = 50  # pairs that the report lists


@dataclass(frozen=True)
class Inputs:
    """Both sides and their pairs, checked and read into memory as far as a fit needs them."""

    examples: Examples
    pairs: Tensor  # [P, 2]
    items: tuple[int, int]
    notes: list[str]

    @staticmethod
    def of(a: Any, b: Any, pairs: Any, generator: torch.Generator) -> Inputs:
        sides, notes = (Items("a", a), Items("b", b)), []
        known = checked_pairs(pairs, *sides)
        usable = []
        for k, side in enumerate(sides):
            empty = side.empty_rows()
            keep = torch.ones(len(side), dtype=torch.bool)
            keep[empty] = False
            usable.append(keep)
            if len(empty):
                dropped = int((~keep[known[:, k]]).sum())
                notes.append(
                    f"{len(empty)} rows of {side.name} are zero, first {side.name}[{int(empty[0])}]; an embedding "
                    f"needs a direction, so they and their {dropped} pairs are left out: embed these items again"
                )
        known = enough(known[usable[0][known[:, 0]] & usable[1][known[:, 1]]])
        if len(known) > MOST_PAIRS:
            notes.append(f"{MOST_PAIRS:,} of {len(known):,} pairs are used, chosen at random")
            known = known[torch.randperm(len(known), generator=generator)[:MOST_PAIRS].sort().values]
        if len(known) < FEW:
            notes.append(
                f"{len(known)} pairs are few: expect little more than the coarsest topics to match, and intervals that "
                "say nothing; 100 pairs are a start, 300 to 1,000 usually suffice"
            )
        pools = []
        for k, (side, keep) in enumerate(zip(sides, usable, strict=True)):
            keep[known[:, k]] = False
            free = keep.nonzero().flatten()
            pools.append(side.rows(free[torch.randperm(len(free), generator=generator)[:POOL].sort().values]))
        for k, pool in enumerate(pools):  # sorted rows are read fast, but the first of a pool shall be any
            pools[k] = pool[torch.randperm(len(pool), generator=generator)]
        x, y = sides[0].rows(known[:, 0]), sides[1].rows(known[:, 1])
        for name, rows in zip("ab", (x, y), strict=True):
            check_different(name, rows)
        examples = Examples(x, y, torch.ones(len(known)), groups_of(known), *pools)
        return Inputs(examples, known, (len(sides[0]), len(sides[1])), notes)


@dataclass(frozen=True)
class FitResult:
    """Heads, how they were made, and what they are worth."""

    heads: Heads
    settings: Settings
    report: AlignmentReport


def fitted(
    a: Any,
    b: Any,
    pairs: Any,
    given: Mapping[str, Any],
    *,
    budget: int,
    audited: bool,
    evaluated: bool,
    seed: int,
    progress: bool,
) -> FitResult:
    """Search settings on a part of the pairs, measure them on the rest, and fit heads to all pairs."""
    generator = torch.Generator().manual_seed(seed)
    inputs = Inputs.of(a, b, pairs, generator)
    examples, n = inputs.examples, len(inputs.pairs)
    held_folds = max(HELD_SHARE, -(-n // MOST_HELD))
    together = kept_together(inputs.pairs, examples.group)
    held = folds_of(together, held_folds, generator) == 0
    seen, test = (~held).nonzero().flatten(), held.nonzero().flatten()
    folds = folds_of(together[seen], FOLDS, generator)
    from rich.console import Console  # slow to import
    from rich.progress import Progress  # slow to import

    bar = Progress(console=Console(stderr=True), transient=True, disable=not progress)
    with bar:
        task = bar.add_task("search", total=None)

        def tick() -> None:
            bar.advance(task)

        def under(name: str) -> None:
            bar.update(task, description=name)

        training = examples.take(seen)
        choice = CrossValidation(training, folds, given, seed, tick).run(budget, audited=audited)
        training = replace(training, weights=choice.weights)
        under("measure")
        retrieval: dict[str, Recall] = {}
        curve: list[tuple[int, float]] = []
        wrong, notes = torch.full((n,), math.nan), list(inputs.notes)
        wrong[seen] = choice.wrong
        if (evaluated or audited) and len(test) and len(training) >= 2:
            unseeing = fit(training, choice.settings, seed, tick)  # heads that never saw the held-out pairs
            if audited and len(test) >= LEAST_AUDITED:
                x, y = unseeing[0](examples.x[test]), unseeing[1](examples.y[test])
                wrong[test] = probabilities(x, y, torch.zeros(len(test), dtype=torch.long), seed)
            if evaluated:
                ranks = held_out_ranks(unseeing, examples, test)
                retrieval, curve = _measured(examples, training, test, ranks, choice.settings, seed, tick)
                if note := _at_chance(ranks, retrieval["aligner"]):
                    notes.append(note)
                    wrong[:] = math.nan
        under("fit")
        weighted = bool((choice.weights < 1).any()) and not bool(wrong.isnan().all())
        every = replace(examples, weights=weights_of(wrong)) if weighted else examples
        heads = fit(every, choice.settings, seed, tick)
    known = wrong[~wrong.isnan()]
    worst = wrong.nan_to_num(0.0).argsort(descending=True, stable=True)[:SUSPECTS]
    report = AlignmentReport(
        pairs=n,
        items=inputs.items,
        pools=(len(examples.pool_a), len(examples.pool_b)),
        settings=dataclasses.asdict(choice.settings),
        retrieval=retrieval,
        curve=curve,
        wrong=float(known.mean()) if len(known) else None,
        weighted=weighted,
        suspects=[(*inputs.pairs[k].tolist(), float(wrong[k])) for k in worst.tolist() if wrong[k] > 0],
        scores=choice.scores,
        fits=choice.fits,
        notes=tuple(notes),
    )
    return FitResult(heads, choice.settings, report)


def _at_chance(ranks: Tensor, own: Recall) -> str:
    """What a reader must know if the partner is no nearer than any other item; empty if it is, or they are few."""
    nearer = float(ranks.double().mean()) / max(1, own.gallery - 1)
    if own.pairs < LEAST_AUDITED or nearer < 0.5 - CHANCE / math.sqrt(12 * own.pairs):
        return ""
    return (
        f"a random item is nearer than the partner in {nearer:.0%} of the cases on held-out pairs; it must be clearly "
        "below 50 %, or the pairs say nothing: check that their columns are rows of a and rows of b in this order, "
        "counted from 0, and that the files are in the order that the pairs were made for"
    )


def _measured(
    examples: Examples, training: Examples, test: Tensor, ranks: Tensor, settings: Settings, seed: int, tick: Tick
) -> tuple[dict[str, Recall], list[tuple[int, float]]]:
    """R@k on held-out pairs: of the heads, of rivals without weights, and with fewer pairs."""

    gallery = len(test) + min(DISTRACTORS, len(examples.pool_b))

    def measured(heads: Heads) -> Recall:
        return recall(held_out_ranks(heads, examples, test), gallery)

    retrieval = {"aligner": recall(ranks, gallery)}
    even = replace(training, weights=torch.ones(len(training)))
    for name, own in RIVALS.items():
        rival = replace(settings, method=name, teacher="cca", hidden=0, **own)
        retrieval[name] = measured(fit(even, rival, seed, tick))
    order = torch.randperm(len(training), generator=torch.Generator().manual_seed(seed))
    curve = [
        (size, measured(fit(training.take(order[:size]), settings, seed, tick)).at_1)
        for size in (len(training) // 4, len(training) // 2)
        if size >= 10
    ]
    return retrieval, [*curve, (len(training), retrieval["aligner"].at_1)]
