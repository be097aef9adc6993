"""What random calls have found, each as small as it gets."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import gcalign
from gcalign.transport.sinkhorn import Mixing


def views(seed: int, n: int = 4, d: int = 3) -> tuple[Tensor, Tensor]:
    z1, z2 = torch.randn(2, n, d, generator=torch.Generator().manual_seed(seed)).double()
    return z1.requires_grad_(), z2


@pytest.mark.parametrize("seed", [16, 25, 29])  # losses of −9, −70 and −65, where 15.5, 3.4 and 2.4 are right
def test_iterations_after_failed_acceleration_are_those_of_the_same_number(seed):
    z1, z2 = views(seed)
    loss = gcalign.method("gca-ince", eps=0.05, iterations=200)(z1, z2)
    one_by_one = gcalign.method("gca-ince", eps=0.05, iterations=200, gradient="truncated")(z1, z2)
    assert loss.item() == pytest.approx(one_by_one.item(), rel=1e-3)


@pytest.mark.parametrize("weight", [1e-10, 1e-23])
def test_masses_of_groups_do_not_cancel(weight):
    z = torch.eye(4)[:2]
    criterion = gcalign.method("iot", target=gcalign.Labels(normalized=False))
    plan = criterion.plan(z, z, labels=[0, 1], weights=([1.0, 1.0], [weight, weight]))
    torch.testing.assert_close(plan.mu, torch.full((4,), math.sqrt(weight)), rtol=1e-6, atol=0)
    torch.testing.assert_close(plan.nu, torch.full((4,), math.sqrt(weight)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_in_is_nan_out_where_iterations_run_in_logarithms(bad):
    z1, z2 = (z.detach() for z in views(0, n=12))
    z1[3, 1] = bad
    z1.requires_grad_()
    loss = gcalign.method("gca-ince", eps=0.004, layout="joint", iterations=5, check_finite=False)(z1, z2)
    loss.backward()
    assert math.isnan(loss.item())
    assert not torch.isfinite(z1.grad).all()  # so that a GradScaler skips the step


def test_a_target_with_an_empty_row_is_refused_in_compiled_code_too():
    z1, z2 = views(0)
    target = torch.eye(4, dtype=torch.float64)
    target[1] = 0
    torch.compiler.reset()
    criterion = torch.compile(gcalign.method("byol"), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="no positive"):
        criterion(z1, z2, target=target)


def test_an_error_that_falls_to_zero_and_rises_again_does_not_divide_by_it():
    next_point, b, g = Mixing(balanced=False), torch.zeros(3), torch.ones(3)
    for error in (1.0, 0.0, 0.0, 1.0):
        found = next_point(b, g, error, None)
        assert torch.isfinite(found).all()
    assert torch.equal(found, g)  # worse than before: a plain step


def test_an_error_that_grows_drops_the_points_that_were_mixed():
    next_point, b = Mixing(balanced=False), torch.zeros(3)
    for error, g in ((1.0, torch.tensor([1.0, 0, 0])), (0.9, torch.tensor([0, 1.0, 0])), (5.0, torch.ones(3))):
        found = next_point(b, g, error, None)
    assert torch.equal(found, torch.ones(3))


def test_a_stiff_penalty_between_sides_of_other_totals_stays_in_range():
    # u is about (ratio of the totals)^(λ/ε), e^{±208} in the end: no number of float32
    z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    for rows, columns in (
        (gcalign.Rows(), gcalign.Columns(30.0, mass=0.5)),
        (gcalign.Rows(30.0), gcalign.Columns(mass=2.0)),
    ):
        plans = [
            gcalign.solve((z @ z.T).to(dtype).requires_grad_(), (rows, columns), gcalign.Entropic(0.1), iterations=200)
            for dtype in (torch.float32, torch.float64)
        ]
        assert plans[0].log_u.abs().max() > 88
        torch.testing.assert_close(plans[0].matrix.double(), plans[1].matrix, rtol=2e-3, atol=1e-6)


def test_a_zero_row_beside_a_far_one_stays_in_range():
    z1, z2 = torch.full((1, 4), 1.6), torch.zeros(1, 4)
    kernel = gcalign.SquaredEuclidean(0.0075, normalized=False)  # log K = −1365
    plan = gcalign.Alignment(kernel, (gcalign.Rows(0.01), gcalign.Columns()), gcalign.KL()).plan(z1, z2)
    torch.testing.assert_close(plan.matrix, torch.ones(1, 1), rtol=1e-3, atol=0)


@pytest.mark.parametrize("lam", [0.0, 0.01])
def test_a_robust_loss_out_of_range_is_refused_and_never_nan(lam):
    z = torch.eye(4).requires_grad_()
    with pytest.raises(ValueError, match="leaves the range of float32"):
        gcalign.method("rince", eps=0.0075, q=0.6, lam=lam, scale="score")(z, z.detach())  # −e^{80}/0.6: its gradient
    loss = gcalign.method("rince", eps=0.0075, q=0.6, lam=lam, scale="score", check_finite=False)(z, z.detach())
    assert loss.item() == -math.inf
    loss.backward()
    assert not torch.isfinite(z.grad).all()  # so that a GradScaler skips the step


def test_a_small_robust_loss_in_score_scale_is_not_zero():
    z = torch.eye(3)
    criterion = gcalign.method("rince", eps=0.0075, q=0.6, lam=0.01, scale="score")
    losses = [criterion(z.to(dtype), -z.to(dtype)).item() for dtype in (torch.float32, torch.float64)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[1] != 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [5e-324, 1e-300, 1e-40, 1e-20, 1e-10])
def test_a_temperature_below_the_rounding_of_cosines_is_refused(eps, dtype):
    # 1/ε was no number of float32, a RuntimeError; or the loss was rounding, and the gradient of iot-uni not finite
    for name in gcalign.methods.names():
        with pytest.raises(ValueError, match=r"eps=.* must be at least 1e-(06|30)"):
            gcalign.method(name, eps=eps)
    z = torch.eye(3, dtype=dtype)
    if eps < 1e-30:
        with pytest.raises(ValueError, match=r"eps=.* must be at least 1e-30"):
            gcalign.SquaredEuclidean(eps, normalized=False)
    else:
        loss = gcalign.Alignment(gcalign.SquaredEuclidean(eps, normalized=False), (gcalign.Rows(),), gcalign.KL())(z, z)
        assert loss.item() == 0


def test_a_power_below_rounding_is_refused():
    with pytest.raises(ValueError, match=r"q=1e-40 must be at least 1e-06"):
        gcalign.Robust(1e-40, 0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", [2e6, 1e38, 1.7e308])
def test_a_weight_whose_gradients_leave_the_range_is_refused(weight, dtype):
    # a finite loss with infinite gradients at 1e38 in float32 and 1.7e308 in float64
    with pytest.raises(ValueError, match=r"weight=.* must be at most 1e\+06"):
        gcalign.method("iot-uni", weight=weight)
    with pytest.raises(ValueError, match=r"weight=.* must be at most 1e\+06"):
        1e4 * (weight / 1e4 * gcalign.KL())
    z = torch.eye(4, dtype=dtype).requires_grad_()
    loss = gcalign.method("iot-uni", eps=0.05, weight=1e6)(z, z.detach().roll(1, 0))
    loss.backward()
    assert math.isfinite(loss.item())
    assert torch.isfinite(z.grad).all()


@pytest.mark.parametrize("gradient", ["auto", "truncated", "unrolled"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 8e5), (torch.float64, 4e14)])
def test_a_kernel_of_which_only_rounding_is_left_is_refused(dtype, most, gradient):
    # finite plans with gradients of NaN from 1e7 on in float32
    log_k = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    log_k = log_k / log_k.abs().max()
    for size in (1.2 * most, 1e30, 1e37):
        with pytest.raises(ValueError, match="log_k has an entry of size") as refused:
            gcalign.solve(log_k * size, gradient=gradient, iterations=50)
        assert ("use float64" in str(refused.value)) == (dtype == torch.float32)
    log_k = (log_k * most).requires_grad_()
    plan = gcalign.solve(log_k, gradient=gradient, iterations=50)
    plan.matrix.square().sum().backward()
    assert torch.isfinite(log_k.grad).all()
    with torch.no_grad():
        log_k[0, 1] = -math.inf
    assert gcalign.solve(log_k, gradient=gradient, iterations=50).matrix[0, 1] == 0


@pytest.mark.parametrize("mask", [-1e4, -5e5])
def test_a_mask_far_below_the_other_entries_does_not_round_them(mask):
    generator = torch.Generator().manual_seed(0)
    log_k = torch.randn(6, 6, generator=generator)
    forbidden = torch.rand(6, 6, generator=generator) < 0.25
    forbidden.fill_diagonal_(False)
    plans = [gcalign.solve(log_k.masked_fill(forbidden, value)) for value in (mask, -math.inf)]
    assert plans[0].converged
    torch.testing.assert_close(plans[0].matrix, plans[1].matrix, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loss_beyond_its_range_asks_for_float64_only_if_that_helps(dtype):
    z = 1e30 * torch.eye(2, dtype=dtype) if dtype == torch.float32 else 1e200 * torch.eye(2, dtype=dtype)
    criterion = gcalign.Alignment(gcalign.SquaredEuclidean(0.5, normalized=False), (gcalign.Rows(),), gcalign.KL())
    with pytest.raises(ValueError, match="leaves the range of") as refused:
        criterion(z, z.roll(1, 0))
    assert ("pass float64" in str(refused.value)) == (dtype == torch.float32)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_solve_takes_a_sparse_target(layout):
    # a NotImplementedError of torch
    matrix = torch.eye(3) + torch.eye(3).roll(1, 0)
    log_k = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    plans = [gcalign.solve(log_k, target=given).matrix for given in (matrix, getattr(matrix, layout)())]
    assert torch.equal(*plans)
    with pytest.raises(ValueError, match="target requires a gradient"):
        gcalign.Soft(getattr(matrix, layout)().requires_grad_())


def test_what_changes_a_loss_is_printed():
    for option in ({"warm_start": True}, {"gather": False}, {"center": True}, {"learnable": True}):
        (words,) = (f"{name}={value}" for name, value in option.items())
        assert words in repr(gcalign.method("gca-ince", **option))
        assert words not in repr(gcalign.method("gca-ince"))


@pytest.mark.parametrize("option", ["learnable", "center", "warm_start", "gather"])
def test_a_switch_is_true_or_false(option):
    with pytest.raises(TypeError, match=f"{option}='no' must be True"):
        gcalign.method("ince", **{option: "no"})


def test_a_centred_method_is_its_composition_and_byol_has_nothing_to_centre():
    z1, z2 = views(0)
    for name in ("ince", "gca-uot", "clip"):
        by_hand = gcalign.method(name)
        getattr(by_hand, "alignment", by_hand).kernel.center = True
        assert gcalign.method(name, center=True)(z1, z2).equal(by_hand(z1, z2))
    with pytest.raises(ValueError, match="center=True needs a cosine kernel"):
        gcalign.method("byol", center=True)


@pytest.mark.parametrize("given", ["negatives", "teacher", "queue"])
def test_the_input_that_is_not_finite_is_named(given):
    z1, z2 = views(0)
    bad = torch.full((4, 3), math.nan, dtype=torch.float64)
    queue = gcalign.Queue(4, 3)
    queue.push(bad)
    inputs = {"negatives": bad, "teacher": (z2, bad), "queue": queue}
    target = gcalign.Teacher(0.1) if given == "teacher" else gcalign.targets.Identity()
    criterion = gcalign.method("ince", target=target)
    with pytest.raises(ValueError, match=rf"{given}\d?\[0\] has NaN or Inf"):
        criterion(z1, z2, **{given: inputs[given]})


def test_a_batch_without_any_pair_names_the_ids_and_allowed_is_named_where_it_cuts():
    z1, z2 = views(0)
    with pytest.raises(ValueError, match="every id must belong to two embeddings"):
        gcalign.method("gca-uot")(z1, z2, ids=([0, 1, 2, 3], [4, 5, 6, 7]))
    with pytest.raises(ValueError, match="allowed= must keep a positive in every row"):
        gcalign.method("ince")(z1, z2, allowed=~torch.eye(4, dtype=torch.bool))


@pytest.mark.parametrize("wrong", ["ince", gcalign.method("clip")])
def test_a_symmetric_loss_is_of_an_alignment(wrong):
    with pytest.raises(TypeError, match="Symmetric takes an Alignment"):
        gcalign.Symmetric(wrong)


def test_classes_may_be_a_list():
    z = torch.eye(4)
    assert gcalign.metrics.compactness(z, [0, 0, 1, 1]) == gcalign.metrics.compactness(z, torch.tensor([0, 0, 1, 1]))


@pytest.mark.parametrize(("slip", "meant"), [("iteratons", "iterations"), ("targets", "target"), ("kernels", "kernel")])
def test_a_slip_in_the_name_of_a_setting_is_no_new_attribute(slip, meant):
    with pytest.raises(AttributeError, match=f"no {slip}; did you mean {meant}"):
        setattr(gcalign.method("ince"), slip, 50)
    criterion = gcalign.method("ince")
    criterion.title = "mine"
    assert criterion.title == "mine"


@pytest.mark.parametrize("weight", [1.0, 1e6])
def test_half_precision_has_room_for_a_plan_with_large_entries(weight):
    z1, z2 = (z.detach().float() for z in views(0, n=40))
    weights = torch.ones(40)
    weights[3] = weight
    grads = []
    for cache in (None, "half"):
        z = z1.clone().requires_grad_()
        gcalign.method("gca-ince", eps=0.1, block=8, cache=cache, iterations=50)(z, z2, weights=weights).backward()
        grads.append(z.grad)
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=0.02 * float(grads[0].abs().max()))


@pytest.mark.parametrize("side", [gcalign.Rows, gcalign.Columns])
def test_a_mass_that_the_target_has_not_leaves_no_envelope_to_total_variation(side):
    z1, z2 = views(0)
    mass = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64)
    grads = []
    for gradient in ("auto", "unrolled"):
        sides = (side(gcalign.TotalVariation(3.0), mass=mass),)
        loss = gcalign.Alignment(gcalign.Cosine(0.5), sides, gcalign.KL(), gradient=gradient)(z1, z2)
        grads.append(torch.autograd.grad(loss, z1)[0])
    torch.testing.assert_close(*grads)
