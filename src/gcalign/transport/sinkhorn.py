"""Marginals, hard or relaxed: alternate u ← (μ/(K v))^τ₁ and v ← (ν/(Kᵀ u))^τ₂ (Eq. 23, eq:uvupdatesapp), v⁰ = 1.

There is one loop, `iterate`. A *step* does one iteration: `LinearStep` multiplies by the stored K̂ and divides, four
torch operations or six if a side is relaxed; it is for kernels whose scalings cannot leave the range of the dtype.
`LogStep` works in log space, for any kernel and any penalty, and can be differentiated by autograd. `Stop` decides when
the iterations have converged, and a `Mixing` may choose the next v.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from gcalign.batch import Sides
from gcalign.constraints import Marginal
from gcalign.plan import Reads
from gcalign.transport.operators.blocked import Blocked, Reference
from gcalign.transport.problem import Options, Problem
from gcalign.transport.support import Pairs

FIRST_CHECK = 5  # iterations before the first test for convergence of linear steps, which waits for the device
MODERATE = 10.0  # |log mass| up to which scalings stay in range beside a tame kernel
MAX_ACCELERATED = 300  # accelerated iterations; if they have not converged by then, plain ones start again
_MOST_IDS = 1 << 26  # size limit of the table of a warm start, which has one number per id
MEMORY = 5  # points that are mixed
_SLOW = 0.1  # if the error falls faster than this, points are not mixed
Exponents = tuple[float | None, float | None]  # τ of both steps; 1 for a free side, None if a step has another form


class Sweep(NamedTuple):
    """One iteration. A linear step holds numbers in the frame of K̂, a log step logarithms."""

    before: Tensor  # [m]  v
    sums: Tensor | None  # [n]  K v; None if no step needs it
    scaling: Tensor  # [n]  u
    back: Tensor | None  # [m]  Kᵀu; None if no step needs it
    after: Tensor  # [m]  the next v


class Scalings(NamedTuple):
    """log u and log v, the logarithms of the plan's sums, and the iterations that led to them."""

    a: Tensor  # [n]
    b: Tensor  # [m]
    log_rows: Tensor  # [n]  log P1
    log_columns: Tensor | None  # [m]  log Pᵀ1 before the last column step; None without a column constraint
    iterations: int  # all that were done
    converged: bool
    record: Sequence[Sweep] = ()  # the iterations for the reverse pass, if there is one
    linear: bool = False  # whether they are in the frame of K̂
    x: Tensor | None = None  # [m]  v after them, and K v: of linear steps
    kx: Tensor | None = None  # [n]
    on_pairs: Tensor | None = None  # [k]  log P on the target's pairs, if it was computed
    accurate: bool = True  # False if rounding ended the iterations far from `tol`


def iterate(
    step: LinearStep | LogStep,
    stop: Callable[[int, Sweep, Sweep | None], bool],
    iterations: int,
    mix: Callable[[Sweep], Tensor] | None = None,
    record: list[Sweep] | None = None,
) -> tuple[Sweep, int, bool]:
    """Repeat a step until `stop`: the last sweep, the number of iterations, and whether they converged."""
    v, previous = step.start, None
    for done in range(1, iterations + 1):
        sweep = step(v)
        if record is not None:
            record.append(sweep)
        if stop(done, sweep, previous):
            return sweep, done, True
        v = sweep.after if mix is None else mix(sweep)
        previous = sweep
    return sweep, done, False


def scalings(
    operator: Blocked, problem: Problem, options: Options, reads: Reads, *, recorded: bool, eps_wanted: bool
) -> Scalings:
    """The scalings of a problem. `recorded`: a gradient is wanted, so the iterations are stored; `eps_wanted`: so is
    that of ε, which linear steps have only if they do not depend on it."""
    tau, both, wasted = exponents(problem, problem.eps_value), problem.constrained == 2, 0
    record = list[Sweep]() if recorded else None
    # only if the result does not depend on the iteration path: a plan does not, nor do scalings of a relaxed one
    by_plan = reads.dual and (problem.feasible or not recorded) and options.gradient in ("auto", "envelope")
    by_plan = by_plan or (reads.plan and not recorded)
    contracts = tau[0] is not None and tau[1] is not None and tau[0] * tau[1] < 0.99
    fixed_point = by_plan or (contracts and options.gradient in ("auto", "implicit"))
    linear = (not eps_wanted or tau == (1.0, 1.0)) and operator.tame and None not in tau and problem.start is None
    linear = linear and _moderate(problem, tau)
    if both and fixed_point and options.accelerated:
        log_step = LogStep(operator, problem)
        stop = Stop(log_step, options, tau, patience=1)
        mix = accelerated(log_step, stop, tau)
        sweep, done, converged = iterate(log_step, stop, min(options.iterations, MAX_ACCELERATED), mix)
        if converged:
            assert sweep.sums is not None
            assert sweep.back is not None
            a, b = sweep.scaling, sweep.before  # without the last column step, which would change nothing
            return Scalings(a, b, a + sweep.sums, b + sweep.back, done, converged=True, accurate=stop.accurate)
        wasted, linear = done, linear and operator.tame  # the frame may have been moved
    step = LinearStep(operator, problem, tau) if linear else LogStep(operator, problem)
    if not both:  # one step satisfies one side for good; without a constraint, P = K
        sweep, done, converged = iterate(step, lambda *_: True, 1, record=record)
        s = step.finished(sweep, done if problem.constrained else 0, converged)
        return s._replace(record=record or ())
    stop = Stop(step, options, tau, patience=30, first=FIRST_CHECK if linear else 1)
    sweep, done, converged = iterate(step, stop, options.iterations, record=record)
    s = step.finished(sweep, done + wasted, converged)
    return s._replace(record=record or (), accurate=stop.accurate)


def exponents(problem: Problem, eps: float) -> Exponents:
    """τ of both steps; None for both if ε is not known as a number."""
    if math.isnan(eps):
        return None, None
    tau = [1.0 if side is None else side.penalty.tau(eps) for side in (problem.rows, problem.columns)]
    return tau[0], tau[1]


def _moderate(problem: Problem, tau: Exponents) -> bool:
    """Whether no mass is huge or tiny, and no scaling makes up for different totals of rows and columns; looks only
    where the target does not say so."""
    if problem.support.ordinary and problem.follows:
        return True
    sides = [side.mass for side in (problem.rows, problem.columns) if side]
    masses = torch.cat(sides or [problem.eps.view(1)])
    sums = [mass.sum() for mass in sides]
    low, high, *totals = torch.stack([*masses.aminmax(), *sums]).log().tolist()
    drift = 0.0
    if len(totals) == 2 and tau != (1.0, 1.0):  # log u = (λ/ε) log μ/(P1), and λ/ε = τ/(1 − τ)
        drift = abs(totals[0] - totals[1]) / sum(1 / t - 1 for t in tau if t is not None)
    return bool(low >= -MODERATE and high <= MODERATE and drift <= MODERATE)


# --- when to stop ---------------------------------------------------------------------------------------------


class Stop:
    """Whether to stop: the column sums change by less than `tol`, relative to ‖P − T‖₁ or the mass, and no column by
    much.

    `first` is the first iteration that is tested. If it is not 1, a test waits for the device, so that the next one is
    done when the observed rate lets convergence be expected; if it cannot be expected, there is none.
    """

    def __init__(
        self, step: LinearStep | LogStep, options: Options, tau: Exponents, *, patience: int, first: int = 1
    ) -> None:
        self.step, self.patience = step, patience
        self.tol, self.most, self.last = options.tol, _largest_change(options.tol, tau), options.iterations
        self.each, self.hard = first == 1, tau == (1.0, 1.0)
        self.check = min(first, self.last) if options.tol > 0 else 0
        self.error, self.accurate = math.inf, True
        self._lowest, self._stalled = math.inf, 0

    def __call__(self, done: int, sweep: Sweep, previous: Sweep | None) -> bool:
        if done != self.check:
            return False
        with torch.no_grad():
            return self._converged(done, sweep, previous)

    def _converged(self, done: int, sweep: Sweep, previous: Sweep | None) -> bool:
        error, mass, largest = self.step.change(sweep)
        before = error if self.each or previous is None else self.step.error(previous)
        p, target = self.step.on_pairs(sweep), self.step.target
        distance = mass if p is None or target is None else target.distance(p, mass)
        numbers = torch.stack([error, before, distance, mass, largest]).tolist()  # the one wait for the device
        self.error, before_value, distance_value, total, change = numbers
        enough = max(self.tol * distance_value, 4 * torch.finfo(mass.dtype).eps * total)
        rate = self.error / before_value if before_value > 0 else 0.0
        expected = max(self.error, enough * change / self.most)
        self.check = done + 1 if self.each else _next_check(done, expected, rate, enough, self.last)
        self._stalled = 0 if self.error < 0.5 * self._lowest else self._stalled + 1
        self._lowest = self.error if self._stalled == 0 else self._lowest
        if not self.error < math.inf:
            return False
        self.accurate = True
        if self.error <= enough and change <= self.most:
            return True
        if self.error > enough and self._stalled < self.patience:
            return False
        # an error of the size of rounding that no longer falls cannot be reduced
        rounding = self.step.rounding(sweep)
        self.accurate = not self.hard or self.error <= max(enough, 10 * self.tol * total)
        return self.error <= max(enough, total * rounding) and change <= max(self.most, 4 * rounding)


def _largest_change(tol: float, tau: Exponents) -> float:
    """By how much log v may still change in any column of a converged plan. A step shrinks distances by τ₁τ₂, so v is
    then within √tol of its fixed point. A sum over columns does not show this: small masses count little."""
    rate = 1.0 if tau[0] is None or tau[1] is None else tau[0] * tau[1]
    return float(tol**0.5 * (1 - rate if rate < 1 else 1))


def _next_check(done: int, error: float, rate: float, enough: float, last: int) -> int:
    """The iteration after which convergence can be expected; beyond the last if it cannot."""
    if not (0 < rate < 1 and error > enough > 0):
        return last  # no number, or no rate: test once more at the end
    steps = math.ceil(math.log(enough / error) / math.log(rate))
    return done + steps if done + steps <= last else last if done + steps <= last + 2 else last + 1


# --- the two kinds of steps -----------------------------------------------------------------------------------


class LogStep:
    """Steps in log space: v = eᵇ, u = eᵃ. With a `Reference` as operator, autograd can differentiate them."""

    def __init__(self, operator: Blocked | Reference, problem: Problem) -> None:
        self.operator, self.problem = operator, problem
        self.rows, self.columns, self.eps = problem.rows, problem.columns, problem.eps
        (n, m), zero = operator.shape, torch.zeros_like(problem.eps)
        self.start = zero.expand(m) if problem.start is None else problem.start
        self.free = zero.expand(n)
        pairs = problem.support if isinstance(problem.support, Pairs) and len(problem.support.weight) else None
        self.target = None if isinstance(operator, Reference) else pairs
        self.log_pairs: Tensor | None = None

    def __call__(self, b: Tensor) -> Sweep:
        log_kv, log_ktu, a = None, None, self.free
        if self.rows is not None and self.columns is not None:
            log_kv, a, log_ktu = self.operator.sweep(b, self._row_step)
        elif self.rows is not None:
            log_kv = self.operator.log_matvec(b)
            a = self._row_step(log_kv, slice(None))
        elif self.columns is not None:
            log_ktu = self.operator.log_rmatvec(a)
        after = b if self.columns is None or log_ktu is None else self.columns.scaling(log_ktu, self.eps)
        return Sweep(b, log_kv, a, log_ktu, after)

    def _row_step(self, log_sums: Tensor, which: slice) -> Tensor:
        assert self.rows is not None
        return self.rows.scaling(log_sums, self.eps, which)

    def error(self, sweep: Sweep) -> Tensor:
        """By how much the columns are off in sum."""
        return self.change(sweep)[0]

    def change(self, sweep: Sweep) -> tuple[Tensor, Tensor, Tensor]:
        """The same, the mass of the plan, and the largest change of log v."""
        assert sweep.back is not None
        sums, step = (sweep.before + sweep.back).exp(), sweep.after - sweep.before
        return (sums * torch.expm1(step).abs()).sum(), sums.sum(), step.abs().max()

    def on_pairs(self, sweep: Sweep) -> Tensor | None:
        """The plan on the target's pairs [k]; None if the target is not a list of pairs."""
        target = self.target
        if target is None:
            return None
        if self.log_pairs is None:
            self.log_pairs = self.problem.kernel.log_on_pairs(target)
        return (self.log_pairs + target.along_rows(sweep.scaling) + target.along_columns(sweep.before)).exp_()

    def rounding(self, sweep: Sweep) -> float:
        """How far rounding leaves the columns, relative to the mass."""
        size = float(sweep.scaling.abs().max() + sweep.before.abs().max()) + self.operator.shift()
        return torch.finfo(sweep.scaling.dtype).eps * min(4 + size, 1e4)

    def finished(self, sweep: Sweep, done: int, converged: bool) -> Scalings:
        """The scalings after the last column step."""
        a, b = sweep.scaling, sweep.after
        log_kv = self.operator.log_matvec(b) if sweep.sums is None or self.columns is not None else sweep.sums
        return Scalings(a, b, a + log_kv, None if sweep.back is None else b + sweep.back, done, converged)


def accelerated(step: LogStep, stop: Stop, tau: Exponents) -> Callable[[Sweep], Tensor]:
    """The next b of a log step, by `Mixing` the last ones."""
    rate = None if tau[0] is None or tau[1] is None else tau[0] * tau[1]
    mixing, pairs = Mixing(balanced=rate == 1), step.target

    def mix(sweep: Sweep) -> Tensor:
        p, slope = step.on_pairs(sweep), None
        if rate is not None and p is not None and pairs is not None:
            # Σ_i P_ij² / (μ_i ν_j) over the pairs: near 1 if a column has nearly all its mass in one entry
            overlap = pairs.sum_columns(p.square() / pairs.along_rows(pairs.mu))
            slope = rate * (overlap / torch.where(pairs.nu > 0, pairs.nu, 1))
        return mixing(sweep.before, sweep.after, stop.error, slope)

    return mix


class Mixing:
    """The next b from b and G(b), to reach the same fixed point b = G(b) in fewer iterations.

    Sinkhorn can be slow for two reasons. First, if a plan is near its target, a column has nearly all its mass in one
    entry, and G moves b_j by only a small part of its error. The derivative of G in b_j is about Σ_i P_ij² / (r_i s_j)
    there, so the step is divided by one minus that (Newton's method on the diagonal). Second, convergence can be slow
    in a few directions. There the last few points are mixed so that their steps cancel (Anderson acceleration). If the
    error grew, the stored points are dropped and the next b is G(b).
    """

    def __init__(self, *, balanced: bool) -> None:
        self.balanced = balanced  # b is then determined up to a constant, which must not drift
        self._points: list[Tensor] = []
        self._steps: list[Tensor] = []
        self._error = float("inf")
        self._calls = 0
        self._damped = False

    def __call__(self, b: Tensor, g: Tensor, error: float, slope: Tensor | None) -> Tensor:
        """The next b; `slope` is the diagonal of the derivative of G, if it is known."""
        rate, self._error = error / self._error if self._error else float("inf"), error
        self._calls += 1
        if not rate <= 2:  # worse than before, or NaN
            self._points.clear()
            self._steps.clear()
            return g
        step = g - b
        if slope is not None:
            # two columns that compete for the same mass would both move and overshoot: half a step is enough
            self._damped = self._damped or (rate > 0.7 and self._calls > 2)
            whole = 1 - slope / 2 if self._damped else 1
            longer = step * whole / (1 - slope).clamp(min=torch.finfo(b.dtype).eps ** 0.5)
            step = torch.where(
                step.abs() < 1, longer.clamp(-1, 1), step
            )  # far from the solution the derivative is not reliable
        if self.balanced:
            step = step - step.mean()
        self._points.append(b + step)
        self._steps.append(step)
        del self._points[:-MEMORY], self._steps[:-MEMORY]
        if rate < _SLOW or self._calls <= 1 or len(self._steps) < 2:
            return b + step
        steps = torch.stack(self._steps).double()
        gram = steps @ steps.T
        gram = gram / gram.diagonal().mean().clamp(min=torch.finfo(gram.dtype).tiny)
        gram.diagonal().add_(1e-10)
        weights = torch.linalg.solve_ex(gram, torch.ones_like(gram[0]))[0]  # solve_ex does not wait for the device
        mixed = (weights / weights.sum()).to(b.dtype) @ torch.stack(self._points)
        return torch.where(torch.isfinite(mixed).all(), mixed, g)


class LinearStep:
    """Steps by products with K̂ = diag(e^−r) K diag(e^−c): x = v e^c, z = u e^r."""

    def __init__(self, operator: Blocked, problem: Problem, tau: Exponents) -> None:
        self.operator, self.rows, self.columns = operator, problem.rows, problem.columns
        (n, m), (tau_1, tau_2) = operator.shape, tau
        assert tau_1 is not None
        assert tau_2 is not None
        self.tau_1, self.tau_2 = tau_1, tau_2
        self.r, self.c = operator.r, operator.c
        self.top_rows, self.top_columns = _top(self.rows, tau_1, self.r), _top(self.columns, tau_2, self.c)
        self.start = self.c.expand(m).exp()  # products need vectors without stride 0
        self.free = self.r.expand(n).exp() if self.rows is None else self.r
        self.target = problem.support if isinstance(problem.support, Pairs) else None
        self.inner = None if self.target is None else operator.source.on_pairs(self.target)

    def __call__(self, x: Tensor) -> Sweep:
        kx, z, w = None, self.free, None
        if (k := self.operator.whole) is not None:  # the views and lists that blocks need cost as much as a product
            if self.top_rows is not None:
                kx = torch.mv(k, x)
                z = _scaled(self.top_rows, kx, self.tau_1)
            if self.top_columns is not None:
                w = torch.mv(k.T, z)
        else:
            sums, scaled = list[Tensor](), list[Tensor]()
            for first, last, block in self.operator.blocks():
                if self.top_rows is not None:
                    sums.append(torch.mv(block, x))
                    scaled.append(_scaled(self.top_rows[first:last], sums[-1], self.tau_1))
                if self.top_columns is not None:
                    part = scaled[-1] if scaled else z[first:last]
                    w = torch.mv(block.T, part) if w is None else w.addmv_(block.T, part)
            if self.top_rows is not None:
                kx, z = self.operator.joined(sums), self.operator.joined(scaled)
            w = None if self.top_columns is None else self.operator.over_ranks(w)
        after = x if self.top_columns is None or w is None else _scaled(self.top_columns, w, self.tau_2)
        return Sweep(x, kx, z, w, after)

    def error(self, sweep: Sweep) -> Tensor:
        assert sweep.back is not None
        return torch.dot(sweep.back, (sweep.after - sweep.before).abs_())

    def change(self, sweep: Sweep) -> tuple[Tensor, Tensor, Tensor]:
        assert sweep.back is not None
        step = (sweep.after - sweep.before).abs_()
        error, mass = torch.dot(sweep.back, step), torch.dot(sweep.back, sweep.before)
        return error, mass, step.div_(sweep.before).max()

    def on_pairs(self, sweep: Sweep) -> Tensor | None:
        if self.target is None:
            return None
        z = self.operator.summed(sweep.scaling)[0]
        return self._log_on_pairs(z.log(), sweep.before.log()).exp_()

    def _log_on_pairs(self, log_z: Tensor, log_x: Tensor) -> Tensor:
        assert self.target is not None
        assert self.inner is not None
        base = self.target.along_rows(log_z) + self.target.along_columns(log_x)
        return torch.add(base, self.inner, alpha=self.operator.source.scale)

    def rounding(self, sweep: Sweep) -> float:
        return 4 * torch.finfo(sweep.scaling.dtype).eps

    def finished(self, sweep: Sweep, done: int, converged: bool) -> Scalings:
        """The scalings after the last column step."""
        x, kx, z, w = sweep.after, sweep.sums, sweep.scaling, sweep.back
        if kx is None or w is not None:  # the column step has changed x
            kx = self.operator.matvec(x)
        kx, *rest = self.operator.summed(kx, *([] if self.rows is None else [z]))
        z = rest[0] if rest else z
        log_x, log_z = x.log(), z.log()
        a = torch.zeros_like(z) if self.rows is None else log_z - self.r
        b = torch.zeros_like(x) if self.columns is None else log_x - self.c
        log_columns = None if w is None else (x * w).log_()
        on_pairs = None if self.target is None else self._log_on_pairs(log_z, log_x)
        return Scalings(a, b, (z * kx).log_(), log_columns, done, converged, (), True, x, kx, on_pairs)


def _top(side: Marginal | None, tau: float, offset: Tensor) -> Tensor | None:
    """μ^τ e^{(1 − τ) r}: with it a step in the frame of K̂ is top / (K̂ x)^τ."""
    if side is None:
        return None
    return side.mass if tau == 1 else side.mass.pow(tau) * ((1 - tau) * offset).exp()


def _scaled(top: Tensor, sums: Tensor, tau: float) -> Tensor:
    return top / sums if tau == 1 else sums.pow(-tau).mul_(top)


# --- where to start: column potentials, stored for each sample id after a solve ---------------------------------


class Memory:
    """log v by sample id. A sample that was not seen before has no stored value.

    It is not part of a `state_dict`: a plan solved to `tol` does not depend on the start of the iterations.
    """

    def __init__(self) -> None:
        self._tables: dict[tuple[bool, int], Tensor] = {}
        self._exchanged = False

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Use the potentials of the second direction of a `Symmetric` criterion."""
        self._exchanged = True
        try:
            yield
        finally:
            self._exchanged = False

    def recall(self, sides: Sides, like: Tensor) -> Tensor | None:  # [m]
        """The stored log v of the columns; None if there is none. Unknown columns get the mean of the others."""
        b = torch.cat([self._known(view, ids, like) for view, ids in enumerate(_column_ids(sides))])
        known = torch.isfinite(b)
        if not bool(known.any()):
            return None
        return torch.where(known, b, b[known].mean())

    def _known(self, view: int, ids: Tensor, like: Tensor) -> Tensor:
        table = self._tables.get((self._exchanged, view))
        if table is None:
            return like.new_full((len(ids),), torch.nan)
        table = table.to(like)
        inside = ids < len(table)
        return torch.where(inside, table[torch.where(inside, ids, 0)], torch.nan)

    def keep(self, sides: Sides, b: Tensor) -> None:  # [m]
        """Store log v minus its mean, because its mean depends on the batch and not on the samples."""
        b = b.detach() - b.detach().mean()
        columns = _column_ids(sides)
        for view, (ids, part) in enumerate(zip(columns, b.split([len(x) for x in columns]), strict=True)):
            least, most = (int(x) for x in ids.aminmax())
            if least < 0 or most >= _MOST_IDS:
                raise ValueError(
                    f"warm_start=True stores a number for each id, and ids range from {least} to {most}; they must lie "
                    f"in 0 … {_MOST_IDS - 1}: number the samples"
                )
            table = self._tables.get((self._exchanged, view), b[:0]).to(b)
            if len(table) <= most:
                grown = b.new_full((max(most + 1, 2 * len(table)),), torch.nan)
                grown[: len(table)] = table
                table = grown
            table[ids] = part
            self._tables[self._exchanged, view] = table


def _column_ids(sides: Sides) -> list[Tensor]:
    """The ids of the columns, as one tensor for each view."""
    ids = sides.columns.ids
    if ids is None:
        raise ValueError("warm_start=True needs the id of each sample, and there are none; pass ids=")
    return list(ids.chunk(2)) if sides.joint else [ids]
