"""`gcalign.audit`: which of my pairs are wrong?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcalign.auditing.calibration import calibrated, p_values, separation, share_of
from gcalign.auditing.embeddings import Embeddings, Pairs, as_embeddings
from gcalign.auditing.fits import Fit, Neighbours, Potentials, best_others, cosine, csls, softmax
from gcalign.auditing.nulls import Paired
from gcalign.auditing.plans import plan, sizes, solved
from gcalign.auditing.result import Audit, joined
from gcalign.errors import count, one_of, positive

SCORES = ("plan", "cosine", "csls", "softmax", "neighbours")
LEAST_PAIRS = 10
SAMPLE = 4096  # pairs from which ε is chosen
RELATIVE = (0.06, 0.12, 0.25, 0.5)  # candidates for ε, in units of the spread of similarities
SMALLEST = 1e-3  # ε that float32 can take


def audit(
    a: Any,
    b: Any,
    *,
    score: str = "plan",
    eps: float | None = None,
    relax: float = math.inf,
    batch: int | None = None,
    passes: int | None = None,
    folds: Any = None,
    seed: int = 0,
    progress: bool = False,
) -> Audit:
    """Find mismatched pairs: rank paired embeddings by how badly they fit, without labels.

    The suspicion of pair i is s_i = −log P_ii of the transport plan between all a and all b. In the plan every item
    has the same mass to give, so popular items (hubs) cannot fit everybody. ε is chosen such that the pairs are best
    separated from near misses: items paired with a neighbour of their partner.

    The embeddings must not come from a model that was trained on these very pairs: it has learnt the mismatches by
    heart. Use a pretrained model, or cross-fit: embed each part of the pairs with a model trained on the other parts.
    `gcalign audit run=…` does so.

    Args:
        a, b: embeddings [n, D], tensors or numpy arrays; row i of both is pair i. They need not be normalised. Large
            memory-mapped arrays stay on disk.
        score: "plan", or what it is compared with: "cosine", "csls", "softmax" (both ways), "neighbours" (LEMoN).
        eps: ε of the plan or the softmax; None chooses it.
        relax: λ of both marginals, in units of the spread of similarities. inf is the balanced plan, the best choice if
            wrong pairs are shuffled. Where wrong partners come from elsewhere, so that right ones are missing, 1.0 is
            better.
        batch: pairs that are solved at once. None: all, up to 8,192 pairs; more in batches of 4,096 and two passes over
            all similarities; above 200,000 pairs in batches of 16,384 without passes.
        passes: how often all similarities are computed after the batches.
        folds: the fold of each pair [n], whole numbers, if each fold was embedded by a model of its own. Pairs are then
            compared only within their fold. Folds should be about equally large.
        seed: of the re-paired items and the batches.
        progress: show progress bars.

    Returns:
        An `Audit`: suspicion of each pair, expected share of mismatches, suggested threshold, weights.

    Raises:
        TypeError, ValueError: if a and b are not finite matrices of the same shape, or an option is out of range.

    Example:
        >>> import torch, gcalign
        >>> generator = torch.Generator().manual_seed(0)
        >>> a = torch.randn(200, 16, generator=generator)
        >>> b = a + 0.3 * torch.randn(200, 16, generator=generator)
        >>> b[:20] = b[:20].roll(1, 0)
        >>> audit = gcalign.audit(a, b)
        >>> round(audit.share, 1)
        0.1
        >>> int(audit.other[1]), bool(audit.flagged[1]), bool(audit.flagged[100])
        (2, True, False)
    """
    one_of("score", score, SCORES)
    if eps is not None:
        positive("eps", eps, "leave it out to have it chosen")
    positive("relax", relax, "inf is the balanced plan", infinite=True)
    if batch is not None:
        count("batch", batch, "pairs that are solved at once; leave it out to have it chosen", least=LEAST_PAIRS)
    if passes is not None:
        count("passes", passes, "0 leaves the plans of the batches as they are", least=0)
    options = Options(score, eps, relax, batch, passes, progress)
    generator = torch.Generator().manual_seed(count("seed", seed, "0 is usual", least=0))
    with torch.no_grad():
        x, y = as_embeddings(a, b, LEAST_PAIRS)
        if folds is None:
            paired = Paired.of(x, y, generator)
            return _audited(paired, options, _relative([paired], options, generator), generator)
        parts = _parts(folds, len(x), x.device)
        each = [Paired.of(x.take(part), y.take(part), generator) for part in parts]
        # one ε for all folds, relative to the spread of each, so that suspicions can be compared
        relative = _relative(each, options, generator)
        audits = [_audited(paired, options, relative, generator) for paired in each]
        return joined([part.cpu() for part in parts], audits)


@dataclass(frozen=True)
class Options:
    """How to audit, checked."""

    score: str
    eps: float | None
    relax: float
    batch: int | None
    passes: int | None
    progress: bool


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


def _relative(each: Sequence[Paired], options: Options, generator: torch.Generator) -> float:
    """ε in units of the spread: the candidate that tells pairs best from near misses, on a sample of each fold."""
    if options.eps is not None or options.score not in ("plan", "softmax"):
        return math.nan
    told = dict.fromkeys(RELATIVE, 0.0)
    for paired in each:
        some = paired.sample(SAMPLE, generator)
        x, y = some.a, some.b
        cosines = x.rows(slice(None)) @ y.rows(slice(None)).to(x.device).T
        for relative in RELATIVE:
            eps = _absolute(relative, some)
            if options.score == "plan":
                fit = Potentials(x, y, 1 / eps, *solved(cosines, eps, options.relax * some.spread))
            else:
                fit = softmax(x, y, eps)
            told[relative] += separation(fit.of(some.pairs), fit.of(some.near))
    return max(told, key=lambda c: told[c])


def _absolute(relative: float, paired: Paired) -> float:
    return max(relative * paired.spread, SMALLEST)


def _audited(paired: Paired, options: Options, relative: float, generator: torch.Generator) -> Audit:
    """The audit of pairs that were embedded by one model."""
    a, b = paired.a, paired.b
    settings: dict[str, Any] = {}
    if options.score in ("plan", "softmax"):
        settings["eps"] = _absolute(relative, paired) if options.eps is None else options.eps
    label = f"{options.score}, all pairs" if options.progress else None
    fit: Fit
    if options.score == "plan":
        batch, passes = sizes(len(a), options.batch, options.passes)
        lam = options.relax * paired.spread
        work: dict[str, Any] = {"batch": batch, "passes": passes}
        fit, other = plan(a, b, settings["eps"], lam, **work, generator=generator, progress=options.progress)
        settings |= {"relax": lam if math.isfinite(lam) else "none", **work}
    else:
        fit = _rival(options.score, a, b, settings.get("eps", math.nan), label)
        other = best_others(fit if isinstance(fit, Potentials) else cosine(a, b), label)
    own = fit.of(paired.pairs)
    expected = calibrated(own, fit.of(paired.random))
    return Audit(
        suspicion=(-own).cpu(),
        similarity=paired.pairs.cosine.cpu(),
        other=other.cpu(),
        other_similarity=Pairs.of(a, b, paired.pairs.i, other).cosine.cpu(),
        probability=expected.probability.cpu(),
        share=expected.share,
        share_at_most=max(expected.share, share_of(p_values(own, fit.of(paired.near)))),
        auroc=expected.auroc,
        score=options.score,
        settings=settings,
    )


def _rival(score: str, a: Embeddings, b: Embeddings, eps: float, label: str | None) -> Fit:
    """What the plan is compared with."""
    if score == "softmax":
        return softmax(a, b, eps, label)
    if score == "neighbours":
        return Neighbours(a, b)
    return csls(a, b, label=label) if score == "csls" else cosine(a, b)
