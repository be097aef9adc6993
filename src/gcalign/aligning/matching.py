"""Pairs that nobody made: items of both pools that a transport plan gives to each other.

A closed form is fitted to the pairs; the plan between the unpaired items of both sides, embedded by it, matches those
that are each other's best; it is fitted again to the pairs and the matches, and so on. The plan asks for a partner of
every item, so that an item that is near to everything is not the match of many.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gcalign.aligning.closed import Maps, closed_form
from gcalign.functional import solve

EPS = 0.03  # of the plan
ITERATIONS, TOL = 20, 1e-2


@dataclass(frozen=True)
class Matches:
    """Rows of both sides that belong together, and how much of a row's mass the plan gives to its match."""

    i: Tensor  # [k]
    j: Tensor  # [k]
    mass: Tensor  # [k]

    @staticmethod
    @torch.no_grad()
    def of(za: Tensor, zb: Tensor) -> Matches:
        """Those that are each other's best in the plan between unit rows."""
        log_k = (za / EPS) @ zb.T
        plan = solve(log_k, iterations=ITERATIONS, tol=TOL)
        log_p = log_k.add_(plan.log_u[:, None]).add_(plan.log_v)  # in place: the pools may have 8,000 items each
        mass, j = log_p.max(1)
        i = (mass >= log_p.amax(0)[j]).nonzero().flatten()
        return Matches(i, j[i], mass[i].exp())


def matched_form(
    name: str,
    pairs: tuple[Tensor, Tensor, Tensor],
    pools: tuple[Tensor, Tensor],
    weight: float,
    rounds: int,
    ridge: float,
    dim: int,
) -> Maps:
    """A closed form of the pairs and of matches between the pools.

    Args:
        name: of the closed form.
        pairs: centred rows of both sides, and the weight of each pair.
        pools: centred rows of both sides.
        weight: of all matches together, where that of all pairs is 1.
        rounds: how often items are matched.
        ridge, dim: as for `closed_form`.
    """
    x, y, w = pairs
    p, q = pools
    maps = closed_form(name, x, y, w, ridge, dim)
    for _ in range(rounds if len(p) and len(q) else 0):
        found = Matches.of(normalize(p @ maps[0], dim=1), normalize(q @ maps[1], dim=1))
        if not len(found.i):
            break
        mass = weight * w.sum() * found.mass / found.mass.sum()
        rows = torch.cat((x, p[found.i])), torch.cat((y, q[found.j])), torch.cat((w, mass))
        maps = closed_form(name, *rows, ridge, dim)
    return maps
