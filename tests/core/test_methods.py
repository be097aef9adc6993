"""Each method against the one oracle of all losses, `oracles.Dense`, and against the formulas its users know."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as the field writes it

import gcalign
from fuzz.cases import Case
from fuzz.check import judge
from gcalign.constraints import can_lose_mass

NAMES = tuple(name for name in gcalign.methods.names() if name != "siglip")  # which has a test of its own formula
LABELS = [0, 1, 0, 2, 1, 2, 0]
FIXED = {"clip": {"learnable": False}, "gca-uot": {"relax": (0.2, 0.2)}}  # as in the paper
EXACT = {"gradient": "auto", "reduction": "mean", "tol": 0.0, "iterations": 10}


@pytest.mark.parametrize("layout", ["cross", "joint"])
@pytest.mark.parametrize("eps", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("name", NAMES)
def test_every_method_is_the_oracle_s_in_loss_plan_and_gradient(name, eps, layout):
    options = {**EXACT, "eps": 1.0 if name == "byol" else eps, "layout": layout, **FIXED.get(name, {})}
    target = "labels" if name == "supcon" else "identity"
    verdict = judge(Case(0, 0, "method", name, options, n=7, m=7, d=5, target=target))
    assert (verdict.kind, verdict.failure) == ("agrees", "")


@pytest.mark.parametrize("layout", ["cross", "joint"])
@pytest.mark.parametrize("target", ["labels", "unnormalized labels", "blocks", "hierarchy", "dense", "sparse"])
@pytest.mark.parametrize("name", ["ince", "gca-ince", "rince", "gca-rince", "gca-uot", "iot-uni"])
def test_every_target_is_the_oracle_s(name, target, layout):
    options = {**EXACT, "eps": 0.3, "layout": layout, **FIXED.get(name, {})}
    verdict = judge(Case(0, 3, "method", name, options, n=7, m=9, d=5, target=target, ids="views", weights="mild"))
    assert (verdict.kind, verdict.failure) == ("agrees", "")


def test_one_row_projection_is_cross_entropy(batch):
    z1, z2 = batch(b=9)
    logits = F.normalize(z1) @ F.normalize(z2).T / 0.5
    expected = F.cross_entropy(logits, torch.arange(9))
    loss = gcalign.Alignment(gcalign.Cosine(0.5), (gcalign.Rows(),), gcalign.KL())(z1, z2)
    assert abs(loss - expected).item() <= 1e-12
    torch.testing.assert_close(
        torch.autograd.grad(loss, (z1, z2)), torch.autograd.grad(expected, (z1, z2)), rtol=1e-12, atol=1e-14
    )


def test_simclr_is_nt_xent(batch):
    z1, z2 = batch(b=6)
    z = F.normalize(torch.cat([z1, z2]))
    scores = (z @ z.T / 0.1).masked_fill(torch.eye(12, dtype=torch.bool), -torch.inf)
    expected = F.cross_entropy(scores, torch.arange(12).roll(6))
    torch.testing.assert_close(gcalign.method("simclr", eps=0.1)(z1, z2), expected, rtol=1e-12, atol=0)


def test_supcon_is_its_published_formula(batch):
    z1, z2 = batch(b=7)
    y = torch.tensor(LABELS).repeat(2)
    z = F.normalize(torch.cat([z1, z2]))
    scores = z @ z.T / 0.1
    total = 0.0
    for i in range(14):  # L_out: −1/|P(i)| Σ_p log( exp(z_i·z_p/τ) / Σ_{a≠i} exp(z_i·z_a/τ) ), averaged over anchors
        others = [a for a in range(14) if a != i]
        positives = [p for p in others if y[p] == y[i]]
        denominator = torch.logsumexp(scores[i, others], 0)
        total += -sum(scores[i, p] - denominator for p in positives) / len(positives)
    loss = gcalign.method("supcon", eps=0.1)(z1, z2, labels=torch.tensor(LABELS))
    torch.testing.assert_close(loss, total / 14, rtol=1e-12, atol=0)


def test_clip_is_cross_entropy_both_ways_with_a_learnt_temperature(batch):
    z1, z2 = batch(b=6)
    criterion = gcalign.method("clip", eps=0.07).double()
    logits = F.normalize(z1) @ F.normalize(z2).T / 0.07
    labels = torch.arange(6)
    expected = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    loss = criterion(z1, z2)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)  # ε is kept as a float32 logarithm
    loss.backward()
    assert criterion.alignment.kernel.log_eps.grad.abs() > 0


def test_byol_is_the_squared_distance_and_only_predictions_move(batch):
    z1, z2 = batch(b=6)
    loss = gcalign.method("byol")(z1, z2.detach())
    expected = (F.normalize(z1) - F.normalize(z2)).square().sum(1).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(loss, z1)[0], torch.autograd.grad(expected, z1)[0], rtol=1e-10, atol=1e-14
    )


@pytest.mark.parametrize("q", [0.1, 0.6, 1.0])
def test_rince_in_score_scale_is_the_papers_equation(q, batch):
    z1, z2 = batch(b=6)
    s = F.normalize(z1) @ F.normalize(z2).T / 0.5
    expected = ((0.01 * s.exp().sum(1)) ** q - (q * s.diagonal()).exp()).mean() / q
    torch.testing.assert_close(
        gcalign.method("rince", eps=0.5, q=q, scale="score")(z1, z2), expected, rtol=1e-12, atol=0
    )
    kernel_scale = gcalign.method("rince", eps=0.5, q=q)(z1, z2)
    torch.testing.assert_close(kernel_scale * math.exp(q / 0.5), expected, rtol=1e-12, atol=0)


def test_rince_tends_to_info_nce_up_to_a_constant_as_q_vanishes(batch):
    z1, z2 = batch(b=6)
    gradient_of = lambda loss: torch.cat(torch.autograd.grad(loss, (z1, z2)))  # noqa: E731  # used twice, here
    near = gradient_of(gcalign.method("rince", q=1e-6, lam=1.0)(z1, z2))
    torch.testing.assert_close(near, gradient_of(gcalign.method("ince")(z1, z2)), rtol=1e-4, atol=1e-7)


def test_w1_is_the_robust_divergence_at_q_1():
    assert gcalign.W1(0.01) == gcalign.Robust(1.0, 0.01)


def test_row_normalised_kl_is_blind_to_the_row_relaxation(batch):
    z1, z2 = batch()
    losses = [
        gcalign.Alignment(gcalign.Cosine(0.5), (gcalign.Rows(lam),), gcalign.KL(normalized=True))(z1, z2).item()
        for lam in (0.1, 10.0)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert losses[0] == pytest.approx(gcalign.method("ince", eps=0.5)(z1, z2).item(), rel=1e-12)


def test_metrics_are_their_definitions(batch):
    z1, z2 = batch(b=9)
    a, b = F.normalize(z1.detach()), F.normalize(z2.detach())
    torch.testing.assert_close(gcalign.metrics.alignment(z1, z2).detach(), (a - b).norm(dim=1).square().mean())
    expected = (-2 * torch.pdist(a).square()).exp().mean().log()
    torch.testing.assert_close(gcalign.metrics.uniformity(z1).detach(), expected)
    torch.testing.assert_close(gcalign.metrics.uniformity(z1, block=2).detach(), expected)
    h, y = torch.randn(9, 4, dtype=torch.float64), torch.tensor([3, 3, 3, 1, 1, 1, 8, 8, 8])
    spread = [(h[i] - h[y == y[i]].mean(0)).norm() for i in range(9)]
    torch.testing.assert_close(gcalign.metrics.compactness(h, y), torch.stack(spread).mean())


def test_a_plan_says_which_sums_need_not_hold():
    z1, z2 = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0))
    assert "(relaxed)" in repr(gcalign.method("gca-uot").plan(z1, z2))
    assert "(free)" in repr(gcalign.method("ince").plan(z1, z2))
    assert "(" not in repr(gcalign.method("gca-ince").plan(z1, z2))[5:]


@pytest.mark.parametrize(("name", "can"), [("ince", False), ("gca-uot", False), ("gca-uot-paper", True)])
def test_only_a_relaxed_plan_without_a_total_mass_can_lose_mass(name, can):
    criterion = gcalign.method(name, eps=0.05)
    assert can_lose_mass(criterion.constraints) == can
    far = torch.eye(8), -torch.eye(8)
    assert (float(criterion.plan(*far).mass) < 8 * (1 - 1e-3)) == can
