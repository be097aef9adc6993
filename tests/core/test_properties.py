"""The theorems, and what must hold on any batch."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gcalign
from gcalign import KL, Columns, Cosine, Entropic, Identity, Labels, Robust, Rows

NAMES = gcalign.methods.names()
seeds = st.integers(0, 2**20)
sizes = st.integers(2, 9)
epsilons = st.floats(0.05, 5.0)


def views(seed, n, d=4, m=None):
    generator = torch.Generator().manual_seed(seed)
    z1 = torch.randn(n, d, generator=generator, dtype=torch.float64)
    z2 = torch.randn(m or n, d, generator=generator, dtype=torch.float64)
    return z1, (z1 + z2 if m is None else z2)


def generalized_kl(t, p):
    return (torch.xlogy(t, t) - torch.xlogy(t, p) - t + p).sum()


def project(log_p, dim, mass):
    return log_p + (mass.log() - log_p.logsumexp(dim)).unsqueeze(dim)


@given(seeds, sizes, epsilons, st.integers(1, 6))
def test_each_hard_projection_obeys_pythagoras(seed, n, eps, steps):
    z1, z2 = views(seed, n)
    target = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.01
    mu, nu = target.sum(1), target.sum(0)
    log_p = Cosine(eps)(Cosine().features(z1), Cosine().features(z2))
    for k in range(steps):
        after = project(log_p, 1, mu) if k % 2 == 0 else project(log_p, 0, nu)
        fall = generalized_kl(target, log_p.exp()) - generalized_kl(target, after.exp())
        torch.testing.assert_close(fall, generalized_kl(after.exp(), log_p.exp()), rtol=1e-9, atol=1e-10)
        log_p = after


@given(seeds, sizes, epsilons)
def test_gca_ince_falls_with_every_iteration(seed, n, eps):
    z = views(seed, n)
    losses = [gcalign.method("gca-ince", eps=eps, iterations=t, tol=0)(*z).item() for t in range(1, 12)]
    start = gcalign.method("ince", eps=eps)(*z).item()
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise([start, *losses]))


@given(seeds, sizes, epsilons)
def test_the_dual_value_rises_with_every_step(seed, n, eps):
    z1, z2 = views(seed, n)
    log_k = Cosine(eps)(Cosine().features(z1), Cosine().features(z2))
    values = []
    for t in range(1, 8):
        plan = gcalign.solve(log_k, iterations=t, tol=0)
        values.append((plan.log_u.sum() + plan.log_v.sum() - plan.mass).item())
    assert all(after >= before - 1e-10 for before, after in itertools.pairwise(values))


@given(seeds, sizes, st.floats(0.2, 5.0))
def test_converged_plans_have_their_marginals(seed, n, eps):
    plan = gcalign.method("gca-ince", eps=eps, iterations=5000, tol=1e-4).plan(*views(seed, n))
    assert plan.converged
    # the side that was scaled last is exact, the other to tol, which is relative to ‖P − T‖₁ ≤ 2·mass
    exact, other = sorted((plan.row_error, plan.column_error))
    assert exact < 1e-12
    assert other < 2e-4
    torch.testing.assert_close(plan.mass, torch.tensor(float(n), dtype=torch.float64))


@given(seeds, sizes, st.sampled_from(["cross", "joint"]), st.sampled_from(NAMES))
def test_losses_and_plans_follow_ids_not_positions(seed, n, layout, name):
    z1, z2 = views(seed, n)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(3 * n, generator=generator)[:n]
    first, second = torch.randperm(n, generator=generator), torch.randperm(n, generator=generator)
    criterion = gcalign.method(name, layout=layout, **({"target": Identity()} if name == "supcon" else {}))
    loss = criterion(z1, z2)
    moved = criterion(z1[first], z2[second], ids=(ids[first], ids[second]))
    torch.testing.assert_close(moved, loss, rtol=1e-10, atol=1e-12)
    if layout == "cross":
        plan, moved_plan = criterion.plan(z1, z2), criterion.plan(z1[first], z2[second], ids=(ids[first], ids[second]))
        torch.testing.assert_close(moved_plan.matrix, plan.matrix[first][:, second], rtol=1e-9, atol=1e-12)


@settings(max_examples=6)
@given(seeds, st.integers(2, 6))
def test_relaxation_tends_to_the_hard_plan_and_to_the_kernel(seed, n):
    z1, z2 = views(seed, n)
    log_k = Cosine(0.5)(Cosine().features(z1), Cosine().features(z2))

    def plan(lam):
        return gcalign.solve(log_k, (Rows(lam), Columns(lam)), Entropic(0.5), iterations=20_000, tol=1e-8).matrix

    hard = plan(math.inf)
    far_from_hard = [(plan(lam) - hard).abs().max().item() for lam in (3, 30, 300)]
    assert far_from_hard[2] < 0.2 * far_from_hard[1] < 0.04 * far_from_hard[0] + 1e-6  # as 1/λ
    torch.testing.assert_close(plan(1e-7), log_k.exp(), rtol=1e-5, atol=1e-7)


class Table(torch.nn.Module):
    """A cost matrix as a kernel's parameter, so that the loss can be differentiated in the cost itself."""

    def __init__(self, cost, eps):
        super().__init__()
        self.cost, self.eps = torch.nn.Parameter(cost), eps

    def forward(self, x, y):
        return -self.cost / self.eps


@given(seeds, sizes, epsilons, st.sampled_from([(0.2, 0.2), (2.0, 0.1), (math.inf, 0.5), (math.inf, math.inf)]))
def test_the_fenchel_young_loss_is_positive_and_its_gradient_in_the_cost_is_t_minus_p(seed, n, eps, relax):
    z1, z2 = views(seed, n)
    table = Table(1 - Cosine().features(z1) @ Cosine().features(z2).T, eps)
    sides = (Rows(relax[0]), Columns(relax[1]))
    loss = gcalign.Alignment(gcalign.LogKernel(table, eps), sides, KL(), iterations=50_000, tol=1e-13)
    plain = gcalign.Alignment(
        gcalign.LogKernel(table, eps), sides, KL(), iterations=50_000, tol=1e-13, gradient="truncated"
    )
    unrolled = gcalign.Alignment(
        gcalign.LogKernel(table, eps), sides, KL(), iterations=plain.plan(z1, z2).iterations, tol=0, gradient="unrolled"
    )
    plan = loss.plan(z1, z2).matrix
    for criterion in (loss, unrolled):
        value = criterion(z1, z2)
        assert value >= -1e-12
        (gradient,) = torch.autograd.grad(value, table.cost)
        torch.testing.assert_close(n * eps * gradient, torch.eye(n, dtype=torch.float64) - plan, rtol=1e-6, atol=1e-8)


@given(seeds, sizes, st.floats(-3, 3))
def test_gca_rince_does_not_see_the_gauge(seed, n, shift):
    z1, z2 = views(seed, n)
    log_k = Cosine(0.5)(Cosine().features(z1), Cosine().features(z2))
    loss = gcalign.method("gca-rince", eps=0.5, iterations=50, tol=0)(z1, z2)
    # the same iterations started from v = e^shift end in another gauge (cu, v/c) of the same plan
    a, b = torch.zeros(n, dtype=torch.float64), torch.full((n,), shift, dtype=torch.float64)
    for _ in range(50):
        a = -(log_k + b).logsumexp(1)
        b = -(log_k + a[:, None]).logsumexp(0)
    q, log_q = 0.6, log_k + b - b.mean()
    expected = ((0.01 * log_q.exp().sum(1)) ** q - (q * log_q.diagonal()).exp()).mean() / q
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)


@given(seeds, sizes, st.sampled_from(["cross", "joint"]), st.sampled_from(["ince", "gca-ince", "gca-uot", "iot-uni"]))
def test_losses_do_not_change_under_rotation_of_the_space(seed, n, layout, name):
    z1, z2 = views(seed, n)
    q, _ = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    criterion = gcalign.method(name, layout=layout)
    torch.testing.assert_close(criterion(z1 @ q, z2 @ q), criterion(z1, z2), rtol=1e-9, atol=1e-12)


@given(seeds, st.integers(2, 5), st.integers(1, 3))
def test_several_views_are_pairs_of_pairs(seed, samples, views_each):
    """With k views on each side, T holds every pair of views of a sample and marginals follow it."""
    n = samples * views_each
    z1, z2 = views(seed, n)
    ids = torch.arange(samples).repeat(views_each)
    plan = gcalign.method("gca-ince", eps=0.5, iterations=2000, tol=1e-10).plan(z1, z2, ids=ids)
    expected = torch.full((n,), float(views_each), dtype=torch.float64)
    torch.testing.assert_close(plan.row_sums, expected, rtol=1e-8, atol=0)
    joint = gcalign.method("iot", eps=0.5, iterations=2000, tol=1e-10).plan(z1, z2, ids=ids)
    assert joint.matrix.diagonal().abs().max() == 0
    expected = torch.full((2 * n,), 2.0 * views_each - 1, dtype=torch.float64)
    torch.testing.assert_close(joint.row_sums, expected, rtol=1e-8, atol=0)


@given(seeds, st.integers(1, 4), st.sampled_from(["cross", "joint"]))
def test_the_loss_reaches_zero_where_the_plan_is_its_target(seed, classes, layout):
    """A label target and embeddings that are one-hot by class: as ε → 0 the plan becomes the target and KL vanishes."""
    labels = torch.arange(classes).repeat_interleave(3)
    z = torch.eye(max(classes, 2), dtype=torch.float64)[labels]
    loss = gcalign.Alignment(Cosine(0.02), (Rows(), Columns()), KL(), Labels(), layout=layout)(z, z, labels=labels)
    assert abs(loss.item()) < 1e-9


@given(seeds, st.integers(2, 7), st.sampled_from(["ince", "gca-ince", "gca-uot", "rince"]), st.floats(0.1, 3))
def test_equal_weights_scale_the_target_and_unequal_ones_the_pairs(seed, n, name, weight):
    z1, z2 = views(seed, n)
    criterion = gcalign.method(name, eps=0.5, iterations=100, tol=1e-13)
    w = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    got, want = criterion(z1, z2, weights=w), criterion(z1, z2, target=torch.diag(w))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)
    if name == "ince":
        losses = -(Cosine(0.5)(Cosine().features(z1), Cosine().features(z2))).log_softmax(1).diagonal()
        torch.testing.assert_close(criterion(z1, z2, weights=w), (w * losses).mean(), rtol=1e-10, atol=1e-12)
        same = criterion(z1, z2, weights=torch.full((n,), weight, dtype=torch.float64))
        torch.testing.assert_close(same, weight * criterion(z1, z2), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("divergence", [KL(), Robust(0.6, 0.01)])
def test_rectangular_plans_follow_their_ids(divergence, batch):
    z1, _ = batch(b=3)
    z2 = torch.randn(8, 5, dtype=torch.float64)  # three positives, then a queue of extra negatives
    loss = gcalign.Alignment(Cosine(0.5), (Rows(),), divergence)
    ids = (torch.tensor([7, 8, 9]), torch.tensor([9, 7, 8, 100, 101, 102, 103, 104]))
    target = torch.zeros(3, 8, dtype=torch.float64)
    target[0, 1] = target[1, 2] = target[2, 0] = 1
    torch.testing.assert_close(loss(z1, z2, ids=ids), loss(z1, z2, target=target))
    assert loss.plan(z1, z2, ids=ids).matrix.shape == (3, 8)
