"""The objective: min_θ d_M(P_tgt ‖ P_θ) with P_θ = argmin_{P ∈ B} h(P) + d_Γ(P ‖ K_θ) (eq:mainobj), as a criterion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gcalign.constraints import Constraint, Problem
from gcalign.distributed import agreed, joined, shard
from gcalign.divergences import Divergence
from gcalign.errors import did_you_mean, one_of
from gcalign.geometry import Entropic, Geometry
from gcalign.kernels import Kernel, LogKernel, as_kernel
from gcalign.modes import Choice
from gcalign.operators import Inner, Pairwise, Shard
from gcalign.plan import Plan, Side, Sides
from gcalign.proximal import Proximal, Setting, Settings, as_constraints, proximal
from gcalign.targets import Identity, Target, Turned, Weighted, as_target
from gcalign.warm import Memory

LAYOUTS = {"cross": Sides.cross, "joint": Sides.joint}
_KNOWN = ("labels", "domains", "ids", "weights")
PerSide = Tensor | Sequence[int] | tuple[Any, Any]  # one value for each sample, or a pair: for z1 and for z2


class Objective(nn.Module):
    """What is called as `criterion(z1, z2)`: z1 and z2 are [B, D], not normalised; the loss is 0-dim.

    ids say which embeddings come from one sample (default: by position); labels, domains and weights are read by
    the targets that want them; target replaces the criterion's own for this call. Each is one value for both sides or
    a tuple, (for z1, for z2).
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
        raise NotImplementedError

    def plan(self, z1: Tensor, z2: Tensor, *, target: Tensor | Target | None = None, **known: PerSide | None) -> Plan:
        """P_θ, without gradient; takes what the criterion takes."""
        raise NotImplementedError


class Alignment(Objective):
    """Five choices make a method: K_θ, B with h, d_M, P_tgt and d_Γ. It prints as that composition.

    `iterations` is the most, `tol` ends them early; `gradient` is exact in every mode (`explain` says which ran);
    `block` rows of the kernel are held at once (None: all; "auto": all while they fit), `cache="half"` keeps them in
    float16; `gather` joins the batches of all ranks; `warm_start` begins where `ids` were when last seen.
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
        iterations: int = 10,
        tol: float = 1e-6,
        gradient: str = "auto",
        block: int | str | None = None,
        cache: str | None = None,
        gather: bool = True,
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
        self.settings = Settings(iterations, tol, gradient, block, cache)
        self.gather = gather
        self.memory = Memory() if warm_start else None
        self.check_finite = check_finite

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
        """d_M(P_tgt ‖ P_θ)."""
        known = {"labels": labels, "domains": domains, "ids": ids, "weights": weights}
        loss = self._solved(z1, z2, known, target, self._loss)
        if self.check_finite and not torch.compiler.is_compiling() and not bool(torch.isfinite(loss)):
            raise ValueError(
                f"the loss is {loss.item()} though the embeddings are finite: {self!r} leaves the range of "
                f"{str(loss.dtype).removeprefix('torch.')}; raise eps or pass float64 embeddings"
            )
        return loss

    @torch.no_grad()
    def plan(self, z1: Tensor, z2: Tensor, *, target: Tensor | Target | None = None, **known: PerSide | None) -> Plan:
        return self._solved(z1, z2, known, target, lambda solved: solved.plan())

    def explain(
        self, z1: Tensor, z2: Tensor, *, target: Tensor | Target | None = None, **known: PerSide | None
    ) -> Choice:
        """Which gradient mode runs on such a batch, and why."""
        return self._solved(z1, z2, known, target, lambda solved: solved.choice)

    def _loss(self, solved: Proximal) -> Tensor:
        return solved.loss(self.divergence)

    def _solved(
        self,
        z1: Tensor,
        z2: Tensor,
        known: dict[str, PerSide | None],
        target: Tensor | Target | None,
        read: Callable[[Proximal], Any],
    ) -> Any:
        share = None if torch.compiler.is_compiling() else shard(self.gather)
        try:
            _check(z1, z2, check_finite=self.check_finite, alone=share is None)
            dtype = torch.promote_types(z1.dtype, torch.float32)  # half precision is computed in float32
            chosen = self._target(known, target)
            sides = _sides(z1.to(dtype), z2.to(dtype), known, chosen)
        except (TypeError, ValueError):
            if share is not None:  # the others wait to hear of this rank's batch
                agreed(share, None, z1.device if isinstance(z1, Tensor) else torch.device("cpu"))
            raise
        with torch.autocast(z1.device.type, enabled=False):
            setting = self._setting(sides, chosen, share)
            solved = proximal(setting, self.divergence, self.settings)
            if self.memory is not None:
                self.memory.keep(self._column_ids(setting.problem.sides), solved.summary.b.detach())
            return read(solved)

    def _target(self, known: dict[str, PerSide | None], target: Tensor | Target | None) -> Target:
        chosen = self.target if target is None else as_target(target)
        if known.get("weights") is not None and "weights" not in chosen.reads:
            chosen = Weighted(chosen)
        if target is None:
            self._refuse_unread(known, chosen)
        return chosen

    def _setting(self, batch: tuple[Side, Side], target: Target, share: Shard | None) -> Setting:
        first, second = batch
        if share is not None:
            sizes = agreed(share, batch, first.features.device)
            first, second = (joined(share, side, [size[k] for size in sizes]) for k, side in enumerate(batch))
        sides = LAYOUTS[self.layout](first, second)
        x = self.kernel.features(sides.rows.features)
        y = x if sides.columns is sides.rows else self.kernel.features(sides.columns.features)
        if isinstance(self.kernel, LogKernel):
            self.kernel.owns_its_gradient(x, y)
        eps = self.kernel.eps if self.geometry is None else self.geometry.eps
        eps = torch.as_tensor(eps, dtype=x.dtype, device=x.device)
        support = target.on(sides, x.dtype)
        problem = Problem(self.geometry or Entropic(eps), eps, support, sides)
        factors = self.kernel.factors(x, y)
        source = Pairwise(self.kernel, x, y, sides.own) if factors is None else Inner(*factors, own=sides.own)
        start = None if self.memory is None else self.memory.recall(self._column_ids(sides), eps)
        return Setting.of(source, self.constraints, problem, support, sides.allowed, share, start)

    def _column_ids(self, sides: Sides | None) -> list[Tensor]:
        """The ids along the columns, those of each view by themselves."""
        ids = None if sides is None else sides.columns.ids
        if sides is None or ids is None:
            raise ValueError("warm_start=True recalls each sample by its id, and there are none; pass ids=")
        return [ids] if sides.own is None else list(ids.chunk(2))

    def _refuse_unread(self, known: dict[str, PerSide | None], target: Target) -> None:
        """Labels that nothing reads are a mistake: training would be unsupervised, or worse, thought to be."""
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
        parts += [f"{k}={v!r}" for k, v in vars(self.settings).items() if v is not None]
        return f"{type(self).__name__}({', '.join(parts)})"


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
        turned = Turned(self.alignment.target if target is None else as_target(target))
        if self.alignment.layout == "joint":
            back = self.alignment(z1, z2, target=turned, **known)
        else:
            exchanged = {name: _per_side(value)[::-1] for name, value in known.items() if value is not None}
            back = self.alignment(z2, z1, target=turned, **exchanged)
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


def _check(z1: Tensor, z2: Tensor, *, check_finite: bool, alone: bool = True) -> None:
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
    if check_finite and not torch.compiler.is_compiling():
        for name, z in (("z1", z1), ("z2", z2)):
            if math.isfinite(z.detach().sum()):  # one number tells, unless huge ones overflow
                continue
            finite = torch.isfinite(z)
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
