"""The losses of the paper's published code, as far as their matrix products go: what its FLOPs are counts of."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

EPS, ITERATIONS, RELAXED = 0.5, 10, 0.2


def _cost(z: Tensor) -> Tensor:  # [n, d] -> [n, n]
    z = normalize(z, dim=1)
    return 1 - (z @ z.T).clamp(min=1e-7)


def _partners(n: int) -> Tensor:
    """Views of one sample stand beside each other."""
    return torch.arange(n) + 1 - 2 * (torch.arange(n) % 2)


def nt_xent(z: Tensor) -> Tensor:
    """InfoNCE of all embeddings, written plainly."""
    return cross_entropy(-_cost(z) / EPS - 1e5 * torch.eye(len(z)), _partners(len(z)))


def ince(z: Tensor) -> Tensor:
    """The same, as one row scaling."""
    k, ones = (-_cost(z) / EPS).exp(), torch.ones(len(z))
    return _dense(1 / (k @ ones), k, ones)


def gca_ince(z: Tensor) -> Tensor:
    k, v = (-_cost(z) / EPS).exp(), torch.ones(len(z))
    u = v
    for _ in range(ITERATIONS):
        u = 1 / (k @ v)
        v = 1 / (k.T @ u)
    return _dense(u, k, v)


def _dense(u: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two products of n × n matrices for what is n² multiplications."""
    return cross_entropy((torch.diag(u) @ k @ torch.diag(v)).log(), _partners(len(k)))


def gca_uot(z: Tensor, checked: bool = False) -> Tensor:
    """Scaled without dense matrices; the cost is computed twice. `checked`: with a product to look for zeros."""
    k, cost, tau = (-_cost(z) / EPS).exp(), _cost(z), RELAXED / (RELAXED + EPS)
    a = torch.full((len(z),), 1 / len(z))
    u, v = a, a
    for _ in range(ITERATIONS):
        u = (a / (k @ v)) ** tau
        v = (a / (k.T @ u)) ** tau
        if checked:
            assert not (k.T @ u == 0).any()
    return cross_entropy(u.log()[:, None] + v.log() - cost / EPS, _partners(len(z)))


LOSSES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "INCE": ince,
    "GCA-INCE": gca_ince,
    "GCA-UOT": gca_uot,
    "checked": lambda z: gca_uot(z, checked=True),
    "NT-Xent": nt_xent,
}
