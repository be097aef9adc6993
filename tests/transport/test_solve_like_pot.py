"""What users of POT expect of `gcalign.solve`: the transport cost, masses of zero, a warm start and an honest flag."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import gcalign
from gcalign import Columns, Entropic, Rows

ot = pytest.importorskip("ot")
REG = 0.1


def cost(n: int = 4, m: int = 5, seed: int = 0) -> Tensor:
    return torch.rand(n, m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


A = torch.tensor([0.5, 0.3, 0.0, 0.2], dtype=torch.float64)
B = torch.tensor([0.0, 0.25, 0.5, 0.25, 0.0], dtype=torch.float64)


def test_the_cost_of_a_plan_is_that_of_pot():
    c, uniform = cost(), torch.full((4,), 0.25, dtype=torch.float64)
    b = torch.full((5,), 0.2, dtype=torch.float64)
    plan = gcalign.solve(-c / REG, (Rows(mass=uniform), Columns(mass=b)), Entropic(REG), tol=1e-13)
    theirs = ot.sinkhorn2(uniform.numpy(), b.numpy(), c.numpy(), REG, method="sinkhorn_log", stopThr=1e-15)
    assert float(plan.cost) == pytest.approx(float(theirs), abs=1e-12)
    z1, z2 = torch.randn(2, 6, 3, dtype=torch.float64)
    plan = gcalign.method("gca-ince", eps=0.2).plan(z1, z2)
    cosines = torch.nn.functional.normalize(z1, dim=1) @ torch.nn.functional.normalize(z2, dim=1).T
    torch.testing.assert_close(plan.cost, (plan.matrix * (1 - cosines)).sum())


def test_the_cost_has_a_gradient():
    def value(c: Tensor) -> Tensor:
        return gcalign.solve(-c / REG, geometry=Entropic(REG), tol=1e-14).cost

    assert torch.autograd.gradcheck(value, (cost().requires_grad_(),), atol=1e-6)


def test_forbidden_pairs_cost_nothing():
    log_k = -cost() / REG
    log_k[0, 0] = -torch.inf
    assert torch.isfinite(gcalign.solve(log_k).cost)


@pytest.mark.filterwarnings("ignore:divide by zero")  # theirs
def test_rows_and_columns_of_mass_zero_are_empty():
    c = cost()
    plan = gcalign.solve(-c / REG, (Rows(mass=A), Columns(mass=B)), Entropic(REG), tol=1e-13)
    theirs = ot.sinkhorn(A.numpy(), B.numpy(), c.numpy(), REG, method="sinkhorn_log", stopThr=1e-15)
    np.testing.assert_allclose(plan.matrix.numpy(), theirs, atol=1e-12)
    assert not plan.matrix[2].any()
    assert not plan.matrix[:, [0, 4]].any()
    assert plan.converged
    assert plan.shape == (4, 5)
    assert float(plan.row_error) < 1e-12
    assert float(plan.entropy) == pytest.approx(float(torch.special.entr(torch.from_numpy(theirs)).sum()), abs=1e-10)
    assert float(plan.cost) == pytest.approx(float((theirs * c.numpy()).sum()), abs=1e-12)


def test_relaxed_masses_may_be_zero():
    c = cost()
    plan = gcalign.solve(-c / REG, (Rows(0.5, A), Columns(0.5, B)), Entropic(REG), tol=1e-13)
    rows, columns = A > 0, B > 0
    smaller = gcalign.solve(
        -c[rows][:, columns] / REG, (Rows(0.5, A[rows]), Columns(0.5, B[columns])), Entropic(REG), tol=1e-13
    )
    torch.testing.assert_close(plan.matrix[rows][:, columns], smaller.matrix)
    assert float(plan.mass) == pytest.approx(float(smaller.mass))


def test_a_plan_with_empty_rows_has_a_gradient():
    def value(c: Tensor) -> Tensor:
        plan = gcalign.solve(-c / REG, (Rows(mass=A), Columns(mass=B)), Entropic(REG), tol=1e-14)
        return (plan.matrix * torch.arange(20.0, dtype=torch.float64).view(4, 5)).sum()

    assert torch.autograd.gradcheck(value, (cost().requires_grad_(),), atol=1e-6)


def test_a_criterion_refuses_masses_of_zero():
    criterion = gcalign.Alignment(gcalign.Cosine(), (Rows(mass=A), Columns()), gcalign.KL())
    with pytest.raises(ValueError, match=r"only gcalign.solve"):
        criterion(torch.randn(4, 3), torch.randn(4, 3))
    for mass in (0.0, torch.zeros(4), torch.tensor([1.0, -1.0])):
        with pytest.raises(ValueError, match="positive number"):
            Rows(mass=mass)
    with pytest.raises(ValueError, match="masses of 0 cannot go with a target"):
        gcalign.solve(cost(), (Rows(mass=A),), target=torch.eye(4, 5))


def test_a_start_saves_iterations_and_changes_nothing_else():
    c, sets = cost(30, 40), (Rows(), Columns())
    plan = gcalign.solve(-c / 0.02, sets, Entropic(0.02), tol=1e-10)
    again = gcalign.solve(-c / 0.02, sets, Entropic(0.02), tol=1e-10, start=plan)
    assert again.iterations <= 2 < plan.iterations
    torch.testing.assert_close(again.matrix, plan.matrix, rtol=1e-6, atol=1e-9)
    near = gcalign.solve(-c / 0.019, sets, Entropic(0.019), tol=1e-10, start=plan.log_v)
    far = gcalign.solve(-c / 0.019, sets, Entropic(0.019), tol=1e-10)
    torch.testing.assert_close(near.matrix, far.matrix, rtol=1e-6, atol=1e-9)
    with pytest.raises(ValueError, match="start="):
        gcalign.solve(-c, start=torch.zeros(3))


def test_a_plan_that_rounding_stopped_far_from_tol_has_not_converged():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 50, 5, generator=generator)
    c = torch.cdist(x, y).square()
    c = c / c.max()
    coarse, fine = gcalign.solve(-c / 1e-3), gcalign.solve(-c.double() / 1e-2)
    assert float(coarse.column_error) > 1e-5
    assert not coarse.converged
    assert float(fine.column_error) < 1e-5
    assert fine.converged
    assert gcalign.solve(-c / 0.1).converged


def test_embeddings_given_as_a_queue_are_refused_with_the_remedy():
    with pytest.raises(TypeError, match="use negatives="):
        gcalign.method("gca-ince")(torch.eye(4), torch.eye(4), queue=torch.eye(4))
