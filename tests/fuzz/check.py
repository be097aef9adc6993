"""The verdict on one case: refused with a clear message where it must be, otherwise finite and equal to `dense`."""

from __future__ import annotations

import math
import re
import traceback
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import gcalign
from fuzz import build, cases, mistakes
from fuzz.cases import DTYPES, UNCHECKED, Case
from gcalign.transport import operator
from oracles import Dense, implicit

PACKAGE = str(Path(gcalign.__file__).parent)
MARGIN = 64.0  # how many roundings of the largest number an entry may be off
LONG = 20  # from so many iterations on, a plan is solved to convergence


@dataclass
class Verdict:
    """What came of a case."""

    case: Case
    kind: str = "finite"  # "refused", "finite" (nothing to compare with), "agrees" or "beyond" (the range of the dtype)
    error: str = ""  # class of the refusal
    failure: str = ""  # what is wrong; empty if nothing is
    loss: float = math.nan  # relative deviation
    gradient: float = math.nan
    converged: bool = False
    number: int = -1

    def fails(self, text: str) -> Verdict:
        self.failure = self.failure or text
        return self


def judge(case: Case) -> Verdict:
    """Run a case and judge it."""
    verdict = Verdict(case)
    rule = expected_refusal(case)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # a criterion that was told to differentiate a fixed point it has not reached says so
            warnings.filterwarnings("ignore", message="gradient='(envelope|implicit)' is exact for converged plans")
            result = _called(case)
    except (ValueError, TypeError) as error:
        return _refused(verdict, error, rule)
    except Exception as error:
        return verdict.fails(f"{type(error).__name__} is no clear refusal: {error}\n{traceback.format_exc(limit=-3)}")
    if rule is not None:
        return verdict.fails(f"was not refused; expected {rule}")
    if case.mistake in UNCHECKED:
        return _unchecked(verdict, result)
    if not bool(torch.isfinite(result.loss).all()):
        if case.options.get("check_finite") is False and _beyond(case):
            verdict.kind = "beyond"
            return verdict
        return verdict.fails(f"the loss is not finite: {_few([result.loss])}")
    try:
        if case.family == "solve":
            _compare_plan(verdict, result)
        else:
            _compare_loss(verdict, result)
    except Exception as error:
        return verdict.fails(f"the check itself failed: {error!r}\n{traceback.format_exc(limit=-4)}")
    return verdict


# --- refusals -------------------------------------------------------------------------------------------------


def expected_refusal(case: Case) -> str | None:
    """What the message of the error must contain; None if the case is in order."""
    if case.mistake and case.mistake not in UNCHECKED:
        return cases.MISTAKES[case.mistake]
    rows, columns, terms = build.described(case)
    sides = [side for side in (rows, columns) if side is not None]
    wrong = None
    if case.family != "solve" and case.options["gradient"] == "envelope" and sides:
        only_kl = not (terms.robust or terms.squared or terms.uniformity or terms.normalized)
        penalties = terms.penalties or all(math.isinf(side[1]) or side[0] == "variation" for side in sides)
        dual = only_kl and penalties and case.options["reduction"] == "mean"
        # a mass that is not the target's is no obstacle on a relaxed side
        if not dual or any(_another_mass(case, k) for k, side in enumerate((rows, columns)) if side is not None):
            wrong = "gradient='envelope' would be wrong"
    if len(sides) == 2 and all(math.isinf(side[1]) for side in sides) and not case.sets:
        target = _target(case)
        totals = [float(build.marginal(case, side, target, k).mass.sum()) for k, side in enumerate(sides)]
        if abs(totals[0] - totals[1]) > 2e-5 * totals[0]:
            return "which no plan can satisfy"
        if abs(totals[0] - totals[1]) > 0.5e-5 * totals[0]:
            return None  # may be either
    return wrong


def _another_mass(case: Case, k: int) -> bool:
    """Whether the rows (0) or columns (1) must have masses that the target does not have."""
    side = build.described(case)[k]
    if side is None or side[2] == "target" or not math.isinf(side[1]):
        return False
    target = build.dense_target(case)
    own, marginal = target.sum(1 - k), build.marginal(case, side, target, k)
    assert marginal is not None
    return bool(((marginal.mass - own).abs() > 1e-6 * own).any())


def _target(case: Case) -> Tensor:
    if case.family == "solve" and not case.target:
        return torch.full((case.n, case.m), 1 / case.m, dtype=torch.float64)
    return build.dense_target(case)


def _refused(verdict: Verdict, error: Exception, rule: str | None) -> Verdict:
    case, text = verdict.case, str(error)
    verdict.kind, verdict.error = "refused", type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    if not frames[-1].filename.startswith(PACKAGE):
        return verdict.fails(f"{frames[-1].filename}:{frames[-1].lineno} refused, not the library: {text}")
    if len(text) < 25 or not re.search(r";|:|\bmust\b|\btry\b|\buse\b", text):
        return verdict.fails(f"the message has no remedy: {text}")
    if rule is None:
        if "leaves the range" in text and _beyond(case):
            verdict.kind = "beyond"
            return verdict
        return verdict.fails(f"refused without reason: {text}")
    if not re.search(rule, text):
        return verdict.fails(f"another message than {rule!r}: {text}")
    return verdict


def _beyond(case: Case) -> bool:
    """Whether terms of the loss are larger than the root of the dtype's largest number, where gradients overflow."""
    z1, z2 = (z.double() for z in cases.embeddings(case))
    eps = torch.tensor(case.eps, dtype=torch.float64)
    most = torch.finfo(torch.float64 if case.dtype == "float64" else torch.float32).max ** 0.5
    for back in (False, True)[: 2 if case.name == "clip" else 1]:
        problem = build.dense(case, z1, z2, eps, back=back)
        steps = problem.iterated(case.options["iterations"])
        size = problem.per_row(problem.plan(*steps), *steps)[1].max()
        if not float(size) < most / 10:
            return True
    return False


def _unchecked(verdict: Verdict, result: Result) -> Verdict:
    """check_finite=False: NaN in, NaN out, in the loss and in a gradient, so that a GradScaler skips the step."""
    if bool(torch.isfinite(result.loss).all()):
        return verdict.fails(f"a loss of {_few([result.loss])} though a row is not finite")
    if all(bool(torch.isfinite(g).all()) for g in result.gradients):
        return verdict.fails("all gradients are finite though a row is not")
    return verdict


def _few(values: list[Tensor]) -> str:
    flat = torch.cat([x.detach().double().flatten() for x in values])
    bad = flat[~torch.isfinite(flat)]
    return f"{len(bad)} of {len(flat)} entries, {flat[:4].tolist()}…"


# --- the call -------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What the library gave."""

    leaves: list[Tensor]
    loss: Tensor
    gradients: list[Tensor]
    plans: list[Any]
    mode: str
    eps: float
    eps_gradient: Tensor | None = None


def _called(case: Case) -> Result:
    if case.family == "solve":
        return _solved(case)
    plans: list[Any] = []
    solve = operator.solve

    def recording(*args: Any, **kwargs: Any) -> Any:
        plans.append(solve(*args, **kwargs))
        return plans[-1]

    z1, z2, given, changed = mistakes.planted(case)
    criterion = build.criterion(changed)
    leaves = [z.requires_grad_() if isinstance(z, Tensor) and z.is_floating_point() else z for z in (z1, z2)]
    context = torch.autocast("cpu", dtype=torch.bfloat16) if case.autocast else nullcontext()
    with context, mock.patch.object(operator, "solve", recording):
        loss = criterion(*leaves, **given)
    parameters = list(criterion.parameters())
    found = torch.autograd.grad(row_mean(loss), [*leaves, *parameters])
    alignment = getattr(criterion, "alignment", criterion)
    used = plans[:2] if case.name == "clip" else plans[:1]
    mode = "" if case.mistake else alignment.explain(*leaves, **given).mode
    eps = alignment.kernel.eps
    return Result(
        leaves, loss.detach(), list(found[:2]), [plan.detach() for plan in used], mode,
        float(eps.detach()) if isinstance(eps, Tensor) else eps, found[2] if parameters else None,
    )  # fmt: skip


def _steps(case: Case, plan: Any) -> int:
    """The iterations that led to the plan, without those that a failed acceleration threw away."""
    return min(plan.iterations, case.options["iterations"])


def row_mean(loss: Tensor) -> Tensor:
    """The mean, in which rows count differently."""
    return loss if loss.dim() == 0 else (loss * _row_weights(len(loss)).to(loss.dtype)).mean()


def _row_weights(n: int) -> Tensor:
    return torch.linspace(1, 2, n, dtype=torch.float64)


def _solved(case: Case) -> Result:
    log_k = cases.log_matrix(case).requires_grad_()
    options = dict(case.options)
    geometry = gcalign.Entropic(options.pop("eps"))
    target = cases.matrix(case) if case.target else None
    plan = gcalign.solve(log_k, build.constraints(case), geometry, target=target, **options)
    loss = (plan.matrix * _probe(case).to(plan.log_u.dtype)).sum()
    return Result([log_k], loss.detach(), list(torch.autograd.grad(loss, [log_k])), [plan.detach()], "", case.eps)


def _probe(case: Case) -> Tensor:
    return torch.randn(case.n, case.m, generator=case.generator(9), dtype=torch.float64)


# --- comparisons ----------------------------------------------------------------------------------------------


def unit_of(case: Case) -> float:
    if case.options.get("cache") == "half":
        return 1e-3  # of the float16 copy of the kernel
    return torch.finfo(torch.float64 if case.dtype == "float64" else torch.float32).eps


def _largest(problem: Dense, a: Tensor, b: Tensor) -> Tensor:  # [n, m]
    """The largest numbers of which an entry of log P is the sum."""
    log_k = problem.log_k.detach()
    size = torch.where(log_k > -math.inf, log_k.abs(), 0)
    return 1 + problem.inner / problem.eps.detach() + size + a.abs()[:, None] + b.abs()


def _compare_loss(verdict: Verdict, result: Result) -> None:
    case = verdict.case
    z1, z2 = (z.detach().double().requires_grad_() for z in result.leaves)
    eps = torch.tensor(result.eps, dtype=torch.float64, requires_grad=True)
    directions = [build.dense(case, z1, z2, eps, back=k == 1) for k in range(len(result.plans))]
    expected: Any = 0.0
    bound = noise = 0.0
    differentiable: Any = 0.0
    for problem, plan in zip(directions, result.plans, strict=True):
        a, b = plan.log_u.double(), plan.log_v.double()
        log_p = plan.log_plan.double() if plan.log_plan is not None else problem.plan(a, b).detach()
        value, slack, sensitivity = _value(problem, log_p, a, b, unit_of(case))
        expected = expected + (value if result.loss.dim() else value.mean()) / len(directions)
        bound += slack
        noise += sensitivity
        if plan.log_plan is not None:
            continue
        _check_plan(verdict, problem, plan, a, b)
        loss = None if differentiable is None else _differentiable(case, problem, plan, a, b, result.mode)
        differentiable = None if loss is None or differentiable is None else differentiable + loss / len(directions)
    loss = row_mean(result.loss.double())
    reference = row_mean(expected)
    off = abs(float(loss - reference))
    verdict.loss = off / max(abs(float(reference)), bound / MARGIN / unit_of(case), 1e-30)
    verdict.kind = "agrees"
    if not off <= 2 * bound + 1e-30:
        verdict.fails(f"the loss is {float(loss):.9g} and float64 says {float(reference):.9g} (allowed: {bound:.1g})")
    if isinstance(differentiable, Tensor):
        _compare_gradients(verdict, result, (z1, z2), eps, differentiable, noise)
    elif not all(bool(torch.isfinite(x).all()) for x in result.gradients):
        unrolled: Any = 0.0
        for problem, plan in zip(directions, result.plans, strict=True):
            if plan.log_plan is None:
                steps = problem.iterated(_steps(case, plan))
                unrolled = unrolled + row_mean(problem.per_row(problem.plan(*steps), *steps)[0]) / len(directions)
        wanted = torch.autograd.grad(unrolled, (z1, z2)) if isinstance(unrolled, Tensor) else (z1 * 0, z2 * 0)
        for found, want in zip(result.gradients, wanted, strict=True):
            _check_overflow(verdict, found, want)


def _check_overflow(verdict: Verdict, found: Tensor, want: Tensor) -> Tensor:  # [n]
    """Which rows of a gradient are finite; others must be too large for the dtype, or nearly so, in float64."""
    finite = torch.isfinite(found).all(1)
    fits = want.abs().amax(1) <= torch.finfo(DTYPES[verdict.case.dtype]).max / 8
    if bool((~finite & fits).any()):
        verdict.fails(f"the gradient is not finite: {_few([found])}, and float64 says {_few([want])}")
    elif not bool(finite.all()):
        verdict.kind = "beyond"
    return finite


def _value(problem: Dense, log_p: Tensor, a: Tensor, b: Tensor, unit: float) -> tuple[Tensor, float, float]:
    """The loss of each row of a given plan, how far rounding may move its mean, and the size of ∂L/∂log P."""
    leaves = [x.detach().clone().requires_grad_() for x in (log_p, a, b)]
    total, size = problem.per_row(*leaves)
    slopes = torch.autograd.grad(total.mean(), leaves, allow_unused=True)
    largest = _largest(problem, a, b)
    moved = 0.0
    sensitivity = 0.0
    for slope, scale in zip(slopes, (largest, largest.amax(1), largest.amax(0)), strict=True):
        if slope is not None:
            moved += float((slope.nan_to_num(0).abs() * scale).sum())
            sensitivity += float(slope.nan_to_num(0).abs().sum())
    on_target = problem.terms.kl * problem.target / len(total)  # terms that may cancel have each their own rounding
    moved += float((on_target * largest).sum() + size.mean())
    # a square has a second-order error, too: all that counts where P = T
    moved += problem.terms.squared * MARGIN * unit * float(((log_p.exp() + problem.target) * largest).square().sum())
    return total.detach(), MARGIN * unit * moved, sensitivity + float(on_target.sum() + size.mean())


def _check_plan(verdict: Verdict, problem: Dense, plan: Any, a: Tensor, b: Tensor) -> None:
    """log u and log v are those of as many iterations; a plan that is said to be converged is."""
    case, unit = verdict.case, unit_of(verdict.case)
    both = problem.rows is not None and problem.columns is not None
    converged = plan.converged
    verdict.converged = converged and both
    largest = float(_largest(problem, a, b).max())
    with torch.no_grad():
        if not (both and _ended(case, plan) and case.options["iterations"] >= LONG and case.options["tol"] > 0):
            count = _steps(case, plan)
            steps = problem.iterated(count)
            off = max(float((x - y).abs().max()) for x, y in zip((a, b), steps, strict=True))
            if not off <= MARGIN * unit * largest * (1 + count):
                verdict.fails(f"log u and log v are off by {off:.2g} after {count} iterations")
        if verdict.converged:
            log_p = problem.plan(a, b)
            mass = float(log_p.exp().sum())
            distance = float((log_p.exp() - problem.target).abs().sum())
            by_pairs = case.target in ("identity", "sparse") and case.options.get("gradient") != "unrolled"
            scale = distance if by_pairs else max(mass, distance)
            tol = case.options["tol"]
            residual = max(problem.residual(a, b))
            if not residual <= 2 * tol * scale + MARGIN * unit * largest * mass:
                verdict.fails(
                    f"converged=True, but a further step moves {residual / scale:.2g} of the mass, and tol={tol:g}"
                )


def _ended(case: Case, plan: Any) -> bool:
    """Whether the iterations ended before the last one: the plan has converged, or rounding lets it come no closer."""
    return bool(plan.converged) or _steps(case, plan) < case.options["iterations"]


def _differentiable(case: Case, problem: Dense, plan: Any, a: Tensor, b: Tensor, mode: str) -> Tensor | None:
    """A float64 loss whose gradient is that of the mode; None where there is nothing to compare with."""
    both = problem.rows is not None and problem.columns is not None
    if both and mode in ("envelope", "implicit"):
        if not plan.converged:
            return None  # the library has warned
        if mode == "envelope":
            return problem.frozen(a, b)
        if case.options["reduction"] != "mean":
            return None
        with torch.no_grad():
            point = problem.fixed_point(b)
        return None if point is None else implicit(problem, point)
    if both and plan.iterations > 200:
        return None
    if both and _ended(case, plan) and case.options["iterations"] >= LONG and mode == "auto":
        return None
    steps = problem.iterated(_steps(case, plan))
    total, _ = problem.per_row(problem.plan(*steps), *steps)
    return row_mean(total if case.options["reduction"] == "none" else total.mean())


def _compare_gradients(
    verdict: Verdict, result: Result, z: tuple[Tensor, Tensor], eps: Tensor, loss: Tensor, sensitivity: float
) -> None:
    case, unit = verdict.case, unit_of(verdict.case)
    expected = torch.autograd.grad(loss, [*z, eps], allow_unused=True)
    iterations = max(plan.iterations for plan in result.plans)
    largest = 1 + 4 / result.eps
    for plan in result.plans:
        largest = max(largest, float(plan.log_u.abs().max()), float(plan.log_v.abs().max()))
    normal = case.kernel not in ("distances", "callable")
    reach = 1.0 if normal else max(1.0, *(float(x.detach().norm(dim=1).max()) for x in z))
    off = size = rounding = 0.0
    for found, want, x in zip(result.gradients, expected, z, strict=False):
        if want is None:
            want = torch.zeros_like(x)
        norm = x.detach().norm(dim=1, keepdim=True)
        # of a row that counts as zero, only finiteness is asked
        kept = (norm >= build.shortest(case)).squeeze(1) if normal else torch.ones(len(x), dtype=torch.bool)
        kept = kept & _check_overflow(verdict, found, want)
        factor = norm[kept] if normal else 1.0
        difference = (found.double() - want)[kept] * factor
        off += float(difference.square().sum())
        size += float((want[kept] * factor).square().sum())
        rounding += torch.finfo(DTYPES[case.dtype]).tiny * float(norm.sum())
    off, size = math.sqrt(off), math.sqrt(size)
    scale = 2 * sensitivity * reach / result.eps
    allowed = MARGIN * unit * largest * (1 + iterations) * max(scale, size)
    if result.mode == "implicit":
        allowed += (1e3 * case.options["tol"] + 1e-3) * max(scale, size)
    allowed += 2 * torch.finfo(DTYPES[case.dtype]).eps * size + rounding
    verdict.gradient = off / max(size, scale, 1e-30)
    if not off <= allowed:
        verdict.fails(
            f"the gradient ({result.mode}) is off by {off:.3g} of {size:.3g}, allowed: {allowed:.2g}; scale {scale:.2g}"
        )


def _compare_plan(verdict: Verdict, result: Result) -> None:
    """A plan of `gcalign.solve` against as many dense iterations."""
    case, plan = verdict.case, result.plans[0]
    log_k = result.leaves[0].detach().double().requires_grad_()
    problem = build.dense_solve(case, log_k)
    a, b = plan.log_u.double(), plan.log_v.double()
    verdict.kind = "agrees"
    _check_plan(verdict, problem, plan, a, b)
    p = problem.plan(a, b).detach().exp()
    if not bool(torch.isfinite(result.gradients[0]).all()):
        steps = problem.iterated(_steps(case, plan))
        (want,) = torch.autograd.grad((problem.plan(*steps).exp() * _probe(case)).sum(), log_k)
        _check_overflow(verdict, result.gradients[0], want)
    expected = float((p * _probe(case)).sum())
    bound = MARGIN * unit_of(case) * float((p * _largest(problem, a, b)).sum() * _probe(case).abs().max())
    off = abs(float(result.loss) - expected)
    verdict.loss = off / max(abs(expected), bound / MARGIN / unit_of(case), 1e-30)
    half = torch.finfo(DTYPES[case.dtype]).eps if case.dtype in ("bfloat16", "float16") else 0.0
    if not off <= 2 * bound + half * abs(expected):
        verdict.fails(f"⟨P, C⟩ is {float(result.loss):.9g} and float64 says {expected:.9g} (allowed: {bound:.1g})")
