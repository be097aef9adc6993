"""Stateless twins of the methods: `functional.gca_uot(z1, z2, eps=0.5)` is `method("gca-uot", eps=0.5)(z1, z2)`.

Every function takes the method's options and, by name, what a criterion takes: ids, labels, domains, weights and a
target, which may be a matrix or a `Target`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gcalign.constraints import Columns, Constraint, Rows
from gcalign.errors import positive
from gcalign.geometry import Entropic, Geometry
from gcalign.methods import method
from gcalign.plan import Plan
from gcalign.transport import op
from gcalign.transport.operators.sources import Given
from gcalign.transport.problem import Form, Options, Problem, as_constraints, name_of
from gcalign.transport.support import Full

_PER_CALL = ("ids", "labels", "domains", "weights", "target")


def _call(name: str, z1: Tensor, z2: Tensor, options: dict[str, Any]) -> Tensor:
    given = {key: options.pop(key) for key in _PER_CALL if key in options}
    loss: Tensor = method(name, **options)(z1, z2, **given)
    return loss


def info_nce(z1: Tensor, z2: Tensor, **options: Any) -> Tensor:
    """InfoNCE (eq:INCE)."""
    return _call("ince", z1, z2, options)


def gca_ince(z1: Tensor, z2: Tensor, **options: Any) -> Tensor:
    """InfoNCE on both marginals."""
    return _call("gca-ince", z1, z2, options)


def rince(z1: Tensor, z2: Tensor, **options: Any) -> Tensor:
    """Robust InfoNCE (eq:RINCE)."""
    return _call("rince", z1, z2, options)


def gca_rince(z1: Tensor, z2: Tensor, **options: Any) -> Tensor:
    """Robust InfoNCE on both marginals (eq:gcarince)."""
    return _call("gca-rince", z1, z2, options)


def simclr(z1: Tensor, z2: Tensor, **options: Any) -> Tensor:
    """SimCLR's NT-Xent."""
    return _call("simclr", z1, z2, options)


def byol(z1: Tensor, z2: Tensor, **options: Any) -> Tensor:
    """BYOL's loss between a prediction and a projection."""
    return _call("byol", z1, z2, options)


def iot(z1: Tensor, z2: Tensor, **options: Any) -> Tensor:
    """Inverse optimal transport."""
    return _call("iot", z1, z2, options)


def iot_uni(z1: Tensor, z2: Tensor, **options: Any) -> Tensor:
    """Inverse optimal transport with its uniformity term."""
    return _call("iot-uni", z1, z2, options)


def gca_uot(z1: Tensor, z2: Tensor, **options: Any) -> Tensor:
    """Unbalanced transport with the robust divergence (eq:uot)."""
    return _call("gca-uot", z1, z2, options)


def supcon(z1: Tensor, z2: Tensor, **options: Any) -> Tensor:
    """Supervised contrastive learning; needs labels."""
    return _call("supcon", z1, z2, options)


def clip(z1: Tensor, z2: Tensor, **options: Any) -> Tensor:
    """InfoNCE both ways."""
    return _call("clip", z1, z2, {"learnable": False, **options})


def solve(
    log_k: Tensor,  # [n, m]
    constraints: Sequence[Constraint] = (Rows(), Columns()),
    geometry: Geometry | None = None,
    *,
    iterations: int = 1000,
    tol: float = 1e-6,
    gradient: str = "auto",
    target: Tensor | None = None,  # [n, m]
) -> Plan:
    """The proximal point of a kernel: argmin over P in B of h(P) + d_Γ(P ‖ e^{log K}) (eq:mainobj), as a `Plan`.

    `plan.log` is differentiable in `log_k`. Marginals follow `target` where it is given; else rows sum to 1 and
    columns share the total evenly. `geometry` is `Entropic(eps)`, whose ε is the unit of the relaxations.
    """
    if not isinstance(log_k, Tensor) or log_k.dim() != 2 or 0 in log_k.shape or not log_k.is_floating_point():
        got = tuple(log_k.shape) if isinstance(log_k, Tensor) else type(log_k).__name__
        raise ValueError(f"log_k={got} must be a real matrix [n, m]; pass −cost/eps")
    log_k = log_k.to(torch.promote_types(log_k.dtype, torch.float32))
    if not math.isfinite(log_k.detach().sum()):  # one number tells, unless huge ones overflow
        _refuse_impossible(log_k.detach())
    geometry = Entropic() if geometry is None else geometry
    if not isinstance(geometry, Geometry):
        raise TypeError(f"geometry={geometry!r} is not a Geometry; try gcalign.Entropic(0.5)")
    value = geometry.eps
    eps = torch.as_tensor(value, dtype=log_k.dtype, device=log_k.device)
    positive("eps", float(eps.detach()), "the paper uses 0.5")
    support = None if target is None else Full.checked(target, (log_k.shape[0], log_k.shape[1]), log_k)
    sets = as_constraints(constraints)
    number = math.nan if isinstance(value, Tensor) else float(value)
    rows, columns = (next((c.h for c in sets if isinstance(c, kind)), None) for kind in (Rows, Columns))
    form = Form(rows, columns, Options(iterations, tol, gradient), plan_only=True)
    with torch.autocast(log_k.device.type, enabled=False):
        problem = Problem.of(Given(log_k), sets, geometry, eps, support, eps_value=number)
        return op.solve(problem, name_of(form))


def _refuse_impossible(log_k: Tensor) -> None:
    if bool(log_k.isnan().any()) or bool((log_k == torch.inf).any()):
        raise ValueError("log_k has NaN or +inf entries; every entry must be a number, or −inf for a forbidden pair")
    if bool((log_k == -torch.inf).all(1).any()) or bool((log_k == -torch.inf).all(0).any()):
        raise ValueError("log_k forbids a whole row or column (−inf throughout); leave it out of the problem")
