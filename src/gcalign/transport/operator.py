"""Solving with its gradient: for autograd as a function of Python objects, for torch.compile as one torch operator.

Both run `_forward` and `_backward`. In eager code a problem is passed as it is. A torch operator takes only tensors,
numbers and strings, so `pack` takes the call apart and `unpack` puts it together again. Other constraint sets, and
`gradient="unrolled"`, have a plan that is stored whole and that autograd follows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from gcalign.constraints import Columns, Constraint, Hard, Marginal, Relaxed, Rows, TotalVariation
from gcalign.geometry import Entropic
from gcalign.plan import STATISTICS, Adjoints, Plan, Reads, Vectors
from gcalign.transport.distributed import Shard
from gcalign.transport.gradients import Choice, backward, choose, read, statistics_of
from gcalign.transport.operators.blocked import Blocked, Cached, Frame, Kept, Reference, Stored, Streamed, block_rows
from gcalign.transport.operators.sources import Given, Inner, Mask
from gcalign.transport.problem import MODES, Options, Problem
from gcalign.transport.sinkhorn import LogStep, Scalings, Stop, Sweep, iterate, scalings
from gcalign.transport.support import Full, Groups, Pairs, check_no_self_pairs, check_weights, values_readable


def solve(problem: Problem, options: Options, reads: Reads) -> Plan:
    """The proximal point of a problem, with its gradient."""
    if not problem.only_marginals:
        return _by_dykstra(problem, options, reads)
    compiling = torch.compiler.is_compiling() or isinstance(problem.eps, FakeTensor)
    if _autograd_reason(problem, options, reads, compiling):
        return _by_autograd(problem, options, reads)
    call = _call(problem, options, reads)
    if compiling:
        outputs = torch.ops.gcalign.solve(*_pack(call))
        vectors, solution = Vectors(*outputs[: len(Vectors._fields)]), outputs[-1]
        iterations, converged = solution[0], (solution[1] > 0) & (solution[-1] > 0)
    else:
        try:
            outputs = _Solve.apply(call, *problem.kernel.tensors, problem.eps)  # type: ignore[no-untyped-call]
            *tensors, eps, (iterations, converged) = outputs
            vectors = Vectors(*(*tensors, eps if call.eps_wanted else problem.eps))
        except RuntimeError as error:
            if "functorch transforms" not in str(error):
                raise
            raise RuntimeError(
                f"gradient={options.gradient!r} is for torch.autograd; with torch.func use gradient='unrolled'"
            ) from error
    plan = Plan.of(problem, vectors, iterations, converged)
    if problem.total is None:
        return plan
    shift = problem.missing(plan.log_rows)
    plan = plan.times(shift)
    if not plan.terms.shape[1]:
        return plan
    return replace(plan, terms=plan.terms + shift * plan.terms.new_tensor(reads.powers))  # log Σ_j T_ij P_ij^q


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which products keep their dtype."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def explain(problem: Problem, options: Options, reads: Reads) -> Choice:
    """Which gradient mode runs, how the plan is solved, and why."""
    if not problem.only_marginals:
        return Choice("unrolled", "the constraints are not only rows and columns, so autograd follows Dykstra's steps")
    if reason := _autograd_reason(problem, options, reads, torch.compiler.is_compiling()):
        return Choice("unrolled", reason)
    if options.gradient == "envelope":  # refused without solving where it would be wrong
        choose(problem, options, reads, converged=True)
    vectors, solved = _forward(_call(problem, options, reads)._replace(wanted=True))
    choice, parts = choose(problem, options, reads, solved.scalings.converged), []
    if choice.mode == "implicit" and solved.scalings.linear:
        one = problem.constrained == 1
        parts.append("in one step" if one else "by reversing its stored iterations, which is exact as well")
    if problem.constrained == 2:
        parts.append(_how(options, solved.scalings))
    if problem.total is not None:
        least, factor = "at least " * problem.at_least, float(problem.missing(vectors.log_rows).exp())
        parts.append(f"a factor, {factor:.3g} here, gives the plan {least}the mass {float(problem.total):g}")
    if not travels(problem, reads):
        parts.append("under torch.compile, autograd follows the iterations, because a penalty or statistic is your own")
    return Choice(choice.mode, "; ".join([choice.reason, *parts]))


def _how(options: Options, s: Scalings) -> str:
    """How the plan is solved, and why."""
    if not s.record:
        return f"{s.iterations} accelerated iterations, because only their fixed point counts"
    if not options.accelerated:
        why = "accelerate=False" if options.accelerate is False else "accelerate='auto' accelerates from 20 on"
        why = "tol=0" if options.tol == 0 else why
    else:
        why = "acceleration did not converge" if s.iterations > len(s.record) else "their path counts"
    return f"{len(s.record)} plain iterations ({why})"


def _autograd_reason(problem: Problem, options: Options, reads: Reads, compiling: bool) -> str:
    """Why autograd follows the iterations; empty if it does not."""
    if options.gradient == "unrolled":
        return "requested: autograd through every iteration"
    if compiling and not travels(problem, reads):
        return "a penalty or statistic of your own is not known to compiled code, so autograd follows the iterations"
    if problem.total is not None and reads.statistics:
        return "the divergence reads whole rows of a plan with TotalMass, so autograd follows the iterations"
    return ""


def travels(problem: Problem, reads: Reads) -> bool:
    """Whether a problem can be passed to the torch operator: its penalties and statistics are the library's own."""
    sides = (problem.rows, problem.columns)
    own = all(side is None or type(side.penalty) in PENALTIES for side in sides)
    return own and all(f in STATISTICS.values() for f in reads.statistics)


# --- plans that are stored whole and differentiated by autograd --------------------------------------------------


def _by_dykstra(problem: Problem, options: Options, reads: Reads) -> Plan:
    """A plan for any constraint set, in mirror coordinates, by Dykstra's algorithm (Eq. 48–50).

    It stores a multiplier for each set and adds it back before it projects again. So it reaches the proximal point on
    the intersection. Without the multipliers, relaxed sets would give another plan.
    """
    if options.gradient not in ("auto", "unrolled"):
        raise ValueError(
            f"gradient={options.gradient!r} is for row and column marginals; use 'unrolled' (or 'auto') here"
        )
    if isinstance(options.block, int) or options.cache is not None:
        raise ValueError(
            f"block={options.block} is for row and column marginals, but {problem.constraints} needs the whole "
            "matrix; leave out block and cache"
        )
    geometry, (n, m), constraints = problem.geometry, problem.kernel.shape, problem.constraints
    log_k = problem.kernel.rows(0, n)
    if not isinstance(geometry, Entropic):  # there a projection can give mass to a forbidden pair
        constraints = (*constraints, _Forbidden(log_k.detach() == -torch.inf))
    y, multipliers, done, converged = _projected(geometry.from_log(log_k), constraints, problem, options)
    a, b = y.new_zeros(n), y.new_zeros(m)  # 0 if the geometry has no scalings
    if isinstance(geometry, Entropic):
        for constraint, multiplier in zip(constraints, multipliers, strict=True):
            if isinstance(constraint, Rows):
                a = a - multiplier.squeeze(1)
            elif isinstance(constraint, Columns):
                b = b - multiplier.squeeze(0)
    log_plan = geometry.log_plan(y)
    p = log_plan.exp()
    vectors = _read_matrix(log_plan, problem, reads, p.sum(1).log(), p.sum(0).log(), a, b)
    return Plan.of(problem, vectors, done, converged, log_plan)


def _projected(
    y: Tensor, constraints: tuple[Constraint, ...], problem: Problem, options: Options
) -> tuple[Tensor, list[Tensor], int, bool]:
    """∇Γ of argmin Σ h(P) + d_Γ(P ‖ K) over P in all sets, from y = ∇Γ(K), and the multiplier of each set.

    Stops when the multipliers no longer change the plan: Σ_k Σ |ΔU_k|·∂P/∂y ≤ tol·Σ|P|, which for a marginal is its
    error. Under torch.compile, where values cannot be read, all iterations are done.
    """
    geometry, tol = problem.geometry, options.tol
    multipliers = [torch.zeros_like(problem.eps) for _ in constraints]
    if not constraints:
        return y, multipliers, 0, True
    for done in range(1, options.iterations + 1):
        moved = torch.zeros_like(problem.eps)
        for k, constraint in enumerate(constraints):
            z = y + multipliers[k]
            new = constraint.multiplier(z, problem)
            y = z - new
            with torch.no_grad():
                moved = moved + (geometry.slope(y) * (new - multipliers[k]).abs()).sum()
            multipliers[k] = new
        if tol > 0 and not torch.compiler.is_compiling():
            with torch.no_grad():
                mass = geometry.log_plan(y).exp().abs().nansum()
            if bool(moved <= max(tol, 4 * torch.finfo(y.dtype).eps) * mass):
                return y, multipliers, done, True
    return y, multipliers, options.iterations, False


@dataclass(frozen=True, repr=False, eq=False)
class _Forbidden(Constraint):
    """P = 0 where the kernel is 0. In the entropic geometry this always holds."""

    where: Tensor  # [n, m]

    def multiplier(self, z: Tensor, problem: Problem) -> Tensor:
        return torch.where(self.where, z, 0)


def _by_autograd(problem: Problem, options: Options, reads: Reads) -> Plan:
    """A plan by log-space iterations that autograd differentiates. Without values to read, all of them are done."""
    for name, side in (("row", problem.rows), ("column", problem.columns)):
        if options.check_finite and torch.compiler.is_compiling() and side is not None:  # eager code has refused it
            message = f"a {name} of the target has no positive; give it a positive weight, or drop the sample"
            torch._assert_async((side.mass > 0).all(), message)
    kernel, both = Reference(problem.kernel), problem.constrained == 2
    step = LogStep(kernel, problem)
    tested = options if both and values_readable() else replace(options, tol=0)
    stop = Stop(step, tested, (None, None), patience=30)
    sweep, done, converged = iterate(step, stop, options.iterations if both else 1)
    a, b = sweep.scaling, sweep.after
    log_kv = kernel.log_matvec(b)
    if problem.total is not None:  # the plan without this constraint has the right proportions
        a = a + problem.missing(a + log_kv)
    log_plan = kernel.log_k + a[:, None] + b
    vectors = _read_matrix(log_plan, problem, reads, a + log_kv, b + kernel.log_rmatvec(a), a, b)
    return Plan.of(problem, vectors, done if problem.constrained else 0, (converged and stop.accurate) or not both)


def _read_matrix(
    log_plan: Tensor, problem: Problem, reads: Reads, log_rows: Tensor, log_columns: Tensor, a: Tensor, b: Tensor
) -> Vectors:
    """What a divergence reads of a plan that is a matrix."""
    target, statistics = problem.support, statistics_of(reads, problem.support)
    terms = log_plan.new_zeros(len(log_plan), 0)
    if statistics:
        t = target.dense()
        terms = torch.stack([f(log_plan, t) for f in statistics], 1)
    if isinstance(target, Pairs):
        on_target = log_plan[target.i, target.j]
    else:
        t = target.dense()
        on_target = log_plan.masked_fill(t == 0, 0)
        on_target = on_target if reads.entries else (t * on_target).sum(1)
    return Vectors(on_target, log_rows, log_columns, terms, a, b, problem.eps)


# --- forward and backward -------------------------------------------------------------------------------------


class Solved(NamedTuple):
    """What the backward pass needs of a solution."""

    scalings: Scalings
    mode: str
    operator: Blocked  # K; between the passes, `_Solve` keeps what it stores


class Call(NamedTuple):
    """One problem, and how it is solved."""

    problem: Problem
    options: Options
    reads: Reads
    block: int  # rows held at once; 0 stores all
    wanted: bool  # whether a gradient is
    eps_wanted: bool  # whether that of ε is


def _call(problem: Problem, options: Options, reads: Reads) -> Call:
    wanted = False
    if torch.is_grad_enabled():
        for tensor in (*problem.kernel.tensors, problem.eps):
            wanted = wanted or tensor.requires_grad
    stored = options.block is None and options.cache is None
    block = 0 if stored else block_rows(problem.kernel, options.block, options.cache, problem.shard)
    return Call(problem, options, reads, block, wanted, wanted and problem.eps.requires_grad)


def _kernel_operator(call: Call, saved: Kept | None = None) -> Blocked:
    """K as an operator on vectors: stored, made again, or made again from a float16 copy."""
    kernel, shard, exact = call.problem.kernel, call.problem.shard, not call.options.reads_values
    kind = Cached if call.options.cache is not None else Streamed if call.block else Stored
    return kind(kernel, call.block, shard, saved, exact=exact)


def _with_number(call: Call) -> Problem:
    """The problem with ε as a number, if it may be read."""
    if not math.isnan(call.problem.eps_value) or not call.options.reads_values:
        return call.problem
    return replace(call.problem, eps_value=float(call.problem.eps))  # waits for the device


def _forward(call: Call) -> tuple[Vectors, Solved]:
    """What a divergence reads of the plan, and what the backward pass needs."""
    options, reads = call.options, call.reads
    with torch.no_grad():
        problem, operator = _with_number(call), _kernel_operator(call)
        s = scalings(operator, problem, options, reads, recorded=call.wanted, eps_wanted=call.eps_wanted)
        mode = choose(problem, options, reads, s.converged).mode
        vectors = read(operator, problem, reads, s)
    return vectors, Solved(s, mode, operator)


def _backward(
    call: Call, solved: Solved, adjoint: Adjoints, wanted: list[bool]
) -> tuple[Tensor | None, list[Tensor | None]]:
    """∂L/∂ε other than through the kernel, and the gradient in each tensor of the kernel."""
    with torch.no_grad(), without_autocast(solved.scalings.a.device):
        problem, (s, mode, operator) = _with_number(call), solved
        return backward(operator, problem, call.reads, s, mode, adjoint, wanted, call.eps_wanted)


class _Solve(torch.autograd.Function):
    """(call, tensors of the kernel, ε) → vectors, scalings."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Any, ...]:
        vectors, solved = _forward(call)
        if call.wanted:
            # outputs are copies, so that nothing that is kept for the backward pass holds on to them
            vectors = Vectors(*map(Tensor.detach, vectors))
            _, kept = solved.operator.saved()
            solved.operator.keep(None)
            ctx.call, ctx.solved = call, solved
            # inputs, masses and target are saved so that torch notices a change in place between the two passes
            masses = [side.mass for side in (call.problem.rows, call.problem.columns) if side is not None]
            ctx.save_for_backward(kept, *tensors, *masses, *call.problem.support.tensors)
            ctx.set_materialize_grads(False)
        eps = vectors.eps.clone() if call.eps_wanted else None
        s = solved.scalings
        return *vectors[:-1], eps, (s.iterations, s.converged and s.accurate)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        call: Call = ctx.call
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"gradient={call.options.gradient!r} has no second derivative; use gradient='unrolled' for that"
            )
        ctx.solved.operator.keep(ctx.saved_tensors[0])
        eps_grad, kernel_grads = _backward(call, ctx.solved, Adjoints(*grads[:-1]), list(ctx.needs_input_grad[1:-1]))
        ctx.solved.operator.keep(None)
        return None, *kernel_grads, eps_grad


# --- the torch operator ---------------------------------------------------------------------------------------

SUPPORTS = (Pairs, Groups, Full)
PENALTIES = (Hard, Relaxed, TotalVariation)
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (*SUPPORTS, *PENALTIES, Marginal, Inner, Given, Mask, Options, Reads)
}
_FIELDS: dict[str, tuple[str, ...]] = {
    name: tuple(f.name for f in fields(kind) if f.init) if is_dataclass(kind) else kind._fields
    for name, kind in KINDS.items()
}


class Packed(NamedTuple):
    """A record in the types of an operator's schema: lists in the order of its fields, and a text with their places.

    A record is made of tensors, numbers, strings, None, tuples and the classes in `KINDS`. The text is JSON; "t", "i"
    and "f" stand for the next tensor, integer and number.
    """

    tensors: list[Tensor]
    integers: list[Any]
    numbers: list[Any]
    words: str


def pack(record: Any) -> Packed:
    """A record as tensors, numbers and a text; torch.compile traces this."""
    packed = Packed([], [], [], "")
    return packed._replace(words=_write(record, packed))


def _write(x: Any, packed: Packed) -> str:
    if x is None:
        return "null"
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, str):
        return f'"={x}"'
    if isinstance(x, Tensor):
        packed.tensors.append(x)
        return '"t"'
    if isinstance(x, (int, torch.SymInt)):
        packed.integers.append(x)
        return '"i"'
    if isinstance(x, (float, torch.SymFloat)):
        packed.numbers.append(x)
        return '"f"'
    name = type(x).__name__
    if name in _FIELDS:
        parts = [f'"{name}"', *[_write(getattr(x, field), packed) for field in _FIELDS[name]]]
    else:
        parts = ['"tuple"', *[_write(part, packed) for part in x]]
    return f"[{', '.join(parts)}]"


def unpack(packed: Packed) -> Any:
    """The record again."""
    return _read(json.loads(packed.words), dict(zip("tif", map(iter, packed), strict=False)))


def _read(node: Any, values: Mapping[str, Iterator[Any]]) -> Any:
    if isinstance(node, str):
        return node[1:] if node.startswith("=") else next(values[node])
    if not isinstance(node, list):
        return node
    kind, *parts = node
    parts = [_read(part, values) for part in parts]
    return tuple(parts) if kind == "tuple" else KINDS[kind](**dict(zip(_FIELDS[kind], parts, strict=True)))


class Saved(NamedTuple):
    """What the backward pass needs of the solution, as tensors."""

    a: Tensor
    b: Tensor
    log_rows: Tensor
    log_columns: Tensor  # empty without a column constraint
    rows: Tensor  # [slots, 2, n]  (K v, u) of each recorded iteration; the last slot has K v after them
    columns: Tensor  # [slots, 2, m]  (v, Kᵀu); the last slot has v after them
    alpha: Tensor
    beta: Tensor
    kept: Tensor


class Solution(NamedTuple):
    """The same, as numbers."""

    iterations: int
    converged: bool
    recorded: int
    linear: bool
    plain: bool  # whether the frame is plain
    mode: int  # of MODES
    accurate: bool


def _slots(call: Call) -> int:
    """Room for the record of iterations."""
    if not call.wanted:
        return 0
    return call.options.iterations + 1 if call.problem.constrained == 2 else 2


def _stored(solved: Solved, slots: int) -> tuple[Saved | None, Solution]:
    s, mode, operator = solved
    (alpha, beta, plain), kept = operator.saved() if slots else (Frame(s.a, s.b), s.a)
    solution = Solution(s.iterations, s.converged, len(s.record), s.linear, plain, MODES.index(mode), s.accurate)
    if not slots:
        return None, solution
    rows, columns = s.a.new_zeros(slots, 2, len(s.a)), s.b.new_zeros(slots, 2, len(s.b))
    vectors = [(columns[k, 0], rows[k, 0], rows[k, 1], columns[k, 1]) for k in range(-1, len(s.record))]
    for places, values in zip(vectors, [(s.x, s.kx), *s.record], strict=True):
        for place, value in zip(places, values, strict=False):
            if value is not None:
                place.copy_(value)
    log_columns = s.a.new_empty(0) if s.log_columns is None else s.log_columns
    return Saved(s.a, s.b, s.log_rows, log_columns, rows, columns, alpha, beta, kept), solution


def _restored(call: Call, saved: Saved, solution: Solution) -> Solved:
    problem = call.problem
    no_rows, no_columns = problem.rows is None, problem.columns is None
    record = [
        Sweep(v, None if no_rows else kv, u, None if no_columns else ktu, v)
        for (kv, u), (v, ktu) in zip(saved.rows[: solution.recorded], saved.columns[: solution.recorded], strict=True)
    ]
    s = Scalings(
        saved.a, saved.b, saved.log_rows, None if no_columns else saved.log_columns, solution.iterations,
        bool(solution.converged), record, bool(solution.linear), saved.columns[-1, 0], saved.rows[-1, 0],
    )  # fmt: skip
    frame = Frame(saved.alpha, saved.beta, bool(solution.plain))
    return Solved(s, MODES[solution.mode], _kernel_operator(call, (frame, saved.kept)))


def _pack(call: Call) -> Packed:
    """A call as arguments of the operator; the tensors of the kernel come first."""
    p, options, reads, *rest = call
    target = p.support if isinstance(p.support, SUPPORTS) else Full(p.support.dense())
    parts = p.kernel, p.eps, target, p.rows, p.columns, p.total, p.at_least, p.feasible, p.follows, p.eps_value
    statistics = tuple(name for f in reads.statistics for name, g in STATISTICS.items() if f is g)
    shard = None if p.shard is None else p.shard.name
    return pack((parts, shard, options, statistics, reads._replace(statistics=()), *rest))


def _unpack(*arguments: Any) -> Call:
    """The call again."""
    parts, name, options, statistics, reads, *rest = unpack(Packed(*arguments))
    kernel, eps, target, rows, columns, total, at_least, feasible, follows, eps_value = parts
    shard = None if name is None else Shard(name)
    sums = rows, columns, total, at_least, feasible, follows
    problem = Problem(kernel, (), _ENTROPIC, eps, target, *sums, eps_value=eps_value, shard=shard)
    return Call(problem, options, reads._replace(statistics=tuple(STATISTICS[name] for name in statistics)), *rest)


_ENTROPIC = Entropic()
_PACKED = "Tensor[] tensors, SymInt[] integers, float[] numbers, str words"
_OUTPUTS = ", ".join(f"Tensor {name}" for name in [*(f"read_{f}" for f in Vectors._fields), *Saved._fields, "solution"])
_library = torch.library.Library("gcalign", "DEF")
_library.define(f"solve({_PACKED}) -> ({_OUTPUTS})")
_library.define(
    f"solve_backward(Tensor?[] adjoint, Tensor[] saved, Tensor solution, bool[] wanted, {_PACKED}) -> Tensor[]"
)


def _solve(*arguments: Any) -> tuple[Tensor, ...]:
    call = _unpack(*arguments)
    vectors, solved = _forward(call)
    saved, solution = _stored(solved, _slots(call))
    if call.options.check_finite:  # in eager code the criterion looks at its loss
        _check_values(call.problem, vectors.on_target.sum() + vectors.log_rows.sum())
    shapes = _empty(call)
    fixed = shapes if saved is None else (_as_shaped(x, like) for x, like in zip(saved, shapes, strict=True))
    outputs = [*vectors._replace(eps=vectors.eps.clone()), *fixed, torch.tensor([int(x) for x in solution])]
    returned: set[int] = set()
    for k, x in enumerate(outputs):  # an operator must not return one tensor twice
        outputs[k] = x.clone() if x.numel() and x.data_ptr() in returned else x
        returned.add(x.data_ptr())
    return tuple(outputs)


def _as_shaped(x: Tensor, like: Tensor) -> Tensor:
    """A saved tensor in the shape that compiled code expects: one number for all, or a record that was not made."""
    if x.shape == like.shape:
        return x
    return x.expand(like.shape).clone() if x.numel() == 1 else like


def _solve_fake(*arguments: Any) -> tuple[Tensor, ...]:
    call = _unpack(*arguments)
    problem, reads, new = call.problem, call.reads, call.problem.eps.new_empty
    (n, m), target = problem.kernel.shape, problem.support
    on_target = torch.empty_like(target.weight) if isinstance(target, Pairs) else new(n, m) if reads.entries else new(n)
    log_columns = new(m if problem.columns is not None or reads.columns else 0)
    terms = new(n, len(statistics_of(reads, target)))
    vectors = Vectors(on_target, new(n), log_columns, terms, new(n), new(m), new(()))
    return *vectors, *_empty(call), torch.empty(len(Solution._fields), dtype=torch.long, device="cpu")


def _empty(call: Call) -> Saved:
    """Tensors of the shapes that are saved."""
    (n, m), new, half = call.problem.kernel.shape, call.problem.eps.new_empty, call.options.cache is not None
    if not call.wanted:
        return Saved(*(new(0) for _ in Saved._fields))
    kept = new(0, 0)
    if half or not call.block:
        first, last = (0, n) if call.problem.shard is None else call.problem.shard.rows(n)
        kept = new(last - first, m, dtype=torch.float16 if half else None)
    columns = new(m if call.problem.columns is not None else 0)
    return Saved(
        new(n), new(m), new(n), columns, new(_slots(call), 2, n), new(_slots(call), 2, m), new(n), new(m), kept
    )


def _solve_backward(adjoint: Any, saved: Any, solution: Tensor, wanted: list[bool], *arguments: Any) -> list[Tensor]:
    call, numbers = _unpack(*arguments), Solution(*solution.tolist())  # on the CPU, so this is no wait
    eps_grad, grads = _backward(call, _restored(call, Saved(*saved), numbers), Adjoints(*adjoint), wanted)
    eps = call.problem.eps
    # an operator gives tensors, so one without entries stands for none
    return [*(eps.new_empty(0) if x is None else x for x in grads), eps.new_zeros(()) if eps_grad is None else eps_grad]


def _solve_backward_fake(
    adjoint: Any, saved: Any, solution: Tensor, wanted: list[bool], *arguments: Any
) -> list[Tensor]:
    problem = _unpack(*arguments).problem
    tensors = zip(problem.kernel.tensors, wanted, strict=True)
    return [*(torch.empty_like(x if w else x.new_empty(0)) for x, w in tensors), torch.empty_like(problem.eps)]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, *ctx.rest = inputs
    first = len(Vectors._fields)
    ctx.save_for_backward(*output[first:], *tensors)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    count = len(Saved._fields)
    saved, solution, tensors = ctx.saved_tensors[:count], ctx.saved_tensors[count], ctx.saved_tensors[count + 1 :]
    needs = list(ctx.needs_input_grad[0])
    wanted = needs[: len(_unpack(list(tensors), *ctx.rest).problem.kernel.tensors)]
    adjoint = list(grads[: len(Vectors._fields)])
    by_tensor = torch.ops.gcalign.solve_backward(adjoint, list(saved), solution, wanted, list(tensors), *ctx.rest)
    gradients = [x if need else None for x, need in zip(by_tensor, needs, strict=False)]
    return gradients + [None] * (len(needs) - len(gradients)), None, None, None


_library.impl("solve", _solve, "CompositeExplicitAutograd")
_library.impl("solve_backward", _solve_backward, "CompositeExplicitAutograd")
torch.library.register_fake("gcalign::solve", _solve_fake, lib=_library)
torch.library.register_fake("gcalign::solve_backward", _solve_backward_fake, lib=_library)
torch.library.register_autograd("gcalign::solve", _differentiate, setup_context=_setup, lib=_library)


def _check_values(problem: Problem, finite: Tensor) -> None:
    """Raise if features or the target are wrong; under torch.compile, values are first seen here. `finite` is a number
    that is finite if the plan is; if it is and the masses are positive, this is one look for most targets."""
    if isinstance(problem.support, Full):
        check_weights(problem.support.weight)
    if problem.kernel.exclude_self and isinstance(problem.support, (Full, Pairs)) and not problem.support.ordinary:
        check_no_self_pairs(problem.support)
    masses = [("row", problem.support.mu)]
    masses += [] if problem.columns is None else [("column", problem.columns.mass)]
    for _, mass in masses:
        finite = finite + mass.log().sum()
    if math.isfinite(finite):
        return
    features = problem.kernel.tensors[:2]
    for side, x in zip(("rows", "columns"), features if len(features) == 2 else (), strict=False):
        bad = (~torch.isfinite(x).all(1)).nonzero()[:, 0].tolist()
        if bad:
            raise ValueError(
                f"embedding {bad[0]} of the plan's {side} has NaN or Inf; embeddings must be finite: lower the "
                "learning rate, clip gradients, or pass check_finite=False to skip this test"
            )
    for side, mass in masses:
        bad = (~(torch.isfinite(mass) & (mass > 0))).nonzero()[:, 0].tolist()
        if bad:
            raise ValueError(
                f"{side} {bad[0]} of the target has no positive: its mass is {mass[bad[0]].item():g} ({len(bad)} such "
                f"{side}s); give it a positive weight, or drop the sample; without torch.compile the message names the "
                "weight or label"
            )
