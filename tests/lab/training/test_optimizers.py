"""The learning rate at each step, and LARS against plain loops."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gcalign.lab.training.config import configured
from gcalign.lab.training.optimizers import LARS, lr_at


def test_schedules_start_warm_and_end_where_they_should():
    o = configured(["optimizer.lr=0.6", "optimizer.schedule=linear", "optimizer.warmup=0"]).optimizer
    assert lr_at(0, 100, o) == pytest.approx(0.6)
    assert lr_at(100, 100, o) == pytest.approx(0.6e-3)
    o = configured(["optimizer.lr=1", "optimizer.warmup=0.1"]).optimizer
    assert lr_at(0, 100, o) == pytest.approx(0.1)
    assert lr_at(9, 100, o) == pytest.approx(1)


def test_lars_is_what_plain_loops_give():
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1)).double()
    nn.init.zeros_(network[2].weight)  # has no norm, so it takes the gradient as it is
    lr, momentum, decay, trust = 0.3, 0.9, 0.1, 0.02
    optimizer = LARS(network.parameters(), lr=lr, momentum=momentum, weight_decay=decay, trust=trust)
    expected = [p.detach().clone().tolist() for p in network.parameters()]
    moving = [None] * len(expected)
    for _ in range(3):
        gradients = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in network.parameters()]
        for k, (p, gradient) in enumerate(zip(network.parameters(), gradients, strict=True)):
            p.grad = gradient.clone()
            w, g = flat(expected[k]), flat(gradient.tolist())
            if p.dim() > 1:
                g = [b + decay * a for a, b in zip(w, g, strict=True)]
                size, length = sum(a * a for a in w) ** 0.5, sum(b * b for b in g) ** 0.5
                g = [b * trust * size / length for b in g] if size and length else g
            moving[k] = g if moving[k] is None else [momentum * m + b for m, b in zip(moving[k], g, strict=True)]
            expected[k] = [a - lr * m for a, m in zip(w, moving[k], strict=True)]
        optimizer.step()
    for p, w in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach().flatten(), torch.tensor(w, dtype=torch.float64))


def flat(values):
    return [x for v in values for x in (v if isinstance(v, list) else [v])]
