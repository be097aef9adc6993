"""P_θ, the solved plan, as plain data: it can be pickled, moved to a device and printed, and divergences read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gcalign.constraints import Hard, Marginal
from gcalign.transport.operators.sources import Source
from gcalign.transport.support import Full, Pairs, Support, spans

if TYPE_CHECKING:
    from gcalign.transport.problem import Problem

Statistic = Callable[[Tensor, Tensor], Tensor]  # (log P rows [b, m], T rows [b, m]) -> [b]


class Reads(NamedTuple):
    """What a divergence reads of a plan."""

    statistics: tuple[Statistic, ...] = ()  # of rows
    powers: tuple[float, ...] = ()  # q of Σ_j T_ij P_ij^q
    entries: bool = False  # log P on the target, if that is a matrix
    columns: bool = False  # log Pᵀ1 also if the columns have no constraint
    dual: bool = False  # it is a Fenchel–Young loss
    plan: bool = False  # the plan itself is wanted, and no loss


class Vectors(NamedTuple):
    """What a divergence reads of a solved plan."""

    on_target: Tensor  # log P on the target's pairs [k], Σ_j T_ij log P_ij [n], or log P [n, m]
    log_rows: Tensor  # [n]  log P1
    log_columns: Tensor  # [m]  log Pᵀ1; empty if nothing needs it
    terms: Tensor  # [n, k]  row statistics
    a: Tensor  # [n]  log u
    b: Tensor  # [m]  log v
    eps: Tensor  # []


class Adjoints(NamedTuple):
    """∂L/∂ of each of the `Vectors`; None if the loss does not depend on it."""

    on_target: Tensor | None
    log_rows: Tensor | None
    log_columns: Tensor | None
    terms: Tensor | None
    a: Tensor | None
    b: Tensor | None
    eps: Tensor | None


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A solved plan P = diag(u) K diag(v) with its diagnostics (Eq. 28, Pt). A divergence reads it.

    `criterion.plan(z1, z2)` and `gcalign.solve(log_k)` return one. Diagnostics are 0-dim tensors, computed when they
    are read.

    Example:
        >>> import torch, gcalign
        >>> plan = gcalign.method("gca-ince").plan(torch.eye(4), torch.eye(4))
        >>> plan.matrix.shape, plan.converged
        (torch.Size([4, 4]), True)
        >>> bool(plan.row_error < 1e-5)
        True
    """

    kernel: Source  # log K
    log_u: Tensor  # [n]
    log_v: Tensor  # [m]
    eps: Tensor  # []
    mu: Tensor  # [n]  the required marginals
    nu: Tensor  # [m]
    iterations: int  # how many were done; a 0-dim tensor in compiled code
    converged: bool  # whether the iterations reached `tol`; likewise
    target: Support
    rows: Marginal | None
    columns: Marginal | None
    log_rows: Tensor  # [n]  log P1
    log_columns: Tensor  # [m]  log Pᵀ1; empty if nothing needs it
    on_target: Tensor  # log P on the target's pairs [k], or Σ_j T_ij log P_ij [n]
    terms: Tensor  # [n, k]  row statistics of the divergence
    log_plan: Tensor | None = None  # [n, m]  set if P is not K scaled by vectors
    unpaired_rows: bool = False  # whether some rows have no positive; they have no term in the loss

    @staticmethod
    def of(
        problem: Problem, vectors: Vectors, iterations: int, converged: bool, log_plan: Tensor | None = None
    ) -> Plan:
        """The plan of a solved problem."""
        on_target, log_rows, log_columns, terms, a, b, eps = vectors
        mu, nu = problem.masses()
        if problem.kernel.shape[1] - problem.kernel.exclude_self == 1 and isinstance(problem.support, Pairs):
            hard = problem.rows and all(isinstance(s.penalty, Hard) for s in (problem.rows, problem.columns) if s)
            if hard and problem.feasible and problem.follows:
                # the plan is μ: one column leaves nothing to solve, so its value is exact, not rounded
                on_target = _with_value(on_target, problem.support.along_rows(mu.log()))
                log_rows = _with_value(log_rows, mu.log())
        return Plan(
            problem.kernel, a, b, eps, mu, nu, iterations, converged, problem.support, problem.rows, problem.columns,
            log_rows, log_columns, on_target, terms, log_plan, problem.unpaired_rows,
        )  # fmt: skip

    def times(self, shift: Tensor) -> Plan:
        """The plan times e^shift."""
        added = shift
        if not isinstance(self.target, Pairs):
            added = shift * (self.target.mu if self.on_target.dim() == 1 else self.target.dense() > 0)
        on_target = self.on_target + added
        return replace(
            self,
            log_u=self.log_u + shift,
            log_rows=self.log_rows + shift,
            log_columns=self.log_columns + shift,
            on_target=on_target,
        )

    # --- the plan ---------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """(n, m)."""
        return len(self.log_u), len(self.log_v)

    def blocks(self) -> Iterator[Tensor]:
        """log P in blocks of rows."""
        for start, stop in spans(self.shape):
            if self.log_plan is not None:
                yield self.log_plan[start:stop]
            else:
                yield self._log_k(start, stop) + self.log_u[start:stop, None] + self.log_v

    def _log_k(self, start: int, stop: int) -> Tensor:
        with torch.autocast(self.log_u.device.type, enabled=False):
            return self.kernel.rows(start, stop)

    @cached_property
    def log(self) -> Tensor:  # [n, m]
        """log P."""
        blocks = list(self.blocks())
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    @property
    def matrix(self) -> Tensor:  # [n, m]
        """P."""
        return self.log.exp()

    @property
    def u(self) -> Tensor:  # [n]
        """The row scaling (Eq. 21, eq:scaleapp)."""
        return self.log_u.exp()

    @property
    def v(self) -> Tensor:  # [m]
        """The column scaling (Eq. 23, eq:uvupdatesapp)."""
        return self.log_v.exp()

    @property
    def f(self) -> Tensor:  # [n]
        """ε log u, the potential of the rows (Eq. 29, eq:dual)."""
        return self.eps * self.log_u

    @property
    def g(self) -> Tensor:  # [m]
        """ε log v, the potential of the columns (Eq. 29, eq:dual)."""
        return self.eps * self.log_v

    # --- diagnostics ------------------------------------------------------------------------------------------

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row sums, column sums and entropy, in one pass over the blocks."""
        rows, columns, entropy = [], torch.zeros_like(self.log_v), torch.zeros_like(self.eps)
        for log_p in self.blocks():
            p = log_p.exp()
            rows.append(p.sum(1))
            columns = columns + p.sum(0)
            entropy = entropy - (p * log_p.masked_fill(p == 0, 0)).sum()
        return torch.cat(rows), columns, entropy

    @property
    def row_sums(self) -> Tensor:  # [n]
        """P1."""
        return self._sums[0]

    @property
    def column_sums(self) -> Tensor:  # [m]
        """Pᵀ1."""
        return self._sums[1]

    @property
    def mass(self) -> Tensor:
        """The sum of all entries."""
        return self.row_sums.sum()

    @property
    def entropy(self) -> Tensor:
        """H(P) = −Σ P log P (Eq. 3, eq:eot)."""
        return self._sums[2]

    @cached_property
    def cost(self) -> Tensor:
        """⟨P, C⟩ with C = −ε log K: what the plan costs, without its entropy (Eq. 3, eq:eot)."""
        total = torch.zeros_like(self.eps)
        for span, log_p in zip(spans(self.shape), self.blocks(), strict=True):
            p = log_p.exp()
            total = total - self.eps * (p * self._log_k(*span).masked_fill(p == 0, 0)).sum()
        return total

    @property
    def row_error(self) -> Tensor:
        """‖P1 − μ‖₁ / ‖μ‖₁: the error of a hard constraint, or the violation that a relaxed one allows."""
        return (self.row_sums - self.mu).abs().sum() / self.mu.sum()

    @property
    def column_error(self) -> Tensor:
        """‖Pᵀ1 − ν‖₁ / ‖ν‖₁."""
        return (self.column_sums - self.nu).abs().sum() / self.nu.sum()

    # --- inputs of divergences --------------------------------------------------------------------------------

    @property
    def log_p(self) -> Tensor:
        """log P on the target's pairs [k]; for a target that is a matrix, log P [n, m] with 0 where T is 0."""
        if not isinstance(self.target, Pairs) and self.on_target.dim() < 2:
            raise ValueError("log_p was not stored; a divergence that reads it must have reads_entries = True")
        return self.on_target

    @property
    def cross(self) -> Tensor:  # [n]
        """Σ_j T_ij log P_ij."""
        if isinstance(self.target, Pairs):
            return self.target.weighted(self.on_target)
        if self.on_target.dim() == 2:
            assert isinstance(self.target, Full)
            return (self.target.weight * self.on_target).sum(1)
        return self.on_target

    def power(self, q: float, shift: Tensor) -> Tensor:  # [n] -> [n]
        """Σ_j T_ij (P_ij e^{−shift_i})^q, for a q that the divergence lists in `powers`."""
        if isinstance(self.target, Pairs):
            entries = (q * (self.on_target - self.target.along_rows(shift))).exp()
            return self.target.weighted(entries)
        return (self.terms[:, -1] - q * shift).exp()

    # --- as data ----------------------------------------------------------------------------------------------

    def detach(self) -> Plan:
        """The same plan without its gradient."""
        return _mapped(self, Tensor.detach)

    def clone(self) -> Plan:
        """A copy that later changes to the embeddings do not affect."""
        return _mapped(self, Tensor.clone)

    def to(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan on another device or with another dtype, as `Tensor.to`; integer tensors keep their dtype."""
        device = torch.empty(0, device=self.log_u.device).to(*args, **kwargs).device
        moved: Plan = _mapped(self, lambda x: x.to(*args, **kwargs) if x.is_floating_point() else x.to(device))
        return moved

    def __repr__(self) -> str:
        n, m = self.shape
        mass, entropy, rows, columns = (x.item() for x in (self.mass, self.entropy, self.row_error, self.column_error))
        return (
            f"Plan({n}×{m}, mass={mass:.6g}, entropy={entropy:.6g}, row_error={rows:.1e}{_strictness(self.rows)}, "
            f"column_error={columns:.1e}{_strictness(self.columns)}, iterations={self.iterations}, "
            f"converged={self.converged})"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without cached values


def _with_value(x: Tensor, value: Tensor) -> Tensor:
    """x with another value and the same gradient."""
    return x + (value - x).detach()


def _strictness(side: Marginal | None) -> str:
    """A word beside an error that is none: sums that need not be those of the target."""
    return " (free)" if side is None else "" if isinstance(side.penalty, Hard) else " (relaxed)"


def _mapped(x: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """The same dataclass with f applied to every tensor in it."""
    if isinstance(x, Tensor):
        return f(x)
    if isinstance(x, Marginal):
        return Marginal(f(x.mass), x.penalty)
    if is_dataclass(x) and not isinstance(x, type):
        changed = {field.name: _mapped(getattr(x, field.name), f) for field in fields(x) if field.init}
        return replace(x, **changed)
    return x


# --- row statistics of the library's divergences, known by name -------------------------------------------------


def squares(log_p: Tensor, t: Tensor) -> Tensor:
    """Σ_j (P_ij − T_ij)²."""
    return (log_p.exp() - t).square().sum(1)


def off_mass(log_p: Tensor, t: Tensor) -> Tensor:
    """Σ_j P_ij over the negatives."""
    return log_p.exp().masked_fill(t > 0, 0).sum(1)


def off_log(log_p: Tensor, t: Tensor) -> Tensor:
    """Σ_j log P_ij over the negatives that are not forbidden."""
    return log_p.masked_fill((t > 0) | (log_p == -torch.inf), 0).sum(1)


def positives(log_p: Tensor, t: Tensor) -> Tensor:
    """The number of positives."""
    return (t > 0).sum(1).to(log_p.dtype)


def softplus(log_p: Tensor, t: Tensor) -> Tensor:
    """Σ_j log(1 + P_ij)."""
    return torch.nn.functional.softplus(log_p).sum(1)


STATISTICS: dict[str, Statistic] = {f.__name__: f for f in (squares, off_mass, off_log, positives, softplus)}
