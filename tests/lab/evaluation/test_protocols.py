"""Protocols agree with independent oracles, choose nothing by test labels, and leave the encoder as it was."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from gcalign.lab.data.images import InMemory
from gcalign.lab.evaluation import (
    PROTOCOLS,
    evaluate,
    extract,
    probe,
)
from gcalign.lab.evaluation.classifiers import logistic, neighbours, principal, standardisation
from gcalign.lab.evaluation.features import pixels

FAST = {
    "linear": {"epochs": 5},
    "finetune": {"epochs": 6, "lr": (0.1, 0.01), "batch_size": 16},
    "few-shot": {"shots": 4, "draws": 2},
}


def blobs(n: int = 120, d: int = 6, classes: int = 3, seed: int = 0, noise: float = 0.8) -> tuple[Tensor, Tensor]:
    """Features around the class centres, and every class as often."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    centres = torch.randn(classes, d, generator=torch.Generator().manual_seed(99))
    return centres[y] + noise * torch.randn(n, d, generator=generator), y


def images(n: int = 40, classes: int = 2, seed: int = 0, split: str = "train", labelled: bool = True) -> InMemory:
    """Noise, brighter for a higher class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.randint(0, 120, (n, 3, 8, 8), generator=generator) + 100 * y.view(-1, 1, 1, 1)
    return InMemory(
        x.to(torch.uint8),
        name="noise",
        split=split,
        labels=y if labelled else None,
        classes=("dark", "light"),
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.6, 0.7),
    )


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def run(protocol: str, test_labels: Tensor | None = None, seed: int = 0):
    if PROTOCOLS[protocol].images:
        train, test = images(), images(12, seed=1, split="test")
        labels = test.labels if test_labels is None else test_labels[: len(test)] % 2
        return evaluate(protocol, train, train.labels, test, labels, seed=seed, encoder=net(), **FAST[protocol])
    (x, y), (test_x, test_y) = blobs(), blobs(60, seed=1)
    labels = test_y if test_labels is None else test_labels
    return evaluate(protocol, x, y, test_x, labels, seed=seed, **FAST.get(protocol, {}))


# features


def test_features_are_those_of_normalised_images_in_order_and_can_be_trained_on():
    encoder, data = net(), images(7)
    x = (data.pixels.float() / 255 - torch.tensor(data.mean).view(3, 1, 1)) / torch.tensor(data.std).view(3, 1, 1)
    torch.testing.assert_close(pixels(data, torch.arange(7)), x)
    with torch.no_grad():
        expected = encoder.eval()(x)
    features = extract(encoder.train(), data, batch_size=3)
    torch.testing.assert_close(features, expected)
    assert features.dtype == torch.float32
    nn.Linear(5, 2)(features).sum().backward()  # an inference tensor would refuse


def test_extraction_restores_the_mode_of_each_part():
    encoder = net()
    encoder[1].eval()
    extract(encoder, images(4))
    assert encoder.training
    assert not encoder[1].training


def test_features_that_are_not_finite_and_empty_sets_are_refused():
    encoder = net()
    nn.init.constant_(encoder[1].weight, torch.inf)
    with pytest.raises(ValueError, match=r"4 of 4 .*noise \(train\)"):
        extract(encoder, images(4))


# classifiers against oracles


def test_knn_is_sklearns_with_these_weights_and_k_is_capped():
    (x, y), (test_x, test_y) = blobs(noise=1.5), blobs(60, seed=1, noise=1.5)
    oracle = KNeighborsClassifier(
        20, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / 0.07)
    ).fit(x.double().numpy(), y.numpy())
    result = evaluate("knn", x, y, test_x, test_y, k=20)
    assert result.accuracy == pytest.approx(oracle.score(test_x.double().numpy(), test_y.numpy()))
    assert 0.4 < result.accuracy < 1
    assert evaluate("knn", x, y, test_x, test_y, k=10**6).hyperparameters["k"] == len(x)
    assert evaluate("knn", x, y, test_x, test_y).hyperparameters["k"] == len(x) // 5  # the published 200 is too many
    assert neighbours(torch.rand(1500, 2), torch.zeros(1500), 1).k == 200
    assert neighbours(torch.rand(3, 2), torch.zeros(3), 1).k == 1
    assert evaluate("knn", x, y, test_x, test_y, temperature=1e-4).accuracy > 0  # exp(1/T) alone would overflow


@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-3])
def test_logistic_regression_is_sklearns(l2):
    x, y = blobs(noise=1.5)
    x = x.double()
    oracle = LogisticRegression(C=1 / (len(x) * l2), tol=1e-8, max_iter=5000).fit(x.numpy(), y.numpy())
    fitted = logistic(x, y, 3, l2)
    np.testing.assert_allclose(fitted.weight.T.numpy(), oracle.coef_, atol=1e-3)
    bias = fitted.bias - fitted.bias.mean()  # a common constant is free
    np.testing.assert_allclose(bias.numpy(), oracle.intercept_ - oracle.intercept_.mean(), atol=1e-3)
    single = logistic(x.float(), y, 3, l2)
    assert np.array_equal(fitted(x).numpy(), oracle.predict(x.numpy()))
    assert torch.equal(single(x.float()), fitted(x))


@pytest.mark.parametrize("samples", [40, 300])  # fewer and more than the 60 features
def test_logistic_regression_in_principal_axes_reaches_the_minimum(samples):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(60, 60, generator=generator, dtype=torch.float64) * torch.logspace(-2, 1, 60).double()
    x = torch.randn(samples, 60, generator=generator, dtype=torch.float64) @ mixing
    y = torch.randint(3, (samples,), generator=generator)
    axes, l2 = principal(x), 1e-3
    assert axes.shape == (60, min(samples, 60))
    torch.testing.assert_close(axes.T @ axes, torch.eye(axes.shape[1], dtype=torch.float64))
    fitted = logistic(x @ axes, y, 3, l2, iterations=2000, tolerance=1e-10)
    weight = (axes @ fitted.weight).requires_grad_()
    (torch.nn.functional.cross_entropy(x @ weight + fitted.bias, y) + l2 / 2 * weight.square().sum()).backward()
    assert weight.grad.abs().max() < 1e-5  # the loss is convex; features are as large as 100


def test_linear_fast_is_sklearns_on_features_of_any_scale():
    (x, y), (test_x, test_y) = blobs(), blobs(60, seed=1)
    stretch, shift = torch.tensor([1e-3, 1.0, 1e3, 1.0, 1.0, 0.0]), 50.0  # the last becomes constant
    result = evaluate("linear-fast", x * stretch + shift, y, test_x * stretch + shift, test_y, l2=0.01)
    mean, std = standardisation((x * stretch + shift).double())
    scaled, test_scaled = (((a * stretch + shift).double() - mean) / std for a in (x, test_x))
    oracle = LogisticRegression(C=1 / (len(x) * 0.01), tol=1e-8, max_iter=5000).fit(scaled.numpy(), y.numpy())
    assert result.accuracy == pytest.approx(oracle.score(test_scaled.numpy(), test_y.numpy()))
    assert result.validation is None


def test_the_papers_linear_probe_reaches_the_regression():
    (x, y), (test_x, test_y) = blobs(noise=0.6), blobs(60, seed=1, noise=0.6)
    slow = evaluate("linear", x, y, test_x, test_y)
    fast = evaluate("linear-fast", x, y, test_x, test_y)
    assert slow.accuracy == pytest.approx(fast.accuracy, abs=0.05)
    assert slow.accuracy > 0.85
    assert slow.hyperparameters == {"optimizer": "sgd", "lr": 0.2, "epochs": 200, "decay": 1e-3, "batch_size": 512}


# what must hold of each protocol


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_permuted_test_labels_change_the_accuracy_and_nothing_else(protocol):
    honest = run(protocol).as_dict()
    shuffled = run(protocol, test_labels=(torch.arange(60) + 1) % 3).as_dict()
    assert shuffled["accuracy"] < honest["accuracy"]
    for scored in ("accuracy", "std", "parts", "per_class"):
        honest.pop(scored), shuffled.pop(scored)
    assert shuffled == honest


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_result_follows_from_the_seed_and_is_plain_json(protocol):
    before = torch.get_rng_state()
    result = run(protocol, seed=3)
    assert run(protocol, seed=3) == result
    assert torch.equal(torch.get_rng_state(), before)
    assert json.loads(json.dumps(result.as_dict()))["protocol"] == protocol
    assert result.seed == 3
    assert result.accuracy > 0.6


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_probe_leaves_the_encoder_as_it_was(protocol):
    encoder = net()
    options = FAST.get(protocol, {})
    before = copy.deepcopy(encoder.state_dict())
    result = probe(encoder, images(), images(12, seed=1, split="test"), protocol=protocol, **options)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert encoder.training
    assert (result.split, result.classes, result.n_train, result.n_test) == ("test", 2, 40, 12)
    assert result.per_class.keys() == {"dark", "light"}


def test_few_shot_uses_as_many_labels_as_asked_and_reports_the_spread():
    result = run("few-shot")
    assert (result.labels_used, len(result.parts)) == (12, 2)
    assert result.std == pytest.approx(np.std(list(result.parts.values()), ddof=1))
    assert result.accuracy == pytest.approx(np.mean(list(result.parts.values())))
    x, y = blobs()
    total = evaluate("few-shot", x, y, x, y, labels=7, draws=2, seed=1)
    assert (total.labels_used, len(total.parts), total.validation) == (7, 2, pytest.approx(0.5, abs=0.5))
    single = evaluate("few-shot", x, y, x, y, shots=1, draws=3)
    assert single.validation is None
    assert single.hyperparameters["l2"] == [0.1] * 3


def test_labels_need_not_be_consecutive_and_accuracy_is_counted_by_class():
    (x, y), (test_x, test_y) = blobs(), blobs(60, seed=1)
    names = torch.tensor([4, 7, 30])
    result = evaluate("knn", x, names[y], test_x, names[test_y], k=5)
    assert result.accuracy == evaluate("knn", x, y, test_x, test_y, k=5).accuracy
    predicted = neighbours(x, y, 3, k=5)(test_x)
    for c, name in enumerate(("4", "7", "30")):
        assert result.per_class[name] == pytest.approx((predicted == c)[test_y == c].double().mean().item())


def test_validation_picks_a_strong_penalty_for_noise_with_many_features():
    x, y = blobs(60, d=200, noise=6.0)
    result = evaluate("linear-fast", x, y, *blobs(60, d=200, seed=1, noise=6.0), splits=3)
    assert result.hyperparameters["l2"] >= 1e-2
    assert result.validation is not None


def test_by_default_the_penalty_is_chosen_on_five_splits():
    train, test = blobs(60, d=200, noise=4.0), blobs(60, d=200, seed=1, noise=4.0)
    assert evaluate("linear-fast", *train, *test) == evaluate("linear-fast", *train, *test, splits=5)
    assert evaluate("linear-fast", *train, *test) != evaluate("linear-fast", *train, *test, splits=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": "liner"}, "protocol='liner' is unknown; did you mean 'linear'"),
        ({"temprature": 0.1}, "option of knn='temprature' is unknown; did you mean 'temperature'"),
        ({"train_labels": None}, "train samples have no labels.*gcalign embed"),
        ({"test_labels": None}, "test samples have no labels"),
        ({"test_labels": torch.arange(6) + 1}, "test classes 3, 4, 5, 6 are absent from the train labels"),
        ({"train_labels": torch.zeros(12).long()}, "1 class; a classifier needs at least 2"),
        ({"train_labels": torch.arange(12) % 3 - 1}, "4 train labels are negative"),
        ({"train_labels": torch.arange(11) % 3}, r"must be \(12,\) whole numbers"),
        ({"protocol": "few-shot", "shots": 9}, "ask for fewer labels"),
        ({"protocol": "few-shot", "labels": 2}, "must be at least 3"),
        ({"protocol": "few-shot", "shots": 1, "labels": 3}, "give one"),
        ({"protocol": "linear", "lr": 1e38}, "diverged at lr=1e[+]38"),
    ],
)
def test_bad_input_is_refused_with_a_remedy(change, message):
    x, y = blobs(12)
    good = {"protocol": "knn", "train": x, "train_labels": y, "test": x[:6], "test_labels": y[:6] * 0}
    with pytest.raises(ValueError, match=message):
        evaluate(**{**good, **change})


def test_unlabelled_images_are_refused_before_any_work():
    class Untouchable(nn.Module):
        def forward(self, x):
            raise AssertionError("embedded in vain")

    with pytest.raises(ValueError, match="train samples have no labels"):
        probe(Untouchable(), images(labelled=False), images(12), protocol="knn")
