"""Subsets, splits and draws: balanced, complete, and the same whenever the seed is."""

from __future__ import annotations

import pytest
import torch

from gcalign.lab.data.splits import drawn, long_tailed, mislabelled, stratified


@pytest.mark.parametrize(("tail", "limit"), [(100.0, 500), (10.0, None), (1.0, 200)])
def test_a_long_tail_falls_geometrically_from_the_first_class_to_the_last(tail, limit):
    labels = torch.arange(10).repeat(300)
    chosen = long_tailed(labels, tail, limit, seed=0)
    sizes = torch.bincount(labels[chosen], minlength=10)
    first = limit / sum(tail ** (-k / 9) for k in range(10)) if limit else 300
    assert sizes.tolist() == [int(first * tail ** (-k / 9) + 1e-9) for k in range(10)]
    assert len(chosen.unique()) == len(chosen)
    assert torch.equal(chosen, long_tailed(labels, tail, limit, seed=0))
    assert not torch.equal(chosen, long_tailed(labels, tail, limit, seed=1)) or limit is None


def test_a_long_tail_needs_as_many_images_as_its_first_class_has():
    most = int(300 * sum(100 ** (-k / 9) for k in range(10)))
    with pytest.raises(ValueError, match=f"limit=900 .*{most} .*tail=100"):
        long_tailed(torch.arange(10).repeat(300), 100.0, 900, seed=0)


def test_a_share_of_labels_becomes_any_other_class():
    labels = torch.arange(5).repeat(2000)
    wrong = mislabelled(labels, 0.4, seed=0)
    changed = wrong != labels
    assert int(changed.sum()) == 4000
    counts = torch.stack([torch.bincount((wrong - labels)[changed & (labels == k)] % 5, minlength=5) for k in range(5)])
    assert (counts[:, 0] == 0).all()
    assert (counts[:, 1:] / counts.sum(1, keepdim=True)).sub(0.25).abs().max() < 0.05
    assert torch.equal(mislabelled(labels, 0.0, seed=0), labels)
    assert torch.equal(mislabelled(labels * 7, 0.4, seed=0), wrong * 7)  # whatever the codes
    with pytest.raises(ValueError, match="cannot be wrong where all are"):
        mislabelled(torch.ones(10).long(), 0.4, seed=0)


def test_a_split_is_stratified_complete_and_from_the_seed():
    y = torch.tensor([0] * 40 + [1] * 20 + [2] * 2)
    rest, part = stratified(y, 0.1, seed=5)
    assert torch.equal(torch.cat([rest, part]).sort().values, torch.arange(62))
    assert torch.bincount(y[part]).tolist() == [4, 2, 1]
    assert torch.equal(part, stratified(y, 0.1, seed=5)[1])
    assert not torch.equal(part, stratified(y, 0.1, seed=6)[1])


def test_a_lone_sample_of_a_class_is_never_held_out():
    y = torch.tensor([0] * 10 + [1])
    rest, part = stratified(y, 0.3, seed=0)
    assert 10 in rest
    assert len(part) == 3
    with pytest.raises(ValueError, match="leave none to hold out"):
        stratified(torch.arange(4), 0.5, seed=0)
    for share in (0.0, 1.0, 1.5):
        with pytest.raises(ValueError, match="between 0 and 1"):
            stratified(y, share, seed=0)


def test_a_draw_is_even_over_the_classes():
    y = torch.arange(90) % 3
    assert torch.bincount(y[drawn(y, shots=4, total=None, seed=0)]).tolist() == [4, 4, 4]
    assert sorted(torch.bincount(y[drawn(y, shots=None, total=8, seed=0)]).tolist()) == [2, 3, 3]
