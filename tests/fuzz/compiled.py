"""A case under `torch.compile`: the loss and the gradients of eager code, or an error where eager code has one."""

from __future__ import annotations

import dataclasses
import random
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from fuzz import build, mistakes
from fuzz.cases import Case, draw
from fuzz.check import MARGIN, Verdict, row_mean, unit_of

PLANTED = (*[""] * 14, "nan row", "inf row", "zero weight", "lonely label", "lonely id", "empty target row")


def draw_compiled(seed: int, number: int) -> Case:
    """A case that can be compiled: of a method or a composition, without mistakes that change the criterion."""
    r, k = random.Random(f"{seed}/compiled/{number}"), 0
    wanted = r.choice(PLANTED)
    while True:
        case = draw(seed, 1_000_000 * (number + 1) + k)
        k += 1
        possible = case.family in ("method", "composition") and "cache" not in case.options
        if possible and case.mistake == wanted and case.target != "sparse":  # which torch does not take as an argument
            break
    options = {name: value for name, value in case.options.items() if name != "check_finite"}
    options["gradient"] = "auto" if options["gradient"] in ("envelope", "implicit") else options["gradient"]
    if options["gradient"] == "unrolled":  # compiled code cannot look at values, so it does all iterations
        options |= {"tol": 0.0, "iterations": min(options["iterations"], 5)}
    return dataclasses.replace(case, options=options, number=case.number)


def judge_compiled(case: Case) -> Verdict:
    """Run a case in eager and in compiled code."""
    verdict = Verdict(case)
    eager, refusal = _run(case, compiled=False)
    found, raised = _run(case, compiled=True)
    if refusal is not None:
        verdict.kind, verdict.error = "refused", type(refusal).__name__
        if raised is None and "which no plan can satisfy" not in str(refusal):  # totals are not read in compiled code
            return verdict.fails(f"compiled code gives {[float(x.sum()) for x in found]}; eager code raises: {refusal}")
        return verdict
    if raised is not None:
        return verdict.fails(f"compiled code raises {type(raised).__name__}: {str(raised)[:400]}")
    verdict.kind = "agrees"
    eps, count = case.eps, case.options["iterations"]
    allowed = MARGIN * unit_of(case) * (1 + 4 / eps) * (1 + count) + 10 * case.options["tol"]
    for k, (got, want) in enumerate(zip(found, eager, strict=True)):
        off, size = float((got - want).norm()), float(want.norm())
        scale = max(size, 1.0) if k == 0 else max(size, float(eager[0].abs().max()) / eps)
        deviation = off / max(scale, 1e-30)
        if k == 0:
            verdict.loss = deviation
        else:
            verdict.gradient = max(deviation, verdict.gradient if verdict.gradient == verdict.gradient else 0.0)
        if not deviation <= allowed:
            verdict.fails(f"compiled {('loss', 'gradient', 'gradient')[k]} off by {off:.2g} of {size:.2g}")
    return verdict


def _run(case: Case, *, compiled: bool) -> tuple[list[Tensor], Exception | None]:
    """The loss and gradients times norms (so that rows count alike), or the error."""
    z1, z2, given, changed = mistakes.planted(case)
    context: Any = torch.autocast("cpu", dtype=torch.bfloat16) if case.autocast else nullcontext()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.compile has warnings of its own
            criterion: Any = build.criterion(changed)
            if compiled:
                torch.compiler.reset()
                criterion = torch.compile(criterion, fullgraph=True, backend="aot_eager")
            leaves = [z.requires_grad_() for z in (z1, z2)]
            with context:
                loss = criterion(*leaves, **given)
            gradients = torch.autograd.grad(row_mean(loss), leaves)
    except Exception as error:
        return [], error
    norms = [z.detach().double().norm(dim=1, keepdim=True) for z in leaves]
    return [loss.detach().double(), *(g.double() * norm for g, norm in zip(gradients, norms, strict=True))], None
