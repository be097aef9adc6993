"""Solving and its gradient as one torch operator: what autograd, torch.compile and DDP see.

`gcalign::solve` takes tensors, numbers and the name of a form, and gives the vectors that a divergence reads. Its
autograd formula is `gcalign::solve_backward`. Both run the same Python in eager and in compiled code.
"""

from __future__ import annotations

import math
import warnings
from ctypes import c_int64
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcalign.constraints import Marginal
from gcalign.geometry import Entropic
from gcalign.plan import Plan
from gcalign.transport.gradients import backward, outputs
from gcalign.transport.logarithmic import Scalings
from gcalign.transport.operators.blocked import Blocked, State, Stored
from gcalign.transport.operators.choice import block_rows
from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Given, Inner
from gcalign.transport.operators.streamed import Cached, Streamed
from gcalign.transport.problem import FORMS, MODES, Form, Problem, choose, refuse_bad_input, statistics_of
from gcalign.transport.sinkhorn import exponents, scalings
from gcalign.transport.support import Full, Groups, Pairs, Support
from gcalign.transport.whole import by_autograd, by_dykstra, nothing

_KERNEL = "Tensor phi, Tensor? psi, Tensor? r, Tensor? c, Tensor eps"
_REST = (
    "Tensor? mu, Tensor? nu, Tensor weight, Tensor? i, Tensor? j, Tensor? row_codes, Tensor? column_codes, "
    "Tensor? levels, Tensor? left, Tensor? right, Tensor? start, float[] numbers, SymInt[] counts, str form"
)
_SOLVED = "Tensor a, Tensor b, Tensor alpha, Tensor beta, Tensor kept, Tensor rows, Tensor columns, Tensor progress"
_library = torch.library.Library("gcalign", "DEF")
_library.define(
    f"solve({_KERNEL}, {_REST}) -> (Tensor on_target, Tensor log_rows, Tensor log_columns, Tensor terms, {_SOLVED}, "
    "Tensor enveloped)"
)
_library.define(
    "solve_backward(Tensor? on_target, Tensor? rho, Tensor? sigma, Tensor? terms, Tensor? a_grad, Tensor? b_grad, "
    f"Tensor log_rows, Tensor log_columns, {_SOLVED}, bool[] wanted, {_KERNEL}, {_REST}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def solve(problem: Problem, form: str) -> Plan:
    """The proximal point of a problem, with its gradient."""
    known = FORMS[form]
    mu, nu = problem.masses()
    if not problem.only_marginals:
        return by_dykstra(problem, known, mu, nu)
    if problem.target is None:
        problem = replace(problem, target=nothing(problem))
    if known.options.gradient == "unrolled":
        return by_autograd(problem, known, mu, nu)
    assert problem.target is not None
    try:
        found = torch.ops.gcalign.solve(*_flat(problem, problem.target, known), form)
    except RuntimeError as error:
        if "functorch transforms" not in str(error):
            raise
        raise RuntimeError(
            f"gradient={known.options.gradient!r} is for torch.autograd; with torch.func use gradient='unrolled'"
        ) from error
    on_target, log_rows, log_columns, terms, a, b = found[:6]
    return Plan(
        problem.kernel, a, b, problem.eps, mu, nu, found[11], problem.target, problem.rows, problem.columns, log_rows,
        log_columns, on_target, terms, found[12],
    )  # fmt: skip


# --- to and from an operator's arguments ----------------------------------------------------------------------

_PAIRS, _GROUPS, _FULL = range(3)


def _flat(problem: Problem, target: Support, form: Form) -> tuple[Any, ...]:
    kernel, eps, rows, columns = problem.kernel, problem.eps, problem.rows, problem.columns
    leaves = kernel.tensors if len(kernel.tensors) == 4 else (kernel.tensors[0], None, None, None)
    wanted = eps.requires_grad
    for tensor in kernel.tensors:
        wanted = wanted or tensor.requires_grad
    wanted = wanted and torch.is_grad_enabled()
    kind, pairs, unit = _FULL, None, False
    groups: tuple[Tensor | None, ...] = (None,) * 5
    if isinstance(target, Pairs):
        kind, pairs, unit = _PAIRS, target, target.unit
    elif isinstance(target, Groups):
        kind, pairs = _GROUPS, target.pairs
        groups = (target.row_codes, target.column_codes, target.levels, target.left, target.right)
    options = form.options
    plain = options.block is None and options.cache is None
    block = 0 if plain else block_rows(kernel, options.block, options.cache, problem.shard)
    shift = -1 if pairs is None or pairs.shift is None else pairs.shift
    return (
        *leaves,
        eps,
        None if rows is None else rows.mass,
        None if columns is None else columns.mass,
        target.weight if isinstance(target, Full) else eps if pairs is None else pairs.weight,
        None if pairs is None else pairs.i,
        None if pairs is None else pairs.j,
        *groups,
        problem.start,
        [kernel.scale, kernel.bound, problem.eps_value],
        [
            kind, shift, block, int(unit), int(kernel.exclude_self), int(target.ordinary), int(wanted),
            int(problem.feasible), int(problem.shard is not None), int(eps.requires_grad),
            int(form.check_finite and torch.compiler.is_compiling()),  # in eager code the criterion looks at its loss
        ],
    )  # fmt: skip


class _Call(NamedTuple):
    """One call of the operator: its problem again, and how it is solved."""

    problem: Problem
    form: Form
    block: int
    wanted: bool
    eps_wanted: bool
    checked: bool

    @staticmethod
    def of(args: tuple[Any, ...]) -> _Call:
        phi, psi, r, c, eps, mu, nu, weight, i, j = args[:10]
        numbers, counts, name = args[16:]
        kind, shift, block, unit, exclude_self, ordinary, wanted, feasible, sharded, eps_wanted, checked = counts
        if name not in FORMS:
            raise RuntimeError(f"{name!r} is not known in this process; a program needs the criterion that made it")
        form = FORMS[name]
        kernel = (
            Given(phi, numbers[1], bool(exclude_self))
            if psi is None
            else Inner(phi, psi, r, c, numbers[0], numbers[1], bool(exclude_self))
        )
        target: Support
        if kind == _FULL:
            target = Full(weight)
        else:
            shift, ordinary = None if shift < 0 else shift, bool(ordinary)
            pairs = Pairs(i, j, weight, kernel.shape, ordinary=ordinary, shift=shift, unit=bool(unit))
            rows, columns, levels, left, right = args[10:15]
            target = pairs
            if kind == _GROUPS:
                target = Groups(rows, columns, levels, pairs, left, right, kernel.shape, ordinary=ordinary)
        problem = Problem(
            kernel,
            (),
            _ENTROPIC,
            eps,
            target,
            None if form.rows is None else Marginal(mu, form.rows),
            None if form.columns is None else Marginal(nu, form.columns),
            bool(feasible),
            eps_value=numbers[2],
            shard=Shard(form.group) if sharded else None,
            start=args[15],
        )
        return _Call(problem, form, block, bool(wanted), bool(eps_wanted), bool(checked))

    @property
    def slots(self) -> int:
        """How many iterations are recorded for the backward pass, and one more."""
        if not self.wanted:
            return 0
        both = self.problem.rows is not None and self.problem.columns is not None
        return self.form.options.iterations + 1 if both else 2

    def operator(self, state: State | None = None) -> Blocked:
        """K as an operator on vectors: stored, made again, or made again from a float16 copy."""
        problem = self.problem
        if self.form.options.cache is not None:
            return Cached(problem.kernel, self.block, problem.shard, state)
        if self.block:
            return Streamed(problem.kernel, self.block, problem.shard, state)
        return Stored(problem.kernel, problem.shard, state)


_ENTROPIC = Entropic()


# --- the operator ---------------------------------------------------------------------------------------------


def _solve(*args: Any) -> tuple[Tensor, ...]:
    call = _Call.of(args)
    problem, form, options = call.problem, call.form, call.form.options
    with torch.no_grad():
        if math.isnan(problem.eps_value):  # ε is learnt: a device wait
            problem = replace(problem, eps_value=float(problem.eps))
        operator = call.operator()
        tau = exponents(problem, problem.eps_value)
        constrained = (problem.rows is not None) + (problem.columns is not None)
        contracts = tau[0] is not None and tau[1] is not None and tau[0] * tau[1] < 0.99
        # only if the result does not depend on the iteration path: a plan does not, nor do scalings of a relaxed one
        by_plan = form.dual and (problem.feasible or not call.wanted) and options.gradient in ("auto", "envelope")
        by_plan = by_plan or (form.plan_only and not call.wanted)
        free = by_plan or (contracts and options.gradient in ("auto", "implicit"))
        linear = not call.eps_wanted or tau == (1.0, 1.0)
        found = scalings(operator, problem, options, tau, slots=call.slots, free=free, linear=linear)
        choice = choose(
            options, constrained=constrained, converged=found.converged, dual=form.dual, feasible=problem.feasible
        )
        if call.wanted and not found.converged and options.gradient in ("envelope", "implicit"):
            warnings.warn(
                f"gradient={options.gradient!r} is exact for converged plans, and {found.iterations} iterations did "
                f"not reach tol={options.tol:g}; raise iterations, or use gradient='auto'",
                stacklevel=2,
            )
        (n, m), new = operator.shape, operator.like.new_empty
        state = operator.state if call.wanted else State(new(0, 0), new(n), new(m), raw=True)
        recorded = call.slots > 0 and len(found.rows) == call.slots
        flags = (found.iterations, found.converged, MODES.index(choice.mode), state.raw, found.linear, recorded)
        vectors = outputs(operator, problem, form, found)
        if call.checked:
            refuse_bad_input(problem, vectors[0].sum() + vectors[1].sum())
        return (
            *vectors,
            state.alpha,
            state.beta,
            state.kept,
            found.rows if recorded else new(call.slots, 2, n),
            found.columns if recorded else new(call.slots, 2, m),
            torch.tensor(flags),
            torch.full((), choice.mode == "envelope", device=operator.like.device),
        )


def _solve_fake(*args: Any) -> tuple[Tensor, ...]:
    call = _Call.of(args)
    problem, form, new = call.problem, call.form, call.problem.eps.new_empty
    (n, m), target = problem.kernel.shape, problem.target
    assert target is not None
    on_target = new(n)
    if isinstance(target, Pairs):
        on_target = torch.empty_like(target.weight)
    elif form.reads_entries:
        on_target = new(n, m)
    half = form.options.cache is not None
    kept = new(0, 0)
    if call.wanted and (half or not call.block):
        first, last = (0, n) if problem.shard is None else problem.shard.rows(n)
        kept = new(last - first, m, dtype=torch.float16 if half else None)
    return (
        on_target, new(n), new(m if form.columns is not None or form.needs_columns else 0),
        new(n, len(statistics_of(form, target))), new(n), new(m), new(n), new(m), kept, new(call.slots, 2, n),
        new(call.slots, 2, m), torch.empty(6, dtype=torch.long, device="cpu"), new((), dtype=torch.bool),
    )  # fmt: skip


def _solve_backward(*args: Any) -> tuple[Tensor, ...]:
    log_rows, log_columns, a, b, alpha, beta, kept, rows, columns, progress = args[6:16]
    wanted, call = args[16], _Call.of(args[17:])
    problem, form = call.problem, call.form
    # on the CPU, so this is no wait; torch may be without numpy
    iterations, converged, mode, raw, linear, recorded = (c_int64 * 6).from_address(progress.data_ptr())
    with torch.no_grad(), torch.autocast(a.device.type, enabled=False):
        if math.isnan(problem.eps_value):
            problem = replace(problem, eps_value=float(problem.eps))
        operator = call.operator(State(kept, alpha, beta, bool(raw)))
        found = Scalings(
            a, b, log_rows, log_columns if form.columns is not None else None, iterations, bool(converged),
            rows if recorded else rows[:0], columns if recorded else columns[:0], bool(linear),
        )  # fmt: skip
        eps_grad, grads = backward(operator, problem, form, found, MODES[mode], args[:6], wanted[1:])
        found_grads = []
        for k in range(4):  # an operator gives tensors, so one without entries stands for none
            grad = grads[k] if k < len(grads) else None
            found_grads.append(operator.like.new_empty(0) if grad is None else grad)
        return *found_grads, torch.zeros_like(problem.eps) if eps_grad is None else eps_grad


def _solve_backward_fake(*args: Any) -> tuple[Tensor, ...]:
    wanted, kernel, eps = args[16], args[17:21], args[21]
    none = eps.new_empty(0)
    found = [none if t is None or not w else torch.empty_like(t) for t, w in zip(kernel, wanted[1:], strict=False)]
    return *[*found, none, none, none][:4], torch.empty_like(eps)


class _Solve(torch.autograd.Function):
    """`gcalign::solve` with its gradient. `torch.library.register_autograd` would do the same, but reads the schema of
    every argument in every call, which costs more than an iteration."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            found: tuple[Tensor, ...] = torch.ops.gcalign.solve(*args)
        ctx.numbers, ctx.counts, ctx.form = args[16:]
        # inputs are saved so that torch notices a change in place between the two passes
        ctx.save_for_backward(*found[1:3], *found[4:12], *args[:16])
        ctx.mark_non_differentiable(*found[6:])
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            mode = FORMS[ctx.form].options.gradient
            raise RuntimeError(f"gradient={mode!r} has no second derivative; use gradient='unrolled' for that")
        saved, need = ctx.saved_tensors, ctx.needs_input_grad
        wanted = [need[4], *need[: 4 if saved[11] is not None else 1]]
        found = torch.ops.gcalign.solve_backward(
            *grads[:6], *saved[:10], wanted, *saved[10:], ctx.numbers, ctx.counts, ctx.form
        )
        return *(grad if need[k] and grad.numel() else None for k, grad in enumerate(found)), *[None] * 14


_library.impl("solve", _solve, "CompositeExplicitAutograd")
_library.impl("solve", _Solve.apply, "Autograd")
_library.impl("solve_backward", _solve_backward, "CompositeExplicitAutograd")
torch.library.register_fake("gcalign::solve", _solve_fake, lib=_library)
torch.library.register_fake("gcalign::solve_backward", _solve_backward_fake, lib=_library)
