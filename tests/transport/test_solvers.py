"""The solvers against POT, against a generic convex solver, and against each other."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import Bounds, minimize

import gcalign
from gcalign import BlockSums, Capacity, Columns, Entropic, Euclidean, NonNegative, Rows, TotalVariation
from gcalign.transport import sinkhorn
from gcalign.transport.problem import Options

# the scipy of Python 3.10 says so where its iterates touch a bound
pytestmark = [pytest.mark.filterwarnings("ignore:Values in x were outside bounds:RuntimeWarning")]

EXACT = {"iterations": 20_000, "tol": 1e-13}


def problem(n=6, m=6, seed=0):
    generator = np.random.default_rng(seed)
    cost = generator.uniform(0, 2, (n, m))
    mu = generator.uniform(0.5, 1.5, n)
    nu = generator.uniform(0.5, 1.5, m)
    return cost, mu, nu * mu.sum() / nu.sum()


def log_kernel(cost, eps):
    return torch.from_numpy(-cost / eps)


def given(mass):
    return torch.from_numpy(mass)


@pytest.mark.parametrize("pot_method", ["sinkhorn", "sinkhorn_log"])
@pytest.mark.parametrize(("n", "m"), [(6, 6), (5, 9)])
@pytest.mark.parametrize("eps", [0.1, 0.5, 5.0])
def test_balanced_plans_are_pots(eps, n, m, pot_method):
    cost, mu, nu = problem(n, m)
    expected = ot.sinkhorn(mu, nu, cost, eps, method=pot_method, numItermax=20_000, stopThr=1e-14)
    plan = gcalign.solve(log_kernel(cost, eps), (Rows(mass=given(mu)), Columns(mass=given(nu))), Entropic(eps), **EXACT)
    np.testing.assert_allclose(plan.matrix.numpy(), expected, rtol=1e-8)
    assert plan.converged
    assert plan.row_error < 1e-10
    assert plan.column_error < 1e-10


@pytest.mark.parametrize("pot_method", ["sinkhorn", "sinkhorn_stabilized"])
@pytest.mark.parametrize("relax", [(0.2, 0.2), (5.0, 0.3), (math.inf, 0.4)])
def test_unbalanced_plans_are_pots(relax, pot_method):
    cost, mu, nu = problem(5, 7)
    eps = 0.3
    expected = ot.unbalanced.sinkhorn_unbalanced(
        mu, nu, cost, eps, relax, method=pot_method, c=np.ones_like(cost), numItermax=50_000, stopThr=1e-15
    )
    constraints = (Rows(relax[0], mass=given(mu)), Columns(relax[1], mass=given(nu)))
    plan = gcalign.solve(log_kernel(cost, eps), constraints, Entropic(eps), **EXACT)
    np.testing.assert_allclose(plan.matrix.numpy(), expected, rtol=1e-8)


def generic(cost, eps, linear=(), upper=np.inf, relaxed=()):
    """argmin ε KL(P‖K) + Σ λ KL(A P‖b) under linear constraints and P ≤ upper: scipy on the entries of P, then Newton's
    steps on the active set it found. Nothing in common with scalings or multipliers."""
    k, size = np.exp(-cost / eps).ravel(), cost.size
    a = np.vstack([m for m, _ in linear]) if linear else np.zeros((0, size))
    b = np.concatenate([np.atleast_1d(v) for _, v in linear]) if linear else np.zeros(0)

    ranks = [0] + [np.linalg.matrix_rank(a[: i + 1]) for i in range(len(a))]
    kept = np.diff(ranks) > 0  # SLSQP stalls on constraints that others imply
    a, b = a[kept], b[kept]

    def value(x):
        sums = [(lam, m @ x, v) for lam, m, v in relaxed]
        return eps * np.sum(x * np.log(x / k) - x + k) + sum(w * np.sum(r * np.log(r / v) - r + v) for w, r, v in sums)

    def gradient(x):
        return eps * np.log(x / k) + sum(lam * m.T @ np.log(m @ x / v) for lam, m, v in relaxed)

    def hessian(x):
        return np.diag(eps / x) + sum(lam * m.T @ np.diag(1 / (m @ x)) @ m for lam, m, v in relaxed)

    found = minimize(
        value,
        np.full(size, min(0.4, upper)),
        jac=gradient,
        bounds=Bounds(1e-9, upper),
        constraints=[{"type": "eq", "fun": lambda x: a @ x - b, "jac": lambda x: a}] if linear else (),
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 2000},
    )
    assert found.success
    x, free = found.x, found.x < upper - 1e-4
    for _ in range(30):
        kkt = np.block([[hessian(x)[np.ix_(free, free)], a[:, free].T], [a[:, free], np.zeros((len(a), len(a)))]])
        x = np.where(free, x, upper)
        step = np.linalg.lstsq(kkt, -np.concatenate([gradient(x)[free], a @ x - b]), rcond=None)[0][: free.sum()]
        x[free] = np.maximum(x[free] + step, x[free] / 10)
    return x.reshape(cost.shape)


def summing(n, m):
    """The matrices that turn the entries of P into its row sums and its column sums."""
    return np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))


@pytest.mark.parametrize("solver", ["scaling", "dykstra"])
@pytest.mark.parametrize("relax", [(0.2, 0.2), (1.5, None), (None, 0.3), (math.inf, 0.4), (math.inf, math.inf)])
def test_plans_minimise_their_problem(relax, solver):
    cost, mu, nu = problem(4, 5)
    eps = 0.5
    constraints, linear, relaxed = [], [], []
    for lam, kind, matrix, mass in zip(relax, (Rows, Columns), summing(4, 5), (mu, nu), strict=True):
        if lam is None:
            continue
        constraints.append(kind(lam, mass=given(mass)))
        if math.isinf(lam):
            linear.append((matrix, mass))
        else:
            relaxed.append((lam, matrix, mass))
    if solver == "dykstra":
        constraints.append(NonNegative())  # no change to the problem, but not a marginal
    plan = gcalign.solve(log_kernel(cost, eps), constraints, Entropic(eps), **EXACT)
    np.testing.assert_allclose(plan.matrix.numpy(), generic(cost, eps, linear, relaxed=relaxed), rtol=1e-8)


@pytest.mark.parametrize("lam", [0.05, 0.3])
def test_total_variation_plans_minimise_their_problem(lam):
    cost, mu, nu = problem(3, 4)
    eps = 0.5
    constraints = (Rows(TotalVariation(lam), mass=given(mu)), Columns(TotalVariation(lam), mass=given(nu)))
    plan = gcalign.solve(log_kernel(cost, eps), constraints, Entropic(eps), **EXACT)
    # ε log(P/K) = f + g with |f|, |g| ≤ λ, and f_i < λ only where row i has at least its mass (and so on): optimality
    f, g = plan.f, plan.g
    torch.testing.assert_close(eps * (plan.log - log_kernel(cost, eps)), f[:, None] + g, rtol=1e-9, atol=1e-11)
    for potential, got, want in ((f, plan.row_sums, given(mu)), (g, plan.column_sums, given(nu))):
        assert potential.abs().max() <= lam + 1e-12
        assert ((got >= want - 1e-9) | (potential >= lam - 1e-9)).all()
        assert ((got <= want + 1e-9) | (potential <= -lam + 1e-9)).all()
    again = gcalign.solve(log_kernel(cost, eps), (*constraints, NonNegative()), Entropic(eps), **EXACT)
    torch.testing.assert_close(again.matrix, plan.matrix, rtol=1e-9, atol=1e-12)


def test_capacity_beside_both_marginals_solves_the_capacitated_problem():
    cost, mu, nu = problem(4, 4, seed=1)
    eps, bound = 0.2, 0.5
    constraints = (Rows(mass=given(mu)), Columns(mass=given(nu)), Capacity(bound))
    plan = gcalign.solve(log_kernel(cost, eps), constraints, Entropic(eps), **EXACT)
    p = plan.matrix.numpy()
    at_bound = p > bound - 1e-9
    assert at_bound.any()
    assert (p <= bound * (1 + 1e-9)).all()
    np.testing.assert_allclose(p.sum(1), mu, rtol=1e-9)
    np.testing.assert_allclose(p.sum(0), nu, rtol=1e-9)
    rows, columns = summing(4, 4)
    expected = generic(cost, eps, linear=[(rows, mu), (columns, nu)], upper=bound)
    np.testing.assert_allclose(p, expected, rtol=1e-8)


def test_block_sums_beside_rows_solve_the_grouped_problem():
    cost, mu, _ = problem(4, 5)
    eps = 0.4
    g, h = torch.tensor([0, 0, 7, 7]), torch.tensor([1, 1, 2, 2, 2])
    total = mu[:2].sum(), mu[2:].sum()
    mass = torch.tensor([[0.3 * total[0], 0.7 * total[0]], [0.6 * total[1], 0.4 * total[1]]])
    constraints = (Rows(mass=given(mu)), BlockSums(g, h, mass))
    plan = gcalign.solve(log_kernel(cost, eps), constraints, Entropic(eps), **EXACT)
    p = plan.matrix
    blocks = torch.stack([torch.stack([p[g == a][:, h == b].sum() for b in (1, 2)]) for a in (0, 7)])
    torch.testing.assert_close(blocks, mass, rtol=1e-9, atol=0)
    rows = np.kron(np.eye(4), np.ones(5))
    groups = [np.outer(g.numpy() == a, h.numpy() == b).ravel().astype(float) for a in (0, 7) for b in (1, 2)]
    expected = generic(cost, eps, linear=[(rows, mu), (np.array(groups), mass.numpy().ravel())])
    np.testing.assert_allclose(p.numpy(), expected, rtol=1e-8)


def test_euclidean_rows_and_columns_go_negative_and_non_negativity_mends_it():
    k = np.random.default_rng(0).uniform(0, 3, (4, 4))
    mu = nu = np.ones(4)
    log_k = torch.from_numpy(np.log(k))
    plain = gcalign.solve(log_k, (Rows(), Columns()), Euclidean(), **EXACT)
    assert plain.log.isnan().any()  # a negative entry has no logarithm
    p = gcalign.solve(log_k, (Rows(), Columns(), NonNegative()), Euclidean(), **EXACT).matrix.numpy()
    assert (p == 0).any()
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-9)
    np.testing.assert_allclose(p.sum(0), 1, rtol=1e-9)
    # P − K must be orthogonal to every direction that keeps the sums and the zeros
    rows, columns = summing(4, 4)
    _, s, vt = np.linalg.svd(np.vstack([rows, columns, np.eye(16)[(p == 0).ravel()]]))
    free = vt[(s > 1e-10).sum() :].T
    np.testing.assert_allclose((p - k).ravel() @ free, 0, atol=1e-9)
    found = minimize(
        lambda x: 0.5 * np.sum((x - k.ravel()) ** 2),
        np.full(16, 0.25),
        jac=lambda x: x - k.ravel(),
        bounds=Bounds(0, np.inf),
        constraints=[
            {"type": "eq", "fun": lambda x: np.vstack([rows, columns[:-1]]) @ x - np.concatenate([mu, nu[:-1]])}
        ],
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    np.testing.assert_allclose(p.ravel(), found.x, atol=1e-7)


def test_a_plan_far_below_the_float32_kernel_is_solved():
    cost, mu, nu = problem(6, 6)
    constraints = (Rows(mass=given(mu)), Columns(mass=given(nu)))
    exact = gcalign.solve(log_kernel(cost, 1e-3), constraints, Entropic(1e-3), iterations=200_000, tol=1e-9)
    single = gcalign.solve(log_kernel(cost, 1e-3).float(), constraints, Entropic(1e-3), iterations=200_000, tol=1e-4)
    assert exact.converged
    assert (single.matrix - exact.matrix).abs().max() < 1e-2
    np.testing.assert_allclose(exact.matrix.numpy(), ot.emd(mu, nu, cost), atol=1e-3)


def test_without_a_target_rows_sum_to_one_and_columns_share_evenly():
    plan = gcalign.solve(torch.randn(4, 8, dtype=torch.float64))
    torch.testing.assert_close(plan.row_sums, torch.ones(4, dtype=torch.float64), rtol=1e-5, atol=0)
    torch.testing.assert_close(plan.column_sums, torch.full((8,), 0.5, dtype=torch.float64), rtol=1e-5, atol=0)


# --- when iterations stop -------------------------------------------------------------------------------------


class Given:
    """A step whose sweeps are given: (error, mass, largest change) of each."""

    target = None

    def __init__(self, changes):
        self.changes, self.rounds = changes, 1e-7

    def change(self, sweep):
        return tuple(torch.tensor(x, dtype=torch.float64) for x in self.changes[sweep])

    def on_pairs(self, sweep):
        return None

    def rounding(self, sweep):
        return self.rounds


def stops_after(changes, *, patience=30, tol=1e-6, tau=(1.0, 1.0), rounding=1e-7):
    step = Given(changes)
    step.rounds = rounding
    stop = sinkhorn.Stop(step, Options(iterations=len(changes), tol=tol), tau, patience=patience)
    for done in range(1, len(changes) + 1):
        if stop(done, done - 1, None):
            return done
    return None


def test_iterations_stop_only_if_no_column_changes_much():
    small, large = 1e-4, 0.5
    assert stops_after([(1e-7, 1.0, small)]) == 1
    assert stops_after([(1e-7, 1.0, large), (1e-7, 1.0, small)]) == 2
    assert stops_after([(1e-5, 1.0, small), (1e-7, 1.0, small)]) == 2


def test_an_error_of_the_size_of_rounding_stops_iterations_when_it_no_longer_falls():
    stuck = [(5e-6, 1.0, 1e-5)] * 20
    assert stops_after(stuck, patience=5, rounding=1e-5) == 6
    assert stops_after(stuck, patience=5, rounding=1e-7) is None
    assert stops_after(stuck, patience=30, rounding=1e-5) is None
