"""The objective: min_θ d_M(P_tgt ‖ P_θ) with P_θ = argmin_{P ∈ B} h(P) + d_Γ(P ‖ K_θ) (eq:mainobj), as a criterion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from gcalign.batch import Side, Sides
from gcalign.constraints import Columns, Constraint, Rows
from gcalign.divergences import Divergence
from gcalign.errors import did_you_mean, one_of
from gcalign.geometry import Entropic, Geometry
from gcalign.kernels import Kernel, as_kernel
from gcalign.plan import Plan
from gcalign.targets import Identity, Target, Transposed, Weighted, as_target
from gcalign.transport import op
from gcalign.transport.distributed import exchange_headers, group_name, joined, shard
from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Given, Inner, Source, without_itself
from gcalign.transport.problem import Choice, Form, Options, Problem, as_constraints, choose, name_of
from gcalign.transport.support import Full, Groups
from gcalign.transport.warm import Memory

LAYOUTS = {"cross": Sides.in_cross, "joint": Sides.in_joint}
_KNOWN = ("labels", "domains", "ids", "weights")
PerSide = Tensor | Sequence[int] | tuple[Any, Any]  # one value for each sample, or a pair: for z1 and for z2


class Objective(nn.Module):
    """A criterion: `criterion(z1, z2)` is the loss of two views.

    Args:
        z1: embeddings of the first views [B, D]; they need not be normalised.
        z2: embeddings of the second views [B, D].
        ids: which embeddings come from one sample. Default: by position, z1[k] and z2[k] belong together.
        labels: class of each sample, for targets such as `Labels`.
        domains: domain of each sample, for targets such as `Blocks`.
        weights: how much each sample counts.
        target: a matrix [n, m] or a `Target`, in place of the criterion's own for this call.

    Each of the optional inputs is one value for both sides or a tuple, (for z1, for z2).

    Returns:
        The loss, a 0-dim tensor; with `reduction="none"` the loss of each row, whose mean it is.

    Raises:
        ValueError: if an input has the wrong shape or a non-finite value; the message has the remedy.

    Example:
        >>> import torch, gcalign
        >>> z1, z2 = torch.randn(8, 4), torch.randn(8, 4)
        >>> gcalign.method("gca-ince")(z1, z2).shape
        torch.Size([])
    """

    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
        *,
        labels: PerSide | None = None,
        domains: PerSide | None = None,
        ids: PerSide | None = None,
        weights: PerSide | None = None,
        target: Tensor | Target | None = None,
    ) -> Tensor:
        """The loss; see the class for what it takes."""
        raise NotImplementedError

    def plan(self, z1: Tensor, z2: Tensor, *, target: Tensor | Target | None = None, **known: PerSide | None) -> Plan:
        """P_θ, without gradient; takes what the criterion takes."""
        raise NotImplementedError


class Alignment(Objective):
    """min_θ d_M(P_tgt ‖ P_θ) with P_θ = argmin_{P ∈ B} h(P) + d_Γ(P ‖ K_θ) (eq:mainobj), as a criterion.

    It prints as its composition. See `Objective` for what a call takes.

    Args:
        kernel: K_θ, a `Kernel` or any callable (x, y) → log K, whose matrix is then stored whole.
        constraints: B and h, e.g. `(Rows(), Columns())`.
        divergence: d_M, e.g. `KL()`.
        target: P_tgt, a `Target` or a matrix [n, m].
        geometry: d_Γ; default `Entropic` with the kernel's ε.
        layout: "cross" has first views along the rows and second views along the columns; "joint" has all embeddings on
            both sides, and none is matched with itself.
        reduction: "mean", or "none" for the loss of each row.
        iterations: the most. Fewer than 20 are done one by one, as in the paper. From 20 on they mean "to convergence" and
            are accelerated.
        tol: ends iterations early, relative to the distance between plan and target; 0 never does.
        gradient: "auto", "envelope", "implicit", "truncated" or "unrolled". All are exact; `explain` says which one runs.
            "unrolled" is plain autograd through every iteration, and the one with second derivatives.
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
        block: int | str | None = None,
        cache: str | None = None,
        gather: bool | dist.ProcessGroup = True,
        warm_start: bool = False,
        check_finite: bool = True,
    ) -> None:
        super().__init__()
        self.kernel = as_kernel(kernel)
        self.constraints = as_constraints(constraints)
        if not isinstance(divergence, Divergence):
            raise TypeError(f"divergence={divergence!r} is not a Divergence; try gcalign.KL()")
        self.divergence = divergence
        if geometry is not None and not isinstance(geometry, Geometry):
            raise TypeError(f"geometry={geometry!r} is not a Geometry; try gcalign.Entropic(0.5), or leave it out")
        self.target = as_target(target)
        self.geometry = geometry
        self.layout = one_of("layout", layout, LAYOUTS)
        self.reduction = one_of("reduction", reduction, ("mean", "none"))
        self.options = Options(iterations, tol, gradient, block, cache)
        self.gather = bool(gather)
        self.group = group_name(gather)
        self.memory = Memory() if warm_start else None
        self.check_finite = check_finite
        self.form = name_of(self._form())

    def _form(self) -> Form:
        """What the solver must know of this criterion, the same for every batch."""
        d = self.divergence
        rows, columns = (
            next((c.h for c in self.constraints if isinstance(c, kind)), None) for kind in (Rows, Columns)
        )
        # a loss for each row may be weighted, and P − T is the gradient of their mean alone
        dual = self.reduction == "mean" and d.has_dual(rows, columns)
        return Form(rows, columns, self.options, d.statistics, d.powers, d.reads_entries, d.needs_columns, dual, self.group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.form = name_of(self._form())  # names are of one process

    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
        *,
        labels: PerSide | None = None,
        domains: PerSide | None = None,
        ids: PerSide | None = None,
        weights: PerSide | None = None,
        target: Tensor | Target | None = None,
    ) -> Tensor:
        known = {"labels": labels, "domains": domains, "ids": ids, "weights": weights}
        with torch.autocast(_device(z1), enabled=False):
            problem = self.problem(z1, z2, known, target)  # K_θ, B, P_tgt of this batch
            plan = self._solved(problem)  # P_θ, with its gradient
            loss = self.divergence.value(plan) if self.reduction == "mean" else self.divergence.per_row(plan)
        if self.check_finite and not torch.compiler.is_compiling() and not bool(torch.isfinite(loss).all()):
            self._refuse(loss, z1, z2)
        return loss  # d_M(P_tgt ‖ P_θ)

    @torch.no_grad()
    def plan(self, z1: Tensor, z2: Tensor, *, target: Tensor | Target | None = None, **known: PerSide | None) -> Plan:
        """P_θ, without gradient; takes what the criterion takes.

        In a process group it is the plan of the joined batch, so every rank must call it.
        """
        with torch.autocast(_device(z1), enabled=False):
            return self._solved(self.problem(z1, z2, known, target)).clone()

    def explain(
        self, z1: Tensor, z2: Tensor, *, target: Tensor | Target | None = None, **known: PerSide | None
    ) -> Choice:
        """Which gradient mode runs on such a batch, and why."""
        with torch.autocast(_device(z1), enabled=False):
            problem = self.problem(z1, z2, known, target)
            if not problem.only_marginals:
                return Choice(
                    "unrolled", "the constraints are not only rows and columns, so autograd follows Dykstra's steps"
                )
            sides = sum(side is not None for side in (problem.rows, problem.columns))
            dual = self._form().dual
            if self.options.gradient == "envelope":  # refused without solving where it would be wrong
                choose(self.options, constrained=sides, converged=True, dual=dual, feasible=problem.feasible)
            converged = self._solved(problem).converged
        return choose(self.options, constrained=sides, converged=converged, dual=dual, feasible=problem.feasible)

    def problem(
        self, z1: Tensor, z2: Tensor, known: dict[str, PerSide | None], target: Tensor | Target | None = None
    ) -> Problem:
        """What is to be solved for a batch."""
        share = shard(self.gather, self.group)
        try:
            _check(z1, z2, alone=share is None)
            if share is not None and self.check_finite and not torch.compiler.is_compiling():
                _refuse_non_finite(z1, z2)  # the others must not wait for a batch that is refused later
            dtype = torch.promote_types(z1.dtype, torch.float32)  # half precision is computed in float32
            chosen = self._target(known, target)
            batch = _sides(z1.to(dtype), z2.to(dtype), known, chosen)
        except (TypeError, ValueError):
            if share is not None:  # the others wait to hear of this rank's batch
                exchange_headers(share, None, z1.device if isinstance(z1, Tensor) else torch.device("cpu"))
            raise
        sides = self._arranged(batch, share)
        kernel = self._source(sides)
        value = self.kernel.eps if self.geometry is None else self.geometry.eps
        eps = torch.as_tensor(value, dtype=dtype, device=z1.device)
        support = chosen.on(sides, dtype)
        if isinstance(support, Groups) and self.divergence.reads_entries:
            support = Full(support.dense())
        start = None if self.memory is None else self.memory.recall(sides, eps)
        return Problem.of(
            kernel,
            self.constraints,
            self.geometry or Entropic(eps),
            eps,
            support,
            sides=sides,
            eps_value=math.nan if isinstance(value, Tensor) else float(value),
            shard=share,
            start=start,
        )

    def _target(self, known: dict[str, PerSide | None], target: Tensor | Target | None) -> Target:
        chosen = self.target if target is None else as_target(target)
        if known.get("weights") is not None and "weights" not in chosen.reads:
            chosen = Weighted(chosen)
        if target is None:
            self._refuse_unread(known, chosen)
        return chosen

    def _arranged(self, batch: tuple[Side, Side], share: Shard | None) -> Sides:
        """The batch of this process, or of all, in the criterion's layout."""
        first, second = batch
        if share is not None:
            sizes = exchange_headers(share, batch, first.features.device)
            first, second = (joined(share, side, [size[k] for size in sizes]) for k, side in enumerate(batch))
        return LAYOUTS[self.layout](first, second)

    def _source(self, sides: Sides) -> Source:
        x = self.kernel.features(sides.rows.features)
        y = x if sides.columns is sides.rows else self.kernel.features(sides.columns.features)
        factors = self.kernel.factors(x, y)
        if factors is not None:
            return Inner(*factors, exclude_self=sides.joint)
        log_k = self.kernel(x, y)
        return Given(without_itself(log_k) if sides.joint else log_k, exclude_self=sides.joint)

    def _solved(self, problem: Problem) -> Plan:
        plan = op.solve(problem, self.form)
        if self.memory is not None:
            assert problem.sides is not None
            if torch.compiler.is_compiling():
                raise ValueError("warm_start=True is not for torch.compile; leave it out or do not compile the criterion")
            self.memory.keep(problem.sides, plan.log_v)
        return plan

    def _refuse(self, loss: Tensor, z1: Tensor, z2: Tensor) -> None:
        """Say why a loss is not finite."""
        _refuse_non_finite(z1, z2)
        bad = loss[~torch.isfinite(loss)][0] if loss.dim() else loss
        raise ValueError(
            f"the loss is {bad.item()} though the embeddings are finite: {self!r} leaves the range of "
            f"{str(loss.dtype).removeprefix('torch.')}; raise eps or pass float64 embeddings"
        )

    def _refuse_unread(self, known: dict[str, PerSide | None], target: Target) -> None:
        """Labels that nothing reads are a mistake: training would be unsupervised without anybody noticing."""
        read = target.reads.union(*(constraint.reads for constraint in self.constraints))
        for name, readers in (("labels", "Labels()"), ("domains", "Blocks(alpha, beta)")):
            if known.get(name) is not None and name not in read:
                raise ValueError(
                    f"{name} were given, but the target {target!r} does not read them; "
                    f"use target=gcalign.{readers}, or leave them out"
                )

    def __repr__(self) -> str:
        parts = [f"{self.kernel!r}", f"({', '.join(map(repr, self.constraints))}{',' * (len(self.constraints) == 1)})"]
        parts += [f"{self.divergence!r}", f"target={self.target!r}"]
        if self.geometry is not None:
            parts.append(f"geometry={self.geometry!r}")
        parts.append(f"layout={self.layout!r}")
        parts += [f"reduction={self.reduction!r}"] if self.reduction != "mean" else []
        parts += [f"{k}={v!r}" for k, v in vars(self.options).items() if v is not None]
        return f"{type(self).__name__}({', '.join(parts)})"


def _device(z: Any) -> str:
    return z.device.type if isinstance(z, Tensor) else "cpu"


class Symmetric(Objective):
    """Half of an alignment and half of the same with its sides exchanged, as CLIP's loss is for InfoNCE."""

    def __init__(self, alignment: Alignment) -> None:
        super().__init__()
        self.alignment = alignment

    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
        *,
        labels: PerSide | None = None,
        domains: PerSide | None = None,
        ids: PerSide | None = None,
        weights: PerSide | None = None,
        target: Tensor | Target | None = None,
    ) -> Tensor:
        known = {"labels": labels, "domains": domains, "ids": ids, "weights": weights}
        there = self.alignment(z1, z2, target=target, **known)
        transposed = Transposed(self.alignment.target if target is None else as_target(target))
        memory = self.alignment.memory
        with nullcontext() if memory is None else memory.exchanged():
            if self.alignment.layout == "joint":
                back = self.alignment(z1, z2, target=transposed, **known)
            else:
                exchanged = {name: _per_side(value)[::-1] for name, value in known.items() if value is not None}
                back = self.alignment(z2, z1, target=transposed, **exchanged)
        if there.shape != back.shape:
            raise ValueError(
                f"reduction='none' has {len(there)} rows one way and {len(back)} the other; use reduction='mean' where the "
                "sides differ in length"
            )
        return 0.5 * (there + back)

    def plan(self, z1: Tensor, z2: Tensor, *, target: Tensor | Target | None = None, **known: PerSide | None) -> Plan:
        """P_θ of the first half, z1 along the rows."""
        return self.alignment.plan(z1, z2, target=target, **known)

    def explain(
        self, z1: Tensor, z2: Tensor, *, target: Tensor | Target | None = None, **known: PerSide | None
    ) -> Choice:
        """Which gradient mode runs on such a batch, and why."""
        return self.alignment.explain(z1, z2, target=target, **known)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.alignment!r})"


def _check(z1: Tensor, z2: Tensor, *, alone: bool) -> None:
    for name, z in (("z1", z1), ("z2", z2)):
        if not isinstance(z, Tensor):
            raise TypeError(f"{name} is a {type(z).__name__}; it must be a tensor [B, D] of embeddings")
        if z.dim() != 2 or z.shape[1] == 0 or (alone and len(z) == 0):  # beside others, a rank may have no rows left
            raise ValueError(f"{name} of shape {tuple(z.shape)} must be [B, D] with B, D ≥ 1; flatten other dimensions")
        if not z.is_floating_point():
            raise TypeError(f"{name} has dtype {z.dtype}; embeddings must be real floating-point, try {name}.float()")
    if z1.shape[1] != z2.shape[1]:
        raise ValueError(f"z1 has {z1.shape[1]} dimensions and z2 {z2.shape[1]}; project both sides to one size")
    if z1.dtype != z2.dtype:
        raise TypeError(f"z1 is {z1.dtype} and z2 {z2.dtype}; give both sides one dtype, e.g. z2.to(z1.dtype)")
    if z1.device != z2.device:
        raise ValueError(f"z1 is on {z1.device} and z2 on {z2.device}; move both to one device")


def _refuse_non_finite(z1: Tensor, z2: Tensor) -> None:
    for name, z in (("z1", z1), ("z2", z2)):
        finite = torch.isfinite(z.detach())
        if not bool(finite.all()):
            row = int((~finite).any(1).nonzero()[0])
            raise ValueError(
                f"{name}[{row}] has NaN or Inf; embeddings must be finite: lower the learning rate, clip "
                "gradients, or pass check_finite=False to skip this test"
            )


def _sides(z1: Tensor, z2: Tensor, known: dict[str, PerSide | None], target: Target) -> tuple[Side, Side]:
    given = {name: value for name, value in known.items() if value is not None}
    for name in given:
        if name not in _KNOWN:
            raise TypeError(f"{name}= is not something a criterion takes; {did_you_mean(name, _KNOWN)}")
    values: dict[str, tuple[Tensor, Tensor]] = {}
    for name, value in given.items():
        pair = _per_side(value)
        values[name] = (_column(name, pair[0], z1, "z1"), _column(name, pair[1], z2, "z2"))
    if len(z1) != len(z2) and "ids" in target.reads and "ids" not in values:
        raise ValueError(
            f"z1 has {len(z1)} rows and z2 {len(z2)}, so position cannot say which belong together; "
            "give ids=(ids1, ids2) or target=T"
        )
    one, two = ({name: pair[k] for name, pair in values.items()} for k in (0, 1))
    return Side(z1, **one), Side(z2, **two)


def _per_side(value: Any) -> tuple[Any, Any]:
    """(for z1, for z2): a tuple of two columns as it is, anything else for both."""
    paired = isinstance(value, tuple) and len(value) == 2 and not any(isinstance(v, (int, float)) for v in value)
    return (value[0], value[1]) if paired else (value, value)


def _column(name: str, value: Any, z: Tensor, which: str) -> Tensor:
    try:
        column = torch.as_tensor(value, device=z.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be whole numbers, one for each row of {which}; number them first") from error
    if column.dim() not in (1, 2) or len(column) != len(z) or (column.dim() == 2 and name != "labels"):
        raise ValueError(
            f"{name} of shape {tuple(column.shape)} must have one value for each of the {len(z)} rows of {which}; "
            f"where the sides differ pass {name}=(for z1, for z2)"
        )
    if name == "weights":
        if column.requires_grad:
            raise ValueError("weights require a gradient, but like any part of a target they are data; detach() them")
        return column.to(z.dtype)
    if column.is_floating_point() or column.is_complex():
        raise TypeError(f"{name} has dtype {column.dtype}; it must be whole numbers, try {name}.long()")
    return column.long()
