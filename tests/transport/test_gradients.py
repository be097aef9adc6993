"""Every marginal × divergence × gradient mode × layout passes gradcheck, and the modes agree where they overlap."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck

import gcalign
from gcalign import KL, W1, Capacity, Columns, Cosine, Entropic, Robust, Rows, SquaredL2, TotalVariation, Uniformity
from gcalign.transport import gradients

MARGINALS = {
    "free": (),
    "rows": (Rows(),),
    "columns": (Columns(),),
    "rows relaxed": (Rows(0.3),),
    "columns relaxed": (Columns(0.3),),
    "balanced": (Rows(), Columns()),
    "relaxed": (Rows(0.2), Columns(0.7)),
    "semi-unbalanced": (Rows(), Columns(0.4)),
    "semi-unbalanced, other side": (Rows(0.4), Columns()),
    "total variation": (Rows(TotalVariation(0.15)), Columns(TotalVariation(0.3))),
}
DIVERGENCES = {
    "KL": KL(),
    "KL without mass": KL(mass=False),
    "KL without penalties": KL(penalties=False),
    "KL of normalised rows": KL(normalized=True),
    "Robust": Robust(0.6, 0.1),
    "Robust in score scale": Robust(0.3, 0.1, scale="score"),
    "W1": W1(0.2),
    "SquaredL2": SquaredL2(),
    "Uniformity": Uniformity(),
    "KL + Robust + Uniformity": 2 * KL() + 0.3 * Robust(0.6, 0.1) + 0.2 * Uniformity(),
}
TARGETS = {
    "identity": gcalign.Identity(),
    "labels": gcalign.Labels(),
    "blocks": gcalign.Blocks(0.3, 0.1),
}
HARD = {"rows", "columns", "balanced", "semi-unbalanced", "semi-unbalanced, other side"}
ENVELOPE = {  # the marginals with which a divergence is a Fenchel–Young loss; without a constraint every one passes
    "KL": set(MARGINALS),
    "KL without mass": HARD,  # a hard side fixes the mass
    "KL without penalties": {"rows", "columns", "balanced", "total variation"},  # which have no term of their own
}
CONVERGED = {"iterations": 3000, "tol": 1e-15}
TRUNCATED = {"iterations": 3, "tol": 0}


def embeddings(b=4, d=3):
    generator = torch.Generator().manual_seed(5)
    z1 = torch.randn(b, d, generator=generator, dtype=torch.float64)
    z2 = z1 + 0.8 * torch.randn(b, d, generator=generator, dtype=torch.float64)
    return z1.requires_grad_(), z2.requires_grad_()


def known(target):
    return {
        "identity": {},
        "labels": {"labels": torch.tensor([0, 0, 1, 1])},
        "blocks": {"domains": torch.tensor([0, 0, 0, 1])},
    }[target]


def criterion(marginal, divergence, mode, layout, target="identity", **settings):
    return gcalign.Alignment(
        Cosine(0.5),
        MARGINALS[marginal],
        DIVERGENCES[divergence],
        TARGETS[target],
        layout=layout,
        gradient=mode,
        **settings,
    )


def settings_of(mode):
    return CONVERGED if mode in ("envelope", "implicit") else TRUNCATED


@pytest.mark.parametrize("layout", ["cross", "joint"])
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("marginal", MARGINALS)
@pytest.mark.parametrize("mode", ["envelope", "implicit", "truncated", "unrolled"])
def test_gradcheck(mode, marginal, divergence, layout):
    z = embeddings()
    loss = criterion(marginal, divergence, mode, layout, **settings_of(mode))
    if mode == "envelope" and marginal not in {"free", *ENVELOPE.get(divergence, ())}:
        with pytest.raises(ValueError, match=r"envelope.*would be wrong"):
            loss(*z)
        return
    assert gradcheck(loss, z, fast_mode=True, atol=1e-7)


@pytest.mark.parametrize("target", ["labels", "blocks"])
@pytest.mark.parametrize("layout", ["cross", "joint"])
@pytest.mark.parametrize("divergence", ["KL", "Robust", "SquaredL2", "KL + Robust + Uniformity"])
@pytest.mark.parametrize("marginal", ["rows", "balanced", "relaxed"])
def test_modes_agree_on_other_targets(marginal, divergence, layout, target):
    z = embeddings()

    def gradient(mode, **settings):
        loss = criterion(marginal, divergence, mode, layout, target, **settings)(*z, **known(target))
        return torch.cat(torch.autograd.grad(loss, z))

    exact = gradient("unrolled", **CONVERGED)
    torch.testing.assert_close(gradient("implicit", **CONVERGED), exact, rtol=1e-8, atol=1e-11)
    torch.testing.assert_close(gradient("auto", **CONVERGED), exact, rtol=1e-8, atol=1e-11)
    torch.testing.assert_close(gradient("truncated", **CONVERGED), exact, rtol=1e-8, atol=1e-11)
    few = gradient("unrolled", **TRUNCATED)
    torch.testing.assert_close(gradient("truncated", **TRUNCATED), few, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(gradient("auto", **TRUNCATED), few, rtol=1e-8, atol=1e-11)


def test_envelope_is_wrong_for_a_target_without_the_plans_marginals_and_refused():
    z = embeddings()
    mass = torch.tensor([0.5, 0.5, 1.5, 1.5], dtype=torch.float64)
    sides = (Rows(mass=mass), Columns())
    with pytest.raises(ValueError, match="marginals are not the plan's"):
        gcalign.Alignment(Cosine(0.5), sides, KL(), gradient="envelope", **CONVERGED)(*z)
    implicit = gcalign.Alignment(Cosine(0.5), sides, KL(), **CONVERGED)
    assert implicit.explain(*z).mode == "implicit"
    assert gradcheck(implicit, z, fast_mode=True)


@pytest.mark.parametrize("layout", ["cross", "joint"])
def test_a_learnt_epsilon_gets_its_gradient_through_kernel_relaxation_and_loss(layout):
    z = [t.detach() for t in embeddings()]
    for (marginal, sides), (name, divergence) in itertools.product(MARGINALS.items(), DIVERGENCES.items()):
        for mode, settings in (("auto", CONVERGED), ("truncated", TRUNCATED), ("unrolled", TRUNCATED)):
            loss = gcalign.Alignment(
                Cosine(0.5, learnable=True), sides, divergence, layout=layout, gradient=mode, **settings
            ).double()
            log_eps = loss.kernel.log_eps
            (got,) = torch.autograd.grad(loss(*z), log_eps)
            ends = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    log_eps += step
                    ends.append(loss(*z).item())
                    log_eps -= step
            assert got.item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-8), (marginal, name, mode)


@pytest.mark.parametrize("relax", [(math.inf, math.inf), (0.2, 0.2), (math.inf, 0.5)])
@pytest.mark.parametrize("settings", [CONVERGED, TRUNCATED], ids=["converged", "truncated"])
def test_solve_is_differentiable_in_log_k(settings, relax):
    log_k = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)

    def plan(log_k):
        return gcalign.solve(log_k, (Rows(relax[0]), Columns(relax[1])), Entropic(0.5), **settings).log

    assert gradcheck(plan, (log_k,), atol=1e-7)


def test_solve_is_differentiable_on_any_constraint_set():
    log_k = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    sets = (Rows(), Columns(), Capacity(0.4))
    assert gradcheck(lambda x: gcalign.solve(x, sets, Entropic(0.5), iterations=60, tol=0).log, (log_k,), atol=1e-6)


def test_truncated_needs_the_memory_of_vectors_not_of_iterations():
    z1, z2 = (torch.randn(64, 8, requires_grad=True) for _ in range(2))

    def kept(iterations):
        loss = gcalign.method("gca-ince", gradient="truncated", iterations=iterations, tol=0)(z1, z2)
        sizes, parts = {}, [loss.grad_fn]
        while parts:
            part = parts.pop()
            if isinstance(part, torch.Tensor):
                storage = part.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes() // part.element_size()
            elif isinstance(part, (tuple, list)):
                parts += part
            elif isinstance(part, torch.autograd.graph.Node):
                parts += [
                    *part.next_functions,
                    *getattr(part, "saved_tensors", ()),
                    *getattr(part, "__dict__", {}).values(),
                ]
        return sum(sizes.values())

    assert kept(10) < 2 * 64 * 64 + 10 * 4 * 64 + 40 * 64  # one matrix, whatever the number of iterations
    assert 30 * 4 * 64 <= kept(50) - kept(10) <= 40 * 4 * 64


def test_small_epsilon_reverses_step_by_step_in_log_space():
    z = embeddings(b=5)
    for name in ("gca-ince", "gca-uot"):
        by_hand = gcalign.method(name, eps=2e-3, iterations=6, tol=0, gradient="truncated")
        unrolled = gcalign.method(name, eps=2e-3, iterations=6, tol=0, gradient="unrolled")
        got, want = (torch.cat(torch.autograd.grad(c(*z), z)) for c in (by_hand, unrolled))
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize(
    ("name", "mode"), [("gca-rince", "implicit"), ("gca-uot", "implicit"), ("gca-ince", "envelope")]
)
def test_every_mode_is_exact_on_a_plan_that_has_not_converged(name, mode, learnable):
    z = embeddings(b=6)
    grads = []
    for gradient in (mode, "unrolled"):
        criterion = gcalign.method(name, eps=0.05, iterations=2, gradient=gradient, learnable=learnable).double()
        inputs = [*z, *criterion.parameters()]
        grads.append(torch.autograd.grad(criterion(*z), inputs))
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)
    choice = gcalign.method(name, eps=0.05, iterations=2, gradient=mode).explain(*z)
    assert choice.mode == "truncated"
    assert "has not converged" in choice.reason


@pytest.mark.parametrize("mode", ["implicit", "truncated"])
@pytest.mark.parametrize("scale", [1e-24, 1e24])
def test_the_gradient_of_a_tiny_or_huge_loss_is_that_of_the_loss_times_a_number(mode, scale):
    z = [x.detach().float().requires_grad_() for x in embeddings(6)]
    weights = torch.tensor([1e-9, 1.0, 1.0, 1.0, 1.0, 1.0])  # so that steps are done in log space
    criterion = gcalign.method("gca-rince", eps=0.3, iterations=200, gradient=mode)
    loss = criterion(*z, weights=weights)
    want = torch.autograd.grad(loss, z, retain_graph=True)
    for found, expected in zip(torch.autograd.grad(scale * loss, z), want, strict=True):
        torch.testing.assert_close(found / scale, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", [2, 6, 21])
def test_factors_that_overflow_together_are_not_multiplied(seed):
    generator = torch.Generator().manual_seed(seed)
    z1 = torch.randn(6, 3, generator=generator)
    z = [z1.requires_grad_(), (z1.detach() + 0.8 * torch.randn(6, 3, generator=generator)).requires_grad_()]
    loss = gcalign.method("gca-rince", eps=0.005, q=0.1, gradient="truncated")(*z)
    want = torch.autograd.grad(loss, z, retain_graph=True)
    for found, expected in zip(torch.autograd.grad(1e33 * loss, z), want, strict=True):
        torch.testing.assert_close(found / 1e33, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["gca-ince", "gca-uot", "gca-rince", "iot-uni"])
@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_a_reversal_that_ends_early_leaves_nothing_out(name, noise, monkeypatch):
    criterion = gcalign.method(name, eps=0.3, gradient="truncated")
    torch.manual_seed(0)
    z1 = torch.randn(64, 16)
    z2, steps = z1 + noise * torch.randn(64, 16), []
    step = gradients._reversed_row_step
    monkeypatch.setattr(gradients, "_reversed_row_step", lambda *x, **y: (steps.append(1), step(*x, **y))[1])

    def gradient(dtype):
        steps.clear()
        x, y = z1.to(dtype, copy=True).requires_grad_(), z2.to(dtype, copy=True).requires_grad_()
        return torch.cat(torch.autograd.grad(criterion(x, y), [x, y])).double(), len(steps)

    exact, whole = gradient(torch.float64)[0], gradient(torch.float32)
    monkeypatch.setattr(gradients, "LARGE", 1)
    early = gradient(torch.float32)
    assert early[1] <= whole[1]
    assert early[1] < whole[1] or name != "gca-ince"  # its adjoint is what the sums lack, next to nothing
    error, usual = ((g - exact).norm(dim=1) / exact.norm(dim=1) for g in (early[0], whole[0]))
    assert bool((error <= 2 * usual + 1e-6).all())
