"""Which settings suit these pairs: cross-validation with a stated budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gcalign.aligning.doubts import probabilities, weights_of
from gcalign.aligning.retrieval import both_ways, score
from gcalign.aligning.training import TRAINED, Examples, Heads, Settings, fit

FOLDS = 3
DISTRACTORS = 1000  # unpaired items of each side among which partners are sought
RIDGES = (0.1, 0.3, 1.0, 3.0)
MATCHED = (0.3, 1.0, 3.0)  # weights of the matches
BRIEF_ROUNDS, BRIEF_POOL = 2, 2000  # of matching during the search: enough to tell settings apart
# changes of the default that are tried for heads, the most promising first; a budget ends the list
TRIED: tuple[Mapping[str, Any], ...] = (
    {"method": "infonce", "eps": 0.05},
    {},
    {"eps": 0.05},
    {"weight": 3.0},
    {"hidden": 256},
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
    wrong: Tensor  # [P], the probability that a pair is wrong; NaN where that is not known
    weights: Tensor  # [P], of the pairs in a fit: all 1 if the audit did not help
    scores: dict[str, float] = field(default_factory=dict)
    fits: int = 0  # heads that were trained


def _brief(settings: Settings) -> Settings:
    """The same with fewer steps and rounds."""
    steps, rounds = max(1, settings.steps // 2), min(settings.rounds, BRIEF_ROUNDS)
    return replace(settings, steps=steps, rounds=rounds, pool=min(settings.pool, BRIEF_POOL))


@dataclass
class CrossValidation:
    """Cross-validation of one set of pairs. Scores are mean reciprocal ranks of pairs that are probably right."""

    examples: Examples
    folds: Tensor  # [P]
    given: Mapping[str, Any]  # settings that the user fixed
    seed: int
    tick: Tick = lambda: None

    def run(self, budget: int, *, audited: bool) -> Choice:
        """The best settings; at most `budget` heads are trained, beside closed forms."""
        base, wrong, weights = self._teacher(Settings(**self.given), audited=audited)
        examples, right = replace(self.examples, weights=weights), weights_of(wrong)
        scores: dict[str, float] = {}
        results: dict[str, tuple[Settings, CrossFit]] = {}

        def compare(candidates: Mapping[str, Settings]) -> Settings:
            for name, settings in candidates.items():
                result = crossfit(examples, self.folds, _brief(settings), self.seed, self.tick)
                scores[name], results[name] = score(result.ranks, right), (settings, result)
            return results[max(scores, key=scores.__getitem__)][0] if scores else base

        best = compare(self._closed(base, budget))
        number = len(self.folds.unique())
        heads = self._heads(best, budget // number)
        best = compare(heads)
        if audited and scores:  # what was chosen tells wrong pairs better than the closed form that began
            wrong, weights = self._doubts_again(best, results[max(scores, key=scores.__getitem__)][1], wrong, weights)
        return Choice(best, wrong, weights, scores, number * len(heads))

    def _closed(self, base: Settings, budget: int) -> dict[str, Settings]:
        """Settings without training, by what they are called; none if nothing is to be compared."""
        if base.method in TRAINED or not budget:
            return {}
        result: dict[str, Settings] = {}
        for name in [base.method] if "method" in self.given else ["cca", "procrustes", "ridge", "matching"]:
            changes: list[dict[str, Any]] = [{}]  # the ridge of CCA is known
            if name == "ridge":
                changes = [{"ridge": ridge} for ridge in RIDGES]
            if name == "matching":
                changes = [{"matched": weight} for weight in MATCHED]
            result |= self._named(replace(base, method=name), changes)
        return result

    def _heads(self, best: Settings, affordable: int) -> dict[str, Settings]:
        """Settings with training: they start from the best closed form, which teaches them."""
        if "method" in self.given and best.method not in TRAINED:
            return {}
        teacher = best.closed if best.closed in ("cca", "matching") else "cca"
        method = best.method if "method" in self.given else "plan"
        return self._named(replace(best, method=method, teacher=teacher), TRIED[:affordable])

    def _named(self, base: Settings, changes: Iterable[Mapping[str, Any]]) -> dict[str, Settings]:
        """The settings with each change that is not given, by name."""
        result = {}
        for change in changes:
            free = {key: value for key, value in change.items() if key not in self.given}
            settings = replace(base, **free)
            words = [f"{key} {value:g}" for key, value in free.items() if key != "method"]
            result[", ".join([settings.method, *words])] = settings
        return result

    def _doubts_again(self, best: Settings, result: CrossFit, wrong: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Which pairs look wrong by embeddings of the chosen kind, and whether weights against them help there."""
        again = probabilities(result.za, result.zb, self.folds, self.seed)
        if best.method in TRAINED or not (again > 0).any():
            return (wrong if again.isnan().all() else again), weights
        right = weights_of(again)
        examples = replace(self.examples, weights=right)
        weighted = crossfit(examples, self.folds, _brief(best), self.seed)
        return again, right if score(weighted.ranks, right) > score(result.ranks, right) else weights

    def _teacher(self, start: Settings, *, audited: bool) -> tuple[Settings, Tensor, Tensor]:
        """The ridge of the closed form that teaches, which pairs look wrong, and whether weights against them help."""
        even = self.examples.weights
        base, result, _ = self._best_ridge(start, even, even)
        if not audited:
            return base, torch.full_like(even, math.nan), even
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
            result = crossfit(
                examples,
                self.folds,
                replace(settings, method="cca" if start.closed == "matching" else start.closed),
                self.seed,
            )
            results.append((settings, result, score(result.ranks, right)))
        return max(results, key=lambda each: each[2])
