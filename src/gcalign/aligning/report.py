"""What an alignment is worth: retrieval on held-out pairs, and what more pairs would give."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gcalign.aligning.retrieval import Recall

MORE = 100  # pairs that the sentence about more pairs adds


@dataclass(frozen=True)
class AlignmentReport:
    """How an `Aligner` was made and what it finds. Retrieval is that of heads that never saw the held-out pairs.

    Attributes:
        pairs: how many pairs were given, and used.
        items: rows of side a and of side b.
        pools: unpaired items of each side that were used.
        settings: what was chosen, or given.
        retrieval: R@1 and R@10 of the aligner and of its rivals on the same held-out pairs, by name.
        curve: (number of pairs, R@1 in percent) on the held-out pairs.
        wrong: expected share of wrong pairs; None if that is not known.
        suspects: the most suspicious pairs, as (row of a, row of b, probability).
        weighted: whether pairs were weighted by the audit.
        scores: cross-validated scores of the settings that were tried.
        fits: heads that the search trained.
        notes: what else a reader should know.
    """

    pairs: int
    items: tuple[int, int]
    pools: tuple[int, int]
    settings: Mapping[str, Any]
    retrieval: Mapping[str, Recall]
    curve: Sequence[tuple[int, float]]
    wrong: float | None
    weighted: bool
    suspects: Sequence[tuple[int, int, float]]
    scores: Mapping[str, float] = field(default_factory=dict)
    fits: int = 0
    notes: Sequence[str] = ()

    @property
    def more_pairs(self) -> str:
        """What all pairs and what more pairs would give, by the learning curve."""
        if not self.curve:
            return "Retrieval was not measured."
        if len(self.curve) < 2:
            return "There are too few pairs for a learning curve."
        now, then = (expected(self.curve, self.pairs + more) for more in (0, MORE))
        kept = f"With all {self.pairs:,} pairs, expect about {now:.1f} % R@1; {MORE} more pairs would "
        return kept + ("not change it." if then - now < 0.05 else f"give about {then:.1f} %.")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**dataclasses.asdict(self), "more_pairs": self.more_pairs}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> AlignmentReport:
        """A report from the values that `as_dict` gives."""
        known = {f.name: content[f.name] for f in dataclasses.fields(AlignmentReport)}
        known["retrieval"] = {
            str(name): Recall(**{**recall, **{k: tuple(recall[k]) for k in ("interval_1", "interval_10")}})
            for name, recall in known["retrieval"].items()
        }
        for name in ("items", "pools", "notes"):
            known[name] = tuple(known[name])
        for name in ("curve", "suspects"):
            known[name] = [tuple(row) for row in known[name]]
        return AlignmentReport(**known)

    def __str__(self) -> str:
        chosen = ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.settings.items())
        lines = [
            f"Aligned by {self.pairs:,} pairs; {self.items[0]:,} and {self.items[1]:,} items, of which "
            f"{self.pools[0]:,} and {self.pools[1]:,} without a partner were used",
            f"chosen after training {self.fits} heads: {chosen}",
            *(f"{name}: {recall}" for name, recall in self.retrieval.items()),
            self.more_pairs,
            f"expected share of wrong pairs: {'not known' if self.wrong is None else f'{self.wrong:.1%}'}; pairs were "
            f"{'' if self.weighted else 'not '}weighted",
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def expected(curve: Sequence[tuple[int, float]], pairs: int) -> float:
    """R@1 in percent with so many pairs: through the last point, with the mean slope of the log odds over log n.

    The odds, because R@1 itself cannot rise in a straight line up to 100 %.
    """
    x = [math.log(n) for n, _ in curve]
    y = [_log_odds(value) for _, value in curve]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((p - mean_x) * (q - mean_y) for p, q in zip(x, y, strict=True)) / sum((p - mean_x) ** 2 for p in x)
    return 100 / (1 + math.exp(-y[-1] - max(slope, 0.0) * (math.log(pairs) - x[-1])))


def _log_odds(percent: float) -> float:
    share = min(max(percent / 100, 0.001), 0.999)
    return math.log(share / (1 - share))
