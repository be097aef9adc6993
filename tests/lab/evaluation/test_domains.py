"""Protocols across domains and corruptions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gcalign.lab.evaluation import (
    corruption_probe,
    domain_probe,
    leave_one_domain_out,
)


def blobs(n: int = 120, d: int = 6, classes: int = 3, seed: int = 0, noise: float = 0.8) -> tuple[Tensor, Tensor]:
    """Features around the class centres, and every class as often."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    centres = torch.randn(classes, d, generator=torch.Generator().manual_seed(99))
    return centres[y] + noise * torch.randn(n, d, generator=generator), y


def test_each_domain_is_left_out_once_and_the_mean_reported():
    x, y = blobs(180)
    domains = torch.arange(180) // 45
    x = torch.where(domains[:, None] == 3, -x, x)  # in the last one everything is mirrored
    result = leave_one_domain_out(x, y, domains, lr=0.03, epochs=300, domain_names=("a", "b", "c", "mirrored"))
    assert list(result.parts) == ["a", "b", "c", "mirrored"]
    assert result.accuracy == pytest.approx(sum(result.parts.values()) / 4)
    assert result.parts["mirrored"] < 0.5 < result.parts["a"]
    assert (result.n_train, result.n_test) == (135, 180)
    with pytest.raises(ValueError, match="at least 2"):
        leave_one_domain_out(x, y, domains * 0)


def test_corruptions_are_averaged_and_each_trains_on_a_tenth():
    sets = {"fog-1": blobs(200), "fog-5": blobs(200, noise=3.0)}
    result = corruption_probe({k: x for k, (x, _) in sets.items()}, {k: y for k, (_, y) in sets.items()})
    assert result.parts["fog-5"] < result.parts["fog-1"]
    assert result.accuracy == pytest.approx(sum(result.parts.values()) / 2)
    assert (result.labels_used, result.n_test) == (21, 2 * 179)


UNSEEN = torch.arange(200) >= 140


def test_domains_that_differ_are_told_apart_by_images_that_an_encoder_never_saw():
    d, generator = torch.arange(200) % 4, torch.Generator().manual_seed(0)
    x = torch.eye(4)[d] + 0.1 * torch.randn(200, 4, generator=generator)
    about = {"unseen": UNSEEN, "lr": 0.05, "epochs": 200}
    told = domain_probe(x, d, **about, names=("photo", "art", "cartoon", "sketch"))
    assert told.accuracy > 0.95
    assert told.per_class.keys() == {"photo", "art", "cartoon", "sketch"}
    assert (told.n_train, told.n_test, told.split) == (140, 60, "images held out of training")
    assert domain_probe(torch.randn(200, 4, generator=generator), d, **about).accuracy < 0.5
    x[UNSEEN] = torch.eye(4)[(d[UNSEEN] + 1) % 4]  # only the unseen ones are wrong
    assert domain_probe(x, d, **about).accuracy < 0.05
    with pytest.raises(ValueError, match="have no domains"):
        domain_probe(x, None, unseen=UNSEEN)


def test_the_squared_error_probe_is_least_squares():
    x, d = blobs(200)
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    solution = torch.linalg.lstsq(design[~UNSEEN], nn.functional.one_hot(d[~UNSEEN]).float()).solution
    expected = ((design[UNSEEN] @ solution).argmax(1) == d[UNSEEN]).double().mean().item()
    assert domain_probe(x, d, unseen=UNSEEN, lr=0.03, epochs=600).accuracy == pytest.approx(expected, abs=0.02)
    for features in (x, torch.cat([x, x], 1)):  # also with directions that no sample tells apart
        accuracy = domain_probe(features, d, unseen=UNSEEN, exact=True).accuracy
        assert accuracy == pytest.approx(expected, abs=1e-9)
