"""The criterion: min_θ d_M(P_tgt ‖ P_θ) with P_θ = argmin_{P ∈ B} h(P) + d_Γ(P ‖ K_θ) (Eq. 8, eq:mainobj)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn.functional import pad

from gcalign.batch import Inputs, Side, Sides, as_sides, check_embeddings, inputs_of, per_sample, refuse_non_finite
from gcalign.constraints import Constraint
from gcalign.divergences import Divergence
from gcalign.entries import Entries
from gcalign.errors import one_of
from gcalign.geometry import Entropic, Geometry, as_geometry
from gcalign.kernels import Factors, Kernel, as_kernel
from gcalign.multi import joint_plan
from gcalign.objective import Objective, refuse_loss, refuse_unread
from gcalign.plan import Plan, Reads
from gcalign.targets import Identity, Labels, Target, Weighted, as_target
from gcalign.transport import operator
from gcalign.transport.distributed import Shard, exchange_headers, gathered, group_name, joined, shard, warn_alone
from gcalign.transport.gradients import Choice
from gcalign.transport.operators.sources import Given, Inner, Mask, Source, without_itself
from gcalign.transport.problem import Options, Problem, as_constraints
from gcalign.transport.sinkhorn import Memory
from gcalign.transport.support import Full, Groups, Support, values_readable

LAYOUTS = {"cross": Sides.in_cross, "joint": Sides.in_joint}
_ENTROPIC = Entropic()
_OPTIONS = {field.name: field.default for field in fields(Options) if field.init}  # attributes that are its fields
_OF_PARTS = {  # settings that belong to a part, and the call that sets them
    "eps": "kernel = gcalign.Cosine(eps)", "learnable": "kernel = gcalign.Cosine(eps, learnable=True)",
    "q": "divergence = gcalign.Robust(q, lam)", "lam": "divergence = gcalign.Robust(q, lam)",
    "scale": "divergence = gcalign.Robust(q, lam, scale)",
    "relax": "constraints = (gcalign.Rows(0.2), gcalign.Columns(0.2))",
    "w_kl": "divergence = gcalign.KL() + 0.02 * gcalign.Robust(q, lam)", "weight": "divergence = …",
    "w_robust": "divergence = gcalign.KL() + 0.02 * gcalign.Robust(q, lam)",
}  # fmt: skip


class Alignment(Objective):
    """min_θ d_M(P_tgt ‖ P_θ) with P_θ = argmin_{P ∈ B} h(P) + d_Γ(P ‖ K_θ) (Eq. 8, eq:mainobj), as a criterion.

    It prints as its composition, and it computes what it prints: every argument below is an attribute that can be set.
    See `Objective` for what a call takes.

    Args:
        kernel: K_θ, a `Kernel` or any callable (x, y) → log K, whose matrix is then stored whole.
        constraints: B and h, e.g. `(Rows(), Columns())`.
        divergence: d_M, e.g. `KL()`.
        target: P_tgt, a `Target` or a matrix [n, m].
        geometry: d_Γ; default `Entropic` with the kernel's ε.
        layout: "cross" has first views along the rows and second views along the columns; "joint" has all embeddings on
            both sides, and none is matched with itself.
        reduction: "mean", or "none" for the loss of each row.
        iterations: the most.
        tol: ends iterations early, relative to the distance between plan and target; 0 never does.
        gradient: "auto", "envelope", "implicit", "truncated" or "unrolled". All are exact; `explain` says which one
            runs. If a plan has not converged, "envelope" and "implicit" differentiate its iterations, as "truncated"
            does. "unrolled" is plain autograd through every iteration, and the one with second derivatives.
        accelerate: whether iterations are accelerated where only their fixed point counts, not the way to it. "auto":
            from 20 iterations on, which mean "to convergence"; fewer are done one by one, as in the paper. `explain`
            says what runs.
        block: rows of the kernel held at once. None: all; "auto": all if they fit in memory.
        cache: "half" keeps a float16 copy of the kernel while streaming.
        gather: whether to join the batches of all processes; a process group joins those of its ranks.
        warm_start: start from the potentials stored for these `ids`.
        check_finite: raise where the loss is not finite.

    Example:
        >>> import torch, gcalign
        >>> from gcalign import KL, Alignment, Columns, Cosine, Rows
        >>> criterion = Alignment(Cosine(0.2), (Rows(), Columns(0.5)), KL())
        >>> criterion
        Alignment(Cosine(eps=0.2), (Rows(), Columns(penalty=0.5)), KL(), target=Identity(), layout='cross', ...)
    """

    gather: bool
    group: str  # the name of a process group
    memory: Memory | None  # of a warm start

    def __init__(
        self,
        kernel: Kernel | Callable[[Tensor, Tensor], Tensor],
        constraints: Sequence[Constraint],
        divergence: Divergence,
        target: Target | Tensor = Identity(),
        geometry: Geometry | None = None,
        *,
        layout: str = "cross",
        reduction: str = "mean",
        iterations: int = 10,
        tol: float = 1e-6,
        gradient: str = "auto",
        accelerate: bool | str = "auto",
        block: int | str | None = None,
        cache: str | None = None,
        gather: bool | dist.ProcessGroup = True,
        warm_start: bool = False,
        check_finite: bool = True,
    ) -> None:
        super().__init__()
        self.options = Options(iterations, tol, gradient, accelerate, block, cache, check_finite)
        self.kernel, self.constraints, self.divergence = as_kernel(kernel), as_constraints(constraints), divergence
        self.target, self.geometry, self.layout, self.reduction = as_target(target), geometry, layout, reduction
        self.gather = gather  # type: ignore[assignment]  # a group is stored by its name
        self.warm_start = warm_start

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what the criterion computes; a part is checked as in the constructor."""
        if name in _OPTIONS:
            name, value = "options", replace(self.options, **{name: value})
        elif name in _CHECKS:
            value = _CHECKS[name](value)
        elif name in _OF_PARTS:
            raise AttributeError(f"{name} belongs to a part of the criterion; set criterion.{_OF_PARTS[name]}")
        elif name == "gather":
            object.__setattr__(self, "group", group_name(value))  # a name, so that the criterion can be copied
            value = bool(value)
        elif name == "warm_start":
            if not isinstance(value, bool):
                raise TypeError(f"warm_start={value!r} must be True or False")
            object.__setattr__(self, "memory", Memory() if value else None)
        elif near := get_close_matches(name, PARTS, 1, 0.85):  # a slip would change nothing, without a word
            raise AttributeError(f"a criterion has no {name}; did you mean {near[0]}?")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in _OPTIONS:
            return getattr(self.options, name)
        return super().__getattr__(name)

    # --- the loss: problem → plan → divergence ----------------------------------------------------------------

    def _loss(self, z1: Tensor, z2: Tensor | None, inputs: Inputs) -> Tensor:
        if not self.gather:
            warn_alone()
        with operator.without_autocast(z1.device):
            problem = self._problem(z1, z2, inputs, self.gather)  # K_θ, B, P_tgt of this batch
            plan = self._solve(problem)  # P_θ, with its gradient
            loss = self._value(plan)  # d_M(P_tgt ‖ P_θ)
        if self.options.check_finite and not torch.compiler.is_compiling():
            total = loss if self.reduction == "mean" else loss.detach().sum()
            if not math.isfinite(total.item()):  # one number tells
                refuse_loss(self, loss, z1, z1 if z2 is None else z2, inputs)
        return loss

    def _value(self, plan: Plan) -> Tensor:
        if self.reduction == "mean":
            return self.divergence.value(plan)
        losses = self.divergence.per_row(plan)
        return torch.where(plan.target.mu > 0, losses, 0) if plan.unpaired_rows else losses

    def _solve(self, problem: Problem) -> Plan:
        plan = operator.solve(problem, self.options, self._reads(problem))
        if self.memory is not None:
            assert problem.sides is not None
            self.memory.keep(problem.sides, plan.log_v)
        return plan

    def _reads(self, problem: Problem) -> Reads:
        """What the divergence reads of a plan."""
        d = self.divergence
        rows = problem.rows and problem.rows.penalty
        columns = problem.columns and problem.columns.penalty
        # a loss for each row may be weighted, and P − T is the gradient of their mean alone
        dual = self.reduction == "mean" and d.has_dual(rows, columns)
        return Reads(d.statistics, d.powers, d.reads_entries, d.needs_columns, dual)

    def _jointly(self, views: Sequence[Tensor]) -> Tensor:
        usual = isinstance(self.target, Identity) and self.layout == "cross" and self.geometry is None
        if not usual or self.memory is not None or (self.gather and shard(self.group) is not None):
            raise ValueError(
                f"multi='joint' needs the target Identity(), layout='cross', the entropic geometry and one process; "
                f"{self!r} has another, so use multi='pairwise'"
            )
        with torch.autocast(views[0].device.type, enabled=False):
            loss = self._value(joint_plan(views, self.kernel, self.constraints, self.divergence, self.options))
        if self.options.check_finite and not math.isfinite(loss.detach().sum().item()):
            refuse_loss(self, loss, views[0], torch.cat(list(views[1:])))
        return loss.to(torch.promote_types(views[0].dtype, torch.float32))

    @torch.no_grad()
    def plan(self, z1: Tensor, z2: Tensor | None = None, *, gather: bool = False, **inputs: Any) -> Plan:
        """P_θ, without gradient; takes what the criterion takes.

        In a process group it is the plan of this rank's batch, so that one rank can look at it alone; `gather=True` is
        the plan of the joined batch, and then every rank must call it.
        """
        return self._solve(self.problem(z1, z2, gather=gather and self.gather, **inputs)).clone()

    def explain(self, z1: Tensor, z2: Tensor | None = None, **inputs: Any) -> Choice:
        """Which gradient mode runs on such a batch, how the plan is solved, and why."""
        z1 = z1.detach().requires_grad_() if isinstance(z1, Tensor) else z1  # as in training
        z2 = z2.detach().requires_grad_() if isinstance(z2, Tensor) else z2
        with torch.enable_grad():
            problem = self.problem(z1, z2, **inputs)
        return operator.explain(problem, self.options, self._reads(problem))

    # --- the problem of a batch -------------------------------------------------------------------------------

    def problem(self, z1: Tensor, z2: Tensor | None = None, *, gather: bool = False, **inputs: Any) -> Problem:
        """What is to be solved for a batch, of this process or, with `gather`, of all. Without z2, z1 is both sides."""
        with torch.autocast(z1.device.type if isinstance(z1, Tensor) else "cpu", enabled=False):
            return self._problem(z1, z2, inputs_of(inputs), gather)

    def _problem(self, z1: Tensor, z2: Tensor | None, inputs: Inputs, gather: bool) -> Problem:
        if self.memory is not None:
            self._check_warm_start(inputs)
        alone, several = z2 is None, gather and dist.is_available() and dist.is_initialized()
        share = shard(self.group) if several else None
        target = self._target(inputs, alone)
        first, second, negatives, allowed = self._inputs(z1, z1 if z2 is None else z2, inputs, target, share)
        sides = Sides(first, first, joint=True) if alone else LAYOUTS[self.layout](first, second)
        kernel, like = self.kernel, first.features
        value = kernel.eps if self.geometry is None else self.geometry.eps
        eps = value.to(like) if isinstance(value, Tensor) else like.new_full((), value)
        support = target.on(sides, like.dtype)
        if isinstance(support, Groups) and self.divergence.reads_entries:
            support = Full(support.dense())
        constraints, own, mask, unpaired_rows = self.constraints, None, None, False
        if not support.complete or (allowed, sides.rows.groups, inputs.queue, negatives) != (None,) * 4:
            entries = Entries(sides, support, constraints).without(allowed)
            if inputs.queue is not None:
                entries = entries.with_queue(inputs.queue)
            if negatives is not None:
                entries = entries.with_negatives(negatives)
            entries = entries.checked(target)
            sides, support, constraints = entries.sides, entries.support, entries.constraints
            own, mask, unpaired_rows = entries.own, entries.mask, entries.unpaired_rows
        return Problem.of(
            self._source(sides, own, mask),
            constraints,
            _ENTROPIC if self.geometry is None else self.geometry,
            eps,
            support,
            unpaired_rows=unpaired_rows,
            sides=sides,
            eps_value=math.nan if isinstance(value, Tensor) else float(value),
            shard=share,
            start=None if self.memory is None else self.memory.recall(sides, eps),
        )

    def _inputs(
        self, z1: Tensor, z2: Tensor, inputs: Inputs, target: Target, share: Shard | None
    ) -> tuple[Side, Side, Tensor | None, Tensor | None]:
        """Both sides, negatives and allowed pairs, checked, and of all ranks if there are several."""
        negatives, allowed = inputs.negatives, inputs.allowed
        try:
            check_embeddings(z1, z2, alone=share is None)
            if share is not None and self.options.check_finite and values_readable():
                refuse_non_finite(z1=z1, z2=z2)  # the others must not wait for a batch that is refused later
            dtype = torch.promote_types(z1.dtype, torch.float32)  # half precision is computed in float32
            first, second = as_sides(z1.to(dtype), z2.to(dtype), inputs, target.reads)
            if negatives is not None:
                negatives = negatives.to(dtype)
            if share is not None and allowed is not None and self.layout == "joint":
                raise ValueError("allowed= cannot be joined over ranks in the joint layout; use groups=")
        except (TypeError, ValueError):
            if share is not None:  # the others wait to hear of this rank's batch
                exchange_headers(share, None, z1.device if isinstance(z1, Tensor) else torch.device("cpu"))
            raise
        if share is None:
            return first, second, negatives, allowed
        words, eps = "", 0.0
        if values_readable():
            words, eps = repr(self), float(self.kernel.eps if self.geometry is None else self.geometry.eps)
            if self.kernel.learnable:  # whose ε, in words, is rounded
                words = words.replace(repr(self.kernel), "learnt kernel", 1)
        sizes = exchange_headers(share, (first, second), z1.device, negatives=negatives, criterion=words, eps=eps)
        rows, columns, more = ([size[k] for size in sizes] for k in range(3))
        both = joined(share, first, rows)
        if allowed is not None:  # pairs with other ranks are allowed
            before = sum(columns[: share.rank])
            wide = pad(allowed, (before, sum(columns) - before - columns[share.rank]), value=True)
            allowed = gathered(share, wide.to(torch.uint8), rows) > 0
        if negatives is not None:
            negatives = gathered(share, negatives, more)
        return both, both if z1 is z2 else joined(share, second, columns), negatives, allowed

    def _check_warm_start(self, inputs: Inputs) -> None:
        if torch.compiler.is_compiling():
            raise ValueError("warm_start=True is not for torch.compile; leave one of them out")
        for name in ("queue", "negatives"):
            if getattr(inputs, name) is not None:
                raise ValueError(f"warm_start=True stores potentials by id, and {name}= has none; leave one out")

    def _target(self, inputs: Inputs, alone: bool) -> Target:
        target = self.target if inputs.target is None else as_target(inputs.target)
        if alone and inputs.target is None:
            if inputs.labels is not None and "labels" not in target.reads:
                target = Labels()
            elif inputs.ids is None and "ids" in target.reads:
                raise ValueError(
                    "there is one tensor and nothing says which of its rows belong together; call "
                    "criterion(z, labels=y), or criterion(z1, z2) with two views"
                )
        if inputs.weights is not None and "weights" not in target.reads:
            target = Weighted(target)
        if inputs.target is None and (inputs.labels, inputs.domains, inputs.teacher) != (None, None, None):
            refuse_unread(per_sample(inputs), target, self.constraints)
        return target

    def _source(self, sides: Sides, own: Tensor | None, mask: Mask | None) -> Source:
        kernel = self.kernel
        x = kernel.features(sides.rows.features)
        y = x if sides.columns is sides.rows else kernel.features(sides.columns.features)
        factors = kernel.factors(x, y)
        if own is not None:
            flat = kernel.features(own.flatten(0, 1))
            if factors is not None:
                return _with_own(factors, kernel.factors(x, flat), (len(own), own.shape[1]), sides.joint, mask)
            rows = torch.func.vmap(lambda one, some: kernel(one[None], some)[0])(x, flat.view(*own.shape[:2], -1))
            log_k = torch.cat([kernel(x, y), rows], 1)
        elif factors is not None:
            return Inner(*factors, sides.joint, None, mask)
        else:
            log_k = kernel(x, y)
        if mask is not None:
            log_k = log_k.masked_fill(mask.forbidden(0, len(log_k)), -torch.inf)
        return Given(without_itself(log_k) if sides.joint else log_k, exclude_self=sides.joint)

    def __repr__(self) -> str:
        constraints = f"({', '.join(map(repr, self.constraints))}{',' * (len(self.constraints) == 1)})"
        usual = {"target": None, "geometry": None, "layout": None, "reduction": "mean", **_OPTIONS}
        usual |= {"gather": True, "warm_start": False}
        always = ("target", "layout", "iterations", "tol", "gradient")
        values = {name: getattr(self, name) for name in usual}
        named = [f"{name}={x!r}" for name, x in values.items() if name in always or x != usual[name]]
        return f"{type(self).__name__}({', '.join([repr(self.kernel), constraints, repr(self.divergence), *named])})"


def _with_own(
    factors: Factors, others: Factors | None, shape: tuple[int, int], joint: bool, mask: Mask | None
) -> Inner:
    """A kernel with more columns whose embeddings differ by row: `others` are the factors of all of them."""
    assert others is not None
    n, k = shape
    phi, psi, r, c, scale, bound = factors
    own = torch.bmm(others.psi.view(n, k, -1), phi[:, :, None])[:, :, 0]
    if len(c) > 1:
        own, c = own + others.c.view(n, k) / scale, pad(c, (0, k))
    return Inner(phi, pad(psi, (0, 0, 0, k)), r, c, scale, bound, joint, own, mask)


def _as_divergence(divergence: Any) -> Divergence:
    if not isinstance(divergence, Divergence):
        raise TypeError(f"divergence={divergence!r} is not a Divergence; try gcalign.KL()")
    return divergence


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "kernel": as_kernel,
    "constraints": as_constraints,
    "divergence": _as_divergence,
    "target": as_target,
    "geometry": lambda value: None if value is None else as_geometry(value),
    "layout": lambda value: one_of("layout", value, LAYOUTS),
    "reduction": lambda value: one_of("reduction", value, ("mean", "none")),
}
PARTS = frozenset({*_CHECKS, *_OPTIONS, *_OF_PARTS, "gather", "warm_start"})  # what can be set on a criterion


class Symmetric(Objective):
    """Mean of a loss in both directions, L = ½ L(z1, z2) + ½ L(z2, z1). CLIP does this with InfoNCE.

    A call takes what every criterion takes; see `Objective`. Parts and options are set on it as on an `Alignment`. The
    directions have different columns, so they have different queues: `queue=(keys of first views, keys of second
    views)`. One queue holds keys of second views, and the second direction then has none.

    Example:
        >>> import torch, gcalign
        >>> one_way = gcalign.method("ince")
        >>> both_ways = gcalign.Symmetric(one_way)
        >>> z1, z2 = torch.eye(4), torch.eye(4).flip(0)
        >>> torch.allclose(both_ways(z1, z2), (one_way(z1, z2) + one_way(z2, z1)) / 2)
        True
    """

    def __init__(self, alignment: Alignment) -> None:
        super().__init__()
        if not isinstance(alignment, Alignment):
            raise TypeError(f"Symmetric takes an Alignment, such as gcalign.method('ince'), not {alignment!r}")
        self.alignment = alignment

    def __setattr__(self, name: str, value: Any) -> None:
        """Parts and options are those of the alignment."""
        if name in PARTS:
            setattr(self.alignment, name, value)
        else:
            super().__setattr__(name, value)

    def _loss(self, z1: Tensor, z2: Tensor | None, inputs: Inputs) -> Tensor:
        if z2 is None:  # the target of one tensor is symmetric
            return self.alignment._loss(z1, None, inputs)
        joint, memory = self.alignment.layout == "joint", self.alignment.memory
        there_queue, back_queue = self._queues(inputs, joint)
        there = self.alignment._loss(z1, z2, inputs._replace(queue=there_queue))
        target = Transposed(self.alignment.target if inputs.target is None else as_target(inputs.target))
        turned = (inputs if joint else inputs.exchanged())._replace(target=target, queue=back_queue)
        with nullcontext() if memory is None else memory.exchanged():
            back = self.alignment._loss(z1, z2, turned) if joint else self.alignment._loss(z2, z1, turned)
        if there.shape != back.shape:
            raise ValueError(
                f"reduction='none' has {len(there)} rows in one direction and {len(back)} in the other; "
                "use reduction='mean' if the sides differ in length"
            )
        return 0.5 * (there + back)

    def _queues(self, inputs: Inputs, joint: bool) -> tuple[Any, Any]:
        """The keys that are columns of each direction: those of second views, then those of first views."""
        queue = inputs.queue
        if joint:
            return queue, queue
        return (queue[1], queue[0]) if isinstance(queue, tuple) and len(queue) == 2 else (queue, None)

    def _jointly(self, views: Sequence[Tensor]) -> Tensor:
        """The mean over which view is along the rows."""
        turns = [self.alignment._jointly([*views[k:], *views[:k]]) for k in range(len(views))]
        return torch.stack(turns).mean(0)

    def plan(self, z1: Tensor, z2: Tensor | None = None, *, gather: bool = False, **inputs: Any) -> Plan:
        """P_θ of the first direction, z1 along the rows."""
        return self.alignment.plan(z1, z2, gather=gather, **self._first(inputs))

    def explain(self, z1: Tensor, z2: Tensor | None = None, **inputs: Any) -> Choice:
        """The gradient mode that is used for such a batch, how the plan is solved, and why."""
        return self.alignment.explain(z1, z2, **self._first(inputs))

    def _first(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs of the first direction."""
        return {**inputs, "queue": self._queues(inputs_of(inputs), self.alignment.layout == "joint")[0]}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.alignment!r})"


@dataclass(frozen=True, repr=False)
class Transposed(Target):
    """Tᵀ of another target, for exchanged sides."""

    base: Target
    rule: ClassVar[str] = "both directions need a positive for every row and column; drop the embeddings without one"

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]  # a property here
        return self.base.reads

    def on(self, sides: Sides, dtype: torch.dtype) -> Support:
        # in the joint layout both sides hold all embeddings, so only T is transposed
        return self.base.on(sides if sides.joint else sides.exchanged(), dtype).transposed()
