"""The audit of paired embeddings: which pairs are wrong?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcalign.auditing.calibration import (
    GAP,
    SURE,
    SUSPECTED,
    exchanged_with_neighbours,
    expected_auroc,
    fitting_at_random,
    is_evident,
    monotone,
    outlying,
    without_tail,
)
from gcalign.auditing.embeddings import Embeddings, Pairs, as_embeddings
from gcalign.auditing.fits import Fit, Neighbours, Potentials, averaged, best_others, cosine, csls, margins, softmax
from gcalign.auditing.nulls import p_values
from gcalign.auditing.plans import SAMPLE, chosen_eps, neighbours, plan, sizes
from gcalign.auditing.result import Audit, doubtful, joined
from gcalign.auditing.trust import distinct, doubts
from gcalign.errors import count, one_of, positive

SCORES = ("plan", "cosine", "csls", "softmax", "neighbours")
LEAST_PAIRS = 10
MARGINS = 4096  # pairs among which the nearest others are looked for
SHARPER = 0.5  # the suspicion is the mean of two plans; the second has half of ε, so that the nearest count more
WIDER = 3.0  # a third plan, for exchanges with neighbours: errors of true pairs have heavy tails
CONCENTRATED = 0.4  # mass on the best partner from which the plan can tell neighbours apart


def audit_embeddings(
    a: Any,
    b: Any,
    *,
    score: str = "plan",
    eps: float | None = None,
    batch: int | None = None,
    passes: int | None = None,
    folds: Any = None,
    seed: int = 0,
    progress: bool = False,
) -> Audit:
    """The audit of embeddings in one space; `audit` has the arguments."""
    one_of("score", score, SCORES)
    if eps is not None:
        positive("eps", eps, "leave it out to have it chosen")
    if batch is not None:
        count("batch", batch, "pairs that are solved at once; leave it out to have it chosen", least=LEAST_PAIRS)
    if passes is not None:
        count("passes", passes, "0 leaves the plans of the batches as they are", least=0)
    generator = torch.Generator().manual_seed(count("seed", seed, "0 is usual", least=0))
    with torch.no_grad():
        x, y = as_embeddings(a, b, LEAST_PAIRS)
        parts = [torch.arange(len(x), device=x.device)] if folds is None else _parts(folds, len(x), x.device)
        each = [
            Paired.of(x, y, generator) if folds is None else Paired.of(x.take(p), y.take(p), generator) for p in parts
        ]
        if eps is None:  # one for all folds, so that suspicions can be compared
            eps = chosen_eps([paired.sample(SAMPLE, generator) for paired in each])
        sizes_of_folds = () if folds is None else tuple(map(len, parts))
        options = Options(score, eps, batch, passes, progress, sizes_of_folds)
        audits = [_audited(paired, options, generator) for paired in each]
        return audits[0] if folds is None else joined([part.cpu() for part in parts], audits)


@dataclass(frozen=True)
class Options:
    """How to audit, checked."""

    score: str
    eps: float
    batch: int | None
    passes: int | None
    progress: bool
    folds: tuple[int, ...]  # pairs of each


@dataclass(frozen=True)
class Paired:
    """Pairs that were embedded by one model, and which of them fit no better than random ones."""

    a: Embeddings
    b: Embeddings
    pairs: Pairs
    p: Tensor  # [n] p-values among random partners, of the items of the side that has fewer different ones
    share: float  # of pairs that fit no better than random ones
    random: Tensor  # [n] probability of each to be one of them

    @staticmethod
    def of(a: Embeddings, b: Embeddings, generator: torch.Generator) -> Paired:
        everyone = torch.arange(len(a), device=a.device)
        pairs = Pairs.of(a, b, everyone, everyone)
        p_a, p_b = p_values(a, b, pairs.cosine, generator)
        # one caption for many images: among the images for this caption its pairs are random, but the caption may be
        # popular or not with every image
        p = p_b if distinct(b) < distinct(a) else p_a
        return Paired(a, b, pairs, p, *fitting_at_random(p))

    def sample(self, size: int, generator: torch.Generator) -> tuple[Embeddings, Embeddings]:
        """Some of the pairs."""
        part = torch.randperm(len(self.a), generator=generator)[:size].to(self.a.device)
        return self.a.take(part), self.b.take(part)


def _parts(folds: Any, n: int, device: torch.device) -> list[Tensor]:
    """The pairs of each fold."""
    fold = torch.as_tensor(folds, device=device)
    if fold.shape != (n,) or fold.is_floating_point() or fold.is_complex():
        raise ValueError(f"folds of shape {tuple(fold.shape)} and {fold.dtype} must be [{n}], a whole number per pair")
    parts = [(fold == k).nonzero().flatten() for k in fold.unique()]
    for part in parts:
        if len(part) < LEAST_PAIRS:
            raise ValueError(
                f"fold {int(fold[part[0]])} has {len(part)} pairs; each is compared with the others of its fold, which "
                f"needs at least {LEAST_PAIRS}: use fewer folds"
            )
    return parts


def _audited(paired: Paired, options: Options, generator: torch.Generator) -> Audit:
    """The audit of pairs that were embedded by one model."""
    a, b, n = paired.a, paired.b, len(paired.a)
    batch, passes = sizes(n, options.batch, options.passes)
    work: dict[str, Any] = {"batch": batch, "passes": passes}
    (middle, other), (sharper, _), (wider, _) = (
        plan(a, b, factor * options.eps, batch=batch, passes=most, generator=generator, progress=options.progress)
        for factor, most in ((1.0, passes), (SHARPER, passes), (WIDER, min(passes, 1)))
    )
    fit: Fit = averaged([middle, sharper])
    settings: dict[str, Any] = {"eps": options.eps, **work}
    margin = margins(a, b, min(n, MARGINS), generator)
    exchanged, inside = _exchanged(paired, [middle, wider], other)
    if options.score != "plan":
        label = f"{options.score}, all pairs" if options.progress else None
        fit = _rival(options.score, a, b, options.eps, label)
        settings = {"eps": options.eps} if options.score == "softmax" else {}
        other = best_others(fit if isinstance(fit, Potentials) else cosine(a, b), label)
    suspicion = (-fit.of(paired.pairs)).cpu()
    apart, outliers = outlying(margin)
    kept = without_tail(paired.p)
    random = (paired.random * kept).clamp(max=1.0 if kept >= GAP else SUSPECTED)
    right = 1 - random
    raw = torch.maximum(random + right * exchanged, outliers)
    least = (kept * paired.share if kept >= GAP else 0.0) + float((right * exchanged * (exchanged > SURE)).mean())
    error = 2 * math.sqrt((least + 1 / n) / n)
    probability = monotone(raw.float().cpu(), suspicion)
    share = float(probability.double().mean())
    auroc = expected_auroc(probability, suspicion)
    result = Audit(
        suspicion=suspicion,
        similarity=paired.pairs.cosine.cpu(),
        other=other.cpu(),
        other_similarity=Pairs.of(a, b, paired.pairs.i, other).cosine.cpu(),
        probability=probability,
        share=share,
        share_at_least=max(0.0, min(share, least) - error),
        share_at_most=min(1.0, max(share, apart, 1 - float(((1 - paired.random) * inside).mean())) + error),
        auroc=max(0.5, 1 - float(paired.p.mean())) if math.isnan(auroc) else auroc,
        score=options.score,
        settings=settings,
        warnings=tuple(doubts(a, b, paired.p, options.folds)),
    )
    return doubtful(result) if result.warnings else result


def _exchanged(paired: Paired, plans: list[Potentials], other: Tensor) -> tuple[Tensor, Tensor]:
    """For each pair the probability that it was exchanged with a neighbour, and its own mass in the plan."""
    a, b, i = paired.a, paired.b, paired.pairs.i
    near_a, near_b = neighbours(a), neighbours(b)
    item = i.repeat_interleave(near_a.shape[1])
    near = Pairs.of(a, b, torch.cat([item, near_a.flatten()]), torch.cat([near_b.flatten(), item]))
    own = torch.stack([fit.of(paired.pairs).exp() for fit in plans], 1)
    each = torch.stack([fit.of(near).exp().view(2, len(a), -1).mean(0) for fit in plans], 1)  # [n, plans, neighbours]
    theirs = torch.stack([each[:, :, 0], each.mean(2)], 2)  # of the nearest alone, and of all
    best = plans[0].of(Pairs.of(a, b, i, other)).exp()
    right = 1 - paired.random
    concentrated = float((right * torch.maximum(own[:, 0], best)).sum() / right.sum().clamp(min=1e-9))
    exchanged, gain = exchanged_with_neighbours(own, theirs, right)
    if concentrated < CONCENTRATED or not is_evident(gain, len(a)):
        exchanged = torch.zeros_like(exchanged)
    return exchanged, own[:, 0].clamp(max=1.0).double()


def _rival(score: str, a: Embeddings, b: Embeddings, eps: float, label: str | None) -> Fit:
    """What the plan is compared with."""
    if score == "softmax":
        return softmax(a, b, eps, label)
    if score == "neighbours":
        return Neighbours(a, b)
    return csls(a, b, label=label) if score == "csls" else cosine(a, b)
