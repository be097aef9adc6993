"""No batch, temperature or precision gives a silent NaN: all is finite, or an error says what to do."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import gcalign
from gcalign import (
    KL,
    Alignment,
    Blocks,
    Columns,
    Cosine,
    LogKernel,
    Robust,
    Rows,
    SquaredEuclidean,
    SquaredL2,
    TotalVariation,
    Uniformity,
)

METHODS = gcalign.methods.names()
LAYOUTS = ("cross", "joint")
TEMPERATURES = (1e-3, 0.01, 0.05, 0.5, 10.0)
HALF = (torch.float16, torch.bfloat16)

every_method = pytest.mark.parametrize("name", METHODS)
both_layouts = pytest.mark.parametrize("layout", LAYOUTS)


def views(n: int, d: int = 8, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Two noisy views of n samples, as leaves."""
    generator = torch.Generator().manual_seed(seed)
    z1, noise = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    return leaves(z1, z1 + 0.5 * noise, dtype)


def leaves(z1: Tensor, z2: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return z1.detach().to(dtype).requires_grad_(), z2.detach().to(dtype).requires_grad_()


def known(name: str, n: int) -> dict[str, Tensor]:
    """What the method must be told of n samples beyond the embeddings."""
    return {"labels": torch.arange(n) // 2} if name == "supcon" else {}


def differentiate(criterion: nn.Module, z1: Tensor, z2: Tensor, **said: object) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss and its gradient in each input that wants one."""
    loss = criterion(z1, z2, **said)
    wanted = [z for z in dict.fromkeys((z1, z2)) if z.requires_grad]
    return loss.detach(), torch.autograd.grad(loss, wanted)


def finite(criterion: nn.Module, z1: Tensor, z2: Tensor, **said: object) -> bool:
    loss, gradients = differentiate(criterion, z1, z2, **said)
    return all(bool(torch.isfinite(x).all()) for x in (loss, *gradients))


def error(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    """‖found − expected‖ / ‖expected‖ over all gradients."""
    a, b = (torch.cat([g.double().flatten() for g in gradients]) for gradients in (found, expected))
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


# --- what must stay finite ------------------------------------------------------------------------------------


def _equal(z1, z2):
    return z1[:1].expand_as(z1), z1[:1].expand_as(z1)


def _all_opposite(z1, z2):
    return z1[:1].expand_as(z1), -z1[:1].expand_as(z1)


def _one_zero(z1, z2):
    return torch.cat([torch.zeros_like(z1[:1]), z1[1:]]), z2


BATCHES = {
    "pairs": lambda z1, z2: (z1, z2),
    "unrelated": lambda z1, z2: (z1, z2 - z1),
    "the same views": lambda z1, z2: (z1, z1),
    "all equal": _equal,
    "opposite views": lambda z1, z2: (z1, -z1),
    "all opposite": _all_opposite,
    "one zero row": _one_zero,
    "all zero": lambda z1, z2: (0 * z1, 0 * z2),
    "huge": lambda z1, z2: (1e30 * z1, 1e30 * z2),
    "tiny": lambda z1, z2: (1e-30 * z1, 1e-30 * z2),
    "huge against tiny": lambda z1, z2: (1e30 * z1, 1e-30 * z2),
}


@every_method
@both_layouts
@pytest.mark.parametrize("batch", BATCHES)
def test_degenerate_batches_are_finite(name, layout, batch):
    lost = []
    for eps in TEMPERATURES:
        for n in (1, 2, 17, 256 if batch == "pairs" else 3):
            z1, z2 = leaves(*BATCHES[batch](*views(n, seed=n)), torch.float32)
            if not finite(gcalign.method(name, eps=eps, layout=layout), z1, z2, **known(name, n)):
                lost.append((eps, n))
    assert not lost, f"NaN or Inf at (eps, n) = {lost}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ince", "gca-ince", "gca-uot", "iot-uni"])
def test_large_batches_are_finite(name):
    z1, z2 = views(4096, 32)
    assert finite(gcalign.method(name, eps=0.05, layout="cross"), z1, z2)


@every_method
@both_layouts
def test_the_gradient_is_that_of_the_iterations_at_every_temperature(name, layout):
    # also where the plan is a permutation to the last bit, and its fixed point says nothing about the scalings
    wrong = []
    for batch in ("unrelated", "the same views", "opposite views"):
        for eps in TEMPERATURES:
            for n in (2, 17):
                z1, z2 = leaves(*BATCHES[batch](*views(n, seed=n)), torch.float64)
                auto, unrolled = (
                    torch.cat(differentiate(gcalign.method(name, eps=eps, layout=layout, gradient=mode), z1, z2,
                                            **known(name, n))[1])
                    for mode in ("auto", "unrolled")
                )  # fmt: skip
                if not (auto - unrolled).norm() <= 1e-3 * unrolled.norm() + 1e-7 / eps:
                    wrong.append((batch, eps, n))
    assert not wrong, f"another gradient at (batch, eps, n) = {wrong}"


@pytest.mark.parametrize("name", ["gca-rince", "iot-uni", "gca-uot"])
@both_layouts
def test_the_gradient_is_that_of_the_loss_returned_when_views_are_close(name, layout):
    # the plan then settles long before the scalings, and these losses see the scalings
    wrong = []
    for noise, eps, n, seed in itertools.product((0.0, 0.02, 0.3), (0.005, 0.01, 0.02, 0.05), (4, 17), (0, 1, 2)):
        z1, noisy = views(n, seed=seed, dtype=torch.float64)
        z1, z2 = leaves(z1, z1 + 2 * noise * (noisy - z1), torch.float64)
        auto, unrolled = (
            torch.cat(differentiate(gcalign.method(name, eps=eps, layout=layout, gradient=mode), z1, z2)[1])
            for mode in ("auto", "unrolled")
        )
        if not (auto - unrolled).norm() <= 1e-2 * unrolled.norm() + 1e-6 / eps:
            off = float((auto - unrolled).norm() / unrolled.norm())
            wrong.append(f"noise={noise:g} eps={eps:g} n={n} seed={seed}: {off:.0e}")
    assert not wrong, "\n".join(["relative error of the gradient:", *wrong])


# --- bad input is named ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("side", "row"), [("z1", 0), ("z1", 4), ("z2", 3)])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_non_finite_input_is_named_by_its_row(value, side, row, dtype):
    z1, z2 = (z.detach() for z in views(5, dtype=dtype))
    {"z1": z1, "z2": z2}[side][row, 2] = value
    with pytest.raises(ValueError, match=rf"{side}\[{row}\] has NaN or Inf.*check_finite=False"):
        gcalign.method("gca-uot")(z1, z2)


# --- precision ------------------------------------------------------------------------------------------------


@every_method
@both_layouts
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_float32_on_the_rounded_inputs(name, layout, dtype):
    criterion = gcalign.method(name, layout=layout)
    z1, z2 = views(17, dtype=dtype)
    loss, gradients = differentiate(criterion, z1, z2, **known(name, 17))
    expected, exact = differentiate(criterion, *leaves(z1, z2, torch.float32), **known(name, 17))
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    for gradient, g in zip(gradients, exact, strict=True):
        assert gradient.dtype == dtype
        # a method of two halves rounds each of them
        assert torch.allclose(gradient.float(), g, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", HALF)
def test_solve_is_float32_inside_for_half_precision(dtype):
    log_k = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    plan, exact = gcalign.solve(log_k), gcalign.solve(log_k.detach().float())
    assert torch.allclose(plan.matrix.float(), exact.matrix, atol=torch.finfo(dtype).eps)
    assert float(plan.row_error.detach()) <= 1e-5
    plan.matrix.square().sum().backward()
    assert log_k.grad.dtype == dtype
    assert torch.isfinite(log_k.grad).all()


@every_method
def test_autocast_changes_nothing_for_float32_embeddings(name):
    criterion = gcalign.method(name)
    z1, z2 = views(17)
    expected, exact = differentiate(criterion, z1, z2, **known(name, 17))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion(z1, z2, **known(name, 17))
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert all(map(torch.equal, torch.autograd.grad(loss, (z1, z2)), exact))


@every_method
def test_a_backward_pass_inside_autocast_is_as_good_as_torch_s_own(name):
    # torch advises against it, and rounds its own products to bfloat16 there: 1 % is what that costs
    criterion = gcalign.method(name)
    z1, z2 = views(17)
    exact = differentiate(criterion, z1, z2, **known(name, 17))[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = differentiate(criterion, z1, z2, **known(name, 17))[1]
    assert error(gradients, exact) < 1e-2


@both_layouts
def test_a_plan_read_under_autocast_is_the_plan(layout):
    criterion = gcalign.method("gca-ince", layout=layout)
    z1, z2 = views(17)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        matrix = criterion.plan(z1, z2).matrix
    assert torch.equal(matrix, criterion.plan(z1, z2).matrix)


# --- streaming ------------------------------------------------------------------------------------------------


@every_method
@both_layouts
@pytest.mark.parametrize("how", [{}, {"iterations": 3, "tol": 0.0}, {"gradient": "unrolled"}], ids=str)
def test_streaming_is_dense_to_rounding(name, layout, how):
    z1, z2 = views(11, dtype=torch.float64)
    loss, gradients = differentiate(gcalign.method(name, layout=layout, **how), z1, z2, **known(name, 11))
    for block in (1, 2, 4, 11, 100):
        criterion = gcalign.method(name, layout=layout, block=block, **how)
        streamed, found = differentiate(criterion, z1, z2, **known(name, 11))
        assert float(streamed) == pytest.approx(float(loss), abs=1e-12, rel=1e-12), block
        assert error(found, gradients) < 1e-10, block


@both_layouts
@pytest.mark.parametrize("divergence", [KL(), Robust(0.6, 0.1), SquaredL2(), Uniformity()], ids=repr)
def test_streaming_is_dense_for_full_targets_and_a_learnt_temperature(layout, divergence):
    z1, z2 = views(6, dtype=torch.float64)
    domains = torch.tensor([0, 0, 0, 1, 1, 1])

    def run(block):
        kernel = Cosine(0.5, learnable=True).double()
        criterion = Alignment(kernel, (Rows(0.3), Columns()), divergence, Blocks(0.3), layout=layout, block=block)
        loss = criterion(z1, z2, domains=domains)
        return loss.detach(), torch.autograd.grad(loss, (z1, z2, kernel.log_eps))

    loss, gradients = run(None)
    for block in (1, 5, 7):
        streamed, found = run(block)
        assert float(streamed) == pytest.approx(float(loss), abs=1e-12)
        assert error(found, gradients) < 1e-10


@pytest.mark.slow
def test_the_blocks_of_a_large_stored_kernel_are_one_matrix():
    # a stored matrix of more than 2^20 entries is also walked some rows at a time
    z1, z2 = views(1100, dtype=torch.float64)
    loss, gradients = differentiate(gcalign.method("gca-uot", iterations=3), z1, z2)
    streamed, found = differentiate(gcalign.method("gca-uot", iterations=3, block=1100), z1, z2)
    assert float(streamed) == pytest.approx(float(loss), rel=1e-12)
    assert error(found, gradients) < 1e-10


# --- scale ----------------------------------------------------------------------------------------------------


@every_method
@both_layouts
def test_only_directions_matter(name, layout):
    z1, z2 = views(7, dtype=torch.float64)
    scale = torch.logspace(-20, 20, 7, dtype=torch.float64)[:, None]
    criterion = gcalign.method(name, layout=layout)
    loss, (g1, g2) = differentiate(criterion, z1, z2, **known(name, 7))
    scaled, (s1, s2) = differentiate(criterion, *leaves(z1 * scale, z2 * 1e3, torch.float64), **known(name, 7))
    assert float(scaled) == pytest.approx(float(loss), rel=1e-12)
    assert error((s1 * scale, s2 * 1e3), (g1, g2)) < 1e-10


# --- who wants a gradient -------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_nothing_is_recorded_where_gradients_are_off(name, context):
    criterion = gcalign.method(name)
    z1, z2 = views(5)
    with context():
        loss = criterion(z1, z2, **known(name, 5))
        plan = criterion.plan(z1, z2, **known(name, 5))
        assert not loss.requires_grad
        assert torch.isfinite(plan.matrix).all()
    assert float(loss) == pytest.approx(float(criterion(z1, z2, **known(name, 5)).detach()), rel=1e-6)


@every_method
@both_layouts
def test_inputs_without_gradient_give_a_loss_without_gradient(name, layout):
    fixed = {"learnable": False} if name in ("clip", "siglip") else {}
    z1, z2 = (z.detach() for z in views(5))
    assert not gcalign.method(name, layout=layout, **fixed)(z1, z2, **known(name, 5)).requires_grad


@every_method
@both_layouts
@pytest.mark.parametrize("side", [0, 1])
def test_one_side_can_be_data(name, layout, side):
    # BYOL's momentum twin has no gradient
    criterion = gcalign.method(name, layout=layout)
    pair = views(5, dtype=torch.float64)
    expected = differentiate(criterion, *pair, **known(name, 5))[1][side]
    alone = [z if k == side else z.detach() for k, z in enumerate(pair)]
    (found,) = differentiate(criterion, *alone, **known(name, 5))[1]
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-15)


@every_method
@both_layouts
@pytest.mark.parametrize("leaf", [torch.Tensor.requires_grad_, nn.Parameter])
def test_both_sides_can_be_one_tensor(name, layout, leaf):
    z = leaf(views(5, dtype=torch.float64)[0].detach())
    found = differentiate(gcalign.method(name, layout=layout, eps=0.7), z, z, **known(name, 5))[1]
    expected = differentiate(gcalign.method(name, layout=layout, eps=0.7, gradient="unrolled"), z, z, **known(name, 5))[
        1
    ]
    assert (found[0] - expected[0]).norm() <= 1e-5 * expected[0].norm() + 1e-14


@both_layouts
@pytest.mark.parametrize("kernel", [SquaredEuclidean(2.0, normalized=False), LogKernel(lambda x, y: x @ y.T)], ids=repr)
@pytest.mark.parametrize("leaf", [torch.Tensor.requires_grad_, nn.Parameter])
def test_both_sides_can_be_one_tensor_that_the_kernel_uses_as_it_is(layout, kernel, leaf):
    z = leaf(views(5, dtype=torch.float64)[0].detach())

    def run(mode):
        criterion = Alignment(kernel, (Rows(), Columns()), KL() + Robust(0.5, 0.1), layout=layout, gradient=mode)
        return differentiate(criterion, z, z)[1]

    assert error(run("auto"), run("unrolled")) < 1e-5


# --- between the two passes -----------------------------------------------------------------------------------


def _changed_between_the_passes(criterion, z1, z2, change, **said):
    """The gradient before `change`, and the gradient of a loss if `change` happens between its two passes."""
    exact = differentiate(criterion, z1, z2, **said)[1]
    loss = criterion(z1, z2, **said)
    with torch.no_grad():
        change()
    return exact, lambda: torch.autograd.grad(loss, (z1, z2))


@every_method
@both_layouts
def test_normalised_embeddings_may_be_changed_between_the_passes(name, layout):
    z1, z2 = views(5, dtype=torch.float64)
    criterion = gcalign.method(name, layout=layout)
    exact, gradient = _changed_between_the_passes(criterion, z1, z2, lambda: z2.mul_(2).add_(1), **known(name, 5))
    assert error(gradient(), exact) < 1e-12


@pytest.mark.parametrize("divergence", [KL(), SquaredL2(), Uniformity(), Robust(0.5, 0.1)], ids=repr)
@pytest.mark.parametrize("changed", ["embeddings", "target", "temperature", "mass"])
def test_a_change_of_what_the_backward_pass_reads_is_refused(divergence, changed):
    z1, z2 = views(5, dtype=torch.float64)
    target = torch.eye(5, dtype=torch.float64) + 0.1 * torch.eye(5, dtype=torch.float64).roll(1, 0)
    mass = torch.linspace(0.5, 1.5, 5, dtype=torch.float64)
    kernel = SquaredEuclidean(3.0, normalized=False, learnable=True).double()
    criterion = Alignment(kernel, (Rows(TotalVariation(0.4), mass=mass), Columns(0.3)), divergence, target)
    tensors = {"embeddings": z1, "target": target, "temperature": kernel.log_eps, "mass": mass}
    exact, gradient = _changed_between_the_passes(criterion, z1, z2, lambda: tensors[changed].mul_(1.5))
    if changed == "temperature":  # its exponential is what the passes read
        assert error(gradient(), exact) < 1e-12
        return
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient()


@every_method
@pytest.mark.parametrize("create_graph_by", ["grad", "backward"])
def test_second_derivatives_are_refused_with_the_remedy(name, create_graph_by):
    z1, z2 = views(4, dtype=torch.float64)
    loss = gcalign.method(name)(z1, z2, **known(name, 4))
    twice = {
        "grad": lambda: torch.autograd.grad(loss, z1, create_graph=True),
        "backward": lambda: loss.backward(create_graph=True),
    }
    with pytest.raises(RuntimeError, match=r"gradient='auto' .*gradient='unrolled'"):
        twice[create_graph_by]()


@every_method
def test_second_derivatives_of_unrolled_iterations_are_exact(name):
    z1, z2 = views(4, dtype=torch.float64)
    criterion = gcalign.method(name, gradient="unrolled", iterations=3, tol=0.0)
    assert torch.autograd.gradgradcheck(lambda x, y: criterion(x, y, **known(name, 4)), (z1, z2))


@every_method
def test_the_backward_pass_can_run_twice(name):
    z1, z2 = views(5, dtype=torch.float64)
    loss = gcalign.method(name)(z1, z2, **known(name, 5))
    first = torch.autograd.grad(loss, (z1, z2), retain_graph=True)
    assert all(map(torch.equal, torch.autograd.grad(loss, (z1, z2)), first))


# --- extremes that once gave NaN or a false "converged" ---------------------------------------------------------


@every_method
@pytest.mark.parametrize("value", [torch.inf, torch.nan], ids=["Inf", "NaN"])
def test_unchecked_bad_rows_give_nan_and_a_scaler_skips_the_step(name, value):
    torch.manual_seed(0)
    encoder = torch.nn.Linear(6, 5)
    before = encoder.weight.detach().clone()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    criterion = gcalign.method(name, check_finite=False)
    for bad, moves in ((True, False), (False, True)):
        z1, z2 = encoder(torch.randn(8, 6)), encoder(torch.randn(8, 6))
        if bad:
            z1 = torch.cat([z1[:1] * value, z1[1:]])
        loss = criterion(z1, z2, **known(name, 8))
        assert torch.isfinite(loss).item() is not bad
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(encoder.weight, before) is not moves
    assert scaler.get_scale() == 4.0  # halved once


@every_method
@pytest.mark.parametrize("norm", [1e-36, 1e-40, 1e-42, 1e-45])
def test_rows_too_short_for_a_direction_have_finite_gradients(name, norm):
    z1, z2 = views(8, dtype=torch.float32)
    z1 = (z1 / z1.norm(dim=1, keepdim=True)).detach()
    z1[3] *= norm
    loss, gradients = differentiate(gcalign.method(name), z1.requires_grad_(), z2, **known(name, 8))
    assert torch.isfinite(torch.as_tensor(loss))
    assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize(
    ("seed", "n", "dim", "eps", "relax"),
    [(58, 8, 5, 0.0161, (0.05, 1)), (50, 12, 2, 0.0123, (0.2, 0.2)), (3, 16, 8, 0.0075, (0.2, 0.2))],
)
def test_converged_holds_for_rows_of_small_weight(seed, n, dim, eps, relax):
    """The sum over columns is relative to the whole mass; a row of a thousandth of the weight must converge too."""
    g = torch.Generator().manual_seed(seed)
    z1 = torch.randn(n, dim, generator=g, dtype=torch.float64)
    z2 = z1 + torch.randn(n, dim, generator=g, dtype=torch.float64)
    low, high = math.log(1e-3), math.log(950)
    weights = torch.exp(torch.rand(n, generator=g, dtype=torch.float64) * (high - low) + low)
    criterion = gcalign.method("gca-uot", eps=eps, relax=relax, iterations=1000)
    plan = criterion.plan(z1.float(), z2.float(), weights=weights.float())
    long = gcalign.method("gca-uot", eps=eps, relax=relax, iterations=20_000, tol=1e-10, gradient="truncated")
    exact = long.plan(z1, z2, weights=weights)
    assert plan.converged
    assert exact.converged
    assert (plan.log_v.double() - exact.log_v).abs().max() < 3e-3
    found, expected = (
        c(*z, weights=w).item()
        for c, z, w in ((criterion, (z1.float(), z2.float()), weights.float()), (long, (z1, z2), weights))
    )
    assert found == pytest.approx(expected, rel=2e-3, abs=2e-3 * weights.mean().item())
