"""Batches follow from the seed and the step alone, are what they were in earlier versions, and reach the criterion."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gcalign.lab.data.sides import views_of
from gcalign.lab.data.views import make_views
from gcalign.lab.training.config import configured
from gcalign.lab.training.module import Training
from gcalign.lab.training.samples import columns_of
from gcalign.lab.training.stream import Stream, mismatched, seed_of
from gcalign.lab.training.train import train
from small_runs import config_for, pictures


def exchanges(partners):
    return {k: p for k, p in enumerate(partners.tolist()) if k != p}


def test_the_batches_of_images_stay_what_they_were():
    stream = Stream(views_of(pictures()), batch_size=8, epochs=2, seed=3, noise=0.5)
    assert seed_of(3, "order", 0) == 34691100857565564
    assert stream.indices(0).tolist() == [28, 29, 1, 5, 13, 7, 20, 34]
    assert stream.indices(5).tolist() == [2, 5, 32, 12, 25, 0, 15, 31]
    assert stream.partners(stream.indices(0), 0).tolist() == [34, 29, 1, 28, 5, 7, 20, 13]
    assert stream[0].seeds == (15087003856658879, 16902957741432009)
    fixed = mismatched(views_of(pictures()), 0.2, 3)
    assert exchanges(fixed) == {2: 14, 3: 26, 7: 2, 12: 7, 14: 19, 19: 23, 23: 3, 26: 12}


def test_the_batches_of_columns_stay_what_they_were():
    samples = columns_of(configured(["data=shapes"]).data)
    assert samples.rows("test")[:6].tolist() == [24, 25, 26, 27, 28, 29]
    fixed = mismatched(samples, 0.05, 3)
    assert exchanges(fixed) == {78: 207, 94: 227, 116: 78, 123: 219, 207: 223, 219: 94, 223: 123, 227: 116}
    batch = Stream(samples, batch_size=4, epochs=1, seed=3)[1]
    assert batch.index.tolist() == [187, 186, 94, 121]
    assert batch.items[1][0] == "a small black square, right"


def test_only_training_pairs_are_drawn_and_mismatched():
    samples = columns_of(configured(["data=shapes"]).data)
    stream = Stream(samples, batch_size=8, epochs=1, seed=0, noise=0.5)
    seen = torch.cat([stream.indices(step) for step in range(len(stream))])
    train = samples.rows("train")
    assert set(seen.tolist()) == set(train.tolist())
    moved = mismatched(samples, 0.5, 0)
    assert set(exchanges(moved)) <= set(train.tolist())
    assert sorted(moved[train].tolist()) == train.tolist()


def test_members_may_be_any_samples():
    samples = columns_of(configured(["data=shapes"]).data)
    members = samples.rows("test")
    stream = Stream(samples, batch_size=8, epochs=1, seed=0, members=members)
    assert set(torch.cat([stream.indices(step) for step in range(len(stream))]).tolist()) == set(members.tolist())


@pytest.mark.parametrize("kind", ["views", "columns"])
def test_weights_of_zero_leave_pairs_out_and_others_reach_the_batch(kind):
    samples = views_of(pictures()) if kind == "views" else columns_of(configured(["data=shapes"]).data)
    weights, some = torch.zeros(len(samples)), samples.rows("train")[:32]
    weights[some] = torch.linspace(0.1, 1, 32)
    stream = Stream(samples, batch_size=16, epochs=1, seed=0, weights=weights)
    assert sorted(torch.cat([stream.indices(step) for step in range(len(stream))]).tolist()) == some.tolist()
    batch = stream[0]
    assert all(torch.equal(known, weights[batch.index]) for known in batch.known["weights"])


def test_the_same_pairs_are_mismatched_in_every_epoch():
    samples = views_of(pictures())
    stream, expected = (
        Stream(samples, batch_size=20, epochs=2, seed=3, noise=0.3, fixed=True),
        mismatched(samples, 0.3, 3),
    )
    assert len(exchanges(expected)) == 12
    assert sorted(expected.tolist()) == list(range(40))
    for step in range(4):
        index = stream.indices(step)
        assert torch.equal(stream.partners(index, step), expected[index])


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_share_a_batch(world):
    samples = views_of(pictures())
    parts = [Stream(samples, batch_size=16, epochs=1, seed=1, rank=rank, world=world)[1] for rank in range(world)]
    assert torch.equal(
        torch.cat([part.index for part in parts]), Stream(samples, batch_size=16, epochs=1, seed=1)[1].index
    )
    assert len({part.seeds for part in parts}) == world


def test_what_is_known_of_a_batch_reaches_the_criterion(tmp_path, monkeypatch):
    np.save(tmp_path / "w.npy", np.linspace(0.5, 1, 40))
    words = ("method=supcon", "pairs.views=3", f"pairs.weights={tmp_path / 'w.npy'}", "log_every=1000")
    config, samples = config_for(tmp_path, *words), views_of(pictures(), 3)
    stream = Stream.of(config, samples)
    module, seen = Training(config, samples, stream.total), {}
    monkeypatch.setattr(module, "log", lambda *args, **more: None)
    monkeypatch.setattr(
        type(module.criterion), "forward", lambda self, *z, **known: seen.update(known, z=z) or z[0].sum()
    )
    batch = stream[0]
    module.training_step(batch, 0)
    assert [len(z) for z in seen["z"]] == [16, 32]
    for name, expected in (
        ("labels", samples.labels[batch.index]),
        ("ids", batch.index),
        ("weights", torch.linspace(0.5, 1, 40, dtype=torch.float64).float()[batch.index]),
    ):
        first, others = seen[name]
        torch.testing.assert_close(first, expected)
        torch.testing.assert_close(others, expected.repeat(2))


@pytest.mark.parametrize("where", ["device", "workers"])
def test_towers_get_the_views_of_the_config(tmp_path, where):
    config, images = config_for(tmp_path, "views=C1", f"augment_in={where}"), pictures()
    samples = views_of(images)
    stream = Stream.of(config, samples)
    batch = stream[2]
    expected = [
        make_views("C1", images.shape, images.mean, images.std)(images.get(batch.index), seed) for seed in batch.seeds
    ]
    inputs = Training(config, samples, stream.total).inputs(batch)
    assert all(torch.equal(x, y) for x, y in zip(inputs, expected, strict=True))
    assert not torch.equal(*inputs)


def test_every_epoch_shows_every_image_once_in_another_order():
    stream = Stream(views_of(pictures()), batch_size=10, epochs=2, seed=0)
    epochs = [torch.cat([stream.indices(s) for s in range(4 * e, 4 * e + 4)]) for e in (0, 1)]
    assert sorted(epochs[0].tolist()) == list(range(40)) == sorted(epochs[1].tolist())
    assert not torch.equal(*epochs)


def test_wrong_labels_reach_the_target_alone_and_are_the_same_in_every_epoch(tmp_path):
    images = pictures(40)
    about = {"batch_size": 20, "epochs": 2, "seed": 5}
    stream, true = Stream(views_of(images), **about, mislabelled=0.25), Stream(views_of(images), **about)
    told = torch.full((2, 40), -1)
    for step in range(stream.total):
        batch = stream[step]
        told[step // 2, batch.index] = batch.known["labels"][0]
    assert torch.equal(told[0], told[1])
    assert int((told[0] != images.labels).sum()) == 10
    assert torch.equal(images.labels, torch.arange(40) % 4)  # a probe sees the true ones
    assert all(torch.equal(labels, images.labels[true[0].index]) for labels in true[0].known["labels"])
    with pytest.raises(ValueError, match=r"target.name=labels"):
        train(config_for(tmp_path, "method=ince", "target.noise=0.2"), images=images)
    assert not list(tmp_path.iterdir())
