"""Which of the given pairs are wrong: an audit of embeddings that were fitted to other pairs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gcalign.auditing.pairs import audit_embeddings

LEAST_AUDITED = 20  # pairs of a fold
TRUSTED = 0.7  # expected AUROC from which the probabilities of an audit are used


def probabilities(za: Tensor, zb: Tensor, folds: Tensor, seed: int = 0) -> Tensor:  # [P]
    """The probability that each pair is wrong.

    Pair k must be embedded by heads that never saw it. Each fold has heads of its own, so it is audited by itself. NaN
    where a fold is too small, or its embeddings do not tell right pairs from wrong ones.
    """
    wrong = za.new_full((len(za),), math.nan)
    for fold in folds.unique():
        k = (folds == fold).nonzero().flatten()
        if len(k) < LEAST_AUDITED:
            continue
        result = audit_embeddings(za[k], zb[k], seed=seed)
        if result.auroc >= TRUSTED and not result.warnings:
            wrong[k] = result.probability.to(wrong)
    return wrong


def weights_of(wrong: Tensor) -> Tensor:  # [P]
    """The weight of each pair in a fit: how probably it is right, and at least a little; 1 where that is not known."""
    return torch.clamp(1 - wrong.nan_to_num(0.0), min=0.01)
