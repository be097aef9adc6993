"""A criterion computes what it prints, whatever is set on it, loaded into it or chosen for it."""

from __future__ import annotations

import math

import pytest
import torch

import gcalign
from gcalign import KL, Alignment, Columns, Cosine, Robust, Rows
from gcalign.transport import sinkhorn


def views(n=6, d=4, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    z1 = torch.randn(n, d, generator=generator, dtype=dtype)
    return z1.requires_grad_(), (z1.detach() + torch.randn(n, d, generator=generator, dtype=dtype)).requires_grad_()


CHANGES = {
    "constraints": ((Rows(), Columns()), lambda: gcalign.method("gca-ince")),
    "kernel": (Cosine(0.3), lambda: gcalign.method("ince", eps=0.3)),
    "divergence": (Robust(0.6, 0.01), lambda: gcalign.method("rince")),
    "layout": ("joint", lambda: gcalign.method("ince", layout="joint")),
    "reduction": ("none", lambda: gcalign.method("ince", reduction="none")),
    "iterations": (3, lambda: gcalign.method("ince", iterations=3)),
    "tol": (0.0, lambda: gcalign.method("ince", tol=0.0)),
    "gradient": ("unrolled", lambda: gcalign.method("ince", gradient="unrolled")),
    "accelerate": (True, lambda: gcalign.method("ince", accelerate=True)),
    "block": (2, lambda: gcalign.method("ince", block=2)),
    "target": (gcalign.Soft(torch.eye(6) + 0.1), lambda: gcalign.method("ince", target=torch.eye(6) + 0.1)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("both_ways", [False, True])
def test_whoever_sets_an_attribute_gets_what_is_printed(name, both_ways):
    value, expected = CHANGES[name]
    criterion, wanted = gcalign.method("ince"), expected()
    if both_ways:
        criterion, wanted = gcalign.Symmetric(criterion), gcalign.Symmetric(wanted)
    setattr(criterion, name, value)
    assert repr(criterion) == repr(wanted)
    weights = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)
    grads = []
    for c in (criterion, wanted):
        z = views()
        loss = c(*z)
        grads.append([loss, *torch.autograd.grad((loss * (weights[: len(loss)] if loss.dim() else 1)).sum(), z)])
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "name", ["constraints", "divergence", "layout", "reduction", "iterations", "gradient", "kernel"]
)
def test_a_wrong_value_is_refused_when_it_is_set(name):
    criterion = gcalign.method("ince")
    before = repr(criterion)
    with pytest.raises((TypeError, ValueError)):
        setattr(criterion, name, 0)
    assert repr(criterion) == before


@pytest.mark.parametrize("name", ["eps", "q", "lam", "relax", "learnable"])
def test_a_setting_of_a_part_is_refused_with_the_part(name):
    for criterion in (gcalign.method("gca-uot"), gcalign.method("clip")):
        with pytest.raises(AttributeError, match="belongs to a part"):
            setattr(criterion, name, 0.3)


def test_a_learnt_temperature_is_loaded_with_its_own_bound():
    saved = Alignment(Cosine(0.003, learnable=True), (Rows(),), KL())
    loaded = Alignment(Cosine(0.1, learnable=True), (Rows(),), KL())
    loaded.load_state_dict(saved.state_dict())
    assert float(loaded.kernel.eps.detach()) == pytest.approx(0.003)
    torch.testing.assert_close(loaded(*views()), saved(*views()), rtol=1e-12, atol=0)
    before = {"kernel.log_eps": torch.tensor(math.log(0.2))}  # of an earlier version
    loaded.load_state_dict(before)
    assert float(loaded.kernel.eps.detach()) == pytest.approx(0.2)


def test_the_gradient_of_a_learnt_temperature_goes_on_beyond_its_bound():
    criterion = Alignment(Cosine(0.02, learnable=True), (Rows(),), KL()).double()
    with torch.no_grad():
        criterion.kernel.log_eps.fill_(math.log(0.001))
    assert float(criterion.kernel.eps.detach()) == pytest.approx(0.01)
    criterion(*views()).backward()
    at_bound = Alignment(Cosine(0.01, learnable=True), (Rows(),), KL()).double()
    at_bound(*views()).backward()
    torch.testing.assert_close(criterion.kernel.log_eps.grad, at_bound.kernel.log_eps.grad)
    assert criterion.kernel.log_eps.grad != 0


def test_a_learnable_epsilon_is_clip_s_logit_scale_with_its_clamp():
    kernel = gcalign.Cosine(0.02, learnable=True)
    with torch.no_grad():
        kernel.log_eps.fill_(math.log(0.001))
    assert kernel.eps.item() == pytest.approx(0.01)  # logit_scale ≤ 100
    kernel.eps.backward()
    assert float(kernel.log_eps.grad) > 0  # it can come back
    kernel.clamp_()
    assert kernel.log_eps.item() == pytest.approx(math.log(0.01))
    smaller = gcalign.Cosine(0.005, learnable=True)
    assert smaller.eps.item() == pytest.approx(0.005)  # what was asked for
    with pytest.raises(ValueError, match="cannot be learnt"):
        gcalign.LogKernel(lambda x, y: x @ y.T).learn()


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("name", ["ince", "gca-ince", "gca-uot"])
def test_huge_and_tiny_weights_leave_the_gradient_of_the_temperature_finite(name, scale):
    z1, z2 = views(dtype=torch.float32)
    robust = {"w_robust": 0.0} if name == "gca-uot" else {}  # which leaves the range, and is refused
    criterion = gcalign.method(name, learnable=True, **robust)
    criterion(z1, z2, weights=torch.full((6,), scale)).backward()
    assert torch.isfinite(criterion.kernel.log_eps.grad)
    criterion = gcalign.method(name, learnable=True, **robust)
    criterion(z1, z2, target=1e25 * torch.eye(6)).backward()
    assert torch.isfinite(criterion.kernel.log_eps.grad)


# --- which algorithm runs -------------------------------------------------------------------------------------


def test_acceleration_is_a_stated_choice():
    z = views(20, 6)
    for iterations in (19, 20):
        for accelerate, accelerated in ((True, True), (False, False), ("auto", iterations >= 20)):
            criterion = gcalign.method("gca-ince", eps=0.3, iterations=iterations, accelerate=accelerate)
            reason = criterion.explain(*z).reason
            assert ("accelerated iterations" in reason) == accelerated, (iterations, accelerate, reason)
    plain = gcalign.method("gca-ince", eps=0.3, iterations=19, accelerate=False, tol=0)
    same = gcalign.method("gca-ince", eps=0.3, iterations=20, accelerate=False, tol=0)
    assert plain.plan(*z).iterations == 19
    assert same.plan(*z).iterations == 20
    with pytest.raises(ValueError, match="accelerate='yes'"):
        gcalign.method("gca-ince", accelerate="yes")


def test_iterations_count_those_that_a_failed_acceleration_threw_away(monkeypatch):
    monkeypatch.setattr(sinkhorn, "MAX_ACCELERATED", 2)
    plan = gcalign.method("gca-ince", eps=0.05, iterations=30, tol=1e-12).plan(*views(12))
    assert plan.iterations == 32


def test_a_step_without_tolerance_and_checks_reads_no_value(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a value was read")

    z1, z2 = views(16, dtype=torch.float32)
    cases = [
        (name, eps, {}) for name in ("ince", "gca-ince", "gca-rince", "gca-uot", "siglip") for eps in (0.5, 0.1, 0.01)
    ]
    cases += [
        ("gca-uot", 0.1, {"learnable": True}),
        ("ince", 0.1, {"learnable": True}),
        ("gca-ince", 0.1, {"layout": "joint"}),
        ("gca-rince", 0.1, {"iterations": 30}),  # so many that their reversal might end early
    ]
    for name, eps, options in cases:
        criterion = gcalign.method(name, eps=eps, tol=0, check_finite=False, **options)
        wanted = torch.autograd.grad(gcalign.method(name, eps=eps, tol=0, **options)(z1, z2), (z1, z2))
        with monkeypatch.context() as patch:
            for read in ("item", "tolist", "__bool__", "__float__", "__int__", "nonzero", "__index__"):
                patch.setattr(torch.Tensor, read, refuse)
            found = torch.autograd.grad(criterion(z1, z2), (z1, z2))
        for got, want in zip(found, wanted, strict=True):
            assert (got - want).norm() <= 2e-3 * want.norm() + 1e-6, (name, eps, options)
