"""Every operator is the reference, whatever it stores; and what makes it fast changes nothing."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import gcalign
from gcalign.kernels import Cosine, Kernel, SquaredEuclidean
from gcalign.transport.operators import blocked
from gcalign.transport.operators.blocked import Reference, Stored, Streamed
from gcalign.transport.operators.sources import Given, Inner
from gcalign.transport.sinkhorn import Memory

NAMES = ("ince", "gca-ince", "rince", "gca-rince", "gca-uot")


def pair(n=40, d=8, noise=0.7, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z1 = torch.randn(n, d, generator=generator, dtype=dtype)
    return z1, z1 + noise * torch.randn(n, d, generator=generator, dtype=dtype)


def sources(eps, dtype):
    z1, z2 = pair(dtype=dtype)
    kernel = Cosine(eps)
    x, y = kernel.features(z1), kernel.features(z2[:29])
    yield "inner", Inner(*kernel.factors(x, y))
    yield "itself", Inner(*kernel.factors(x, x), exclude_self=True)
    euclidean = SquaredEuclidean(eps)
    yield "offsets", Inner(*euclidean.factors(x, y))
    log_k = kernel(x, y)
    log_k[3, 5] = -torch.inf
    yield "given", Given(log_k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [10.0, 0.5, 0.05, 0.02, 0.001])
@pytest.mark.parametrize("make", [Stored, lambda s: Streamed(s, 7)], ids=["stored", "streamed"])
def test_products_are_those_of_the_reference(make, eps, dtype):
    # logarithms as large as 2/ε are rounded to that many units in the last place
    tol = (4 + 4 / eps) * torch.finfo(dtype).eps
    for name, source in sources(eps, dtype):
        reference, operator = Reference(source), make(source)
        n, m = source.shape
        generator = torch.Generator().manual_seed(1)
        for size in (0.1, 1.0, 100.0):  # potentials far apart leave the range of any kernel
            b = size * torch.randn(m, generator=generator, dtype=dtype)
            a = size * torch.randn(n, generator=generator, dtype=dtype)
            exact = {"rtol": 1e-13 if dtype == torch.float64 else 1e-5, "atol": max(tol, 100 * size * tol)}
            torch.testing.assert_close(operator.log_matvec(b), reference.log_matvec(b), **exact, msg=name)
            torch.testing.assert_close(operator.log_rmatvec(a), reference.log_rmatvec(a), **exact, msg=name)
            log_kv = reference.log_matvec(b)
            wanted = log_kv, 0.1 - log_kv, reference.log_rmatvec(0.1 - log_kv)
            for got, want in zip(operator.sweep(b, lambda log_sums, rows: 0.1 - log_sums), wanted, strict=True):
                torch.testing.assert_close(got, want, **exact, msg=name)


def gradients(criterion, z1, z2, **known):
    leaves = [z.detach().clone().requires_grad_() for z in (z1, z2)]
    loss = criterion(*leaves, **known)
    loss.backward()
    return loss.detach(), *(z.grad for z in leaves)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("eps", [0.5, 0.1, 0.07])  # as it is, and with rows scaled
def test_a_half_precision_copy_is_near(name, eps):
    z1, z2 = pair(300, 16, dtype=torch.float32)
    wanted = gradients(gcalign.method(name, eps=eps, iterations=100), z1, z2)
    found = gradients(gcalign.method(name, eps=eps, iterations=100, block=64, cache="half"), z1, z2)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-4, atol=1e-4)
    for got, want in zip(found[1:], wanted[1:], strict=True):
        assert (got - want).norm() <= 2e-3 * want.norm()


# --- factors --------------------------------------------------------------------------------------------------


class Shifted(Cosine):
    """A user's own: inherits everything but the cost."""

    def cost(self, x, y):
        return super().cost(x, y) ** 2


class Slow(Kernel):
    """The cosine kernel by autograd."""

    def features(self, z):
        return gcalign.kernels.normalize(z)

    def cost(self, x, y):
        return 1 - x @ y.T


@pytest.mark.parametrize("layout", ["cross", "joint"])
@pytest.mark.parametrize("learnable", [False, True])
def test_factors_give_what_autograd_gives(layout, learnable):
    z1, z2 = pair(21)
    parts = ((gcalign.Rows(0.7), gcalign.Columns()), gcalign.KL() + 0.3 * gcalign.Robust(0.5, 0.1))
    kernels = [kind(0.3, learnable=learnable).double() for kind in (Cosine, Slow)]
    assert kernels[0].factors(z1, z2) is not None
    assert kernels[1].factors(z1, z2) is None
    found = [gradients(gcalign.Alignment(k, *parts, layout=layout, iterations=200), z1, z2) for k in kernels]
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
    if learnable:
        torch.testing.assert_close(kernels[0].log_eps.grad, kernels[1].log_eps.grad, rtol=1e-9, atol=1e-11)


def test_a_subclass_with_a_cost_of_its_own_is_taken_at_its_word():
    z1, z2 = pair(12)
    kernel = Shifted(0.5)
    assert kernel.factors(z1, z2) is None
    found = gcalign.Alignment(kernel, (gcalign.Rows(),), gcalign.KL())(z1, z2)
    x, y = kernel.features(z1), kernel.features(z2)
    torch.testing.assert_close(found, nn.functional.cross_entropy(-((1 - x @ y.T) ** 2) / 0.5, torch.arange(12)))


# --- acceleration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "d"), [(1.0, 64), (1.5, 64), (1.0, 16)])
def test_acceleration_ends_in_the_same_plan_much_sooner(noise, d):
    z1, z2 = pair(200, d, noise)
    plan = gcalign.method("gca-ince", eps=0.05, iterations=20000, tol=1e-9).plan(z1, z2)
    log_k = Cosine(0.05)(*(gcalign.kernels.normalize(z) for z in (z1, z2)))
    a, b, plain = torch.zeros(200, dtype=torch.float64), torch.zeros(200, dtype=torch.float64), 0
    while plain < 20000:
        plain += 1
        a = -torch.logsumexp(log_k + b, 1)
        after = -torch.logsumexp(log_k + a[:, None], 0)
        moved, b = (after - b).abs().max(), after
        if moved < 1e-12:
            break
    exact = (log_k + a[:, None] + b).exp()
    assert plan.converged
    assert (plan.matrix - exact).abs().sum() <= 1e-6 * (exact - torch.eye(200)).abs().sum()
    assert plan.iterations <= max(12, plain / 8), (plan.iterations, plain)


def test_a_plan_out_of_reach_is_that_of_the_plain_iterations():
    z1, z2 = pair(30, dtype=torch.float64, noise=0.3)
    plan = gcalign.method("gca-ince", eps=0.01, iterations=25, tol=1e-14).plan(z1, z2)
    assert not plan.converged
    log_k = Cosine(0.01)(*(gcalign.kernels.normalize(z) for z in (z1, z2)))
    b = torch.zeros(30, dtype=torch.float64)
    for _ in range(25):
        a = -torch.logsumexp(log_k + b, 1)
        b = -torch.logsumexp(log_k + a[:, None], 0)
    torch.testing.assert_close(plan.log, log_k + a[:, None] + b, rtol=1e-10, atol=1e-9)


# --- warm start -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["cross", "joint"])
def test_a_warm_start_needs_fewer_passes_and_changes_nothing_else(layout):
    ids = torch.randperm(500)[:200]
    z1, z2 = pair(200, 16, 1.0)
    step = pair(200, 16, seed=3)[0]
    options = {"eps": 0.05, "layout": layout, "iterations": 2000, "tol": 1e-8}
    warm, cold = gcalign.method("gca-ince", warm_start=True, **options), gcalign.method("gca-ince", **options)
    warm(z1, z2, ids=ids)
    passes = []
    for k in range(1, 4):
        order = torch.randperm(200)  # ids say who is who, not the place in the batch
        moved = [(z + 0.01 * k * step)[order] for z in (z1, z2)]
        passes.append((warm.plan(*moved, ids=ids[order]).iterations, cold.plan(*moved, ids=ids[order]).iterations))
        for got, want in zip(
            gradients(warm, *moved, ids=ids[order]), gradients(cold, *moved, ids=ids[order]), strict=True
        ):
            assert (got - want).norm() <= 1e-6 * want.norm()
    assert sum(w for w, _ in passes) < sum(c for _, c in passes)
    assert not warm.state_dict()


def test_a_warm_start_recalls_ids_only():
    z1, z2 = pair(20)
    criterion = gcalign.method("gca-ince", warm_start=True)
    with pytest.raises(ValueError, match="pass ids="):
        criterion(z1, z2)
    with pytest.raises(ValueError, match="from -1 to 18"):
        criterion(z1, z2, ids=torch.arange(20) - 1)
    criterion(z1, z2, ids=torch.arange(20))
    like = torch.zeros((), dtype=torch.float64)

    def columns(ids):
        side = gcalign.Side(z2, ids=ids)
        return gcalign.Sides.in_cross(side, side)

    assert criterion.memory.recall(columns(torch.arange(100, 120)), like) is None
    half = criterion.memory.recall(columns(torch.arange(10, 30)), like)
    assert (half[10:] == half[:10].mean()).all()


def test_a_warm_start_stores_potentials_without_the_mean_of_their_batch():
    memory, like = Memory(), torch.zeros((), dtype=torch.float64)
    b = torch.tensor([-1.0, 1.0, -2.0, 2.0], dtype=torch.float64)
    sides = [gcalign.Side(torch.eye(4), ids=ids) for ids in torch.arange(8).split(4)]
    for side, mean in zip(sides, (7.0, -3.0), strict=True):
        memory.keep(gcalign.Sides.in_cross(side, side), b + mean)
    both = sides[0].joined(sides[1])
    torch.testing.assert_close(memory.recall(gcalign.Sides.in_cross(both, both), like), torch.cat([b, b]))


def test_a_warm_start_follows_a_change_of_dtype():
    z1, z2 = pair(20)
    warm = gcalign.method("gca-ince", eps=0.05, iterations=200, warm_start=True)
    ids = torch.arange(20)
    warm(z1.float(), z2.float(), ids=ids)
    cold = gcalign.method("gca-ince", eps=0.05, iterations=200)
    torch.testing.assert_close(warm(z1, z2, ids=ids), cold(z1, z2, ids=ids), rtol=1e-5, atol=1e-7)


def test_the_two_directions_of_a_symmetric_criterion_have_potentials_of_their_own():
    z1, z2 = pair(20, noise=1.5)
    half = gcalign.Alignment(
        Cosine(0.1), (gcalign.Rows(), gcalign.Columns()), gcalign.KL(), iterations=500, warm_start=True
    )
    ids = torch.arange(20)
    gcalign.Symmetric(half)(z1, z2, ids=ids)
    like = torch.zeros((), dtype=torch.float64)
    side = gcalign.Sides.in_cross(gcalign.Side(z1, ids=ids), gcalign.Side(z2, ids=ids))
    there = half.memory.recall(side, like)
    with half.memory.exchanged():
        back = half.memory.recall(side, like)
    plan = gcalign.method("gca-ince", eps=0.1, iterations=500).plan(z1, z2)
    centred = [x - x.mean() for x in (plan.log_v, plan.log_u)]
    torch.testing.assert_close(there, centred[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(back, centred[1], rtol=1e-3, atol=1e-3)


# --- memory ---------------------------------------------------------------------------------------------------


def test_auto_streams_what_does_not_fit_and_says_so_once(monkeypatch):
    z1, z2 = pair(50, dtype=torch.float32)
    stored = gradients(gcalign.method("gca-ince", block="auto"), z1, z2)
    monkeypatch.setattr(blocked, "_SMALL", 0)
    monkeypatch.setattr(blocked, "_free", lambda device: 15000)
    monkeypatch.setattr(blocked, "_warned", False)
    monkeypatch.setattr(blocked, "_ENTRIES", 500)
    made = []
    plain = Streamed.__init__
    monkeypatch.setattr(Streamed, "__init__", lambda self, *a, **k: made.append(a[1]) or plain(self, *a, **k))
    criterion = gcalign.method("gca-ince", block="auto")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        streamed = gradients(criterion, z1, z2)
        criterion(z1, z2)
    assert made == [10, 10]  # one operator for each call
    assert ["streams it, 10 rows at a time" in str(w.message) for w in caught] == [True]
    for got, want in zip(streamed, stored, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="block='all'"):
        gcalign.method("gca-ince", block="all")
    with pytest.raises(ValueError, match="cache='whole'"):
        gcalign.method("gca-ince", cache="whole")
