"""Solving and its gradient as one torch operator: what autograd, torch.compile and DDP see.

`gcalign::solve` takes tensors, numbers and the name of a form, and gives the vectors that a divergence reads. Its
autograd formula is `gcalign::solve_backward`. Both run the same Python in eager and in compiled code.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from gcalign.constraints import Marginal
from gcalign.plan import Plan
from gcalign.transport.dykstra import projected
from gcalign.transport.gradients import Adjoints, Solved, backward, outputs
from gcalign.transport.operators.blocked import Blocked, State
from gcalign.transport.operators.choice import block_rows, operator
from gcalign.transport.operators.reference import Reference
from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Given, Inner, Source
from gcalign.transport.problem import MODES, Form, Problem, choose, form_named
from gcalign.transport.sinkhorn import Scalings, Sides, scalings, unrolled
from gcalign.transport.support import Full, Groups, Pairs, Support

_KERNEL = "Tensor phi, Tensor? psi, Tensor? r, Tensor? c, Tensor eps"
_REST = (
    "Tensor? mu, Tensor? nu, Tensor weight, Tensor? i, Tensor? j, Tensor? row_codes, Tensor? column_codes, "
    "Tensor? levels, Tensor? left, Tensor? right, Tensor? start, float[] numbers, SymInt[] counts, str form"
)
_SOLVED = (
    "Tensor a, Tensor b, Tensor log_kv, Tensor log_ktu, Tensor alpha, Tensor beta, Tensor kept, Tensor rows, "
    "Tensor columns, Tensor progress"
)
_library = torch.library.Library("gcalign", "DEF")
_library.define(
    f"solve({_KERNEL}, {_REST}) -> (Tensor on_target, Tensor log_rows, Tensor log_columns, Tensor terms, {_SOLVED}, "
    "Tensor enveloped)"
)
_library.define(
    "solve_backward(Tensor? on_target, Tensor? log_rows, Tensor? log_columns, Tensor? terms, Tensor? a_grad, "
    f"Tensor? b_grad, {_SOLVED}, bool[] wanted, {_KERNEL}, {_REST}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def solve(problem: Problem, form: str) -> Plan:
    """The proximal point of a problem, with its gradient."""
    known = form_named(form)
    options = known.options
    mu, nu = problem.masses()
    if not problem.only_marginals:
        return _by_dykstra(problem, known, mu, nu)
    sides = Sides(problem.rows, problem.columns, problem.eps, problem.eps_value)
    if options.gradient == "unrolled":
        return _unrolled(problem, known, sides, mu, nu)
    target = problem.target if problem.target is not None else _nothing(problem)
    tensors, numbers, counts = _flat(problem, target, known)
    found = torch.ops.gcalign.solve(*tensors, numbers, counts, form)
    on_target, log_rows, log_columns, terms, a, b = found[:6]
    return Plan(
        problem.kernel, a, b, problem.eps, mu, nu, found[13], target, problem.rows, problem.columns, log_rows,
        log_columns, on_target, terms, found[14],
    )  # fmt: skip


def _nothing(problem: Problem) -> Pairs:
    """An empty list of pairs, for a plan that is compared with nothing."""
    none = torch.zeros(0, dtype=torch.long, device=problem.eps.device)
    return Pairs(none, none, problem.eps.new_zeros(0), problem.kernel.shape)


def _by_dykstra(problem: Problem, form: Form, mu: Tensor, nu: Tensor) -> Plan:
    """Any constraint set, stored whole and followed by autograd."""
    options = form.options
    if options.gradient not in ("auto", "unrolled"):
        raise ValueError(
            f"gradient={options.gradient!r} is for row and column marginals; use 'unrolled' (or 'auto') here"
        )
    if isinstance(options.block, int) or options.cache is not None:
        raise ValueError(
            f"block={options.block} streams row and column marginals, and {problem.constraints} needs the whole matrix; "
            "leave block and cache out"
        )
    log_plan, a, b, found = projected(problem, options.iterations, options.tol)
    target = problem.target if problem.target is not None else _nothing(problem)
    on_target, terms = read(log_plan, target, form)
    p = log_plan.exp()
    progress = torch.tensor([found.iterations, found.converged])
    return Plan(
        problem.kernel, a, b, problem.eps, mu, nu, progress, target, problem.rows, problem.columns, p.sum(1).log(),
        p.sum(0).log(), on_target, terms, torch.zeros((), dtype=torch.bool, device=a.device), log_plan,
    )  # fmt: skip


def _unrolled(problem: Problem, form: Form, sides: Sides, mu: Tensor, nu: Tensor) -> Plan:
    """Log-space iterations that autograd follows, all of them."""
    source = problem.kernel
    kernel = Reference(source)
    a, b, log_kv, log_ktu, *progress = unrolled(kernel, sides, form.options, source.shape)
    target = problem.target if problem.target is not None else _nothing(problem)
    on_target, terms = read(kernel.log_k + a[:, None] + b, target, form)
    return Plan(
        source, a, b, problem.eps, mu, nu, torch.tensor(progress), target, problem.rows, problem.columns, a + log_kv, b + log_ktu,
        on_target, terms, torch.zeros((), dtype=torch.bool, device=a.device),
    )  # fmt: skip


def read(log_plan: Tensor, target: Support, form: Form) -> tuple[Tensor, Tensor]:
    """What a divergence reads of a plan that is there as a matrix: on the target, and row statistics."""
    statistics = statistics_of(form, target)
    terms = log_plan.new_zeros(len(log_plan), 0)
    t = None if isinstance(target, Pairs) and not statistics else target.dense()
    if statistics:
        terms = torch.stack([f(log_plan, t) for f in statistics], 1)
    if isinstance(target, Pairs):
        return log_plan[target.i, target.j], terms
    assert t is not None
    on_target = log_plan.masked_fill(t == 0, 0)
    return on_target if form.reads_entries else (t * on_target).sum(1), terms


def statistics_of(form: Form, target: Support) -> tuple[Any, ...]:
    """The divergence's row statistics and, where T is no list of pairs, log Σ_j T_ij P_ij^q for its powers."""
    powers = () if isinstance(target, Pairs) else tuple(Power(q) for q in form.powers)
    return (*form.statistics, *powers)


class Power:
    """log Σ_j T_ij P_ij^q of each row."""

    def __init__(self, q: float) -> None:
        self.q = q

    def __call__(self, log_p: Tensor, t: Tensor) -> Tensor:  # [b, m], [b, m] -> [b]
        return torch.logsumexp(torch.where(t > 0, self.q * log_p + t.log(), -torch.inf), 1)


# --- to and from an operator's arguments ----------------------------------------------------------------------

_PAIRS, _GROUPS, _FULL = range(3)


def _flat(problem: Problem, target: Support, form: Form) -> tuple[list[Any], list[float], list[int]]:
    source = problem.kernel
    leaves = [*source.tensors, None, None, None][:4]
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in (problem.eps, *source.tensors))
    scale = source.scale if isinstance(source, Inner) else 1.0
    pairs = target.pairs if isinstance(target, Groups) else target if isinstance(target, Pairs) else None
    groups: list[Tensor | None] = [None] * 5
    if isinstance(target, Groups):
        groups = [target.row_codes, target.column_codes, target.levels, target.left, target.right]
    kind = _PAIRS if isinstance(target, Pairs) else _GROUPS if isinstance(target, Groups) else _FULL
    weight = target.weight if isinstance(target, Full) else problem.eps if pairs is None else pairs.weight
    tensors = [
        *leaves,
        problem.eps,
        None if problem.rows is None else problem.rows.mass,
        None if problem.columns is None else problem.columns.mass,
        weight,
        None if pairs is None else pairs.i,
        None if pairs is None else pairs.j,
        *groups,
        problem.start,
    ]
    shift = -1 if pairs is None or pairs.shift is None else pairs.shift
    block = block_rows(source, form.options.block, form.options.cache, problem.shard)
    flags = (source.exclude_self, target.ordinary, wanted, problem.feasible, problem.shard is not None)
    flags = (*flags, problem.eps.requires_grad)
    return tensors, [scale, source.bound, problem.eps_value], [kind, shift, block, *map(int, flags)]


class _Call:
    """One call of the operator, put together again from its arguments."""

    def __init__(
        self, phi: Tensor, psi: Tensor | None, r: Tensor | None, c: Tensor | None, eps: Tensor, mu: Tensor | None,
        nu: Tensor | None, weight: Tensor, i: Tensor | None, j: Tensor | None, row_codes: Tensor | None,
        column_codes: Tensor | None, levels: Tensor | None, left: Tensor | None, right: Tensor | None,
        start: Tensor | None, numbers: list[float], counts: list[int], form: str,
    ) -> None:  # fmt: skip
        self.form = form_named(form)
        scale, bound, eps_value = numbers
        kind, shift, self.block, *flags = counts
        exclude_self, ordinary, self.wanted, self.feasible, sharded, self.eps_wanted = map(bool, flags)
        self.source: Source
        if psi is None or r is None or c is None:
            self.source = Given(phi, bound, exclude_self)
        else:
            self.source = Inner(phi, psi, r, c, scale, bound, exclude_self)
        self.shape = self.source.shape
        self.target = _target(kind, shift, ordinary, weight, i, j, (row_codes, column_codes, levels, left, right), self.shape)
        self.start = start
        self.shard = Shard(self.form.group) if sharded else None
        rows = None if mu is None or self.form.rows is None else Marginal(mu, self.form.rows)
        columns = None if nu is None or self.form.columns is None else Marginal(nu, self.form.columns)
        self.eps, self.eps_value = eps, eps_value
        self._sides = rows, columns

    @property
    def sides(self) -> Sides:
        value = float(self.eps) if math.isnan(self.eps_value) else self.eps_value  # where ε is learnt: a device wait
        return Sides(*self._sides, self.eps, value)

    @property
    def half(self) -> bool:
        return self.form.options.cache is not None

    @property
    def slots(self) -> int:
        """How many iterations are recorded for the backward pass, and one more."""
        if not self.wanted or self.form.options.gradient == "envelope":
            return 0
        return 2 if None in self._sides else self.form.options.iterations + 1

    def solved(self, kernel: Blocked, found: Scalings, sides: Sides) -> Solved:
        statistics = statistics_of(self.form, self.target)
        return Solved(
            kernel, found, sides, self.target, statistics, self.form.needs_columns, self.form.reads_entries
        )


def _target(
    kind: int, shift: int, ordinary: bool, weight: Tensor, i: Tensor | None, j: Tensor | None, groups: tuple[Any, ...],
    shape: tuple[int, int],
) -> Support:  # fmt: skip
    if kind == _FULL or i is None or j is None:
        return Full(weight)
    pairs = Pairs(i, j, weight, shape, ordinary=ordinary, shift=None if shift < 0 else shift)
    if kind == _PAIRS:
        return pairs
    row_codes, column_codes, levels, left, right = groups
    return Groups(row_codes, column_codes, levels, pairs, left, right, shape, ordinary=ordinary)


# --- the operator ---------------------------------------------------------------------------------------------


def _solve(*args: Any) -> tuple[Tensor, ...]:
    call = _Call(*args)
    form, options, sides = call.form, call.form.options, call.sides
    with torch.no_grad():
        kernel = operator(call.source, call.block, call.half, call.shard)
        tau = [t for t in sides.tau() if t is not None]
        contracts = len(tau) == 2 and tau[0] * tau[1] < 0.99
        # only if the result does not depend on the iteration path: a plan does not, nor do scalings of a relaxed one
        by_plan = form.dual and (call.feasible or not call.wanted) and options.gradient in ("auto", "envelope")
        free = by_plan or (contracts and options.gradient in ("auto", "implicit"))
        found = scalings(
            kernel, sides, options, call.target, start=call.start, keep=call.slots > 0, free=free,
            linear=not call.eps_wanted or all(t == 1 for t in tau),
        )  # fmt: skip
        choice = choose(
            options,
            constrained=sum(side is not None for side in (sides.rows, sides.columns)),
            converged=found.converged,
            dual=form.dual,
            feasible=call.feasible,
        )
        if call.wanted and not found.converged and options.gradient in ("envelope", "implicit"):
            warnings.warn(
                f"gradient={options.gradient!r} is exact for converged plans, and {found.iterations} iterations did "
                f"not reach tol={options.tol:g}; raise iterations, or use gradient='auto'",
                stacklevel=2,
            )
        vectors = outputs(call.solved(kernel, found, sides))
        state = kernel.state if call.wanted else State(call.eps.new_empty(0, 0), kernel.alpha, kernel.beta, raw=True)
        (n, m), none = call.shape, call.eps.new_empty(0)
        recorded = call.slots > 0 and len(found.rows) == call.slots
        flags = (found.iterations, found.converged, MODES.index(choice.mode), state.raw, found.linear, recorded)
        return (
            *vectors,
            found.log_kv,
            none if found.log_ktu is None else found.log_ktu,
            call.eps.new_empty(n) if state.raw else state.alpha,
            call.eps.new_empty(m) if state.raw else state.beta,
            state.kept,
            found.rows if recorded else call.eps.new_empty(call.slots, 2, n),
            found.columns if recorded else call.eps.new_empty(call.slots, 2, m),
            torch.tensor(flags),
            torch.full((), choice.mode == "envelope", device=none.device),
        )


def _solve_fake(*args: Any) -> tuple[Tensor, ...]:
    call = _Call(*args)
    (n, m), new = call.shape, call.eps.new_empty
    on_target = new(n)
    if isinstance(call.target, Pairs):
        on_target = torch.empty_like(call.target.weight)
    elif call.form.reads_entries:
        on_target = new(n, m)
    columns = call.form.columns is not None
    kept = new(0, 0)
    if call.wanted and not (call.block and not call.half):
        mine = n if call.shard is None else call.shard.rows(n)[1] - call.shard.rows(n)[0]
        kept = new(mine, m, dtype=torch.float16 if call.half else None)
    return (
        on_target, new(n), new(m if columns or call.form.needs_columns else 0),
        new(n, len(statistics_of(call.form, call.target))), new(n), new(m), new(n), new(m if columns else 0), new(n),
        new(m), kept, new(call.slots, 2, n), new(call.slots, 2, m), torch.empty(6, dtype=torch.long, device="cpu"),
        new((), dtype=torch.bool),
    )  # fmt: skip


def _solve_backward(*args: Any) -> tuple[Tensor, ...]:
    on_target, log_rows, log_columns, terms, a_grad, b_grad = args[:6]
    a, b, log_kv, log_ktu, alpha, beta, kept, rows, columns, progress = args[6:16]
    wanted, call = args[16], _Call(*args[17:])
    iterations, converged, mode, raw, linear, recorded = progress.tolist()
    with torch.no_grad(), torch.autocast(a.device.type, enabled=False):
        if raw:
            r, c = call.source.offsets
            alpha, beta = -r.expand(len(a)), -c.expand(len(b))
        kernel = operator(call.source, call.block, call.half, call.shard, State(kept, alpha, beta, bool(raw)))
        found = Scalings(
            a, b, log_kv, log_ktu if call.form.columns is not None else None, iterations, bool(converged),
            rows if recorded else rows[:0], columns if recorded else columns[:0], bool(linear),
        )  # fmt: skip
        adjoint = Adjoints(on_target, log_rows, log_columns, a_grad, b_grad, terms)
        eps_grad, grads = backward(call.solved(kernel, found, call.sides), MODES[mode], adjoint, wanted[1:])
        none = call.eps.new_empty(0)
        found_grads = [none if grad is None else grad for grad in [*grads, None, None, None][:4]]
        return *found_grads, torch.zeros_like(call.eps) if eps_grad is None else eps_grad


def _solve_backward_fake(*args: Any) -> tuple[Tensor, ...]:
    wanted, kernel, eps = args[16], args[17:21], args[21]
    none = eps.new_empty(0)
    found = [torch.empty_like(t) if w and t is not None else none for t, w in zip(kernel, wanted[1:], strict=False)]
    return *[*found, none, none, none][:4], torch.empty_like(eps)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.numbers, ctx.counts, ctx.form = inputs
    # inputs are saved so that torch notices a change in place between the two passes
    ctx.save_for_backward(*output[4:14], *tensors)
    ctx.mark_non_differentiable(*output[6:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    if torch.is_grad_enabled():
        mode = form_named(ctx.form).options.gradient
        raise RuntimeError(f"gradient={mode!r} has no second derivative; use gradient='unrolled' for that")
    saved = ctx.saved_tensors
    kernel = [t for t in saved[10:14] if t is not None]
    wanted = [ctx.needs_input_grad[4], *(need for need, _ in zip(ctx.needs_input_grad, kernel, strict=False))]
    found = torch.ops.gcalign.solve_backward(
        *grads[:6], *saved[:10], wanted, *saved[10:], ctx.numbers, ctx.counts, ctx.form
    )
    leaves = [grad if need else None for grad, need in zip(found, ctx.needs_input_grad, strict=False)]
    return *leaves, *[None] * 14


_library.impl("solve", _solve, "CompositeExplicitAutograd")
_library.impl("solve_backward", _solve_backward, "CompositeExplicitAutograd")
torch.library.register_fake("gcalign::solve", _solve_fake, lib=_library)
torch.library.register_fake("gcalign::solve_backward", _solve_backward_fake, lib=_library)
torch.library.register_autograd("gcalign::solve", _differentiate, setup_context=_setup, lib=_library)
