"""Solving with its gradient: for autograd as a function of Python objects, for torch.compile as one torch operator.

Both run `_forward` and `_backward`. In eager code a problem is passed as it is. A torch operator takes only tensors,
numbers and strings: `Arguments` is the record of them, and its fields make the schema, the call and the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from gcalign.constraints import Hard, Marginal, Penalty, Relaxed, TotalVariation
from gcalign.geometry import Entropic
from gcalign.plan import Plan
from gcalign.transport.dense import by_autograd, by_dykstra
from gcalign.transport.gradients import Adjoints, Choice, Reads, Vectors, backward, choose, read, statistics_of
from gcalign.transport.operators.blocked import Blocked, Frame, Stored
from gcalign.transport.operators.choice import block_rows
from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Given, Inner, Mask, Source
from gcalign.transport.operators.streamed import Cached, Streamed
from gcalign.transport.problem import MODES, Options, Problem
from gcalign.transport.sinkhorn import Scalings, exponents, scalings
from gcalign.transport.statistics import STATISTICS
from gcalign.transport.support import Full, Groups, Pairs, Support
from gcalign.transport.validation import check_no_self_pairs, check_weights


def solve(problem: Problem, options: Options, reads: Reads) -> Plan:
    """The proximal point of a problem, with its gradient."""
    if not problem.only_marginals:
        return by_dykstra(problem, options, reads)
    compiling = torch.compiler.is_compiling() or isinstance(problem.eps, FakeTensor)
    if _autograd_reason(problem, options, reads, compiling):
        return by_autograd(problem, options, reads)
    call = _call(problem, options, reads)
    if compiling:
        arguments = Arguments.of(call)
        outputs = torch.ops.gcalign.solve(*arguments)
        vectors, solution = Vectors(*outputs[: len(Vectors._fields)]), outputs[-1]
        iterations, converged = solution[0], (solution[1] > 0) & (solution[-1] > 0)
    else:
        try:
            outputs = _Solve.apply(call, *problem.kernel.tensors, problem.eps)  # type: ignore[no-untyped-call]
            *tensors, eps, solution = outputs
            vectors = Vectors(*(*tensors, eps if call.eps_wanted else problem.eps))
        except RuntimeError as error:
            if "functorch transforms" not in str(error):
                raise
            raise RuntimeError(
                f"gradient={options.gradient!r} is for torch.autograd; with torch.func use gradient='unrolled'"
            ) from error
        iterations, converged = solution.iterations, solution.converged and solution.accurate
    plan = Plan.of(problem, vectors, iterations, converged)
    return plan if problem.total is None else plan.times(problem.missing(plan.log_rows))


def explain(problem: Problem, options: Options, reads: Reads) -> Choice:
    """Which gradient mode runs, how the plan is solved, and why."""
    if not problem.only_marginals:
        return Choice("unrolled", "the constraints are not only rows and columns, so autograd follows Dykstra's steps")
    if reason := _autograd_reason(problem, options, reads, torch.compiler.is_compiling()):
        return Choice("unrolled", reason)
    about: dict[str, Any] = {
        "constrained": problem.constrained, "dual": reads.dual, "feasible": problem.feasible,
    }  # fmt: skip
    if options.gradient == "envelope":  # refused without solving where it would be wrong
        choose(options, converged=True, **about)
    vectors, _, solution = _forward(_call(problem, options, reads)._replace(wanted=True))
    choice, parts = choose(options, converged=solution.converged, **about), []
    if choice.mode == "implicit" and solution.linear:
        one = problem.constrained == 1
        parts.append("in one step" if one else "by reversing its stored iterations, which is exact as well")
    if problem.constrained == 2:
        parts.append(_how(options, solution))
    if problem.total is not None:
        least, factor = "at least " * problem.at_least, float(problem.missing(vectors.log_rows).exp())
        parts.append(f"a factor, {factor:.3g} here, gives the plan {least}the mass {float(problem.total):g}")
    if not travels(problem, reads):
        parts.append("under torch.compile, autograd follows the iterations, because a penalty or statistic is your own")
    return Choice(choice.mode, "; ".join([choice.reason, *parts]))


def _how(options: Options, solution: Solution) -> str:
    """How the plan is solved, and why."""
    if not solution.recorded:
        return f"{solution.iterations} accelerated iterations, because only their fixed point counts"
    if not options.accelerated:
        why = "accelerate=False" if options.accelerate is False else "accelerate='auto' accelerates from 20 on"
        why = "tol=0" if options.tol == 0 else why
    else:
        why = "acceleration did not converge" if solution.iterations > solution.recorded else "their path counts"
    return f"{solution.recorded} plain iterations ({why})"


def _autograd_reason(problem: Problem, options: Options, reads: Reads, compiling: bool) -> str:
    """Why autograd follows the iterations; empty if it does not."""
    if options.gradient == "unrolled":
        return "requested: autograd through every iteration"
    if compiling and not travels(problem, reads):
        return "a penalty or statistic of your own is not known to compiled code, so autograd follows the iterations"
    if problem.total is not None and statistics_of(reads, problem.support):
        return "the divergence reads whole rows of a plan with TotalMass, so autograd follows the iterations"
    return ""


def travels(problem: Problem, reads: Reads) -> bool:
    """Whether a problem can be passed to the torch operator: its penalties and statistics are the library's own."""
    sides = (problem.rows, problem.columns)
    own = all(side is None or type(side.penalty) in _PENALTIES for side in sides)
    return own and all(f in STATISTICS.values() for f in reads.statistics)


# --- forward and backward -------------------------------------------------------------------------------------


class Solution(NamedTuple):
    """What the solution was, as numbers."""

    iterations: int
    converged: bool
    recorded: int
    linear: bool
    plain: bool  # whether the frame is plain
    mode: int  # of MODES
    accurate: bool


class Saved(NamedTuple):
    """What the backward pass needs of the solution."""

    a: Tensor
    b: Tensor
    log_rows: Tensor
    log_columns: Tensor  # empty without a column constraint
    rows: Tensor
    columns: Tensor
    alpha: Tensor
    beta: Tensor
    kept: Tensor


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


def _slots(call: Call) -> int:
    """Room for the record of iterations."""
    if not call.wanted:
        return 0
    return call.options.iterations + 1 if call.problem.constrained == 2 else 2


def _kernel_operator(call: Call, frame: Frame | None = None, kept: Tensor | None = None) -> Blocked:
    """K as an operator on vectors: stored, made again, or made again from a float16 copy."""
    kernel, shard, exact = call.problem.kernel, call.problem.shard, not call.options.reads_values
    kind = Cached if call.options.cache is not None else Streamed if call.block else Stored
    return kind(kernel, call.block, shard, frame, kept, exact=exact)


def _with_number(call: Call) -> Problem:
    """The problem with ε as a number, if it may be read."""
    if not math.isnan(call.problem.eps_value) or not call.options.reads_values:
        return call.problem
    return replace(call.problem, eps_value=float(call.problem.eps))  # waits for the device


def _forward(call: Call) -> tuple[Vectors, Saved | None, Solution]:
    """What a divergence reads of the plan, and what the backward pass needs."""
    options, reads = call.options, call.reads
    with torch.no_grad():
        problem, operator = _with_number(call), _kernel_operator(call)
        tau = exponents(problem, problem.eps_value)
        contracts = tau[0] is not None and tau[1] is not None and tau[0] * tau[1] < 0.99
        # only if the result does not depend on the iteration path: a plan does not, nor do scalings of a relaxed one
        by_plan = reads.dual and (problem.feasible or not call.wanted) and options.gradient in ("auto", "envelope")
        by_plan = by_plan or (reads.plan and not call.wanted)
        fixed_point = by_plan or (contracts and options.gradient in ("auto", "implicit"))
        linear = not call.eps_wanted or tau == (1.0, 1.0)
        s = scalings(operator, problem, options, tau, slots=_slots(call), fixed_point=fixed_point, linear=linear)
        mode = choose(
            options,
            constrained=problem.constrained,
            converged=s.converged,
            dual=reads.dual,
            feasible=problem.feasible,
        ).mode
        vectors, saved, plain = read(operator, problem, reads, s), None, False
        if call.wanted:
            frame, kept = operator.saved()
            plain = frame.plain
            no_columns = operator.like.new_empty(0)
            saved = Saved(
                s.a, s.b, s.log_rows, no_columns if s.log_columns is None else s.log_columns,
                s.rows, s.columns, frame.alpha, frame.beta, kept,
            )  # fmt: skip
    numbers = Solution(s.iterations, s.converged, s.recorded, s.linear, plain, MODES.index(mode), s.accurate)
    return vectors, saved, numbers


def _backward(
    call: Call, solution: Solution, saved: Saved, adjoint: Adjoints, wanted: list[bool]
) -> tuple[Tensor | None, list[Tensor | None]]:
    """∂L/∂ε other than through the kernel, and the gradient in each tensor of the kernel."""
    with torch.no_grad(), torch.autocast(saved.a.device.type, enabled=False):
        problem = _with_number(call)
        operator = _kernel_operator(call, Frame(saved.alpha, saved.beta, bool(solution.plain)), saved.kept)
        s = Scalings(
            saved.a, saved.b, saved.log_rows, None if problem.columns is None else saved.log_columns, saved.rows,
            saved.columns, solution.iterations, solution.recorded, bool(solution.converged), bool(solution.linear),
        )  # fmt: skip
        mode = MODES[solution.mode]
        return backward(operator, problem, call.reads, s, mode, adjoint, wanted, call.eps_wanted)


class _Solve(torch.autograd.Function):
    """(call, tensors of the kernel, ε) → vectors."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Any, ...]:
        vectors, saved, solution = _forward(call)
        outputs = (*vectors[:-1], vectors.eps.clone() if call.eps_wanted else None, solution)
        if saved is None:
            return outputs
        ctx.call, ctx.solution = call, solution
        # inputs, masses and target are saved so that torch notices a change in place between the two passes
        masses = [side.mass for side in (call.problem.rows, call.problem.columns) if side is not None]
        ctx.save_for_backward(*saved, *tensors, *masses, *call.problem.support.tensors)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        call: Call = ctx.call
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"gradient={call.options.gradient!r} has no second derivative; use gradient='unrolled' for that"
            )
        saved = Saved(*ctx.saved_tensors[: len(Saved._fields)])
        wanted = list(ctx.needs_input_grad[1:-1])
        eps_grad, kernel_grads = _backward(call, ctx.solution, saved, Adjoints(*grads[:-1]), wanted)
        return None, *kernel_grads, eps_grad


# --- the torch operator ---------------------------------------------------------------------------------------

_PENALTIES: tuple[type[Penalty], ...] = (Hard, Relaxed, TotalVariation)
_SUPPORTS: tuple[type[Support], ...] = (Pairs, Groups, Full)


class Arguments(NamedTuple):
    """A call as what a torch operator takes. The names of these fields are those of the operator's arguments."""

    phi: Tensor  # the first tensor of the kernel
    psi: Tensor | None
    r: Tensor | None
    c: Tensor | None
    own: Tensor | None
    eps: Tensor
    mu: Tensor | None
    nu: Tensor | None
    total: Tensor | None
    weight: Tensor | None  # of the target
    i: Tensor | None
    j: Tensor | None
    row_codes: Tensor | None
    column_codes: Tensor | None
    levels: Tensor | None
    left: Tensor | None
    right: Tensor | None
    allowed: Tensor | None  # of the mask
    scale: float
    bound: float
    exclude_self: bool
    eps_value: float
    row_penalty: int  # of _PENALTIES; -1 for none
    row_lam: float
    column_penalty: int
    column_lam: float
    support: int  # of _SUPPORTS
    shift: int  # -1 for none
    unit: bool
    ordinary: bool
    at_least: bool
    feasible: bool
    follows: bool
    statistics: str
    powers: list[float]
    entries: bool
    columns: bool
    dual: bool
    plan: bool
    iterations: int
    tol: float
    gradient: str
    accelerate: bool
    block: int
    half: bool
    check_finite: bool
    wanted: bool
    eps_wanted: bool
    sharded: bool
    group: str

    @staticmethod
    def of(call: Call) -> Arguments:
        problem, options, reads = call.problem, call.options, call.reads
        kernel, target = problem.kernel, problem.support
        if not isinstance(target, _SUPPORTS):
            target = Full(target.dense())
        pairs = getattr(target, "pairs", target if isinstance(target, Pairs) else None)
        mask = getattr(kernel, "mask", None)
        allowed = None if mask is None else ~mask.forbidden(0, kernel.shape[0])
        factors = {name: getattr(kernel, name, None) for name in ("psi", "r", "c", "own")}
        names = ("row_codes", "column_codes", "levels", "left", "right")
        groups = {name: getattr(target, name, None) for name in names}
        return Arguments(
            **factors,
            **groups,
            phi=kernel.tensors[0],
            eps=problem.eps,
            mu=None if problem.rows is None else problem.rows.mass,
            nu=None if problem.columns is None else problem.columns.mass,
            total=problem.total,
            weight=getattr(target, "weight", None) if pairs is None else pairs.weight,
            i=None if pairs is None else pairs.i,
            j=None if pairs is None else pairs.j,
            allowed=allowed,
            scale=kernel.scale,
            bound=kernel.bound,
            exclude_self=kernel.exclude_self,
            eps_value=problem.eps_value,
            row_penalty=_kind(problem.rows),
            row_lam=_lam(problem.rows),
            column_penalty=_kind(problem.columns),
            column_lam=_lam(problem.columns),
            support=_SUPPORTS.index(type(target)),
            shift=-1 if pairs is None or pairs.shift is None else pairs.shift,
            unit=pairs is not None and pairs.unit,
            ordinary=target.ordinary,
            at_least=problem.at_least,
            feasible=problem.feasible,
            follows=problem.follows,
            statistics=",".join(name for f in reads.statistics for name, g in STATISTICS.items() if f is g),
            powers=list(reads.powers),
            entries=reads.entries,
            columns=reads.columns,
            dual=reads.dual,
            plan=reads.plan,
            iterations=options.iterations,
            tol=options.tol,
            gradient=options.gradient,
            accelerate=options.accelerated,
            block=call.block,
            half=options.cache is not None,
            check_finite=options.check_finite,
            wanted=call.wanted,
            eps_wanted=call.eps_wanted,
            sharded=problem.shard is not None,
            group="" if problem.shard is None else problem.shard.name,
        )

    def call(self) -> Call:
        """The call again."""
        kernel: Source
        if self.psi is None:
            kernel = Given(self.phi, self.bound, self.exclude_self)
        else:
            assert self.r is not None
            assert self.c is not None
            mask = None if self.allowed is None else Mask(self.allowed)
            kernel = Inner(
                self.phi, self.psi, self.r, self.c, self.scale, self.bound, self.exclude_self, self.own, mask
            )
        problem = Problem(
            kernel,
            (),
            _ENTROPIC,
            self.eps,
            self._target(kernel.shape),
            _marginal(self.mu, self.row_penalty, self.row_lam),
            _marginal(self.nu, self.column_penalty, self.column_lam),
            self.total,
            self.at_least,
            self.feasible,
            self.follows,
            eps_value=self.eps_value,
            shard=Shard(self.group) if self.sharded else None,
        )
        options = Options(
            int(self.iterations), self.tol, self.gradient, self.accelerate, None, "half" if self.half else None,
            self.check_finite,
        )  # fmt: skip
        statistics = tuple(STATISTICS[name] for name in self.statistics.split(",") if name)
        reads = Reads(statistics, tuple(self.powers), self.entries, self.columns, self.dual, self.plan)
        return Call(problem, options, reads, self.block, self.wanted, self.eps_wanted)

    def _target(self, shape: tuple[int, int]) -> Support:
        kind = _SUPPORTS[self.support]
        if kind is Full:
            assert self.weight is not None
            return Full(self.weight)
        assert self.i is not None
        assert self.j is not None
        assert self.weight is not None
        shift = None if self.shift < 0 else self.shift
        pairs = Pairs(self.i, self.j, self.weight, shape, ordinary=self.ordinary, shift=shift, unit=self.unit)
        if kind is Pairs:
            return pairs
        assert self.row_codes is not None
        assert self.column_codes is not None
        assert self.levels is not None
        assert self.left is not None
        assert self.right is not None
        return Groups(
            self.row_codes, self.column_codes, self.levels, pairs, self.left, self.right, shape, ordinary=self.ordinary
        )


_ENTROPIC = Entropic()
_KERNEL = ("phi", "psi", "r", "c", "own")


def _kind(side: Marginal | None) -> int:
    return -1 if side is None else _PENALTIES.index(type(side.penalty))


def _lam(side: Marginal | None) -> float:
    return float(getattr(side.penalty, "lam", math.inf)) if side is not None else math.inf


def _marginal(mass: Tensor | None, kind: int, lam: float) -> Marginal | None:
    if mass is None:
        return None
    return Marginal(mass, Hard() if _PENALTIES[kind] is Hard else _PENALTIES[kind](lam))  # type: ignore[call-arg]


_SCHEMA = {Tensor: "Tensor", Tensor | None: "Tensor?", float: "float", int: "SymInt", bool: "bool", str: "str"}
_SCHEMA[list[float]] = "float[]"  # type: ignore[index]


def _schema(record: Any, prefix: str = "", kind: str = "") -> str:
    """The fields of a record as arguments of an operator."""
    hints = get_type_hints(record)
    return ", ".join(f"{kind or _SCHEMA[hints[name]]} {prefix}{name}" for name in record._fields)


def _split(values: Iterable[Any], *kinds: Any) -> list[Any]:
    """Values as records of these kinds, one after the other; the rest as a list."""
    rest = iter(values)
    return [*(kind(*islice(rest, len(kind._fields))) for kind in kinds), list(rest)]


_library = torch.library.Library("gcalign", "DEF")
_library.define(
    f"solve({_schema(Arguments)}) -> "
    f"({_schema(Vectors, 'read_', 'Tensor')}, {_schema(Saved, 'saved_')}, Tensor solution)"
)
_library.define(
    f"solve_backward(Tensor?[] adjoint, Tensor[] saved, Tensor solution, bool[] needed, {_schema(Arguments)}) -> "
    f"({', '.join(['Tensor'] * (len(_KERNEL) + 1))})"
)


def _solve(*args: Any) -> tuple[Tensor, ...]:
    call = Arguments(*args).call()
    vectors, saved, solution = _forward(call)
    if call.options.check_finite:  # in eager code the criterion looks at its loss
        _check_values(call.problem, vectors.on_target.sum() + vectors.log_rows.sum())
    shapes = _empty(call)
    fixed = shapes if saved is None else (_as_shaped(x, like) for x, like in zip(saved, shapes, strict=True))
    outputs: list[Tensor] = [
        *vectors._replace(eps=vectors.eps.clone()),
        *fixed,
        torch.tensor([int(x) for x in solution]),
    ]
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


def _solve_fake(*args: Any) -> tuple[Tensor, ...]:
    call = Arguments(*args).call()
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


def _solve_backward(adjoint: Any, saved: Any, solution: Tensor, wanted: list[bool], *rest: Any) -> tuple[Tensor, ...]:
    arguments = Arguments(*rest)
    numbers = Solution(*solution.tolist())  # on the CPU, so this is no wait
    eps_grad, grads = _backward(arguments.call(), numbers, Saved(*saved), Adjoints(*adjoint), wanted)
    none = arguments.eps.new_empty(0)  # an operator gives tensors, so one without entries stands for none
    by_name = dict(zip(_kernel_names(arguments), grads, strict=True))
    by_kernel = [by_name.get(name) for name in _KERNEL]
    return *(none.clone() if x is None else x for x in by_kernel), (
        torch.zeros_like(arguments.eps) if eps_grad is None else eps_grad
    )


def _solve_backward_fake(
    adjoint: Any, saved: Any, solution: Tensor, wanted: list[bool], *rest: Any
) -> tuple[Tensor, ...]:
    arguments = Arguments(*rest)
    needs = dict(zip(_kernel_names(arguments), wanted, strict=True))
    grads = [
        torch.empty_like(getattr(arguments, name)) if needs.get(name) else arguments.eps.new_empty(0)
        for name in _KERNEL
    ]
    return *grads, torch.empty_like(arguments.eps)


def _kernel_names(arguments: Arguments) -> list[str]:
    """The arguments that are tensors of the kernel, in its order."""
    return [name for name in _KERNEL if getattr(arguments, name) is not None]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    arguments = Arguments(*inputs)
    _, saved, (solution,) = _split(output, Vectors, Saved)
    tensors = {name: x for name, x in arguments._asdict().items() if isinstance(x, Tensor)}
    ctx.names, ctx.rest = list(tensors), {**arguments._asdict(), **dict.fromkeys(tensors)}
    ctx.save_for_backward(*saved, solution, *tensors.values())
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
    saved, (solution, *tensors) = _split(ctx.saved_tensors, Saved)
    arguments = Arguments(**{**ctx.rest, **dict(zip(ctx.names, tensors, strict=True))})
    adjoint = list(grads[: len(Vectors._fields)])
    need = dict(zip(Arguments._fields, ctx.needs_input_grad, strict=True))
    wanted = [need[name] for name in _kernel_names(arguments)]
    gradients = torch.ops.gcalign.solve_backward(adjoint, list(saved), solution, wanted, *arguments)
    by_name = dict(zip((*_KERNEL, "eps"), gradients, strict=True))
    return tuple(by_name.get(name) if need[name] else None for name in Arguments._fields)


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
