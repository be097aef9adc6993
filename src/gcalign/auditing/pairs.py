"""`gcalign.audit`: which of my pairs are wrong?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcalign.auditing.calibration import calibrated, p_values, separation, share_of
from gcalign.auditing.embeddings import Embeddings, Pairs, as_embeddings, nearest
from gcalign.auditing.fits import Fit, Neighbours, Potentials, best_others, cosine, csls, softmax
from gcalign.auditing.plans import plan, sizes, solved
from gcalign.auditing.result import Audit, Scale, joined
from gcalign.errors import count, one_of, positive

SCORES = ("plan", "cosine", "csls", "softmax", "neighbours")
LEAST_PAIRS = 10
SAMPLE = 4096  # pairs from which ε is chosen, and for which near partners are looked up
POOL = 100_000  # items among which near partners are looked up
NULL = 50_000  # re-paired items
NEAREST = 5  # a near partner is drawn from so many
RELATIVE = (0.06, 0.12, 0.25, 0.5)  # candidates for ε, in units of the spread of similarities


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

    The score is −log P_ii of the transport plan between all a and all b. It asks whether a_i and b_i choose each other
    when every item has one partner to give, so popular items (hubs) do not look right with everybody. ε is chosen such
    that the pairs are told best from near misses: items paired with a neighbour of their partner.

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
            compared only within their fold, and suspicions are in units of the spread of re-paired items there.
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
    options = Options(score, eps, relax, batch, passes, seed, progress)
    with torch.no_grad():
        x, y = as_embeddings(a, b, LEAST_PAIRS)
        if folds is None:
            return _audited(x, y, options)[0]
        parts = _parts(folds, len(x), x.device)
        return joined([(part.cpu(), *_audited(x.take(part), y.take(part), options)) for part in parts])


@dataclass(frozen=True)
class Options:
    """How to audit, checked."""

    score: str
    eps: float | None
    relax: float
    batch: int | None
    passes: int | None
    seed: int
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


def _audited(a: Embeddings, b: Embeddings, options: Options) -> tuple[Audit, Scale]:
    """The audit of pairs that were embedded by one model, and the scale of its suspicions."""
    score, eps, progress = options.score, options.eps, options.progress
    generator = torch.Generator().manual_seed(options.seed)
    everyone = torch.arange(len(a), device=a.device)
    pairs = Pairs.of(a, b, everyone, everyone)
    repaired = Pairs.of(a, b, *_repaired(len(a), generator, a.device))
    spread = float(repaired.cosine.std())
    if spread < 1e-6:
        raise ValueError(
            f"similarities of re-paired items have a standard deviation of {spread:.1e}: all embeddings point the same "
            "way; audit embeddings that differ, e.g. after subtracting their mean"
        )
    settings: dict[str, Any] = {}
    lam = options.relax * spread
    if score in ("plan", "softmax"):
        eps = _chosen_eps(a, b, score, spread, lam, generator) if eps is None else eps
        settings["eps"] = eps
    label = f"{score}, all pairs" if progress else None
    fit: Fit
    if score == "plan":
        assert eps is not None
        batch, passes = sizes(len(a), options.batch, options.passes)
        settings |= {"relax": lam if math.isfinite(lam) else "none", "batch": batch, "passes": passes}
        fit, other = plan(a, b, eps, lam, batch=batch, passes=passes, generator=generator, progress=progress)
    else:
        fit = _rival(score, a, b, eps, label)
        other = best_others(fit if isinstance(fit, Potentials) else cosine(a, b), label)
    own = fit.of(pairs)
    null = fit.of(repaired)
    found = calibrated(own, null)
    near = p_values(own, fit.of(_near_misses(a, b, generator)))
    audited = Audit(
        suspicion=(-own).cpu(),
        similarity=pairs.cosine.cpu(),
        other=other.cpu(),
        other_similarity=Pairs.of(a, b, everyone, other).cosine.cpu(),
        probability=found.probability.cpu(),
        share=found.share,
        share_at_most=max(found.share, share_of(near)),
        auroc=found.auroc,
        score=score,
        settings=settings,
    )
    return audited, Scale(-float(null.mean()), float(null.std()))


def _rival(score: str, a: Embeddings, b: Embeddings, eps: float | None, label: str | None) -> Fit:
    if score == "softmax":
        assert eps is not None
        return softmax(a, b, eps, label)
    if score == "neighbours":
        return Neighbours(a, b)
    return csls(a, b, label=label) if score == "csls" else cosine(a, b)


def _chosen_eps(
    a: Embeddings, b: Embeddings, score: str, spread: float, lam: float, generator: torch.Generator
) -> float:
    """The candidate that tells pairs best from near misses, on a sample of the pairs."""
    part = torch.randperm(len(a), generator=generator)[:SAMPLE].to(a.device)
    x, y = a.take(part), b.take(part)
    everyone = torch.arange(len(part), device=a.device)
    own, near = Pairs.of(x, y, everyone, everyone), _near_misses(x, y, generator)
    cosines = x.rows(slice(None)) @ y.rows(slice(None)).to(a.device).T

    def told(eps: float) -> float:
        fit = Potentials(x, y, 1 / eps, *solved(cosines, eps, lam)) if score == "plan" else softmax(x, y, eps)
        return separation(fit.of(own), fit.of(near))

    return max((max(c * spread, 1e-3) for c in RELATIVE), key=told)


def _repaired(n: int, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random pairs (i, j), i ≠ j: as mismatched as pairs can be."""
    i = torch.arange(n).repeat(max(1, min(50, NULL // n)))
    if len(i) > NULL:
        i = torch.randperm(n, generator=generator)[:NULL]
    j = (i + torch.randint(1, n, (len(i),), generator=generator)) % n
    return i.to(device), j.to(device)


def _near_misses(a: Embeddings, b: Embeddings, generator: torch.Generator) -> Pairs:
    """Pairs in which one item is exchanged for one of its nearest on its own side: b in one half, a in the other."""
    n = len(a)
    asked = torch.randperm(n, generator=generator)[:SAMPLE].to(a.device)
    pool = torch.randperm(n, generator=generator)[:POOL].to(a.device)
    k = min(NEAREST, n - 1)
    other_a, other_b = (nearest(x, asked, k, pool).flatten() for x in (a, b))
    kept = asked.repeat_interleave(k)
    return Pairs.of(a, b, torch.cat([kept, other_a]), torch.cat([other_b, kept]))
