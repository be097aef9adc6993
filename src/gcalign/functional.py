"""The methods as functions: `functional.gca_uot(z1, z2, eps=0.1)` is `method("gca-uot", eps=0.1)(z1, z2)`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, Protocol

import torch
from torch import Tensor

import gcalign.methods as methods  # directly: the package imports its names when one is first used
from gcalign.batch import Inputs
from gcalign.constraints import Columns, Constraint, Marginal, Rows, TotalMass
from gcalign.errors import positive
from gcalign.geometry import Entropic, Geometry, as_geometry
from gcalign.objective import Objective
from gcalign.plan import Plan, Reads
from gcalign.transport import operator
from gcalign.transport.operators.sources import Given
from gcalign.transport.problem import Options, Problem, as_constraints
from gcalign.transport.support import Full

Views = Tensor | Sequence[Tensor]
Settings = ParamSpec("Settings")
_INPUTS = (*Inputs._fields, "rows", "multi")
_DOC = """{summary}

Args:
    z1, z2: embeddings of the two views [B, D]; they need not be normalised. Or a list of views; or z1 with labels.
    {settings}: as for `methods.{factory}`.
    options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

Returns:
    The loss, a 0-dim tensor.

Example:
    >>> import torch, gcalign
    >>> gcalign.functional.{name}(torch.eye(4), torch.eye(4){given}).shape
    torch.Size([])
"""


class Loss(Protocol[Settings]):
    """The loss of two views, a list of views, or one tensor with labels, with the settings of a method."""

    def __call__(
        self, z1: Views, z2: Tensor | None = None, *args: Settings.args, **options: Settings.kwargs
    ) -> Tensor: ...


def _function(name: str, factory: Callable[Settings, Objective], **fixed: Any) -> Loss[Settings]:
    """A method as a function of views, settings and inputs; a function learns nothing, so ε is `fixed`."""

    def loss(z1: Views, z2: Tensor | None = None, **options: Any) -> Tensor:
        inputs = {key: options.pop(key) for key in _INPUTS if key in options}
        value: Tensor = methods.method(registered, **fixed, **options)(z1, z2, **inputs)
        return value

    registered = factory.__name__.replace("_", "-")
    views = list(inspect.signature(loss).parameters.values())
    own = inspect.signature(factory).parameters.values()
    settings = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.kind is not p.VAR_KEYWORD and p.name not in fixed]
    signature = inspect.Signature([*views[:2], *settings, views[2]], return_annotation="Tensor")
    loss.__signature__ = signature  # type: ignore[attr-defined]  # what inspect reads
    loss.__name__ = loss.__qualname__ = name
    loss.__doc__ = _DOC.format(
        summary=(factory.__doc__ or "").splitlines()[0],
        settings=", ".join(p.name for p in settings),
        factory=factory.__name__,
        name=name,
        given=", labels=[0, 0, 1, 1]" if registered == "supcon" else "",
    )
    return loss  # type: ignore[return-value]  # settings are checked by `method`


info_nce = _function("info_nce", methods.ince)
gca_ince = _function("gca_ince", methods.gca_ince)
rince = _function("rince", methods.rince)
gca_rince = _function("gca_rince", methods.gca_rince)
simclr = _function("simclr", methods.simclr)
byol = _function("byol", methods.byol)
iot = _function("iot", methods.iot)
iot_uni = _function("iot_uni", methods.iot_uni)
gca_uot = _function("gca_uot", methods.gca_uot)
gca_uot_paper = _function("gca_uot_paper", methods.gca_uot_paper)
gca_uot_published = _function("gca_uot_published", methods.gca_uot_published)
supcon = _function("supcon", methods.supcon)
clip = _function("clip", methods.clip, learnable=False)
siglip = _function("siglip", methods.siglip, learnable=False)


def solve(
    log_k: Tensor,  # [n, m]
    constraints: Sequence[Constraint] = (Rows(), Columns()),
    geometry: Geometry | None = None,
    *,
    iterations: int = 1000,
    tol: float = 1e-6,
    gradient: str = "auto",
    accelerate: bool | str = "auto",
    target: Tensor | None = None,  # [n, m]
    start: Plan | Tensor | None = None,  # [m]
) -> Plan:
    """The plan of a kernel matrix, argmin_{P ∈ B} h(P) + d_Γ(P ‖ K) (Definition 1, def:prox; Eq. 8, eq:mainobj).

    Args:
        log_k: log K = −cost/ε [n, m]; −inf forbids a pair.
        constraints: B and h, e.g. `(Rows(), Columns(0.5))`.
        geometry: d_Γ; default `Entropic()`. Its ε is the unit of the penalties λ.
        iterations: the maximum.
        tol: stop early if the marginals are met to this accuracy; 0 never stops early.
        gradient: "auto", "implicit", "truncated" or "unrolled", as for `Alignment`.
        accelerate: as for `Alignment`; "auto" accelerates from 20 iterations on.
        target: T [n, m], whose marginals the plan gets. None: rows sum to 1, and all columns to the same value.
        start: where the iterations start: the plan of a similar problem, or log v [m]. Default: v = 1.

    Masses may be 0, e.g. `Rows(mass=torch.tensor([0.5, 0.5, 0.0]))`: the plan is 0 there.

    Returns:
        The plan. `plan.log` is differentiable in `log_k`.

    Raises:
        ValueError: if `log_k` is not a real matrix, has NaN or +inf, forbids a whole row or column, or has entries so
            large that rounding spoils them: above 8·10⁵ in size in float32, 4·10¹⁴ in float64.

    Example:
        >>> import torch, gcalign
        >>> plan = gcalign.solve(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        >>> plan.converged, round(float(plan.column_sums[0]), 3)
        (True, 1.0)
    """
    if not isinstance(log_k, Tensor) or log_k.dim() != 2 or 0 in log_k.shape or not log_k.is_floating_point():
        got = tuple(log_k.shape) if isinstance(log_k, Tensor) else type(log_k).__name__
        raise ValueError(f"log_k={got} must be a real matrix [n, m]; pass −cost/eps")
    log_k = log_k.to(torch.promote_types(log_k.dtype, torch.float32))
    most = 0.1 / torch.finfo(log_k.dtype).eps  # above it, the steps between two numbers are no longer small
    if not float(log_k.detach().abs().max()) <= most:  # NaN and −inf too
        _refuse_impossible(log_k.detach(), most)
    geometry = as_geometry(Entropic() if geometry is None else geometry)
    value = geometry.eps
    eps = torch.as_tensor(value, dtype=log_k.dtype, device=log_k.device)
    positive("eps", float(eps.detach()), "the paper uses 0.5")
    sets, log_v = as_constraints(constraints), _start(start, eps, log_k)
    options = Options(iterations, tol, gradient, accelerate)
    if any(isinstance(c, (Rows, Columns)) and c.empty for c in sets):
        if target is not None or not all(isinstance(c, (Rows, Columns, TotalMass)) for c in sets):
            raise ValueError(
                "masses of 0 cannot go with a target or with other constraints than Rows, Columns and TotalMass; leave "
                "out their rows and columns of log_k"
            )
        return _with_empty(log_k, sets, geometry, options, log_v)
    support = None if target is None else Full.checked(target, (log_k.shape[0], log_k.shape[1]), log_k)
    number = math.nan if isinstance(value, Tensor) else float(value)
    with torch.autocast(log_k.device.type, enabled=False):
        problem = Problem.of(Given(log_k), sets, geometry, eps, support, eps_value=number, start=log_v)
        return operator.solve(problem, options, Reads(plan=True))


def _start(start: Plan | Tensor | None, eps: Tensor, log_k: Tensor) -> Tensor | None:
    """The first log v: that of a plan with another ε has the same potentials."""
    if start is None:
        return None
    values = start.g / eps if isinstance(start, Plan) else start
    if not isinstance(values, Tensor) or values.shape != log_k.shape[1:] or not values.is_floating_point():
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"start={got} must be a plan with {log_k.shape[1]} columns, or its log v [{log_k.shape[1]}]")
    return values.detach().to(log_k).nan_to_num(neginf=0.0)  # −inf: a column of mass 0


def _with_empty(
    log_k: Tensor, constraints: tuple[Constraint, ...], geometry: Geometry, options: Options, start: Tensor | None
) -> Plan:
    """The plan with rows and columns of mass 0: it is solved without them, and 0 there."""
    shape = n, m = log_k.shape[0], log_k.shape[1]
    rows, columns = (next((c for c in constraints if isinstance(c, kind)), None) for kind in (Rows, Columns))
    mu = log_k.new_ones(n) if rows is None else rows.target_mass(None, shape, log_k)
    nu = log_k.new_full((m,), n / m) if columns is None else columns.target_mass(None, shape, log_k)
    i, j = (mu > 0).nonzero()[:, 0], (nu > 0).nonzero()[:, 0]
    sets = [replace(c, mass=mass[k]) for c, mass, k in ((rows, mu, i), (columns, nu, j)) if c is not None]
    plan = solve(
        log_k[i][:, j], (*sets, *(c for c in constraints if isinstance(c, TotalMass))), geometry,
        iterations=options.iterations, tol=options.tol, gradient=options.gradient, accelerate=options.accelerate,
        start=None if start is None else start[j],
    )  # fmt: skip

    def spread(x: Tensor, where: Tensor, size: int) -> Tensor:
        return x.new_full((size,), -torch.inf).index_put((where,), x)

    log_plan = plan.log_plan
    if log_plan is not None:
        log_plan = log_plan.new_full(shape, -torch.inf).index_put((i[:, None], j), log_plan)
    return replace(
        plan,
        kernel=Given(log_k),
        log_u=spread(plan.log_u, i, n),
        log_v=spread(plan.log_v, j, m),
        mu=mu,
        nu=nu,
        rows=None if plan.rows is None else Marginal(mu, plan.rows.penalty),
        columns=None if plan.columns is None else Marginal(nu, plan.columns.penalty),
        target=Problem(Given(log_k), (), geometry, plan.eps).support,  # none
        log_rows=spread(plan.log_rows, i, n),
        log_columns=spread(plan.log_columns, j, m) if len(plan.log_columns) else plan.log_columns,
        log_plan=log_plan,
    )


def _refuse_impossible(log_k: Tensor, most: float) -> None:
    if bool(log_k.isnan().any()) or bool((log_k == torch.inf).any()):
        raise ValueError("log_k has NaN or +inf entries; every entry must be a number, or −inf for a forbidden pair")
    if bool((log_k == -torch.inf).all(1).any()) or bool((log_k == -torch.inf).all(0).any()):
        raise ValueError("log_k forbids a whole row or column (−inf throughout); leave it out of the problem")
    largest = float(log_k.masked_fill(log_k == -torch.inf, 0).abs().max())
    if largest > most:
        raise ValueError(
            f"log_k has an entry of size {largest:g}, and {log_k.dtype} counts only up to {most:.2g} without large "
            f"rounding; raise eps{'' if log_k.dtype == torch.float64 else ', use float64'}, or write −inf for a "
            "forbidden pair"
        )
