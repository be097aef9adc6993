"""Scenes: the same from the same seeds, each sample on its own, and hard for anything that does not learn."""

from __future__ import annotations

import time

import pytest
import torch

from gcalign.lab.data.scenes import STYLES, Scenes
from gcalign.lab.timing import threads


@pytest.fixture(scope="module")
def train():
    return Scenes("train", 2000)


def test_a_scene_is_a_labelled_colour_image_of_one_of_four_domains(train):
    images = train.get(range(100))
    assert images.shape == (100, *train.shape) == (100, 3, 24, 24)
    assert images.dtype == torch.uint8
    assert len(train) == len(train.labels) == len(train.domains) == 2000
    assert train.labels.dtype == train.domains.dtype == torch.int64
    assert train.labels.unique().tolist() == list(range(10))
    assert train.domains.bincount().min() > 400
    assert train.domain_names == ("photo", "art", "cartoon", "sketch")
    assert train.classes == tuple("0123456789")


def test_train_and_test_use_different_digits_whatever_the_seeds():
    train, test = Scenes("train", 3000, seed=0), Scenes("test", 3000, seed=1)
    assert not set(train.digits.tolist()) & set(test.digits.tolist())
    assert len(train.digits.unique()) == len(Scenes("train")) == 1297
    assert len(test.digits.unique()) == len(Scenes("test")) == 500


def test_the_same_seed_gives_the_same_scenes_and_another_seed_others():
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    a, b, c = Scenes("train", 50, seed=1), Scenes("train", 50, seed=1), Scenes("train", 50, seed=2)
    assert torch.equal(a.get(range(50)), b.get(range(50)))
    assert torch.equal(a.draw(range(50), 4), b.draw(range(50), 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.equal(a.get(range(50)), c.get(range(50)))


@pytest.mark.parametrize("method", ["get", "draw"])
def test_a_scene_does_not_depend_on_the_rest_of_the_batch(train, method):
    def render(indices):
        return train.get(indices) if method == "get" else train.draw(indices, 9)

    together = render(range(300))
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    assert torch.equal(together[order], render(order))
    for indices in ([3], [5, 3], [7, 7, 299], range(17, 48)):
        assert torch.equal(render(indices), together[torch.tensor(list(indices))])
    assert all(torch.equal(render([k])[0], together[k]) for k in range(0, 300, 3))
    assert torch.equal(render([-1]), render([1999]))
    assert torch.equal(render(torch.tensor([4])), together[4:5])
    assert render([]).shape == (0, 3, 24, 24)
    with pytest.raises(IndexError):
        render([2000])


def test_each_seed_draws_other_views_and_a_digit_past_the_pool_is_rendered_anew(train):
    first, second = train.draw(range(200), 0), train.draw(range(200), 1)
    changed = (first.float() - second.float()).abs().mean((1, 2, 3))
    assert changed.min() > 2
    assert (first != train.get(range(200))).flatten(1).any(1).all()
    assert train.digits[0] == train.digits[1297]
    assert train.labels[0] == train.labels[1297]
    assert not torch.equal(train.get([0]), train.get([1297]))
    assert len(torch.unique(train.get(range(1000)).flatten(1), dim=0)) == 1000


def test_views_have_any_style():
    scenes = Scenes("train", 400)
    sketches = torch.where(scenes.domains == list(STYLES).index("sketch"))[0]

    def colourfulness(images):
        images = images.float()
        return (images.amax(1) - images.amin(1)).mean((1, 2))

    assert colourfulness(scenes.get(sketches)).max() < 30
    assert (colourfulness(scenes.draw(sketches, 0)) > 30).float().mean() > 0.25


def test_the_statistics_are_those_of_the_training_split():
    scenes = Scenes("train")
    pixels = scenes.get(range(len(scenes))).float() / 255
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.tensor(scenes.mean), atol=0.01, rtol=0)
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(scenes.std), atol=0.01, rtol=0)


def test_raw_pixels_do_not_give_the_class_away():
    from sklearn.linear_model import RidgeClassifier

    train, test = Scenes("train", 3000), Scenes("test", 1000)
    classifier = RidgeClassifier(alpha=100.0)
    classifier.fit(train.get(range(3000)).flatten(1).float().numpy() / 255, train.labels.numpy())
    accuracy = classifier.score(test.get(range(1000)).flatten(1).float().numpy() / 255, test.labels.numpy())
    assert 0.08 < accuracy < 0.25


def test_rendering_keeps_up_with_training(train):
    seconds = []
    with threads(1):  # its own processor time: machines that run tests are busy
        for seed in range(4):
            start = time.process_time()
            train.draw(range(512), seed)
            seconds.append(time.process_time() - start)
    assert 512 / min(seconds) > 2000  # about a tenth of what a core does
