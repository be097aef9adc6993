"""A case as a call of the library, and as the same problem for `dense`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import gcalign
from fuzz import cases
from fuzz.cases import Case
from gcalign import KL, Alignment, Blocks, Columns, Hierarchy, Labels, Objective, Robust, Rows, SquaredL2, Uniformity
from oracles import Dense, Side, Terms, cosine, directions, squared_distance

ALPHA, BETA, LEVELS = 0.3, 0.1, (0.1, 0.5)

# --- the library ----------------------------------------------------------------------------------------------


def dot_product(x: Tensor, y: Tensor) -> Tensor:
    """A kernel that is any callable."""
    return 0.5 * x @ y.T


def criterion(case: Case) -> Objective:
    """The criterion of a case."""
    options = dict(case.options)
    if case.family == "method":
        target = _target(case)
        return gcalign.method(case.name, **options, **({} if target is None else {"target": target}))
    eps = options.pop("eps")
    kernels: dict[str, Callable[[], Any]] = {
        "cosine": lambda: gcalign.Cosine(eps),
        "learnt": lambda: gcalign.Cosine(eps, learnable=True),
        "squared": lambda: gcalign.SquaredEuclidean(eps),
        "distances": lambda: gcalign.SquaredEuclidean(eps, normalized=False),
        "callable": lambda: gcalign.LogKernel(dot_product, eps),
    }
    geometry = gcalign.Euclidean(eps) if case.sets == "euclidean" else None
    target = _target(case)
    return Alignment(
        kernels[case.kernel](), constraints(case), divergence(case), **({} if target is None else {"target": target}),
        geometry=geometry, **options,
    )  # fmt: skip


def _target(case: Case) -> Any:
    if case.target in ("labels", "unnormalized labels"):
        return Labels(normalized=case.target == "labels")
    if case.target == "blocks":
        return Blocks(ALPHA, BETA)
    if case.target == "hierarchy":
        return Hierarchy(LEVELS)
    return None


def call_options(case: Case) -> dict[str, Any]:
    """What the criterion is called with beside the embeddings."""
    given = cases.known(case)
    if case.target in ("dense", "spread"):
        given["target"] = cases.matrix(case)
    elif case.target == "sparse":
        given["target"] = cases.matrix(case).to_sparse()
    return given


def masses(case: Case, side: int) -> float | Tensor | None:
    """An explicit mass of the rows (0) or the columns (1); both sides get one total."""
    constraint = (case.rows, case.columns)[side]
    if constraint is None or constraint[2] == "target":
        return None
    length = _shape(case)[side]
    if constraint[2] == "number":
        return 3.0 / length
    draw = 0.2 + torch.rand(length, generator=case.generator(6 + side), dtype=torch.float64)
    return (3 * draw / draw.sum()).to(torch.float32).double()


def _shape(case: Case) -> tuple[int, int]:
    joint = case.joint and case.family != "solve"
    return (case.n + case.m, case.n + case.m) if joint else (case.n, case.m)


def constraints(case: Case) -> tuple[gcalign.Constraint, ...]:
    made: list[gcalign.Constraint] = []
    for k, (side, kind) in enumerate(((case.rows, Rows), (case.columns, Columns))):
        if side is not None:
            penalty = gcalign.TotalVariation(side[1]) if side[0] == "variation" else side[1]
            made.append(kind(penalty, mass=masses(case, k)))
    n = _shape(case)[0]
    if case.sets == "capacity":
        made.append(gcalign.Capacity(1e3))
    elif case.sets == "block sums":
        groups = torch.arange(n) % min(2, n)
        made = [made[0], gcalign.BlockSums(groups, groups, torch.full((min(2, n),) * 2, n / min(2, n) ** 2))]
    elif case.sets in ("non-negative", "euclidean"):
        made.append(gcalign.NonNegative())
    return tuple(made)


def divergence(case: Case) -> gcalign.Divergence:
    t = Terms(**case.terms)
    parts: list[gcalign.Divergence] = []
    if t.kl:
        parts.append(t.kl * KL(t.mass, t.penalties, t.entropy, t.normalized))
    if t.robust:
        parts.append(t.robust * Robust(t.q, t.lam))
    if t.squared:
        parts.append(t.squared * SquaredL2())
    if t.uniformity:
        parts.append(t.uniformity * Uniformity())
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


# --- the same, dense ------------------------------------------------------------------------------------------


def dense(case: Case, z1: Tensor, z2: Tensor, eps: Tensor, *, back: bool = False) -> Dense:
    """The problem of a case, in float64; `back` is the other direction of CLIP."""
    t = dense_target(case)
    if back:
        t = t.T
        z1, z2 = (z1, z2) if case.joint else (z2, z1)
    x, y = (torch.cat([z1, z2]),) * 2 if case.joint else (z1, z2)
    if case.kernel not in ("distances", "callable"):
        x, y = directions(x, shortest(case)), directions(y, shortest(case))
    if case.kernel in ("squared", "distances") or case.name == "byol":
        log_k = squared_distance(x, y, eps)
    elif case.kernel == "callable":
        log_k = dot_product(x, y)
    else:
        log_k = cosine(x, y, eps)
    if case.joint:
        log_k = log_k.masked_fill(torch.eye(len(x), dtype=torch.bool), -math.inf)
    rows, columns, terms = described(case)
    inner = 4.0 if case.kernel != "distances" else 4 * max(float(z.detach().square().sum(1).max()) for z in (x, y))
    return Dense(log_k, t, marginal(case, rows, t, 0), marginal(case, columns, t, 1), eps, terms, case.joint, inner)


def shortest(case: Case) -> float:
    """Rows that are shorter count as rows of zeros: their gradient would leave the dtype."""
    info = torch.finfo(torch.float64 if case.dtype == "float64" else torch.float32)
    return info.tiny / info.eps


def dense_solve(case: Case, log_k: Tensor) -> Dense:
    """The problem of a call of `gcalign.solve`; without a target, rows sum to 1 and columns to one value."""
    n, m = log_k.shape
    t = cases.matrix(case) if case.target else torch.full((n, m), 1 / m, dtype=torch.float64)
    eps = torch.tensor(case.eps, dtype=torch.float64)
    return Dense(log_k, t, marginal(case, case.rows, t, 0), marginal(case, case.columns, t, 1), eps, Terms(), False)


def marginal(case: Case, side: tuple[str, float, str] | None, t: Tensor, k: int) -> Side | None:
    """The rows (0) or the columns (1) of a problem; None if they are free."""
    if side is None:
        return None
    mass, own = masses(case, k), t.sum(1 - k)
    if mass is not None:
        own = torch.full_like(own, mass) if isinstance(mass, float) else mass
    return Side(own, "hard" if math.isinf(side[1]) else side[0], side[1])


def described(case: Case) -> tuple[tuple[str, float, str] | None, tuple[str, float, str] | None, Terms]:
    """Rows, columns and divergence of a named method: Table 1 of the paper, written down once more."""
    if case.family != "method":
        return case.rows, case.columns, Terms(**case.terms)
    hard, o = ("hard", math.inf, "target"), case.options
    robust = {"q": o.get("q", 0.6), "lam": o.get("lam", 0.01), "score": o.get("scale") == "score"}
    if case.name in ("ince", "simclr", "clip"):
        return hard, None, Terms(kl=1)
    if case.name in ("gca-ince", "iot"):
        return hard, hard, Terms(kl=1)
    if case.name == "iot-uni":
        return hard, hard, Terms(kl=1, uniformity=o.get("weight", 0.2))
    if case.name in ("rince", "gca-rince"):
        return hard, None if case.name == "rince" else hard, Terms(robust=1, **robust)
    if case.name == "supcon":
        return hard, None, Terms(kl=1, entropy=False)
    if case.name == "byol":
        return None, None, Terms(kl=1, mass=False)
    assert case.name in ("gca-uot-paper", "gca-uot-published") or "relax" in o  # else `gca-uot` bounds the mass
    relax = o.get("relax", (0.2, 0.2))
    sides = [("relaxed", lam, "target") for lam in relax]
    normalized = case.name == "gca-uot-published"
    return sides[0], sides[1], Terms(kl=1, robust=o.get("w_robust", 0.02), normalized=normalized, **robust)


def dense_target(case: Case) -> Tensor:
    """T, entry by entry."""
    given = cases.known(case)
    first, second = case.n, case.m

    def whole(pair: tuple[Tensor, Tensor]) -> tuple[list[Any], list[Any]]:
        left, right = pair[0].tolist(), pair[1].tolist()
        return (left + right, left + right) if case.joint else (left, right)

    ids = whole(given.get("ids", (torch.arange(first), torch.arange(second))))
    n, m = len(ids[0]), len(ids[1])
    if case.target in ("dense", "sparse", "spread"):
        t = cases.matrix(case).tolist()
    else:
        labels = whole(given["labels"]) if "labels" in given else ids
        domains = whole(given["domains"]) if "domains" in given else ids
        t = [[0.0] * m for _ in range(n)]
        for i in range(n):
            for j in range(m):
                if not (case.joint and i == j):
                    same = ids[0][i] == ids[1][j]
                    t[i][j] = _entry(case, same, (labels[0][i], labels[1][j]), (domains[0][i], domains[1][j]))
        if case.target == "labels":
            t = [[value / sum(row) for value in row] for row in t]
    if "weights" in given:
        w, other = ([math.sqrt(_rounded(case, x)) for x in side] for side in whole(given["weights"]))
        t = [[t[i][j] * w[i] * other[j] for j in range(m)] for i in range(n)]
    return torch.tensor(t, dtype=torch.float64)


def _rounded(case: Case, weight: float) -> float:
    """A weight as the library reads it: in the dtype of the embeddings, single precision for half ones."""
    dtype = torch.float64 if case.dtype == "float64" else torch.float32
    return float(torch.tensor(weight, dtype=torch.float64).to(dtype))


def _entry(case: Case, same: bool, labels: tuple[Any, Any], domains: tuple[Any, Any]) -> float:
    if "labels" in case.target:
        return float(labels[0] == labels[1])
    if same:
        return 1.0
    if case.target == "blocks":
        return ALPHA if domains[0] == domains[1] else BETA
    if case.target == "hierarchy":
        coarse, fine = labels[0][0] == labels[1][0], labels[0] == labels[1]
        return LEVELS[1] if fine else LEVELS[0] if coarse else 0.0
    return 0.0
