"""Random calls: each is refused with a clear message or is finite and equal to a dense float64 computation.

`make fuzz` runs 20,000 of them; a failure prints the command that replays it.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import gcalign
from fuzz import audits, check, entries
from fuzz.__main__ import figures, main, run
from fuzz.cases import MISTAKES, draw
from fuzz.check import judge
from gcalign import KL, divergences, kernels, plan

CASES = 500


def test_500_random_calls_are_right_or_refused():
    verdicts, failed = run(0, range(CASES))
    assert not failed, "\n".join(f"{v.case}\n  {v.failure}" for v in failed)
    assert len(verdicts) == CASES
    assert sum(v.kind == "agrees" for v in verdicts) > 0.7 * CASES  # a fuzzer that is refused tests nothing
    assert sum(v.kind == "refused" for v in verdicts) > 0.05 * CASES


@pytest.mark.parametrize(
    ("seed", "number"),
    [
        (11, 13616),  # factors of two scalings overflowed before they met an entry of the kernel
        (11, 14448),  # masses of one's own that are those of the target: nothing to refuse
        (11, 15131),
        (12, 924),  # squares of a right-hand side of 1e-24 were 0, so that it counted as solved
    ],
)
def test_a_case_that_failed_once_is_right(seed, number):
    assert judge(draw(seed, number)).failure == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_2000_more_of_each_seed_are_right_or_refused(seed):
    _, failed = run(seed + 1, range(2000))
    assert not failed, "\n".join(f"{v.case}\n  {v.failure}" for v in failed)


@pytest.mark.slow
def test_compiled_calls_are_eager_calls():
    _, failed = run(0, range(40), compiled=True)
    assert not failed, "\n".join(f"{v.case}\n  {v.failure}" for v in failed)


def test_a_case_is_the_same_each_time():
    assert str(draw(3, 141)) == str(draw(3, 141))
    assert str(draw(3, 141)) != str(draw(4, 141))


def test_every_mistake_is_drawn():
    drawn = {draw(0, number).mistake for number in range(8000)}
    assert set(MISTAKES) <= drawn


# --- a fault would be found -----------------------------------------------------------------------------------


def found(seed: int = 0, numbers: range = range(200)) -> list[str]:
    return [v.failure for v in run(seed, numbers, most=3)[1]]


def test_a_loss_that_is_off_by_a_thousandth_is_found(monkeypatch):
    value = KL.per_row
    monkeypatch.setattr(KL, "per_row", lambda self, plan: 1.001 * value(self, plan))
    assert any("the loss is" in text for text in found())


def test_a_wrong_gradient_is_found(monkeypatch):
    normalize = kernels.normalize

    def wrong(z):
        unit = normalize(z)
        return unit.detach() + 1.01 * (unit - unit.detach())

    monkeypatch.setattr(kernels, "normalize", wrong)
    assert any("the gradient" in text for text in found())


def test_a_plan_that_only_says_it_has_converged_is_found(monkeypatch):
    made = plan.Plan.of
    says = staticmethod(
        lambda problem, vectors, iterations, converged, *rest: made(problem, vectors, iterations, True, *rest)
    )
    monkeypatch.setattr(plan.Plan, "of", says)
    assert any("converged=True, but" in text for text in found())


def test_a_silent_nan_is_found(monkeypatch):
    monkeypatch.setattr(divergences.Robust, "value", lambda self, plan: plan.log_u.sum() * math.nan)
    assert any("not finite" in text or "refused without reason" in text for text in found())


def test_a_gradient_may_be_infinite_only_if_it_is_too_large_for_its_dtype(monkeypatch):
    """Case 1406 of seed 3: float64 says 5.8e7, and the largest float16 is 65504; 38 iterations are differentiated."""
    case = draw(3, 1406)
    assert case.dtype == "float16"
    verdict = judge(case)
    assert (verdict.kind, verdict.failure) == ("beyond", "")
    called = check._called

    def spoilt(case):
        result = called(case)
        result.gradients[0][1] = math.inf  # float64 says 1200: its weight is 1e-23
        return result

    monkeypatch.setattr(check, "_called", spoilt)
    assert "the gradient is not finite" in judge(case).failure


def test_a_refusal_without_reason_is_found(monkeypatch):
    def refuse(*args, **kwargs):
        raise ValueError("no")

    monkeypatch.setattr(check.build, "criterion", refuse)
    assert found()


def test_the_figures_name_what_was_run(capsys):
    assert main(["--cases", "12", "--seed", "5"]) == 0
    line = capsys.readouterr().out.strip().splitlines()[-1]
    assert line.startswith("12 cases: ")
    assert "0 fail; worst relative deviation: loss float64" in line
    assert "refused" in figures([judge(draw(0, 0))], 0, 1.0)


# --- any numbers at all ---------------------------------------------------------------------------------------

shapes = st.tuples(st.integers(1, 5), st.integers(1, 3))
methods = st.sampled_from(["ince", "gca-ince", "gca-rince", "gca-uot", "iot-uni", "byol", "clip"])
epsilons = st.sampled_from([1e-3, 0.05, 0.5, 10.0])


def right_or_refused(call, leaves):
    """Finite with finite gradients, or a ValueError with a remedy."""
    try:
        loss = call()
    except ValueError as error:
        if ";" not in str(error):
            pytest.fail(f"no remedy: {error}")
        return False
    assert torch.isfinite(loss).all()
    for gradient in torch.autograd.grad(loss.sum(), leaves):
        assert torch.isfinite(gradient).all()
    return True


@settings(max_examples=150)
@given(st.data(), shapes, methods, epsilons, st.sampled_from(["float32", "float64"]))
def test_any_embeddings_are_finite_or_refused(data, shape, name, eps, dtype):
    """Every float there is: subnormal, huge, NaN, Inf."""
    width = 32 if dtype == "float32" else 64
    numbers = arrays.arrays(dtype, shape, elements=st.floats(width=width))
    z1, z2 = (torch.from_numpy(data.draw(numbers)).requires_grad_() for _ in range(2))
    done = right_or_refused(lambda: gcalign.method(name, eps=eps)(z1, z2), [z1, z2])
    assert done or not all(bool((z.abs() < 1e38 / 3).all()) for z in (z1, z2)), "refused though all is finite"


@settings(max_examples=100)
@given(st.data(), st.integers(1, 5), methods, epsilons)
def test_any_weights_are_finite_or_refused(data, n, name, eps):
    weights = data.draw(st.lists(st.floats(0, 1e6, width=32), min_size=n, max_size=n))
    generator = torch.Generator().manual_seed(n)
    z1, z2 = (torch.randn(n, 3, generator=generator).requires_grad_() for _ in range(2))
    done = right_or_refused(lambda: gcalign.method(name, eps=eps)(z1, z2, weights=torch.tensor(weights)), [z1, z2])
    assert done or min(weights) < 1e-30


@settings(max_examples=100)
@given(st.data(), st.integers(1, 4), st.integers(1, 4), methods, epsilons)
def test_any_target_is_finite_or_refused(data, n, m, name, eps):
    elements = st.one_of(st.just(0.0), st.floats(0, 1e4, width=32))
    target = torch.from_numpy(data.draw(arrays.arrays("float32", (n, m), elements=elements)))
    generator = torch.Generator().manual_seed(n)
    z1, z2 = (torch.randn(size, 3, generator=generator).requires_grad_() for size in (n, m))
    done = right_or_refused(lambda: gcalign.method(name, eps=eps, layout="cross")(z1, z2, target=target), [z1, z2])
    assert done or bool((target.sum(1) < 1e-30).any() or (target.sum(0) < 1e-30).any())


@settings(max_examples=100)
@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.sampled_from([(math.inf, math.inf), (0.2, math.inf)]))
def test_any_matrix_is_solved_or_refused(data, n, m, relax):
    elements = st.one_of(st.just(-math.inf), st.floats(-50, 50, width=32))
    log_k = torch.from_numpy(data.draw(arrays.arrays("float32", (n, m), elements=elements))).requires_grad_()

    def solved():
        found = gcalign.solve(log_k, (gcalign.Rows(relax[0]), gcalign.Columns(relax[1])), iterations=50)
        return found.matrix

    done = right_or_refused(solved, [log_k])
    forbidden = log_k == -math.inf
    assert done or bool(forbidden.all(0).any() or forbidden.all(1).any())


def test_random_calls_with_more_inputs_agree_with_dense_iterations():
    assert [number for number in range(60) if not entries.deviation(11, number) <= 1] == []


# --- audits -----------------------------------------------------------------------------------------------------


def test_audits_are_consistent_whatever_the_pairs():
    assert {number: [*audits.violations(11, number)] for number in range(20)} == {number: [] for number in range(20)}
