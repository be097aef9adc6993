"""One plan over K views at once (multi-marginal): P[i, j, …, l] with a marginal for each view.

The cost of a tuple is the sum over its pairs, divided by K − 1, so that K = 2 is the plan of two views. A tree of pairs
would cost n² for any K, but with hard marginals its plan is the product of pairwise plans and says nothing new; so
all pairs are in. A product over pairs need not be held as a tensor of n^K entries: the sums over the last view are
matrix products. Memory is n^(K−1) and an iteration costs n^K: for K = 3 no more than matrices and their products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from gcalign.batch import check_embeddings
from gcalign.constraints import Columns, Constraint, Marginal, Penalty, Rows, TotalMass, missing_mass
from gcalign.divergences import Divergence
from gcalign.kernels import Kernel
from gcalign.plan import Plan
from gcalign.transport.operators.sources import Given
from gcalign.transport.problem import Options
from gcalign.transport.support import Pairs

ENTRIES = 1 << 22  # of the largest tensor: n ≤ 2048 for K = 3, 161 for K = 4, 45 for K = 5


@dataclass(frozen=True)
class Diagonal(Pairs):
    """T of K views: sample i is the tuple (i, …, i). Its columns are those of all views but the first."""

    views: int = 2

    @property
    def nu(self) -> Tensor:
        return self.weight.repeat(self.views - 1)


def joint_plan(
    views: Sequence[Tensor], kernel: Kernel, constraints: Sequence[Constraint], divergence: Divergence, options: Options
) -> Plan:
    """The multi-marginal plan of K views [n, D], as a divergence reads it, in float64.

    `Rows` is the marginal of the first view, `Columns` those of all others. Autograd follows the iterations.
    """
    total = next((c for c in constraints if isinstance(c, TotalMass)), None)
    for constraint in constraints:
        if not isinstance(constraint, (Rows, Columns, TotalMass)):
            raise ValueError(
                f"multi='joint' has no place for {constraint!r}, only for Rows, Columns and TotalMass; use 'pairwise'"
            )
    first, others = (next((c.h for c in constraints if isinstance(c, kind)), None) for kind in (Rows, Columns))
    _check(views, divergence)
    n, k = len(views[0]), len(views)
    x = [kernel.features(view.double()) for view in views]
    log_k = {(a, b): kernel(x[a], x[b]) / (k - 1) for a, b in combinations(range(k), 2)}
    eps = torch.as_tensor(kernel.eps, dtype=x[0].dtype, device=x[0].device)
    f, log_sums, done, converged = _solve(Tensors(log_k, n, k), [first, *[others] * (k - 1)], eps, options)
    on_target = sum((entry.diagonal() for entry in log_k.values()), torch.zeros_like(f[0])) + sum(f)
    ones = torch.ones_like(f[0])
    index = torch.arange(n, device=ones.device)
    target = Diagonal(index, index, ones, (n, n), complete=True, ordinary=True, shift=0, unit=True, views=k)
    columns = torch.cat(log_sums[1:])
    masses = ones, torch.ones_like(columns)
    rows, rest = (None if h is None else Marginal(x, h) for h, x in zip((first, others), masses, strict=True))
    log_v = sum(f[1:], torch.zeros_like(f[0]))  # its mean is the gauge that `Robust` fixes
    terms, k_01 = ones.new_zeros(n, 0), Given(log_k[0, 1])
    plan = Plan(
        k_01, f[0], log_v, eps, *masses, done, converged, target, rows, rest, log_sums[0], columns, on_target, terms
    )
    if total is None:
        return plan
    return plan.times(missing_mass(total.target_mass(target, (n, n), ones), plan.log_rows, total.at_least))


class Tensors:
    """Sums of Π_{a<b} K_ab[i_a, i_b] · Π_a u_a[i_a] over all views but one."""

    def __init__(self, log_k: dict[tuple[int, int], Tensor], n: int, k: int) -> None:
        self.n, self.k = n, k
        pairs = {ab: entry.exp() for ab, entry in log_k.items()}
        some = pairs[0, 1]
        core = some.new_ones((1,) * (k - 1))
        for a, b in combinations(range(k - 1), 2):
            core = core * pairs[a, b].view([n if c in (a, b) else 1 for c in range(k - 1)])
        self.core = core.expand((n,) * (k - 1)).reshape(-1, n)  # [n^(K−2), n], over all views but the last
        to_last = some.new_ones(1, n)
        for a in range(k - 2):  # each first index with the last: [n^(K−2), n]
            to_last = (to_last[:, None, :] * pairs[a, k - 1][None, :, :]).reshape(-1, n)
        self.to_last, self.before = to_last, pairs[k - 2, k - 1]

    def without_last(self, u_last: Tensor) -> Tensor:  # [n, …, n], K − 1 times
        """The tensor over all views but the last, which is summed."""
        whole = self.core * ((self.to_last * u_last) @ self.before.T)
        return whole.view((self.n,) * (self.k - 1))

    def along(self, tensor: Tensor, u: Sequence[Tensor], view: int) -> Tensor:  # [n]
        """Its sums over all views but one, with the scalings of the others."""
        for a in reversed(range(self.k - 1)):
            if a != view:
                tensor = torch.tensordot(tensor, u[a], ([a], [0]))
        return tensor

    def last(self, u: Sequence[Tensor]) -> Tensor:  # [n]
        """The sums over all views but the last."""
        scaled = self.core.view((self.n,) * (self.k - 1))
        for a in range(self.k - 1):
            scaled = scaled * u[a].view([self.n if c == a else 1 for c in range(self.k - 1)])
        return ((scaled.reshape(-1, self.n) @ self.before) * self.to_last).sum(0)


def _solve(
    tensors: Tensors, penalties: Sequence[Penalty | None], eps: Tensor, options: Options
) -> tuple[list[Tensor], list[Tensor], int, bool]:
    """log u of each view, the logarithm of each marginal, the number of iterations, and whether they converged."""
    k = tensors.k
    f = [tensors.before.new_zeros(tensors.n) for _ in range(k)]
    constrained = [a for a in range(k) if penalties[a] is not None]
    done, converged = 0, len(constrained) < 2
    for done in range(1, (options.iterations if len(constrained) > 1 else len(constrained)) + 1):  # noqa: B007  # read after the loop
        before, u = [x.detach() for x in f], [x.exp() for x in f]
        whole = tensors.without_last(u[-1]) if constrained != [k - 1] else None
        for a in constrained:
            h = penalties[a]
            assert h is not None
            total = tensors.last(u) if a == k - 1 or whole is None else tensors.along(whole, u, a)
            f[a] = h.step(-total.log(), eps)
            u[a] = f[a].exp()
        if options.tol:
            converged = converged or all(
                float((x.detach() - y).abs().max()) < options.tol for x, y in zip(f, before, strict=True)
            )
            if converged:
                break
    u = [x.exp() for x in f]
    whole = tensors.without_last(u[-1])
    sums = [tensors.along(whole, u, a) for a in range(k - 1)] + [tensors.last(u)]
    return f, [s.log() + x for s, x in zip(sums, f, strict=True)], done, converged


def _check(views: Sequence[Tensor], divergence: Divergence) -> None:
    first = views[0]
    for view in views[1:]:
        check_embeddings(first, view, alone=True)
        if len(view) != len(first):
            raise ValueError(
                f"views have {len(first)} and {len(view)} rows; with multi='joint' row i of all views is one sample: "
                "use multi='pairwise' with ids="
            )
    if divergence.statistics:
        raise ValueError(f"multi='joint' cannot evaluate {divergence!r}, which reads whole rows; use multi='pairwise'")
    entries = len(first) ** (len(views) - 1)
    if entries > ENTRIES:
        most = int(ENTRIES ** (1 / (len(views) - 1)))
        raise ValueError(
            f"{len(views)} views of {len(first)} rows need tensors of {entries:,} entries, and at most {ENTRIES:,} are "
            f"allowed; take batches of at most {most}, or multi='pairwise'"
        )
