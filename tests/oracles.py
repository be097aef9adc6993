"""Every method again, in plain Python loops on floats: no tensors, no shared code, no cleverness."""

from __future__ import annotations

import math

Matrix = list[list[float]]


def cosine_cost(x: Matrix, y: Matrix) -> Matrix:
    def unit(row: list[float]) -> list[float]:
        norm = math.sqrt(sum(c * c for c in row))
        return [c / norm for c in row]

    ux, uy = [unit(r) for r in x], [unit(r) for r in y]
    return [[1 - sum(a * b for a, b in zip(p, q, strict=True)) for q in uy] for p in ux]


def kernel(x: Matrix, y: Matrix, eps: float, *, joint: bool) -> Matrix:
    cost = cosine_cost(x, y)
    k = [[math.exp(-c / eps) for c in row] for row in cost]
    if joint:
        for i in range(len(k)):
            k[i][i] = 0.0
    return k


def sinkhorn(k: Matrix, mu: list[float], nu: list[float], tau1: float, tau2: float, iterations: int) -> tuple:
    """u and v after `iterations`; tau 0 leaves a side free, 1 makes it hard."""
    n, m = len(k), len(k[0])
    u, v = [1.0] * n, [1.0] * m
    for _ in range(iterations):
        u = [(mu[i] / sum(k[i][j] * v[j] for j in range(m))) ** tau1 for i in range(n)]
        v = [(nu[j] / sum(k[i][j] * u[i] for i in range(n))) ** tau2 for j in range(m)]
    return u, v


def scaled(k: Matrix, u: list[float], v: list[float]) -> Matrix:
    return [[u[i] * k[i][j] * v[j] for j in range(len(v))] for i in range(len(u))]


def kl(t: Matrix, p: Matrix, *, mass: bool = True, entropy: bool = True) -> float:
    total = 0.0
    for row_t, row_p in zip(t, p, strict=True):
        for a, b in zip(row_t, row_p, strict=True):
            if a > 0:
                total += (a * math.log(a) if entropy else 0) - a * math.log(b)
            if mass:
                total += b - a
    return total / len(t)


def kl_vectors(a: list[float], b: list[float]) -> float:
    return sum(x * math.log(x / y) - x + y for x, y in zip(a, b, strict=True))


def robust(t: Matrix, k: Matrix, v: list[float], q: float, lam: float) -> float:
    gauge = math.exp(sum(math.log(x) for x in v) / len(v))
    n, m = len(k), len(v)
    total = 0.0
    for i in range(n):
        row = [k[i][j] * v[j] / gauge for j in range(m)]
        total += (lam * sum(row)) ** q - sum(t[i][j] * row[j] ** q for j in range(m))
    return total / (q * n)


def uniformity(t: Matrix, p: Matrix, *, joint: bool) -> float:
    off = [(i, j) for i in range(len(p)) for j in range(len(p[0])) if t[i][j] == 0 and not (joint and i == j)]
    mean = sum(p[i][j] for i, j in off) / len(off)
    return sum(mean * math.log(mean / p[i][j]) - mean + p[i][j] for i, j in off) / len(p)


def sums(p: Matrix) -> tuple[list[float], list[float]]:
    return [sum(r) for r in p], [sum(r[j] for r in p) for j in range(len(p[0]))]


def loss(
    name: str,
    z1: Matrix,
    z2: Matrix,
    *,
    layout: str,
    eps: float = 0.1,
    iterations: int = 10,
    q: float = 0.6,
    lam: float = 0.01,
    relax: tuple[float, float] = (0.2, 0.2),
    w_robust: float = 0.02,
    weight: float = 0.2,
    target: Matrix | None = None,
    labels: list[int] | None = None,
) -> float:
    """The method `name` with the library's defaults, except that iterations never stop early."""
    joint = layout == "joint"
    x, y = (z1 + z2, z1 + z2) if joint else (z1, z2)
    n, m = len(x), len(y)
    b = len(z1)
    if target is None:
        target = [[1.0 if (j == (i + b) % n if joint else i == j) else 0.0 for j in range(m)] for i in range(n)]
    if name == "byol":
        cost = cosine_cost(x, y)
        return sum(target[i][j] * 2 * cost[i][j] for i in range(n) for j in range(m)) / n
    if name == "supcon":
        rows, columns = (labels * 2, labels * 2) if joint else (labels, labels)
        target = [[float(rows[i] == columns[j] and not (joint and i == j)) for j in range(m)] for i in range(n)]
        target = [[a / sum(row) for a in row] for row in target]
    k = kernel(x, y, eps, joint=joint)
    if name == "siglip":  # log K = cos/ε − 10
        logits = [[(1 - c) / eps - 10.0 for c in row] for row in cosine_cost(x, y)]
        return (
            sum(
                math.log1p(math.exp(logits[i][j])) - target[i][j] * logits[i][j]
                for i in range(n)
                for j in range(m)
                if not (joint and i == j)
            )
            / n
        )
    mu, nu = sums(target)
    one_sided = name in ("ince", "rince", "simclr", "supcon", "clip")
    tau1, tau2 = 1.0, 0.0 if one_sided else 1.0
    if name in ("gca-uot", "gca-uot-published"):
        tau1, tau2 = relax[0] / (relax[0] + eps), relax[1] / (relax[1] + eps)
    u, v = sinkhorn(k, mu, nu, tau1, tau2, 1 if one_sided else iterations)
    p = scaled(k, u, v)
    if name in ("rince", "gca-rince"):
        return robust(target, k, v, q, lam)
    if name == "clip":
        back = kernel(y, x, eps, joint=joint)
        turned = [list(column) for column in zip(*target, strict=True)]
        u2, v2 = sinkhorn(back, nu, mu, 1.0, 0.0, 1)
        return 0.5 * (kl(target, p) + kl(turned, scaled(back, u2, v2)))
    if name == "gca-uot-published":  # cross-entropy of log P
        value = -sum(
            target[i][j] * math.log(p[i][j] / sum(p[i])) for i in range(n) for j in range(m) if target[i][j] > 0
        )
        value += sum(t * math.log(t / s) for row, s in zip(target, mu, strict=True) for t in row if t > 0)
        return value / n + w_robust * robust(target, k, v, q, lam)
    value = kl(target, p, entropy=name != "supcon")
    if name == "iot-uni":
        value += weight * uniformity(target, p, joint=joint)
    if name == "gca-uot":
        r, c = sums(p)
        value += (relax[0] / eps * kl_vectors(mu, r) + relax[1] / eps * kl_vectors(nu, c)) / n
        value += w_robust * robust(target, k, v, q, lam)
    return value
