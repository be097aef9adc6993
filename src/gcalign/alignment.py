"""The criterion: min_θ d_M(P_tgt ‖ P_θ) with P_θ = argmin_{P ∈ B} h(P) + d_Γ(P ‖ K_θ) (Eq. 8, eq:mainobj)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from gcalign.batch import PerSide, Sides, as_sides, check_embeddings, refuse_non_finite
from gcalign.constraints import Columns, Constraint, Rows
from gcalign.divergences import Divergence
from gcalign.errors import one_of
from gcalign.geometry import Entropic, Geometry
from gcalign.kernels import Kernel, as_kernel
from gcalign.multi import joint_plan
from gcalign.objective import Objective, refuse_loss, refuse_unread
from gcalign.plan import Plan
from gcalign.queue import Queue, beside
from gcalign.targets import Identity, Labels, Target, Weighted, as_target
from gcalign.transport import op
from gcalign.transport.distributed import exchange_headers, group_name, joined, shard, warn_alone
from gcalign.transport.operators.sources import Given, Inner, Source, without_itself
from gcalign.transport.problem import Choice, Form, Options, Problem, as_constraints, choose, name_of
from gcalign.transport.support import Full, Groups
from gcalign.transport.warm import Memory

LAYOUTS = {"cross": Sides.in_cross, "joint": Sides.in_joint}
_HALF = (torch.float16, torch.bfloat16)


class Alignment(Objective):
    """min_θ d_M(P_tgt ‖ P_θ) with P_θ = argmin_{P ∈ B} h(P) + d_Γ(P ‖ K_θ) (Eq. 8, eq:mainobj), as a criterion.

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
        iterations: the most. Fewer than 20 are done one by one, as in the paper. From 20 on they mean "to convergence"
            and are accelerated.
        tol: ends iterations early, relative to the distance between plan and target; 0 never does.
        gradient: "auto", "envelope", "implicit", "truncated" or "unrolled". All are exact; `explain` says which one
            runs. "unrolled" is plain autograd through every iteration, and the one with second derivatives.
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
        self.geometry, self._entropic = geometry, Entropic()
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
        rows, columns = (next((c.h for c in self.constraints if isinstance(c, kind)), None) for kind in (Rows, Columns))
        # a loss for each row may be weighted, and P − T is the gradient of their mean alone
        dual = self.reduction == "mean" and d.has_dual(rows, columns)
        return Form(
            rows,
            columns,
            self.options,
            d.statistics,
            d.powers,
            d.reads_entries,
            d.needs_columns,
            dual,
            group=self.group,
            check_finite=self.check_finite,
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's own
        self.form = name_of(self._form())  # names are of one process

    def forward(
        self,
        z1: Tensor | Sequence[Tensor],
        z2: Tensor | None = None,
        *,
        labels: PerSide | None = None,
        domains: PerSide | None = None,
        ids: PerSide | None = None,
        weights: PerSide | None = None,
        target: Tensor | Target | None = None,
        queue: Queue | None = None,
        rows: int | None = None,
        multi: str = "pairwise",
    ) -> Tensor:
        known = {"labels": labels, "domains": domains, "ids": ids, "weights": weights}
        if not isinstance(z1, Tensor) or rows is not None:
            return self._several(z1 if z2 is None else [z1, z2], rows, multi, known, target=target, queue=queue)
        if not self.gather:
            warn_alone()
        with torch.autocast(z1.device.type, enabled=False):
            problem = self.problem(z1, z2, known, target, self.gather, queue)  # K_θ, B, P_tgt of this batch
            plan = self._solved(problem)  # P_θ, with its gradient
            loss = self.divergence.value(plan) if self.reduction == "mean" else self.divergence.per_row(plan)
        if self.check_finite and not torch.compiler.is_compiling():
            total = loss if self.reduction == "mean" else loss.detach().sum()
            if not math.isfinite(total.item()):  # one number tells
                refuse_loss(self, loss, z1, z1 if z2 is None else z2)
        return loss  # d_M(P_tgt ‖ P_θ)

    def _jointly(self, views: Sequence[Tensor]) -> Tensor:
        usual = isinstance(self.target, Identity) and self.layout == "cross" and self.geometry is None
        if not usual or self.memory is not None or shard(self.gather, self.group) is not None:
            raise ValueError(
                f"multi='joint' needs the target Identity(), layout='cross', the entropic geometry and one process; "
                f"{self!r} has another, so use multi='pairwise'"
            )
        with torch.autocast(views[0].device.type, enabled=False):
            plan = joint_plan(views, self.kernel, self.constraints, self.divergence, self.options)
            loss = self.divergence.value(plan) if self.reduction == "mean" else self.divergence.per_row(plan)
        if self.check_finite and not math.isfinite(loss.detach().sum().item()):
            refuse_loss(self, loss, views[0], torch.cat(list(views[1:])))
        return loss.to(torch.float32 if views[0].dtype in _HALF else views[0].dtype)

    @torch.no_grad()
    def plan(
        self,
        z1: Tensor,
        z2: Tensor | None = None,
        *,
        target: Tensor | Target | None = None,
        queue: Queue | None = None,
        gather: bool = False,
        **known: PerSide | None,
    ) -> Plan:
        """P_θ, without gradient; takes what the criterion takes.

        In a process group it is the plan of this rank's batch, so that one rank can look at it alone; `gather=True` is
        the plan of the joined batch, and then every rank must call it.
        """
        with torch.autocast(z1.device.type if isinstance(z1, Tensor) else "cpu", enabled=False):
            return self._solved(self.problem(z1, z2, known, target, gather and self.gather, queue)).clone()

    def explain(
        self,
        z1: Tensor,
        z2: Tensor | None = None,
        *,
        target: Tensor | Target | None = None,
        queue: Queue | None = None,
        **known: PerSide | None,
    ) -> Choice:
        """Which gradient mode runs on such a batch, and why."""
        z1 = z1.detach().requires_grad_() if isinstance(z1, Tensor) else z1  # as in training
        z2 = z2.detach().requires_grad_() if isinstance(z2, Tensor) else z2
        with torch.enable_grad(), torch.autocast(z1.device.type if isinstance(z1, Tensor) else "cpu", enabled=False):
            problem = self.problem(z1, z2, known, target, False, queue)
            if not problem.only_marginals:
                return Choice(
                    "unrolled", "the constraints are not only rows and columns, so autograd follows Dykstra's steps"
                )
            sides = sum(side is not None for side in (problem.rows, problem.columns))
            about: dict[str, Any] = {"constrained": sides, "dual": self._form().dual, "feasible": problem.feasible}
            if self.options.gradient == "envelope":  # refused without solving where it would be wrong
                choose(self.options, converged=True, **about)
            plan = self._solved(problem)
        choice = choose(self.options, converged=plan.converged, **about)
        if choice.mode == "implicit" and plan.progress[4]:  # after plain scalings
            how = "in one step" if sides == 1 else "by reversing its stored iterations, which is exact as well"
            return Choice("implicit", f"{choice.reason}; {how}")
        return choice

    def problem(
        self,
        z1: Tensor,
        z2: Tensor | None,
        known: dict[str, PerSide | None],
        target: Tensor | Target | None = None,
        gather: bool = False,
        queue: Queue | None = None,
    ) -> Problem:
        """What is to be solved for a batch, of this process or, with `gather`, of all. Without z2, z1 is both sides."""
        if self.memory is not None and torch.compiler.is_compiling():
            raise ValueError("warm_start=True is not for torch.compile; leave one of them out")
        share, alone = shard(gather, self.group), z2 is None
        z2 = z1 if z2 is None else z2
        try:
            check_embeddings(z1, z2, alone=share is None)
            if share is not None and self.check_finite and not torch.compiler.is_compiling():
                refuse_non_finite(z1, z2)  # the others must not wait for a batch that is refused later
            dtype = torch.float32 if z1.dtype in _HALF else z1.dtype  # half precision is computed in float32
            chosen = self._target(known, target, alone)
            batch = as_sides(z1.to(dtype), z2.to(dtype), known, chosen.reads)
        except (TypeError, ValueError):
            if share is not None:  # the others wait to hear of this rank's batch
                exchange_headers(share, None, z1.device if isinstance(z1, Tensor) else torch.device("cpu"))
            raise
        if share is not None:
            sizes = exchange_headers(share, batch, z1.device)
            first = joined(share, batch[0], [k for k, _ in sizes])
            batch = first, first if alone else joined(share, batch[1], [k for _, k in sizes])
        sides = Sides(batch[0], batch[0], joint=True) if alone else LAYOUTS[self.layout](*batch)
        value = self.kernel.eps if self.geometry is None else self.geometry.eps
        eps = torch.as_tensor(value, dtype=dtype, device=z1.device)
        support, constraints, allowed = chosen.on(sides, dtype), self.constraints, None
        if isinstance(support, Groups) and self.divergence.reads_entries:
            support = Full(support.dense())
        if queue is not None:
            if self.memory is not None:
                raise ValueError("warm_start=True stores potentials by id, and a queue has none; leave one out")
            sides, support, constraints, allowed = beside(queue, sides, support, constraints, self.options.long)
        start = None if self.memory is None else self.memory.recall(sides, eps)
        return Problem.of(
            self._source(sides, allowed),
            constraints,
            self._entropic if self.geometry is None else self.geometry,
            eps,
            support,
            sides=sides,
            eps_value=math.nan if isinstance(value, Tensor) else float(value),
            shard=share,
            start=start,
        )

    def _target(self, known: dict[str, PerSide | None], target: Tensor | Target | None, alone: bool = False) -> Target:
        chosen = self.target if target is None else as_target(target)
        if alone and target is None:
            if known.get("labels") is not None and "labels" not in chosen.reads:
                chosen = Labels()
            elif known.get("ids") is None and "ids" in chosen.reads:
                raise ValueError(
                    "there is one tensor and nothing says which of its rows belong together; call "
                    "criterion(z, labels=y), or criterion(z1, z2) with two views"
                )
        if known.get("weights") is not None and "weights" not in chosen.reads:
            chosen = Weighted(chosen)
        if target is None and (known.get("labels") is not None or known.get("domains") is not None):
            refuse_unread(known, chosen, self.constraints)
        return chosen

    def _source(self, sides: Sides, allowed: Tensor | None = None) -> Source:
        x = self.kernel.features(sides.rows.features)
        y = x if sides.columns is sides.rows else self.kernel.features(sides.columns.features)
        factors = None if allowed is not None else self.kernel.factors(x, y)
        if factors is not None:
            return Inner(*factors, exclude_self=sides.joint)
        log_k = self.kernel(x, y)
        if allowed is not None:
            log_k = log_k.masked_fill(~allowed, -torch.inf)
        return Given(without_itself(log_k) if sides.joint else log_k, exclude_self=sides.joint)

    def _solved(self, problem: Problem) -> Plan:
        plan = op.solve(problem, self.form)
        if self.memory is not None:
            assert problem.sides is not None
            self.memory.keep(problem.sides, plan.log_v)
        return plan

    def __repr__(self) -> str:
        parts = [f"{self.kernel!r}", f"({', '.join(map(repr, self.constraints))}{',' * (len(self.constraints) == 1)})"]
        parts += [f"{self.divergence!r}", f"target={self.target!r}"]
        if self.geometry is not None:
            parts.append(f"geometry={self.geometry!r}")
        parts.append(f"layout={self.layout!r}")
        parts += [f"reduction={self.reduction!r}"] if self.reduction != "mean" else []
        parts += [f"{k}={v!r}" for k, v in vars(self.options).items() if v is not None and k != "long"]
        return f"{type(self).__name__}({', '.join(parts)})"
