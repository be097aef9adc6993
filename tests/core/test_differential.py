"""The same problems by other libraries: plans, values and gradients of POT, geomloss and OTT-JAX, losses of
pytorch-metric-learning. Each test needs its library; `make differential` installs all and prints the deviations."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import gcalign
from gcalign import Columns, Entropic, Rows, TotalVariation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning:ot", "ignore::DeprecationWarning"),  # the peers' own
]
SEEDS = range(25)
RELAX = [(math.inf, math.inf), (0.2, 0.2), (5.0, 0.3), (math.inf, 0.4)]
EXACT = {"iterations": 50_000, "tol": 1e-13}
WORST: dict[str, tuple[int, float]] = {}


@pytest.fixture(scope="module", autouse=True)
def figures() -> Iterator[None]:
    yield
    for what, (count, worst) in WORST.items():
        print(f"{what}: {count} comparisons, worst relative deviation {worst:.1e}")


def compare(what: str, got: Tensor, expected: Tensor, limit: float) -> None:
    """Hold ‖got − expected‖/‖expected‖ to a limit and remember the worst of it."""
    assert got.shape == expected.shape
    off = float((got - expected).norm() / expected.norm())
    count, worst = WORST.get(what, (0, 0.0))
    WORST[what] = (count + 1, max(worst, off))
    assert off <= limit


def problem(seed: int, shape: tuple[int, int] | None = None) -> tuple[Tensor, Tensor, Tensor, float]:
    """A cost, masses of one total, and ε."""
    r = np.random.default_rng(seed)
    n, m = shape or (int(r.integers(2, 12)), int(r.integers(2, 12)))
    cost, mu, nu = r.uniform(0, 2, (n, m)), r.uniform(0.2, 2, n), r.uniform(0.2, 2, m)
    mu, nu = mu / mu.sum(), nu / nu.sum()
    return torch.from_numpy(cost), torch.from_numpy(mu), torch.from_numpy(nu), float(r.choice([0.05, 0.1, 0.5, 3.0]))


def solved(cost: Tensor, mu: Tensor, nu: Tensor, eps: float, relax: tuple[float, float]) -> gcalign.Plan:
    plan = gcalign.solve(-cost / eps, (Rows(relax[0], mass=mu), Columns(relax[1], mass=nu)), Entropic(eps), **EXACT)
    assert plan.converged
    return plan


# --- POT ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relax", RELAX, ids=str)
def test_plans_are_pots(relax):
    ot = pytest.importorskip("ot")
    for seed in SEEDS:
        cost, mu, nu, eps = problem(seed)
        arrays = [x.numpy() for x in (mu, nu, cost)]
        if math.isinf(relax[0]) and math.isinf(relax[1]):
            expected = ot.sinkhorn(*arrays, eps, method="sinkhorn_log", numItermax=100_000, stopThr=1e-14)
        else:
            expected = ot.unbalanced.sinkhorn_unbalanced(
                *arrays, eps, relax, method="sinkhorn", c=np.ones_like(arrays[2]), numItermax=100_000,
                stopThr=1e-15,
            )  # fmt: skip
        compare("POT, plans", solved(cost, mu, nu, eps, relax).matrix, torch.from_numpy(expected), 1e-6)


def test_total_variation_plans_are_pots():
    ot = pytest.importorskip("ot")
    for seed in SEEDS:
        cost, mu, nu, _ = problem(seed)
        nu, eps = 1.5 * nu, 0.5
        expected = ot.unbalanced.lbfgsb_unbalanced(
            mu.numpy(), nu.numpy(), cost.numpy(), eps, 0.3, c=np.ones(cost.shape), reg_div="kl", regm_div="tv",
            numItermax=20_000, stopThr=1e-14,
        )  # fmt: skip
        sides = (Rows(TotalVariation(0.3), mass=mu), Columns(TotalVariation(0.3), mass=nu))
        plan = gcalign.solve(-cost / eps, sides, Entropic(eps), **EXACT)
        # L-BFGS on a function with corners ends near the minimum, not at it: the values are compared
        values = [_variation(p, cost, mu, nu, eps, 0.3) for p in (plan.matrix, torch.from_numpy(expected))]
        assert values[0] <= values[1] + 1e-9
        compare("POT, total variation: values", values[0], values[1], 2e-3)


def _variation(p: Tensor, cost: Tensor, mu: Tensor, nu: Tensor, eps: float, lam: float) -> Tensor:
    entropy = (torch.xlogy(p, p) - p).sum()
    return (p * cost).sum() + eps * entropy + lam * ((p.sum(1) - mu).abs().sum() + (p.sum(0) - nu).abs().sum())


def test_gradients_are_those_of_autograd_through_pot():
    ot = pytest.importorskip("ot")
    for seed in SEEDS:
        cost, mu, nu, eps = problem(seed)
        eps = max(eps, 0.1)  # so that its iterations converge within the number that autograd can hold
        probe = torch.randn(cost.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        ours, theirs = cost.clone().requires_grad_(), cost.clone().requires_grad_()
        (solved(ours, mu, nu, eps, RELAX[0]).matrix * probe).sum().backward()
        plan = ot.bregman.sinkhorn_log(mu, nu, theirs, eps, numItermax=3000, stopThr=1e-13)
        (plan * probe).sum().backward()
        compare("POT, gradients", ours.grad, theirs.grad, 1e-5)


# --- geomloss -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reach", [None, 0.6])
def test_plans_and_values_are_those_of_geomloss(reach):
    geomloss = pytest.importorskip("geomloss")
    for seed in SEEDS:
        g = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(size, 3, generator=g, dtype=torch.float64) for size in (5 + seed % 4, 7))
        eps, iterations = 0.5, 400
        a, b = (torch.full((len(z),), 1 / len(z), dtype=torch.float64) for z in (x, y))
        blur = eps**0.5
        diameter = blur * (1 + 1e-9)  # it anneals from the diameter to the blur: so it starts, and stays, at ε
        loss = geomloss.SamplesLoss(
            "sinkhorn", p=2, blur=blur, reach=reach, diameter=diameter, scaling=(blur / diameter) ** (1 / iterations),
            debias=False, potentials=True, backend="tensorized",
        )  # fmt: skip
        f, h = (potential.flatten() for potential in loss(a, x, b, y))
        cost = torch.cdist(x, y).square() / 2
        lam = math.inf if reach is None else reach**2
        log_ab = a.log()[:, None] + b.log()  # its plans are relative to a ⊗ b
        theirs = ((f[:, None] + h - cost) / eps + log_ab).exp()
        sides = (Rows(lam, mass=a), Columns(lam, mass=b))
        plan = gcalign.solve(-cost / eps + log_ab, sides, Entropic(eps), **EXACT)
        compare("geomloss, plans", plan.matrix, theirs, 1e-5)


# --- OTT-JAX --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("relax", RELAX, ids=str)
def test_plans_and_gradients_are_those_of_ott(relax):
    jax = pytest.importorskip("jax")
    pytest.importorskip("ott")
    from ott.geometry import geometry
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    jax.config.update("jax_enable_x64", True)
    eps = 0.3
    tau = [1.0 if math.isinf(lam) else lam / (lam + eps) for lam in relax]

    @jax.jit  # one shape and one ε, so that it is compiled once
    def matrix(cost, mu, nu):
        geom = geometry.Geometry(cost_matrix=cost, epsilon=eps)
        linear = linear_problem.LinearProblem(geom, mu, nu, tau_a=tau[0], tau_b=tau[1])
        return sinkhorn.Sinkhorn(threshold=1e-12, max_iterations=100_000)(linear).matrix

    slope = jax.jit(jax.grad(lambda cost, mu, nu, probe: (matrix(cost, mu, nu) * probe).sum()))
    for seed in SEEDS:
        cost, mu, nu, _ = problem(seed, (6, 8))
        probe = torch.randn(cost.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        arrays = [x.numpy() for x in (cost, mu, nu, probe)]
        ours = cost.clone().requires_grad_()
        plan = solved(ours, mu, nu, eps, relax)
        (plan.matrix * probe).sum().backward()
        compare("OTT-JAX, plans", plan.matrix.detach(), torch.tensor(np.asarray(matrix(*arrays[:3]))), 1e-6)
        compare("OTT-JAX, gradients", ours.grad, torch.tensor(np.asarray(slope(*arrays))), 1e-4)


# --- pytorch-metric-learning ----------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.07, 0.5])
@pytest.mark.parametrize("name", ["simclr", "supcon"])
def test_losses_and_gradients_are_those_of_pytorch_metric_learning(name, eps):
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    peer = {"simclr": losses.NTXentLoss, "supcon": losses.SupConLoss}[name](temperature=eps)
    for seed in SEEDS:
        g = torch.Generator().manual_seed(seed)
        n = 3 + seed % 9
        z1, z2 = (torch.randn(n, 6, generator=g, dtype=torch.float64).requires_grad_() for _ in range(2))
        labels = torch.arange(n) if name == "simclr" else torch.randint(0, 3, (n,), generator=g)
        given = {} if name == "simclr" else {"labels": labels}
        ours = gcalign.method(name, eps=eps)(z1, z2, **given)
        theirs = peer(torch.cat([z1, z2]), labels.repeat(2))
        compare("pytorch-metric-learning, losses", ours.detach(), theirs.detach(), 1e-6)
        got, want = (torch.cat(torch.autograd.grad(loss, (z1, z2))) for loss in (ours, theirs))
        compare("pytorch-metric-learning, gradients", got, want, 1e-6)
