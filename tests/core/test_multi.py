"""One plan over K views: against a tensor of n^K entries, its gradient, and what it refuses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import gcalign

N = 5


def made(k: int, n: int = N, d: int = 4, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return [base + 0.8 * torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(k)]


def tensor_sinkhorn(views, eps, lam, iterations):
    """P as a whole tensor in numpy, by plain scalings; lam is one λ for each view: inf is hard, None is free."""
    k, n = len(views), len(views[0])
    z = [v.numpy() / np.linalg.norm(v.numpy(), axis=1, keepdims=True) for v in views]
    kernel = np.zeros((n,) * k)
    for index in itertools.product(range(n), repeat=k):
        cost = sum(1 - z[a][index[a]] @ z[b][index[b]] for a, b in itertools.combinations(range(k), 2))
        kernel[index] = np.exp(-cost / (k - 1) / eps)
    scalings = [np.ones(n) for _ in range(k)]

    def plan():
        out = kernel.copy()
        for a in range(k):
            out *= scalings[a].reshape([n if c == a else 1 for c in range(k)])
        return out

    for _ in range(iterations):
        for a in range(k):
            if lam[a] is None:
                continue
            others = plan().sum(tuple(c for c in range(k) if c != a)) / scalings[a]
            tau = 1.0 if np.isinf(lam[a]) else lam[a] / (lam[a] + eps)
            scalings[a] = (1 / others) ** tau
    return plan(), scalings


def loss_of(plan, scalings, eps, lam, q=None, weight=0.02, lam_robust=0.01):
    """KL(T‖P) with its mass terms and the price of relaxed marginals, and RINCE's term with Q = P / u₁."""
    k, n = plan.ndim, len(plan)
    on = np.array([plan[(i,) * k] for i in range(n)])
    total = (-np.log(on)).sum() - n + plan.sum()
    for a in range(k):
        if lam[a] is not None and np.isfinite(lam[a]):
            sums = plan.sum(tuple(c for c in range(k) if c != a))
            total += lam[a] / eps * (-np.log(sums) - 1 + sums).sum()
    value = total / n
    if q is not None:
        gauge = np.exp(sum(np.log(s).mean() for s in scalings[1:]))
        spread = plan.sum(tuple(range(1, k))) / scalings[0] / gauge
        value += weight * np.mean(((lam_robust * spread) ** q - (on / scalings[0] / gauge) ** q) / q)
    return value


CASES = {
    "ince": (("ince", {}), lambda k: [np.inf] + [None] * (k - 1), None),
    "gca-ince": (("gca-ince", {}), lambda k: [np.inf] * k, None),
    "gca-uot": (("gca-uot", {"relax": (0.3, 0.7)}), lambda k: [0.3] + [0.7] * (k - 1), 0.6),
}


@pytest.mark.parametrize("k", [3, 4])
@pytest.mark.parametrize("iterations", [1, 7, 300])
@pytest.mark.parametrize("name", CASES)
def test_a_joint_plan_is_that_of_the_whole_tensor(name, iterations, k):
    (method, options), relaxations, q = CASES[name]
    views, eps = made(k), 0.4
    criterion = gcalign.method(method, eps=eps, iterations=iterations, tol=0, **options)
    plan, scalings = tensor_sinkhorn(views, eps, relaxations(k), 1 if name == "ince" else iterations)
    expected = loss_of(plan, scalings, eps, relaxations(k), q)
    assert float(criterion(views, multi="joint")) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("name", gcalign.methods.names())
def test_two_views_are_the_loss_of_today_bit_for_bit(name):
    z1, z2 = (z.float() for z in made(2, n=9))
    criterion = gcalign.method(name)
    known = {"labels": torch.arange(9) // 3} if name == "supcon" else {}
    assert torch.equal(criterion([z1, z2], multi="joint", **known), criterion(z1, z2, **known))


@pytest.mark.parametrize("name", ["ince", "gca-ince", "gca-uot", "gca-rince", "clip"])
def test_the_gradient_of_a_joint_plan_is_exact(name):
    views = [z.requires_grad_() for z in made(3, n=4, d=3)]
    criterion = gcalign.method(name, eps=0.5, iterations=4, tol=0, learnable=True).double()
    (log_eps,) = criterion.parameters()

    def loss(a, b, c, _):
        return criterion([a, b, c], multi="joint")

    assert torch.autograd.gradcheck(loss, (*views, log_eps))


def test_clip_takes_each_view_along_the_rows_in_turn():
    a, b, c = made(3)
    one_way, both = gcalign.method("ince", eps=0.2), gcalign.method("clip", eps=0.2, learnable=False)
    turns = [one_way(views, multi="joint") for views in ([a, b, c], [b, c, a], [c, a, b])]
    torch.testing.assert_close(both([a, b, c], multi="joint"), torch.stack(turns).mean())


def test_the_order_of_views_does_not_matter_to_a_converged_balanced_plan():
    a, b, c = made(3)
    criterion = gcalign.method("gca-ince", eps=0.3, iterations=500, tol=1e-14)
    torch.testing.assert_close(criterion([a, b, c], multi="joint"), criterion([c, a, b], multi="joint"))


def test_iterations_go_on_until_every_view_has_converged():
    views = made(3)
    loss = {
        tol: gcalign.Alignment(gcalign.Cosine(0.1), (gcalign.Columns(),), gcalign.KL(), iterations=300, tol=tol)
        for tol in (0.0, 1e-10)
    }  # the first view is free and never moves
    torch.testing.assert_close(*(criterion(views, multi="joint") for criterion in loss.values()))


def test_a_joint_loss_falls_as_views_agree_and_differs_from_the_pairwise_one():
    near, criterion = made(3, seed=1), gcalign.method("gca-ince", eps=0.2)
    far = [near[0], near[1], near[2].flip(0)]
    assert float(criterion(near, multi="joint")) < float(criterion(far, multi="joint"))
    assert abs(float(criterion(far, multi="joint")) - float(criterion(far))) > 1e-2


def test_float32_and_half_views_give_losses_of_their_kind():
    views = made(3)
    exact = gcalign.method("gca-ince")(views, multi="joint")
    single = gcalign.method("gca-ince")([v.float() for v in views], multi="joint")
    half = gcalign.method("gca-ince")([v.half() for v in views], multi="joint")
    assert (single.dtype, half.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(single.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c, v: c(v, multi="together"), "multi='together' is unknown"),
        (lambda c, v: c(v, multi="joint", ids=torch.arange(N)), "ids= cannot go with multi='joint'"),
        (lambda c, v: c(v, multi="joint", rows=2), "rows= cannot go with multi='joint'"),
        (lambda c, v: c([v[0], v[1], v[2][:3]], multi="joint"), "5 and 3 rows"),
        (lambda c, v: gcalign.method("simclr")(v, multi="joint"), "layout='cross'"),
        (lambda c, v: gcalign.method("iot-uni", layout="cross")(v, multi="joint"), "reads whole rows"),
        (lambda c, v: c([torch.randn(200, 3)] * 4, multi="joint"), "at most 161, or multi='pairwise'"),
        (lambda c, v: c([v[0], v[1], v[2] * torch.nan], multi="joint"), "NaN or Inf"),
    ],
)
def test_what_a_joint_plan_cannot_do_is_refused_with_a_remedy(call, said):
    with pytest.raises(ValueError, match=said):
        call(gcalign.method("gca-ince"), made(3))


def test_constraints_on_entries_are_refused():
    criterion = gcalign.Alignment(gcalign.Cosine(0.3), (gcalign.Rows(), gcalign.Capacity(0.9)), gcalign.KL())
    with pytest.raises(ValueError, match="only for Rows, Columns and TotalMass"):
        criterion(made(3), multi="joint")
