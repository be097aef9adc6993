"""`gcalign.audit`: which of my pairs are wrong?"""

from __future__ import annotations

from typing import Any

from gcalign.auditing.columns import column, is_learnable, is_matrix, items, listed
from gcalign.auditing.crossfit import crossfitted, folds_of
from gcalign.auditing.pairs import audit_embeddings
from gcalign.auditing.result import Audit, fitted
from gcalign.errors import one_of

LEAST_FITTED = 200  # pairs of unrelated spaces from which a common one is learnt


def audit(
    a: Any,
    b: Any,
    second: str | None = None,
    *,
    fit: str = "auto",
    score: str = "plan",
    eps: float | None = None,
    batch: int | None = None,
    passes: int | None = None,
    folds: Any = None,
    seed: int = 0,
    progress: bool = False,
) -> Audit:
    """Find mismatched pairs: rank pairs by how badly they fit, without labels.

    `audit(a, b)` takes embeddings; `audit(frame, "english", "romanian")` two columns of a table: texts, images or lists
    of numbers. Embeddings of one space are audited as they are. For anything else, small encoders are trained first:
    the pairs are divided into three folds, and each fold is embedded by encoders that were trained on the others.

    The suspicion of a pair is −½ log P(b|a) P(a|b) of the transport plan between all a and all b, the mean of two plans
    with ε and ε/2. Popular items (hubs) cannot fit everybody in a plan. ε is that at which the plan explains the pairs
    best, KL(I‖P_ε), with a share for the wrong ones.

    Embeddings must not come from a model that was trained on these very pairs: it has learnt the mismatches by heart,
    and the audit cannot notice that. Use a pretrained model, or cross-fit as above; `gcalign audit run=…` does so.

    Args:
        a, b: embeddings [n, D], tensors or numpy arrays; row i of both is pair i. They need not be normalised. Large
            memory-mapped arrays stay on disk. Or lists of texts; or a table (pandas, polars, pyarrow, datasets, a dict)
            and the name of its first column.
        second: the name of the second column, if a is a table.
        fit: "auto" trains encoders where the sides are not embeddings of one space; "never" refuses them.
        score: "plan", or what it is compared with: "cosine", "csls", "softmax" (both ways), "neighbours" (LEMoN).
        eps: ε of the plan or the softmax; None chooses it.
        batch: pairs that are solved at once. None: all, up to 8,192 pairs; more in batches of 4,096 and two passes over
            all similarities; above 200,000 pairs in batches of 16,384 without passes.
        passes: how often all similarities are computed after the batches.
        folds: the fold of each pair [n], whole numbers, if each fold was embedded by a model of its own. Pairs are then
            compared only within their fold. Folds should be about equally large.
        seed: of the encoders, the re-paired items and the batches.
        progress: show progress bars.

    Returns:
        An `Audit`: suspicion of each pair, expected share of mismatches, suggested threshold, weights; or, in
        `warnings`, why it cannot tell.

    Raises:
        TypeError, ValueError: if a side is missing or of a wrong kind, or an option is out of range.

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
    one_of("fit", fit, ("auto", "never"))
    if isinstance(b, str):
        if second is None:
            raise TypeError(f"a table needs two columns; call gcalign.audit(frame, {b!r}, 'the other column')")
        a, b = column(a, b), column(a, second)
    elif second is not None:
        raise TypeError(f"second={second!r} names a column of a table; call gcalign.audit(a, b) for embeddings")
    a, b = (listed(name, side) if hasattr(side, "to_list") else side for name, side in (("a", a), ("b", b)))
    options: dict[str, Any] = {
        "score": score, "eps": eps, "batch": batch, "passes": passes, "seed": seed, "progress": progress,
    }  # fmt: skip
    one_space = is_matrix(a) and is_matrix(b) and a.shape[1] == b.shape[1]
    if one_space or not (is_learnable(a) and is_learnable(b)):  # what is wrong with the latter, the audit says
        result = audit_embeddings(a, b, folds=folds, **options)
        learnt = fit == "auto" and folds is None and result.unrelated and len(result.warnings) == 1
        if not learnt or len(result) < LEAST_FITTED:
            return result
    elif fit == "never" or folds is not None:
        why = "fit='never'" if fit == "never" else "folds="
        raise ValueError(f"{why} is for embeddings of one space [n, D], and these sides need encoders; leave it out")
    if len(a) != len(b):
        raise ValueError(f"the sides have {len(a)} and {len(b)} items; item i of both must be one pair")
    fold = folds_of(a, b, seed=seed)
    x, y = crossfitted(items(a), items(b), fold, seed=seed, progress=progress)
    return fitted(audit_embeddings(x, y, folds=fold, **options))
