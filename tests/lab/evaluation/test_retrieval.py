"""Retrieval between two sides, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gcalign.lab.evaluation.retrieval import Gallery, nearest, ranks_of, recall


def unit(*values):
    return torch.nn.functional.normalize(torch.tensor(values, dtype=torch.float64), dim=1)


def test_recall_is_that_of_a_plain_loop():
    generator = torch.Generator().manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(30, 4, generator=generator, dtype=torch.float64), dim=1)
    y = torch.nn.functional.normalize(z + 0.7 * torch.randn(30, 4, generator=generator, dtype=torch.float64), dim=1)
    owner = torch.arange(30)
    code = torch.arange(30)
    code[7] = 3  # the same text twice: right for both pairs
    ranks = []
    for i in range(30):
        right = [j for j in range(30) if code[j] == code[i]]
        best = max(float(z[i] @ y[j]) for j in right)
        ranks.append(sum(float(z[i] @ y[j]) > best for j in range(30) if j not in right))
    queries, gallery = Gallery(z, owner, torch.arange(30)), Gallery(y, owner, code)
    assert ranks_of(queries, gallery).tolist() == ranks
    assert recall(queries, gallery, (1, 5)) == {k: pytest.approx(np.mean([r < k for r in ranks])) for k in (1, 5)}


def test_a_collapsed_encoder_retrieves_by_chance():
    z = unit(*[[1.0, 0.0]] * 40)
    side = Gallery(z, torch.arange(40), torch.arange(40))
    assert recall(side, side, (1, 10)) == {1: 0.0, 10: 0.0}  # every rank is the middle one
    assert set(ranks_of(side, side).tolist()) == {19.5}


def test_the_nearest_are_different_texts():
    gallery = Gallery(unit([1.0, 0.0], [1.0, 0.01], [0.0, 1.0]), torch.arange(3), torch.tensor([0, 0, 1]))
    query = Gallery(unit([1.0, 0.1]), torch.tensor([0]), torch.tensor([0]))
    assert nearest(query, gallery, 5)[1].tolist() == [[0, 2]]
