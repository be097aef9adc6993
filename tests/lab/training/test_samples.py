"""The data of a config."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from gcalign.lab.training.config import configured
from gcalign.lab.training.samples import images_of


def test_a_long_tail_is_that_of_training_images_alone():
    train_data = configured(["data=scenes", "data.tail=20", "data.limit=300"]).data
    sizes = torch.bincount(images_of(train_data, "train").labels)
    assert sizes.sum() <= 300
    assert sizes[0] / sizes[-1] == pytest.approx(20, rel=0.3)
    assert len(images_of(dataclasses.replace(train_data, limit=None), "test")) == 500
    whole, some = (
        images_of(dataclasses.replace(train_data, tail=1.0, limit=None), "train"),
        images_of(train_data, "train"),
    )
    assert torch.equal(some.draw([3, 5], seed=1), whole.draw(some.indices[[3, 5]], seed=1))
