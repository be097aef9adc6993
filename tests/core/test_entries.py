"""What a batch may have beyond pairs: more negatives, pairs left out, missing partners, a teacher."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as the field writes it
from hypothesis import given, settings
from hypothesis import strategies as st

import gcalign
from gcalign import KL, Alignment, Columns, Cosine, Rows, Teacher, TotalMass

METHODS = ("ince", "gca-ince", "rince", "gca-rince", "gca-uot", "gca-uot-published", "simclr", "iot", "clip", "siglip")
N, D = 6, 4


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def made(name, **options):
    fixed = {"learnable": False} if name in ("clip", "siglip") else {}
    return gcalign.method(name, eps=0.4, **fixed, **options)


def logits(x, y, eps=0.4):
    return F.normalize(x, dim=1) @ F.normalize(y, dim=-1).T / eps


def assert_same(loss, expected, leaves, rtol=1e-10, atol=1e-12):
    torch.testing.assert_close(loss, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(*(torch.autograd.grad(x, leaves) for x in (loss, expected)), rtol=rtol, atol=atol)


# --- negatives ------------------------------------------------------------------------------------------------


def test_infonce_with_negatives_is_cross_entropy_over_longer_rows():
    z1, z2, shared, own = draw(N, D), draw(N, D, seed=1), draw(5, D, seed=2), draw(N, 3, D, seed=3)
    labels, criterion = torch.arange(N), made("ince")
    expected = F.cross_entropy(logits(z1, torch.cat([z2, shared])), labels)
    loss = criterion(z1, z2, negatives=shared)
    assert_same(loss, expected, (z1, z2, shared))
    rows = torch.einsum("nd,nkd->nk", F.normalize(z1, dim=1), F.normalize(own, dim=2)) / 0.4
    expected = F.cross_entropy(torch.cat([logits(z1, z2), rows], 1), labels)
    loss = criterion(z1, z2, negatives=own)
    assert_same(loss, expected, (z1, z2, own))


@pytest.mark.parametrize("layout", ["cross", "joint"])
@pytest.mark.parametrize("shape", [(5, D), (N, 3, D)], ids=["for all", "for each"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_negatives_with_their_gradient(name, shape, layout):
    criterion = made(name, layout=layout)
    z = draw(N, D), draw(N, D, seed=1), draw(*shape, seed=2)
    assert torch.autograd.gradcheck(lambda a, b, h: criterion(a, b, negatives=h), z, atol=1e-6)


@pytest.mark.parametrize("kernel", [gcalign.SquaredEuclidean(0.7), gcalign.LogKernel(lambda x, y: x @ y.T)])
@pytest.mark.parametrize("shape", [(5, D), (N, 3, D)], ids=["for all", "for each"])
def test_negatives_are_streamed_and_go_with_every_kernel(kernel, shape):
    z1, z2, h = draw(N, D), draw(N, D, seed=1), draw(*shape, seed=2)
    parts = kernel, (Rows(), Columns(0.5)), KL() + 0.3 * gcalign.Robust(0.5, 0.1)
    found = []
    for options in ({"gradient": "unrolled"}, {}, {"block": 2}):
        loss = Alignment(*parts, **options)(z1, z2, negatives=h)
        found.append([loss, *torch.autograd.grad(loss, (z1, z2, h))])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("bad", [torch.ones(3, D + 1), torch.ones(N + 1, 2, D), torch.ones(3), torch.ones(3, D).long()])
def test_bad_negatives_are_refused(bad):
    with pytest.raises(ValueError, match="negatives"):
        made("gca-ince")(draw(N, D).float(), draw(N, D).float(), negatives=bad)


# --- allowed and groups ---------------------------------------------------------------------------------------


def masked_cross_entropy(z1, z2, allowed, eps=0.4):
    return F.cross_entropy(logits(z1, z2, eps).masked_fill(~allowed, -math.inf), torch.arange(len(z1)))


@pytest.mark.parametrize("name", METHODS)
def test_a_pair_that_is_not_allowed_has_no_part_in_any_loss(name):
    z1, z2 = draw(N, D), draw(N, D, seed=1)
    allowed = torch.ones(N, N, dtype=torch.bool)
    allowed[0, 3] = allowed[4, 1] = False
    criterion = made(name)
    assert torch.autograd.gradcheck(lambda a, b: criterion(a, b, allowed=allowed), (z1, z2), atol=1e-6)
    plan = criterion.plan(z1, z2, allowed=allowed)
    left_out = [(0, 3), (4, 1)]
    if len(plan.log_u) > N:  # joint: across views, and in both orders within a view
        left_out = [(0, N + 3), (N + 3, 0), (0, 3), (3, 0), (N + 3, N), (N, N + 3)]
    assert not any(plan.matrix[pair] for pair in left_out)
    if name == "ince":
        torch.testing.assert_close(criterion(z1, z2, allowed=allowed), masked_cross_entropy(z1, z2, allowed))
    everything = torch.ones_like(allowed)
    torch.testing.assert_close(criterion(z1, z2, allowed=everything), criterion(z1, z2))


@pytest.mark.parametrize("block", [None, 2])
def test_groups_leave_out_negatives_of_the_same_group(block):
    z1, z2, groups = draw(N, D), draw(N, D, seed=1), torch.tensor([5, 7, 5, 7, 9, 11])
    allowed = (groups[:, None] != groups) | torch.eye(N, dtype=torch.bool)
    for name in METHODS:
        if name in ("simclr", "iot"):  # there, two views of a sample are of one group, too
            continue
        criterion = made(name, block=block)
        assert_same(criterion(z1, z2, groups=groups), made(name)(z1, z2, allowed=allowed), (z1, z2), 1e-9, 1e-11)


def test_a_positive_that_is_not_allowed_is_no_positive():
    z1, z2 = draw(N, D), draw(N, D, seed=1)
    allowed = torch.ones(N, N, dtype=torch.bool)
    allowed[2, 2] = False
    with pytest.raises(ValueError, match="row 2 of the target has no positive"):
        made("ince")(z1, z2, allowed=allowed)
    relaxed = Alignment(Cosine(0.4), (Rows(0.5), Columns(0.5)), KL())
    assert relaxed.plan(z1, z2, allowed=allowed).target.mu[2] == 0
    assert math.isfinite(relaxed(z1, z2, allowed=allowed).item())


@pytest.mark.parametrize("bad", [torch.ones(N, N), torch.ones(N, N - 1, dtype=torch.bool), torch.arange(N)])
def test_what_is_no_mask_is_refused(bad):
    with pytest.raises(ValueError, match="groups="):
        made("ince")(draw(N, D), draw(N, D, seed=1), allowed=bad)


def test_a_guide_leaves_out_what_it_finds_more_similar_than_the_positive():
    z1, z2 = draw(N, D), draw(N, D, seed=1)
    cosines = F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T
    own = cosines.diagonal()[:, None]
    for margin, relative, bound in ((0.0, False, own), (0.2, False, own - 0.2), (0.2, True, 0.8 * own)):
        expected = (cosines <= bound) | torch.eye(N, dtype=torch.bool)
        assert torch.equal(gcalign.guided(z1, z2, margin, relative=relative), expected)


# --- missing partners -----------------------------------------------------------------------------------------


def test_a_row_without_a_partner_takes_part_in_the_plan_and_has_no_term_in_the_loss():
    z1, z2 = draw(5, D), draw(4, D, seed=1)
    ids = torch.tensor([0, 1, 2, 3, 90]), torch.tensor([0, 1, 2, 80])
    criterion = Alignment(Cosine(0.4), (Rows(0.5), Columns(0.5)), KL(), reduction="none")
    losses = criterion(z1, z2, ids=ids)
    assert losses[3] == losses[4] == 0
    plan = criterion.plan(z1, z2, ids=ids)
    assert (plan.row_sums > 0).all()
    assert (plan.column_sums > 0).all()
    mean = Alignment(Cosine(0.4), (Rows(0.5), Columns(0.5)), KL())
    torch.testing.assert_close(mean(z1, z2, ids=ids), losses[:3].mean())
    assert torch.autograd.gradcheck(lambda a, b: mean(a, b, ids=ids), (z1, z2), atol=1e-6)


def test_a_given_mass_allows_rows_without_a_partner_and_infonce_leaves_them_out():
    z1, z2 = draw(5, D), draw(4, D, seed=1)
    ids = torch.tensor([0, 1, 2, 3, 90]), torch.tensor([0, 1, 2, 3])
    criterion = Alignment(Cosine(0.4), (Rows(mass=1.0),), KL())
    expected = F.cross_entropy(logits(z1, z2)[:4], torch.arange(4))
    torch.testing.assert_close(criterion(z1, z2, ids=ids), expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match=r"row 4 \(90\) .*positive"):
        gcalign.method("ince")(z1, z2, ids=ids)


# --- a teacher ------------------------------------------------------------------------------------------------


def klot(z1, z2, t1, t2, eps, eps_teacher, iterations=100):
    """KL between the plans of teacher and student, each by Sinkhorn's iterations in log space."""

    def log_plan(x, y, eps):
        log_k = F.normalize(x, dim=1) @ F.normalize(y, dim=1).T / eps
        f, g = log_k.new_zeros(len(x)), log_k.new_zeros(len(y))
        for _ in range(iterations):
            f = -torch.logsumexp(log_k + g, 1)
            g = math.log(len(x) / len(y)) - torch.logsumexp(log_k + f[:, None], 0)
        return log_k + f[:, None] + g

    with torch.no_grad():
        target = log_plan(t1, t2, eps_teacher)
    return (target.exp() * (target - log_plan(z1, z2, eps))).sum() / len(z1)


@pytest.mark.parametrize("shape", [(N, N), (N, 9)])
@pytest.mark.parametrize("dense", [True, False])
def test_a_teacher_s_plan_as_target_is_the_loss_between_two_plans(shape, dense, monkeypatch):
    if not dense:
        monkeypatch.setattr(gcalign.targets, "DENSE_ENTRIES", 0)
    z1, z2 = draw(shape[0], D), draw(shape[1], D, seed=1)
    t1, t2 = draw(shape[0], 7, seed=2).detach(), draw(shape[1], 7, seed=3).detach()
    criterion = Alignment(Cosine(0.2), (Rows(), Columns()), KL(), Teacher(0.3, iterations=2000, tol=1e-13),
                          iterations=2000, tol=1e-12, block=None if dense else 2)  # fmt: skip
    loss, expected = criterion(z1, z2, teacher=(t1, t2)), klot(z1, z2, t1, t2, 0.2, 0.3, 2000)
    assert_same(loss, expected, (z1, z2), 1e-6, 1e-8)


def test_a_teacher_mixes_with_known_pairs_and_is_asked_for():
    z1, z2, t = draw(N, D), draw(N, D, seed=1), draw(N, 3, seed=2).detach()
    criterion = gcalign.method("gca-ince", target=Teacher(0.1, weight=0.25))
    target = criterion.plan(z1, z2, teacher=(t, t)).target.dense()
    plan = gcalign.method("gca-ince", eps=0.1, iterations=100).plan(t, t).matrix
    torch.testing.assert_close(target, 0.75 * plan + 0.25 * torch.eye(N, dtype=torch.float64), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="teacher"):
        criterion(z1, z2)
    with pytest.raises(ValueError, match=r"Teacher\(eps\)"):
        gcalign.method("gca-ince")(z1, z2, teacher=(t, t))
    both = gcalign.Symmetric(criterion)
    assert torch.autograd.gradcheck(lambda a, b: both(a, b, teacher=(t, t)), (z1, z2), atol=1e-6)


# --- total mass, centring, SigLIP -----------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", ["auto", "truncated", "implicit", "unrolled"])
@pytest.mark.parametrize("relax", [(0.3, 0.3), (0.2, 0.7), (math.inf, 0.4)])
@pytest.mark.parametrize("divergence", [KL(), KL() + 0.3 * gcalign.Robust(0.6, 0.1), KL() + gcalign.SquaredL2()])
def test_with_the_total_mass_a_constant_added_to_log_k_changes_nothing(gradient, relax, divergence):
    z1, z2 = draw(N, D), draw(N, D, seed=1)
    sides = Rows(relax[0]), Columns(relax[1]), TotalMass()
    found = []
    for bias in (-2.0, 3.0):
        criterion = Alignment(Cosine(0.4, bias=bias), sides, divergence, gradient=gradient, iterations=500, tol=1e-13)
        loss = criterion(z1, z2)
        assert criterion.plan(z1, z2).mass.item() == pytest.approx(N)
        found.append([loss, *torch.autograd.grad(loss, (z1, z2))])
    if not any(isinstance(d, gcalign.Robust) for _, d in getattr(divergence, "terms", ())):  # which has a scale
        torch.testing.assert_close(*found, rtol=1e-7, atol=1e-9)
    assert torch.autograd.gradcheck(criterion, (z1, z2), atol=1e-6)


@pytest.mark.parametrize(("at_least", "shift"), [(False, 0.0), (True, -4.0), (True, 4.0)])
def test_the_plan_of_a_total_mass_is_that_of_dykstra(at_least, shift):
    log_k = draw(5, 7).detach() + shift
    sides, exact = (Rows(0.3), Columns(0.5), TotalMass(4.0, at_least)), {"iterations": 5000, "tol": 1e-13}
    plan = gcalign.solve(log_k, sides, gcalign.Entropic(0.4), **exact)
    by_sets = gcalign.solve(log_k, (*sides, gcalign.Capacity(1e6)), gcalign.Entropic(0.4), **exact)
    torch.testing.assert_close(plan.matrix, by_sets.matrix, rtol=1e-8, atol=1e-12)
    mass = 6 if at_least else 4
    with pytest.raises(ValueError, match=f"rows must sum to 5 and all entries must sum to {mass}"):
        gcalign.solve(log_k, (Rows(), TotalMass(mass, at_least)))
    if at_least:
        assert gcalign.solve(log_k, (Rows(), TotalMass(4.0, at_least))).mass.item() == pytest.approx(5)


STREAMED = [(mode, block) for mode in ("auto", "truncated", "implicit") for block in (None, 3)]


@pytest.mark.parametrize(("gradient", "block"), [*STREAMED, ("unrolled", None)])
@pytest.mark.parametrize("divergence", [KL(), KL() + 0.3 * gcalign.Robust(0.6, 0.1)])
def test_with_at_least_the_mass_a_plan_that_lacks_it_is_filled_up_and_no_other_is_changed(gradient, block, divergence):
    z1, z2 = draw(N, D), draw(N, D, seed=1)
    for bias, same in ((-6.0, TotalMass()), (3.0, None)):  # the relaxed plan has too little mass, and too much
        options = {"gradient": gradient, "block": block, "iterations": 500, "tol": 1e-13}
        sides, kernel = (Rows(0.3), Columns(0.5)), Cosine(0.4, bias=bias)
        criterion = Alignment(kernel, (*sides, TotalMass(at_least=True)), divergence, **options)
        expected = Alignment(kernel, sides if same is None else (*sides, same), divergence, **options)
        assert (float(criterion.plan(z1, z2).mass) > N + 1e-6) == (same is None)
        assert_same(criterion(z1, z2), expected(z1, z2), (z1, z2))
        assert torch.autograd.gradcheck(criterion, (z1, z2), atol=1e-6, fast_mode=True)


@given(st.integers(0, 1000), st.integers(3, 9), st.floats(0.05, 1.0), st.floats(-8.0, 4.0))
@settings(max_examples=40, deadline=None)
def test_gca_uot_never_falls_if_all_scores_rise_together(seed, n, eps, bias):
    z1, z2 = draw(n, 4, seed=seed).detach(), draw(n, 4, seed=seed + 1).detach()
    criterion = gcalign.method("gca-uot", eps=eps, w_robust=0.0, iterations=2000, tol=1e-12)
    shift = torch.tensor(bias, dtype=torch.float64, requires_grad=True)
    cosine = F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T
    criterion.kernel = gcalign.LogKernel(lambda x, y: cosine / eps + shift, eps)
    (slope,) = torch.autograd.grad(criterion(z1, z2), shift)
    assert slope >= -1e-9


def test_gca_uot_with_given_relaxations_is_the_paper_s_form():
    z1, z2 = draw(N, D), draw(N, D, seed=1)
    paper = gcalign.method("gca-uot-paper", eps=0.1)
    assert repr(gcalign.method("gca-uot", eps=0.1, relax=(0.2, 0.2))) == repr(paper)
    assert repr(gcalign.method("gca-uot", eps=0.1, least_mass=False)) == repr(paper)
    safe = gcalign.method("gca-uot", eps=0.1)
    assert repr(gcalign.method("gca-uot", eps=0.1, relax=(0.2, 0.2), least_mass=True)) == repr(safe)
    assert "TotalMass(at_least=True)" in repr(safe)
    assert float(paper.plan(z1, z2).mass) < N
    assert float(safe.plan(z1, z2).mass) == pytest.approx(N)
    assert "gives the plan at least the mass 6" in safe.explain(z1, z2).reason
    with pytest.raises(TypeError, match="least_mass='yes' must be True, False or None"):
        gcalign.method("gca-uot", least_mass="yes")


def test_centring_subtracts_the_mean_direction_of_each_side():
    z1, z2 = draw(N, D), draw(N, D, seed=1)
    x, y = (F.normalize(F.normalize(z, dim=1) - F.normalize(z, dim=1).mean(0), dim=1) for z in (z1 + 3, z2 + 3))
    expected = F.cross_entropy(x @ y.T / 0.4, torch.arange(N))
    criterion = Alignment(Cosine(0.4, center=True), (Rows(),), KL())
    torch.testing.assert_close(criterion(z1 + 3, z2 + 3), expected)
    assert torch.autograd.gradcheck(criterion, (z1, z2), atol=1e-6)
    assert "center=True" in repr(criterion)


def test_siglip_is_the_published_formula_with_gradients_of_scale_and_bias():
    z1, z2 = draw(N, D), draw(N, D, seed=1)
    criterion = gcalign.method("siglip", eps=0.2, bias=-4.0).double()
    scale = (-criterion.kernel.log_eps.detach()).exp().requires_grad_()
    bias = criterion.kernel.bias.detach().clone().requires_grad_()
    signs = 2 * torch.eye(N, dtype=torch.float64) - 1
    expected = -F.logsigmoid(signs * (scale * logits(z1, z2, 1.0) + bias)).sum() / N
    loss = criterion(z1, z2)
    torch.testing.assert_close(loss, expected)
    got = torch.autograd.grad(loss, (z1, z2, criterion.kernel.bias, criterion.kernel.log_eps))
    want = torch.autograd.grad(expected, (z1, z2, bias, scale))
    torch.testing.assert_close(got, (*want[:3], (-want[3] * scale).detach()), rtol=1e-8, atol=1e-10)
