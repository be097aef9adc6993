"""Encoders have the published sizes and names, heads the paper's, and the twin follows by hand-computed averages."""

from __future__ import annotations

import copy
import logging
import math
import sys
import types
import zlib

import pytest
import torch
from torch import nn

from gcalign.lab.models import Twin, encoder, momentum_at, outside, predictor, projector
from gcalign.lab.models.encoders import NGrams, hashed


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.fixture
def mine(monkeypatch):
    """A module `mine` of the user's, in which a test puts functions."""
    module = types.ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


def with_classifier() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.fc = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 10)

        def forward(self, x):
            return self.fc(self.bn(self.conv(x)).mean((2, 3)))

    return Net()


# the published counts with the classifier of 1000 classes, less that classifier
@pytest.mark.parametrize(
    ("name", "published", "features"),
    [("resnet18", 11_689_512 - 513_000, 512), ("resnet50", 25_557_032 - 2_049_000, 2048)],
)
def test_resnets_have_the_published_number_of_parameters(name, published, features):
    net = encoder(name, shape=(3, 224, 224))
    assert parameters(net) == published
    assert net.features == features


def test_resnet_state_has_torchvisions_names_without_the_classifier():
    keys = encoder("resnet18", shape=(3, 224, 224)).state_dict().keys()
    assert len(keys) == 120  # torchvision's 122 less fc.weight and fc.bias
    assert {"conv1.weight", "bn1.running_var", "layer1.0.conv1.weight", "layer4.1.bn2.num_batches_tracked"} <= keys
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.bias"} <= keys
    assert not any(key.startswith(("layer1.0.downsample", "fc")) for key in keys)
    deep = encoder("resnet50", shape=(3, 224, 224)).state_dict()
    assert len(deep) == 318  # likewise 320 less 2
    assert deep["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    assert deep["layer4.2.conv3.weight"].shape == (2048, 512, 1, 1)


@pytest.mark.parametrize(
    ("stem", "size", "kernel", "side"),
    [("auto", 32, 3, 32), ("auto", 64, 3, 64), ("auto", 96, 7, 24), ("imagenet", 32, 7, 8), ("paper", 32, 7, 16)],
)
def test_the_stem_follows_the_image_size_unless_named(stem, size, kernel, side):
    net = encoder("resnet18", shape=(3, size, size), width=0.125, stem=stem)
    seen = []
    net.layer1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-1]))
    assert net(torch.zeros(2, 3, size, size)).shape == (2, net.features)
    assert net.conv1.kernel_size == (kernel, kernel)
    assert seen == [side]


def test_a_residual_block_adds_its_input():
    block = encoder("resnet18", shape=(3, 32, 32), width=0.125).layer1[0].eval()
    nn.init.zeros_(block.bn2.weight)
    x = torch.randn(2, 8, 5, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block(x), x.relu())


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "small"])
@pytest.mark.parametrize("channels", [1, 3])
def test_width_scales_the_features_and_channels_are_free(name, channels):
    shape = (channels, 24, 24)
    net, half = (encoder(name, shape=shape, width=w) for w in (0.25, 0.125))
    assert net.features == 2 * half.features
    assert half(torch.zeros(2, *shape)).shape == (2, half.features)


def test_the_small_encoder_is_small_and_its_weights_are_contiguous():
    net = encoder("small", shape=(3, 32, 32))
    assert 300_000 < parameters(net) < 1_000_000
    net(torch.rand(4, 3, 32, 32)).square().sum().backward()
    assert all(t.is_contiguous() for t in net.state_dict().values())  # else safetensors refuses them


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: encoder("small", shape=(3, 24, 24), seed=seed),
        lambda seed: projector("mlp3-bn", 16, 8, 4, seed),
        lambda seed: predictor(8, 4, seed),
    ],
)
def test_weights_follow_from_the_seed_and_leave_the_global_state_alone(make):
    before = torch.get_rng_state()
    one, again, other = (dict(make(seed).named_parameters()) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_a_users_encoder_loses_its_classifier_and_says_so(mine, caplog):
    mine.net = with_classifier
    with caplog.at_level(logging.WARNING):
        net = encoder(outside("mine:net"), shape=(3, 9, 9))
    assert "fc replaced by the identity" in caplog.text
    assert net.features == 6
    assert net.training
    assert net.module.bn.num_batches_tracked == 0
    assert torch.equal(net.module.bn.running_mean, torch.zeros(6))


def test_a_users_encoder_gets_the_arguments_it_accepts_and_its_maps_are_pooled(mine):
    def make(shape, width=1.0, depth=1):
        return nn.Conv2d(shape[0], int(4 * width), 3)

    mine.make = make
    net = encoder(outside("mine:make"), shape=(2, 8, 8), width=2.0)
    x = torch.rand(3, 2, 8, 8)
    assert net.features == 8
    assert torch.equal(net(x), net.module(x).mean((2, 3)))
    with pytest.raises(ValueError, match="stem='cifar' has no effect"):
        encoder(outside("mine:make"), shape=(2, 8, 8), stem="cifar")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet81", "did you mean 'resnet18'"),
        ("nowhere:net", "cannot be imported.*PYTHONPATH"),
        ("mine:absent", "cannot be imported"),
        ("mine:three", "must be a function"),
        ("mine:text", "must return a torch.nn.Module"),
        ("mine:pair", "returns tuple"),
        ("mine:flat", r"must give features \[2, D\]"),
    ],
)
def test_a_wrong_encoder_is_refused_with_a_remedy(mine, name, message):
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    mine.three, mine.text, mine.pair, mine.flat = 3, lambda: "resnet", Pair, lambda: nn.Flatten(0)
    with pytest.raises((ValueError, TypeError), match=message):
        encoder(outside(name), shape=(3, 8, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stem": "cifar"}, "leave stem=auto"),
        ({"shape": (3, 8, 7)}, "at least 8×8"),
    ],
)
def test_wrong_options_are_refused_with_a_remedy(options, message):
    with pytest.raises(ValueError, match=message):
        encoder("small", **{"shape": (3, 8, 8), **options})


def test_projectors_are_the_papers():
    assert [type(layer) for layer in projector("mlp2", 512)] == [nn.Linear, nn.ReLU, nn.Linear]
    assert parameters(projector("mlp2", 512)) == (512 * 2048 + 2048) + (2048 * 128 + 128)
    deep = projector("mlp3-bn", 32, 16, 8)
    assert sum(isinstance(layer, nn.Linear) for layer in deep) == 3
    assert sum(isinstance(layer, nn.BatchNorm1d) for layer in deep) == 2
    x = torch.rand(4, 32)
    assert deep(x).shape == (4, deep.features)
    assert projector("none", 32)(x) is x
    assert projector("none", 32).features == 32
    assert predictor(8, 4)(deep(x)).shape == (4, 8)


def online() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_the_twin_is_the_average_by_hand_and_copies_buffers():
    net = online()
    twin = Twin(net, momentum=0.9)
    old = [p.detach().clone() for p in net.parameters()]
    net(torch.rand(5, 3)).square().sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    twin.update()
    twin.update(momentum=0.5)
    for p0, p1, mine in zip(old, net.parameters(), twin.module.parameters(), strict=True):
        once = 0.9 * p0 + 0.1 * p1
        torch.testing.assert_close(mine, 0.5 * once + 0.5 * p1)
    assert all(torch.equal(a, b) for a, b in zip(net.buffers(), twin.module.buffers(), strict=True))
    assert twin.module[1].num_batches_tracked == 1


def test_the_twin_gets_no_gradient_and_is_saved_once():
    net = online()
    twin = Twin(net)
    x = torch.rand(5, 3)
    assert not twin(x).requires_grad
    assert not any(p.requires_grad for p in twin.parameters())
    assert set(twin.state_dict()) == {f"module.{key}" for key in net.state_dict()}
    (net(x) - twin(x)).square().sum().backward()
    assert all(p.grad is None for p in twin.parameters())


def test_the_twin_in_train_mode_normalises_by_the_batch():
    twin = Twin(online())
    out = twin(5 + torch.rand(64, 3))
    torch.testing.assert_close(out.mean(0), torch.zeros(4), atol=1e-5, rtol=0)


def test_a_copied_pair_stays_a_pair():
    net = online()
    pair = copy.deepcopy(nn.ModuleList([net, Twin(net)]))
    nn.init.ones_(pair[0][0].weight)
    pair[1].update(momentum=0.0)
    assert torch.equal(pair[1].module[0].weight, torch.ones(4, 3))


def test_momentum_rises_from_its_base_to_one():
    assert momentum_at(0, 10, 0.99) == pytest.approx(0.99)
    assert momentum_at(5, 10, 0.99) == pytest.approx(0.995)
    assert momentum_at(10, 10, 0.99) == momentum_at(11, 10, 0.99) == 1
    assert momentum_at(3, 12, 0.9) == pytest.approx(1 - 0.1 * (math.cos(math.pi / 4) + 1) / 2)


def test_n_grams_are_hashed_alike_on_every_machine():
    assert tuple(hashed("ab")[:4]) == tuple(zlib.crc32(x.encode()) for x in ("1 ", "1a", "1b", "1 "))
    assert hashed("Red  heart").tolist() == hashed("red heart").tolist() != hashed("heart red").tolist()


def test_a_text_is_encoded_alone_as_in_a_batch():
    encoder = NGrams(buckets=128, width=0.25)
    texts = ["red heart", "a", "赤いハート"]
    torch.testing.assert_close(encoder(texts), torch.cat([encoder([text]) for text in texts]))
