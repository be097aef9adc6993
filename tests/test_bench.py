"""The baseline of `gcalign bench data` does what our C0 does, and ratios come from one run."""

from __future__ import annotations

import torch

from gcalign.bench import data
from gcalign.bench.pillow import PillowViews
from gcalign.data.views import make_views


def test_pillow_and_ours_are_the_same_c0():
    generator = torch.Generator().manual_seed(0)
    small = torch.randint(0, 256, (64, 3, 4, 4), generator=generator).float()
    pixels = torch.nn.functional.interpolate(small, size=32, mode="bilinear").to(torch.uint8)
    one_by_one = PillowViews(pixels, 512)
    theirs = torch.stack([one_by_one[k] for k in range(512)])
    ours = torch.cat([make_views("C0", data.SHAPE, data.MEAN, data.STD)(pixels, seed) for seed in range(8)])
    assert theirs.shape == ours.shape
    assert abs(theirs.mean() - ours.mean()) < 0.1
    assert abs(theirs.std() - ours.std()) < 0.1
    grey = [(x[:, 0] - x[:, 1]).abs().amax((1, 2)).lt(1e-4).float().mean() for x in (theirs, ours)]
    assert all(0.1 < share < 0.3 for share in grey)


def test_the_median_leaves_out_the_first_and_the_odd_one():
    clock = iter([0, 1, 1, 2, 2, 99])
    calls = []
    original = data.time.perf_counter
    data.time.perf_counter = lambda: next(clock)
    try:
        assert data.median_seconds(lambda: calls.append(1), 3) == 1
    finally:
        data.time.perf_counter = original
    assert len(calls) == 4
