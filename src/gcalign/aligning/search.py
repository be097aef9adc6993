"""Which settings suit these pairs: cross-validation with a stated budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gcalign.aligning.closed import CLOSED
from gcalign.aligning.doubts import probabilities, weights_of
from gcalign.aligning.retrieval import both_ways, score
from gcalign.aligning.training import Examples, Heads, Settings, fit

FOLDS = 3
DISTRACTORS = 1000  # unpaired items of each side among which partners are sought
RIDGES = (0.1, 0.3, 1.0, 3.0)
# changes of the default that are tried for heads, the most promising first; a budget ends the list
TRIED: tuple[Mapping[str, Any], ...] = (
    {},
    {"eps": 0.05},
    {"weight": 3.0},
    {"hidden": 256},
    {"eps": 0.2},
    {"renew": 0},
)
Tick = Callable[[], None]


@dataclass(frozen=True)
class CrossFit:
    """Each pair embedded by heads that never saw it, and its rank among the held-out items, both ways."""

    za: Tensor  # [P, dim]
    zb: Tensor  # [P, dim]
    ranks: Tensor  # [2, P]


def crossfit(examples: Examples, folds: Tensor, settings: Settings, seed: int, tick: Tick = lambda: None) -> CrossFit:
    """For each fold: heads from the other folds, which embed it."""
    za = examples.x.new_zeros(len(examples), settings.dim)
    zb, ranks = torch.zeros_like(za), za.new_zeros(2, len(examples))
    for fold in folds.unique():
        held = (folds == fold).nonzero().flatten()
        heads = fit(examples.take((folds != fold).nonzero().flatten()), settings, seed, tick)
        a, b = heads[0](examples.x[held]), heads[1](examples.y[held])
        za[held, : a.shape[1]], zb[held, : b.shape[1]] = a, b
        ranks[:, held] = held_out_ranks(heads, examples, held)
    return CrossFit(za, zb, ranks)


def held_out_ranks(heads: Heads, examples: Examples, held: Tensor) -> Tensor:  # [2, k]
    """Ranks of pairs that the heads never saw, among their own items and some of the pools."""
    a, b = heads
    others = a(examples.pool_a[:DISTRACTORS]), b(examples.pool_b[:DISTRACTORS])
    return both_ways(a(examples.x[held]), b(examples.y[held]), examples.group[held], others)


@dataclass(frozen=True)
class Choice:
    """What a search decided, from which scores."""

    settings: Settings
    wrong: Tensor  # [P], the probability that a pair is wrong
    weights: Tensor  # [P], of the pairs in a fit: all 1 if the audit did not help
    scores: dict[str, float] = field(default_factory=dict)
    fits: int = 0  # heads that were trained


@dataclass
class CrossValidation:
    """Cross-validation of one set of pairs. Scores are mean reciprocal ranks of pairs that are probably right."""

    examples: Examples
    folds: Tensor  # [P]
    given: Mapping[str, Any]  # settings that the user fixed
    seed: int
    tick: Tick = lambda: None

    def run(self, budget: int, *, audited: bool) -> Choice:
        """The best settings; at most `budget` heads are trained."""
        base, wrong, weights = self._teacher(Settings(**self.given), audited=audited)
        examples, right, number = replace(self.examples, weights=weights), weights_of(wrong), len(self.folds.unique())
        candidates = self._candidates(base, budget // number)
        scores = {}
        for name, settings in candidates.items():
            shorter = replace(settings, steps=max(1, settings.steps // 2))  # enough to tell settings apart
            scores[name] = score(crossfit(examples, self.folds, shorter, self.seed, self.tick).ranks, right)
        best = max(scores, key=scores.__getitem__, default=None)
        fits = number * sum(each.method not in CLOSED for each in candidates.values())
        return Choice(base if best is None else candidates[best], wrong, weights, scores, fits)

    def _candidates(self, base: Settings, affordable: int) -> dict[str, Settings]:
        """Settings to compare, by what they are called: none if no heads may be trained, which takes the default."""
        if not affordable:
            return {}
        result = {}
        for name in [base.method] if "method" in self.given else [*CLOSED, "plan"]:
            changes: list[dict[str, Any]] = [{}]  # the ridge of CCA is known
            if name == "ridge":
                changes = [{"ridge": ridge} for ridge in RIDGES]
            for change in changes if name in CLOSED else TRIED[:affordable]:
                free = {key: value for key, value in change.items() if key not in self.given}
                words = ", ".join([name, *(f"{key} {value:g}" for key, value in free.items())])
                result[words] = replace(base, method=name, **free)
        return result

    def _teacher(self, start: Settings, *, audited: bool) -> tuple[Settings, Tensor, Tensor]:
        """The ridge of the closed form that teaches, which pairs look wrong, and whether weights against them help."""
        even = self.examples.weights
        base, result, _ = self._best_ridge(start, even, even)
        if not audited:
            return base, torch.zeros_like(even), even
        wrong = probabilities(result.za, result.zb, self.folds, self.seed)
        right = weights_of(wrong)
        _, _, plain = self._best_ridge(start, even, right)
        weighted, better, gained = self._best_ridge(start, right, right)
        if gained <= plain:
            return base, wrong, even
        wrong = probabilities(better.za, better.zb, self.folds, self.seed)
        return weighted, wrong, weights_of(wrong)

    def _best_ridge(self, start: Settings, weights: Tensor, right: Tensor) -> tuple[Settings, CrossFit, float]:
        """The closed form that teaches, with each ridge, fitted with `weights` and scored with `right`."""
        examples = replace(self.examples, weights=weights)
        results = []
        for ridge in (start.ridge,) if "ridge" in self.given else RIDGES:
            settings = replace(start, ridge=ridge)
            result = crossfit(examples, self.folds, replace(settings, method=start.closed), self.seed)
            results.append((settings, result, score(result.ranks, right)))
        return max(results, key=lambda each: each[2])
