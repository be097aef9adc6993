"""What an audit gives: a number for each pair, and what is expected of all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gcalign.auditing.calibration import expected_auroc, monotone
from gcalign.auditing.trust import UNRELATED

LEAST = 1e-3  # weight of a pair that is surely wrong: weights of a criterion must be > 0
CUT = 0.5  # probability from which a pair is flagged
STANDS_OUT = 0.25  # probability from which it is a suspect


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """Pairs with their suspicion, and the expected share of mismatches. `gcalign.audit(a, b)` returns one.

    All tensors are on the CPU and in the order of the pairs. `print(audit)` shows the summary and the worst pairs;
    `pandas.DataFrame(audit.table())` is the ranking.

    Attributes:
        suspicion: how badly each pair fits [n]; higher is worse. For the plan it is −½ log P(b|a) P(a|b), the mean of
            two plans, with ε and half of it.
        similarity: cosine of each pair [n].
        other: for each a_i the other b_j that fits best [n], an index of a pair.
        other_similarity: its cosine with a_i [n].
        probability: that the pair is a mismatch [n]; it never falls with suspicion. It is at most 0.4 for pairs that
            stand out without being evidently wrong: right pairs that are hard to embed do so, too.
        share: expected share of mismatches, the mean of the probabilities; nan if there are warnings.
        share_at_least: the share of pairs that evidently fit no better than random ones or are surely exchanged with a
            neighbour, less its sampling error.
        share_at_most: the share of the plan's mass that is not on the pairs, or of pairs beyond a symmetric bulk, with
            the sampling error. It assumes nothing about the mismatches: some may be so near that no score finds them.
        auroc: expected area under the ROC curve of the suspicion, in [0.5, 1], if the probabilities hold; without
            mismatches, that for true pairs against random ones. Near 0.5 nothing here can be relied on.
        score: the score that was used, "plan" unless another was asked for.
        settings: how it was computed: ε, size of batches, passes.
        warnings: why the audit cannot tell which pairs are wrong, with value, rule and remedy. If there is one, no pair
            is flagged and all probabilities are 0; the ranking remains.
        weights: 1 − probability, at least 0.001 [n]: `criterion(z1, z2, weights=w)` takes them.

    Example:
        >>> import torch, gcalign
        >>> generator = torch.Generator().manual_seed(0)
        >>> a = torch.randn(200, 16, generator=generator)
        >>> b = a + 0.3 * torch.randn(200, 16, generator=generator)
        >>> b[:20] = b[:20].roll(1, 0)
        >>> audit = gcalign.audit(a, b)
        >>> sorted(audit.ranking[:20].tolist()) == list(range(20))
        True
        >>> bool(audit.weights[:20].max() < audit.weights[20:].min())
        True
    """

    suspicion: Tensor
    similarity: Tensor
    other: Tensor
    other_similarity: Tensor
    probability: Tensor
    share: float
    share_at_least: float
    share_at_most: float
    auroc: float
    score: str
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.suspicion)

    @cached_property
    def ranking(self) -> Tensor:  # [n]
        """Pairs from the most to the least suspicious."""
        return self.suspicion.argsort(descending=True, stable=True)

    @property
    def weights(self) -> Tensor:  # [n]
        """1 − probability, at least 0.001: what `criterion(z1, z2, weights=w)` takes."""
        return (1 - self.probability).clamp(min=LEAST)

    @cached_property
    def threshold(self) -> float:
        """Suspicion from which a pair is more likely wrong than right; inf if no pair is."""
        wrong = self.suspicion[self.flagged]
        return float(wrong.min()) if len(wrong) else math.inf

    @property
    def flagged(self) -> Tensor:  # [n] bool
        """Pairs that are more likely wrong than right: those at or above the suggested threshold."""
        return self.probability >= CUT

    @property
    def suspects(self) -> Tensor:  # [n] bool
        """Pairs that stand out, though the audit cannot tell whether they are wrong: look at them."""
        return (self.probability >= STANDS_OUT) & ~self.flagged

    @property
    def unrelated(self) -> bool:
        """Whether the two sides do not seem to be embeddings in one space."""
        return any(UNRELATED in warning for warning in self.warnings)

    @property
    def precision(self) -> float:
        """Expected share of mismatches among the flagged pairs; nan if there are none."""
        chosen = self.probability[self.flagged]
        return float(chosen.double().mean()) if len(chosen) else math.nan

    def precision_at(self, k: int) -> float:
        """Expected share of mismatches among the k most suspicious pairs."""
        return float(self.probability[self.ranking[:k]].double().mean())

    def table(self) -> dict[str, Any]:
        """Columns of the ranking as numpy arrays, worst pair first, for pandas, pyarrow or polars.

        `expected_precision` of a row is the expected share of mismatches among this pair and all above it.
        """
        order = self.ranking
        p = self.probability[order].double()
        columns = {
            "pair": order,
            "suspicion": self.suspicion[order],
            "probability": p,
            "similarity": self.similarity[order],
            "other": self.other[order],
            "other_similarity": self.other_similarity[order],
            "expected_precision": p.cumsum(0) / torch.arange(1, len(p) + 1),
            "flagged": self.flagged[order],
            "weight": self.weights[order],
        }
        return {name: values.numpy() for name, values in columns.items()}

    def summary(self) -> dict[str, Any]:
        """What is expected of all pairs, as plain numbers; None where there is none."""
        flagged = int(self.flagged.sum())
        return {
            "pairs": len(self),
            "score": self.score,
            "share": None if math.isnan(self.share) else self.share,
            "share_at_least": self.share_at_least,
            "share_at_most": self.share_at_most,
            "auroc": self.auroc,
            "threshold": self.threshold if flagged else None,
            "flagged": flagged,
            "expected_precision": self.precision if flagged else None,
            "suspects": int(self.suspects.sum()),
            "warnings": list(self.warnings),
            **self.settings,
        }

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.settings.items())
        flagged = int(self.flagged.sum())
        lines = [f"Audit of {len(self):,} pairs by {self.score} ({settings})"]
        if self.warnings:
            lines += [f"cannot tell which pairs are wrong: {warning}" for warning in self.warnings]
        else:
            lines += [
                f"expected share of mismatches: {self.share:.1%}, "
                f"between {self.share_at_least:.1%} and {self.share_at_most:.1%}",
                f"expected AUROC: {self.auroc:.3f}",
            ]
        if flagged:
            lines.append(
                f"suggested threshold: suspicion ≥ {self.threshold:.4g}, {flagged:,} pairs, "
                f"expected precision {self.precision:.2f}"
            )
        else:
            lines.append("suggested threshold: none, no pair is clearly wrong")
        if suspects := int(self.suspects.sum()):
            lines.append(f"suspects: {suspects:,}, which stand out but may be right: check them by hand")
        lines.append("    pair  suspicion  probability  similarity  best other  its similarity")
        return "\n".join([*lines, *map(self._line, self.ranking[:5].tolist())])

    def _line(self, k: int) -> str:
        """A pair in the table that is printed."""
        suspicion, probability, own, other = (
            float(x[k]) for x in (self.suspicion, self.probability, self.similarity, self.other_similarity)
        )
        return f"{k:8d}  {suspicion:9.3f}  {probability:11.3f}  {own:10.3f}  {int(self.other[k]):10d}  {other:14.3f}"


def fitted(audit: Audit) -> Audit:
    """The same audit, which says that encoders were trained for it."""
    return replace(audit, settings={"encoders": "trained here, cross-fitted", **audit.settings})


def doubtful(audit: Audit) -> Audit:
    """The same ranking, without what an audit with warnings cannot tell."""
    nothing = torch.zeros_like(audit.probability)
    return replace(audit, probability=nothing, share=math.nan, share_at_least=0.0, share_at_most=1.0)


def joined(parts: Sequence[Tensor], audits: Sequence[Audit]) -> Audit:
    """One audit from those of the folds, given which pairs each fold has."""
    n, first = sum(map(len, parts)), audits[0]
    names = ("suspicion", "similarity", "other", "other_similarity", "probability")
    columns: dict[str, Any] = {name: torch.empty(n, dtype=getattr(first, name).dtype) for name in names}
    for part, audit in zip(parts, audits, strict=True):
        for name in names:
            columns[name][part] = part[audit.other] if name == "other" else getattr(audit, name)

    def mean(name: str) -> float:
        return sum(len(audit) * float(getattr(audit, name)) for audit in audits) / n

    columns["probability"] = probability = monotone(columns["probability"], columns["suspicion"])
    auroc = expected_auroc(probability, columns["suspicion"])
    settings = {"folds": len(parts), **{key: _common([x.settings[key] for x in audits]) for key in first.settings}}
    result = Audit(
        **columns,
        share=mean("share"),
        share_at_least=mean("share_at_least"),
        share_at_most=mean("share_at_most"),
        auroc=mean("auroc") if math.isnan(auroc) else auroc,
        score=first.score,
        settings=settings,
        warnings=tuple(dict.fromkeys(warning for audit in audits for warning in audit.warnings)),
    )
    return doubtful(result) if result.warnings else result


def _common(values: Sequence[Any]) -> Any:
    """The value that all have, or their mean."""
    return values[0] if len(set(values)) == 1 else sum(values) / len(values)
