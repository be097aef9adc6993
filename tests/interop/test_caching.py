"""Gradients in chunks are those of the whole batch, in the memory of one chunk."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gcalign
from gcalign.lab.models import Twin
from processes import needs_gloo, ranks

METHODS = [(name, layout) for name in gcalign.methods.names() for layout in ("cross", "joint")]
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def mlp(*middle, inputs=6, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 8), *middle, nn.Tanh(), nn.Linear(8, 4)).double()


def views(n=11, inputs=6, m=None):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, inputs, generator=generator, dtype=torch.float64)
    return x, torch.randn(m or n, inputs, generator=generator, dtype=torch.float64)


def gradients(*modules):
    return [None if p.grad is None else p.grad.clone() for module in modules for p in module.parameters()]


def chunkwise(encoder, view, chunk):
    """The encoder applied to a chunk at a time, with all graphs kept: what the second pass must not need."""
    return torch.cat([encoder(part) for part in view.split(chunk)])


def same(got, expected, **tolerance):
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, **(tolerance or EXACT))


def compare(plain, cached, *modules):
    """Both fill `.grad` alike and return one loss; plain gives a loss with a graph."""
    for module in modules:
        module.zero_grad()
    expected = plain()
    expected.backward()
    whole = gradients(*modules)
    for module in modules:
        module.zero_grad()
    loss = cached()
    assert not loss.requires_grad
    torch.testing.assert_close(loss, expected.detach(), **EXACT)
    same(gradients(*modules), whole)
    return whole


@pytest.mark.parametrize(("name", "layout"), METHODS)
def test_every_methods_gradient_is_that_of_the_whole_batch(name, layout):
    criterion, encoder, (x, y) = gcalign.method(name, layout=layout), mlp(), views()
    known = {"labels": torch.arange(11) % 3} if name == "supcon" else {}
    compare(
        lambda: criterion(encoder(x), encoder(y), **known),
        lambda: gcalign.cached_backward(criterion, encoder, (x, y), chunk=4, **known),
        encoder,
        criterion,
    )


@pytest.mark.parametrize("chunk", [1, 3, 5, 11, 100])
@pytest.mark.parametrize("block", [None, 4])
def test_neither_the_size_of_chunks_nor_of_blocks_matters(chunk, block):
    criterion, encoder, (x, y) = gcalign.method("gca-uot", block=block), mlp(), views()
    compare(
        lambda: criterion(encoder(x), encoder(y)),
        lambda: gcalign.cached_backward(criterion, encoder, (x, y), chunk=chunk),
        encoder,
    )


class Text(nn.Module):
    """Reads a tree of tensors, as language models do."""

    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(9, 5), nn.Linear(5, 4)
        self.double()

    def forward(self, batch):
        tokens, (mask,) = batch["tokens"], batch["rest"]
        return self.encode(tokens, mask)

    def encode(self, tokens, mask):
        return self.out((self.table(tokens) * mask[..., None]).sum(1))


def test_two_towers_of_unlike_inputs_and_a_learnt_temperature():
    image, text, criterion = mlp(), Text(), gcalign.method("clip")
    x, _ = views()
    generator = torch.Generator().manual_seed(2)
    batch = {
        "tokens": torch.randint(9, (11, 7), generator=generator),
        "rest": [torch.rand(11, 7, generator=generator, dtype=torch.float64)],
    }
    whole = compare(
        lambda: criterion(image(x), text(batch)),
        lambda: gcalign.cached_backward(criterion, (image, text), (x, batch), chunk=4),
        image,
        text,
        criterion,
    )
    assert whole[-1] is not None
    assert whole[-1].abs() > 0  # ε has its gradient


def test_sides_may_differ_in_length():
    criterion, encoder, (x, y) = gcalign.method("ince"), mlp(), views(6, m=11)
    ids = (torch.arange(6), torch.arange(11) % 6)
    compare(
        lambda: criterion(encoder(x), encoder(y), ids=ids),
        lambda: gcalign.cached_backward(criterion, encoder, (x, y), chunk=4, ids=ids),
        encoder,
    )


def test_inputs_receive_their_gradient():
    criterion, encoder, (x, y) = gcalign.method("gca-ince"), mlp().requires_grad_(False), views()
    x.requires_grad_()
    (expected,) = torch.autograd.grad(criterion(encoder(x), encoder(y)), x)
    gcalign.cached_backward(criterion, encoder, (x, y), chunk=4)
    torch.testing.assert_close(x.grad, expected, **EXACT)


class Counted(nn.Module):
    """Counts its calls, in a buffer and out of it."""

    def __init__(self, module):
        super().__init__()
        self.module, self.calls = module, 0
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        self.seen = self.seen + len(x)  # replaces the buffer
        return self.module(x)


@pytest.mark.parametrize("kind", ["frozen", "twin", "stopped"])
def test_a_side_without_a_gradient_is_encoded_once(kind):
    online = mlp(nn.BatchNorm1d(8), nn.Dropout())
    criterion, (x, y) = gcalign.method("byol"), views()
    if kind == "stopped":  # one network, whose second side has its gradient stopped
        other = Counted(Stopped(online))
    else:
        other = Counted(mlp(nn.BatchNorm1d(8), seed=3).requires_grad_(False) if kind == "frozen" else Twin(online))
    reference, twin = copy.deepcopy((online, other))
    torch.manual_seed(5)
    criterion(chunkwise(reference, x, 4), chunkwise(twin, y, 4)).backward()
    drawn = torch.get_rng_state()
    torch.manual_seed(5)
    gcalign.cached_backward(criterion, (online, other), (x, y), chunk=4)
    assert other.calls == 3
    assert other.seen == 11
    same(gradients(online, other), gradients(reference, twin))
    same(list(online.buffers()), list(reference.buffers()))
    same(list(other.buffers()), list(twin.buffers()))
    assert torch.equal(torch.get_rng_state(), drawn)


class Stopped(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x).detach()


class Blind(Stopped):
    @torch.no_grad()
    def forward(self, x):
        return self.module(x)


class Noisy(nn.Module):
    """A criterion that draws numbers itself, between the two passes."""

    def __init__(self):
        super().__init__()
        self.criterion = gcalign.method("gca-ince")

    def forward(self, z1, z2):
        return self.criterion(z1 + 0.1 * torch.randn_like(z1), z2)


def test_random_layers_see_the_same_numbers_in_both_passes():
    criterion, encoder, (x, y) = Noisy(), mlp(nn.Dropout(0.5)), views()
    torch.manual_seed(5)
    criterion(chunkwise(encoder, x, 4), chunkwise(encoder, y, 4)).backward()
    expected, drawn = gradients(encoder), torch.get_rng_state()
    encoder.zero_grad()
    torch.manual_seed(5)
    gcalign.cached_backward(criterion, encoder, (x, y), chunk=4)
    same(gradients(encoder), expected)
    assert torch.equal(torch.get_rng_state(), drawn)


LAYERS = {
    "normalising": lambda: nn.BatchNorm1d(8),
    "depending on its buffers": lambda: nn.utils.spectral_norm(nn.Linear(8, 8)),
    "replacing its buffer": lambda: Counted(nn.Identity()),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_buffers_change_once(layer):
    criterion, encoder, (x, y) = gcalign.method("gca-ince"), mlp(LAYERS[layer]()), views()
    reference = copy.deepcopy(encoder)
    criterion(chunkwise(reference, x, 4), chunkwise(reference, y, 4)).backward()
    before = [buffer.clone() for buffer in encoder.buffers()]
    gcalign.cached_backward(criterion, encoder, (x, y), chunk=4)
    same(gradients(encoder), gradients(reference))
    same(list(encoder.buffers()), list(reference.buffers()))
    assert any(not torch.equal(was, now) for was, now in zip(before, encoder.buffers(), strict=True))


@pytest.mark.parametrize("first_has_gradient", [True, False])
def test_autocast_holds_in_both_passes(first_has_gradient):
    criterion, encoder = gcalign.method("gca-ince"), mlp().float()
    first = encoder if first_has_gradient else Blind(encoder)
    x, y = (view.float() for view in views(24))

    def plain(**autocast):
        with torch.autocast("cpu", torch.bfloat16, **autocast):
            criterion(chunkwise(first, x, 7), chunkwise(encoder, y, 7)).backward()
        found = gradients(encoder)
        encoder.zero_grad()
        return found

    # torch's cache of cast weights would add up gradients in bfloat16, and keep weights cast without a gradient
    expected, exact = plain(cache_enabled=False), plain(enabled=False)
    with torch.autocast("cpu", torch.bfloat16):
        gcalign.cached_backward(criterion, (first, encoder), (x, y), chunk=7)
    same(gradients(encoder), expected, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(expected[0], exact[0], rtol=1e-4, atol=1e-6)


def test_a_scaler_scales_every_gradient():
    criterion, encoder, (x, y) = gcalign.method("clip"), mlp(), views()
    loss = gcalign.cached_backward(criterion, encoder, (x, y), chunk=4)
    expected = gradients(encoder, criterion)
    encoder.zero_grad()
    criterion.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled = gcalign.cached_backward(
        criterion, encoder, (x, y), chunk=4, backward=lambda loss: scaler.scale(loss).backward()
    )
    assert torch.equal(scaled, loss)  # the loss itself is not
    same(gradients(encoder, criterion), [1024 * grad for grad in expected])


def test_a_method_of_a_module_is_an_encoder():
    model, criterion, (x, y) = mlp(nn.BatchNorm1d(8)), gcalign.method("ince"), views()
    gcalign.cached_backward(criterion, model.forward, (x, y), chunk=4)
    assert model[1].num_batches_tracked == 6


Z = torch.zeros(4, 6, dtype=torch.float64)
LEAF = Z.clone().requires_grad_()


class Pooled(nn.Linear):
    def forward(self, x):
        return super().forward(x).mean(0)


POOLED = Pooled(6, 6, dtype=torch.float64)


@pytest.mark.parametrize(
    ("kind", "message", "changed"),
    [
        (ValueError, "chunk=0 must be at least 1", {"chunk": 0}),
        (TypeError, "chunk=2.5 must be a whole number", {"chunk": 2.5}),
        (ValueError, "views is a tensor (4, 6)", {"views": Z}),
        (ValueError, "views is a tuple", {"views": ()}),
        (ValueError, "3 encoders for 2 views", {"encoder": (mlp(),) * 3}),
        (TypeError, "encoder is a function", {"encoder": lambda x: x}),
        (TypeError, "view 2 holds a str", {"views": (Z, ["a dog"])}),
        (ValueError, "view 1 has a tensor (4, 6), a tensor (3,)", {"views": ((Z, Z[:3, 0]), Z)}),
        (ValueError, "view 1 has a tensor (0, 6)", {"views": (Z[:0], Z)}),
        (ValueError, "view 2 has no tensors", {"views": (Z, {})}),
        (ValueError, "view 1 has a graph, <MulBackward.*", {"views": (2 * LEAF, Z)}),
        (ValueError, "the encoder of view 1 returns a tensor (6,) for 2 samples", {"encoder": POOLED}),
        (ValueError, "the criterion returns a tensor (4,)", {"criterion": torch.cosine_similarity}),
        (ValueError, "the loss requires no gradient", {"encoder": mlp().requires_grad_(False)}),
    ],
)  # fmt: skip
def test_mistakes_are_refused_with_value_rule_and_remedy(kind, message, changed):
    given = {"criterion": gcalign.method("ince"), "encoder": mlp(), "views": (Z, Z), "chunk": 2, **changed}
    with pytest.raises(kind, match=".*".join(map(re.escape, message.split(".*")))):
        gcalign.cached_backward(**given)


def test_a_call_without_gradients_is_refused():
    with torch.no_grad(), pytest.raises(ValueError, match="gradients are disabled"):
        gcalign.cached_backward(gcalign.method("ince"), mlp(), (Z, Z), chunk=2)


# over two processes


SHARING = ("one", "two", "stopped")


def towers(sharing, wrap=lambda module: module):
    """The networks and, around them as `wrap` says, the encoder of each side."""
    one, two = mlp(), mlp(seed=4)
    if sharing == "two":
        return (one, two), (wrap(one), wrap(two))
    wrapped = wrap(one)
    return (one,), (wrapped, wrapped if sharing == "one" else Stopped(wrapped))


def rank_main(rank):
    x, y = (view[8 * rank : 8 * rank + 8] for view in views(16))
    found = {}
    for sharing in SHARING:
        reduced = []

        def wrap(module, reduced=reduced):
            wrapped = DistributedDataParallel(module)
            wrapped.register_comm_hook(reduced, counted)
            return wrapped

        modules, sides = towers(sharing, wrap)
        criterion = DistributedDataParallel(gcalign.method("clip"))
        for _ in range(2):  # DDP arranges its buckets after the first step
            for module in (*modules, criterion):
                module.zero_grad()
            loss = gcalign.cached_backward(criterion, sides, (x, y), chunk=3)
        found[sharing] = (loss, len(reduced), gradients(*modules, criterion))
    return found


def counted(reduced, bucket):
    reduced.append(bucket.index())
    return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda done: done.value()[0])


@needs_gloo
def test_two_processes_give_the_gradient_of_the_joined_batch_and_reduce_once(tmp_path):
    found = ranks(rank_main, tmp_path)
    for sharing in SHARING:
        modules, (first, second) = towers(sharing)
        criterion, (x, y) = gcalign.method("clip"), views(16)
        loss = criterion(first(x), second(y))
        loss.backward()
        for rank in found:
            got, reductions, grads = rank[sharing]
            torch.testing.assert_close(got, loss.detach(), **EXACT)
            same(grads, gradients(*modules, criterion))
            assert reductions == 2 * len(modules)  # once a step, though a step has six chunks


# memory

STEP = """
import sys, torch, gcalign
from torch import nn

def kib(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field))

torch.set_num_threads(1)
torch.manual_seed(0)
batch, chunk = map(int, sys.argv[1:])
layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()]
for _ in range(3):
    layers += [nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
encoder = nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(256, 64))
criterion = gcalign.method("gca-ince", iterations=2, block=128)
criterion(encoder(torch.randn(2, 1, 16, 16)), encoder(torch.randn(2, 1, 16, 16))).backward()
x, y = torch.randn(batch, 1, 16, 16), torch.randn(batch, 1, 16, 16)
before = kib("VmRSS")
if chunk:
    gcalign.cached_backward(criterion, encoder, (x, y), chunk=chunk)
else:
    criterion(encoder(x), encoder(y)).backward()
print((kib("VmHWM") - before) / 1024)
"""


def mebibytes(batch, chunk=0):
    """What one step adds to a fresh process at its peak, beyond its data."""
    command = [sys.executable, "-c", STEP, str(batch), str(chunk)]
    # freed memory goes back at once, so that the peak is of what is held and not of what malloc keeps for later
    returning = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    return float(subprocess.run(command, env=returning, capture_output=True, text=True, check=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_8192_samples_train_in_the_memory_of_512():
    small, large, cached = mebibytes(512), mebibytes(8192), mebibytes(8192, 512)
    print(f"peak of a step in MiB: 512 plain {small:.0f}, 8192 plain {large:.0f}, 8192 in chunks of 512 {cached:.0f}")
    assert cached < 1.25 * small
    assert cached < large / 5
