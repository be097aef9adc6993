"""When an audit cannot tell: what was measured, the rule, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor

from gcalign.auditing.embeddings import Embeddings, copies

FEWEST = 50  # pairs from which shares and probabilities mean something
CHANCE = 0.45  # mean p-value above which the pairs agree no better than chance; 0.5 is chance
UNRELATED = "the pairs agree no better than chance"
SIGMAS = 4.0  # that it must be below 0.5


def doubts(a: Embeddings, b: Embeddings, p: Tensor, folds: Sequence[int] = ()) -> Iterator[str]:
    """Why the audit cannot tell which pairs are wrong; nothing if it can. `folds` are the sizes of all, if any."""
    n = len(a)
    if n < FEWEST:
        pairs = f"{n} pairs; at least {FEWEST} are needed"
        if folds:
            pairs = f"{min(folds)} pairs in a fold and {sum(folds)} in all; at least {FEWEST} are needed in each fold"
        yield (
            f"there are {pairs} to estimate a share: use the ranking alone, or audit them together with more pairs of "
            "the same kind"
        )
    for side in (a, b):
        items = distinct(side)
        if items < max(10, n // 10):
            yield (
                f"{side.name} has {items} different items in {n} pairs; at least {max(10, n // 10)} are needed to "
                "compare a pair with others: leave repeated items out, or audit the pairs of different items"
            )
    mean = float(p.mean())
    if mean > min(CHANCE, 0.5 - SIGMAS / math.sqrt(12 * n)):
        yield (
            f"a random partner fits better than the own one in {mean:.1%} of all cases; it must be clearly below 50 %, "
            f"or {UNRELATED}: embed both sides in one space (gcalign.align learns one), "
            "and check that row i of both is one pair"
        )


def distinct(x: Embeddings) -> int:
    """How many items differ."""
    return round(float((1 / copies(x)).double().sum()))
