"""The methods as functions: `functional.gca_uot(z1, z2, eps=0.1)` is `method("gca-uot", eps=0.1)(z1, z2)`.

Every function takes the settings of its method and, by keyword, the options of every `Alignment` and the inputs of a
criterion. Like a criterion, it takes two views, a list of views, or one tensor with labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import Tensor

from gcalign.batch import PerSide
from gcalign.constraints import Columns, Constraint, Rows
from gcalign.errors import positive
from gcalign.geometry import Entropic, Geometry
from gcalign.methods import method
from gcalign.plan import Plan
from gcalign.queue import Queue
from gcalign.targets import Target
from gcalign.transport import operator
from gcalign.transport.gradients import Reads
from gcalign.transport.operators.sources import Given
from gcalign.transport.problem import Options, Problem, as_constraints
from gcalign.transport.support import Full

if TYPE_CHECKING:
    from typing_extensions import Unpack

Views = Tensor | Sequence[Tensor]


class Inputs(TypedDict, total=False):
    """The inputs of a criterion; `Objective` describes them."""

    labels: PerSide
    domains: PerSide
    ids: PerSide
    weights: PerSide
    groups: PerSide
    teacher: tuple[Tensor, Tensor]
    target: Tensor | Target
    queue: Queue | tuple[Queue, Queue]
    negatives: Tensor
    allowed: Tensor
    rows: int
    multi: str


class Call(Inputs, total=False):
    """The inputs of a criterion and the options of every `Alignment`."""

    layout: str
    reduction: str
    iterations: int
    tol: float
    gradient: str
    accelerate: bool | str
    block: int | str | None
    cache: str | None
    gather: bool
    check_finite: bool


def _loss(name: str, z1: Views, z2: Tensor | None, options: Any, **settings: Any) -> Tensor:
    inputs = {key: options.pop(key) for key in Inputs.__annotations__ if key in options}
    loss: Tensor = method(name, **settings, **options)(z1, z2, **inputs)
    return loss


def info_nce(z1: Views, z2: Tensor | None = None, *, eps: float = 0.1, **options: Unpack[Call]) -> Tensor:
    """InfoNCE (Eq. 1, eq:INCE).

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps: as for `methods.ince`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> z = torch.eye(4)
        >>> loss = gcalign.functional.info_nce(z, z, eps=0.5)
        >>> torch.allclose(loss, torch.nn.functional.cross_entropy(z @ z.T / 0.5, torch.arange(4)))
        True
    """
    return _loss("ince", z1, z2, options, eps=eps)


def gca_ince(z1: Views, z2: Tensor | None = None, *, eps: float = 0.1, **options: Unpack[Call]) -> Tensor:
    """GCA-INCE: InfoNCE with constraints on rows and columns (Theorem 5, thm:lowest).

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps: as for `methods.gca_ince`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> round(float(gcalign.functional.gca_ince(torch.eye(4), torch.eye(4), eps=0.1)), 2)
        0.0
    """
    return _loss("gca-ince", z1, z2, options, eps=eps)


def rince(
    z1: Views,
    z2: Tensor | None = None,
    *,
    eps: float = 0.1,
    q: float = 0.6,
    lam: float = 0.01,
    scale: str = "kernel",
    **options: Unpack[Call],
) -> Tensor:
    """RINCE, robust InfoNCE (Eq. 2, eq:RINCE).

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps, q, lam, scale: as for `methods.rince`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> z, other = torch.eye(4), torch.eye(4).flip(0)
        >>> bool(gcalign.functional.rince(z, z) < gcalign.functional.rince(z, other))
        True
    """
    return _loss("rince", z1, z2, options, eps=eps, q=q, lam=lam, scale=scale)


def gca_rince(
    z1: Views,
    z2: Tensor | None = None,
    *,
    eps: float = 0.1,
    q: float = 0.6,
    lam: float = 0.01,
    scale: str = "kernel",
    **options: Unpack[Call],
) -> Tensor:
    """GCA-RINCE: RINCE with constraints on rows and columns (Eq. 13, eq:gcarince).

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps, q, lam, scale: as for `methods.gca_rince`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> z, other = torch.eye(4), torch.eye(4).flip(0)
        >>> bool(gcalign.functional.gca_rince(z, z) < gcalign.functional.gca_rince(z, other))
        True
    """
    return _loss("gca-rince", z1, z2, options, eps=eps, q=q, lam=lam, scale=scale)


def simclr(z1: Views, z2: Tensor | None = None, *, eps: float = 0.1, **options: Unpack[Call]) -> Tensor:
    """NT-Xent, the loss of SimCLR: −log(K_ij / Σ_{k≠i} K_ik), where j is the other view of i.

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps: as for `methods.simclr`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> round(float(gcalign.functional.simclr(torch.eye(4), torch.eye(4), eps=0.1)), 2)
        0.0
    """
    return _loss("simclr", z1, z2, options, eps=eps)


def byol(z1: Views, z2: Tensor | None = None, *, eps: float = 1.0, **options: Unpack[Call]) -> Tensor:
    """BYOL's loss between a prediction z1 and a projection z2 (Theorem 4, thm:byol).

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps: as for `methods.byol`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> round(float(gcalign.functional.byol(torch.eye(4), torch.eye(4).flip(0))), 2)
        2.0
    """
    return _loss("byol", z1, z2, options, eps=eps)


def iot(z1: Views, z2: Tensor | None = None, *, eps: float = 0.1, **options: Unpack[Call]) -> Tensor:
    """IOT, inverse optimal transport: KL(T‖P) with constraints on rows and columns, over all 2B embeddings.

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps: as for `methods.iot`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> round(float(gcalign.functional.iot(torch.eye(4), torch.eye(4), eps=0.1)), 2)
        0.0
    """
    return _loss("iot", z1, z2, options, eps=eps)


def iot_uni(
    z1: Views,
    z2: Tensor | None = None,
    *,
    eps: float = 0.1,
    weight: float = 0.2,
    **options: Unpack[Call],
) -> Tensor:
    """IOT-uni: the loss of IOT plus a uniformity term, KL(T‖P) + w·KL(Q‖P), with the Q of `Uniformity`.

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps, weight: as for `methods.iot_uni`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> z, other = torch.eye(4), torch.eye(4).flip(0)
        >>> bool(gcalign.functional.iot_uni(z, z, weight=0.1) < gcalign.functional.iot_uni(z, other, weight=0.1))
        True
    """
    return _loss("iot-uni", z1, z2, options, eps=eps, weight=weight)


def gca_uot(
    z1: Views,
    z2: Tensor | None = None,
    *,
    eps: float = 0.1,
    relax: tuple[float, float] = (0.2, 0.2),
    q: float = 0.6,
    lam: float = 0.01,
    scale: str = "kernel",
    w_kl: float = 1.0,
    w_robust: float = 0.02,
    **options: Unpack[Call],
) -> Tensor:
    """GCA-UOT: unbalanced transport with the robust divergence (Eq. 9, eq:uot).

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps, relax, q, lam, scale, w_kl, w_robust: as for `methods.gca_uot`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> z, other = torch.eye(4), torch.eye(4).flip(0)
        >>> bool(gcalign.functional.gca_uot(z, z, eps=0.2) < gcalign.functional.gca_uot(z, other, eps=0.2))
        True
    """
    return _loss(
        "gca-uot", z1, z2, options, eps=eps, relax=relax, q=q, lam=lam, scale=scale, w_kl=w_kl, w_robust=w_robust
    )


def gca_uot_published(
    z1: Views,
    z2: Tensor | None = None,
    *,
    eps: float = 0.1,
    relax: tuple[float, float] = (0.2, 0.2),
    q: float = 0.6,
    lam: float = 0.01,
    scale: str = "kernel",
    w_kl: float = 1.0,
    w_robust: float = 0.02,
    **options: Unpack[Call],
) -> Tensor:
    """GCA-UOT as its published code computes it: −Σ_j T_ij log(P_ij / Σ_k P_ik), in which the row scaling cancels.

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps, relax, q, lam, scale, w_kl, w_robust: as for `methods.gca_uot_published`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> z, other = torch.eye(4), torch.eye(4).flip(0)
        >>> published = gcalign.functional.gca_uot_published
        >>> bool(published(z, z, eps=0.2) < published(z, other, eps=0.2))
        True
    """
    return _loss(
        "gca-uot-published",
        z1,
        z2,
        options,
        eps=eps,
        relax=relax,
        q=q,
        lam=lam,
        scale=scale,
        w_kl=w_kl,
        w_robust=w_robust,
    )


def supcon(z1: Views, z2: Tensor | None = None, *, eps: float = 0.1, **options: Unpack[Call]) -> Tensor:
    """SupCon, supervised contrastive learning: −mean_{j ∈ S} log(K_ij / Σ_{k≠i} K_ik); it needs `labels`.

    S are the others with the label of i.

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps: as for `methods.supcon`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> gcalign.functional.supcon(torch.eye(4), torch.eye(4), labels=[0, 0, 1, 1]).shape
        torch.Size([])
    """
    return _loss("supcon", z1, z2, options, eps=eps)


def clip(z1: Views, z2: Tensor | None = None, *, eps: float = 0.07, **options: Unpack[Call]) -> Tensor:
    """CLIP's loss: InfoNCE in both directions, L = ½ L(z1, z2) + ½ L(z2, z1), with a fixed temperature.

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps: as for `methods.clip`.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> round(float(gcalign.functional.clip(torch.eye(4), torch.eye(4), eps=0.1)), 2)
        0.0
    """
    return _loss("clip", z1, z2, options, eps=eps, learnable=False)


def siglip(
    z1: Views,
    z2: Tensor | None = None,
    *,
    eps: float = 0.1,
    bias: float = -10.0,
    **options: Unpack[Call],
) -> Tensor:
    """SigLIP's loss, −Σ_ij log σ(±(cos/ε + b))/B: each pair is classified by itself, with a fixed ε and b.

    Args:
        z1, z2: embeddings of the two views [B, D]; they need not be normalised.
        eps: temperature ε, 1 / logit_scale.
        bias: logit_bias.
        options: options of every `Alignment`, and the inputs of a criterion, e.g. ids, labels or queue.

    Returns:
        The loss, a 0-dim tensor.

    Example:
        >>> import torch, gcalign
        >>> round(float(gcalign.functional.siglip(torch.eye(4), torch.eye(4))), 2)
        0.69
    """
    return _loss("siglip", z1, z2, options, eps=eps, bias=bias, learnable=False)


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
    geometry = Entropic() if geometry is None else geometry
    if not isinstance(geometry, Geometry):
        raise TypeError(f"geometry={geometry!r} is not a Geometry; try gcalign.Entropic(0.5)")
    value = geometry.eps
    eps = torch.as_tensor(value, dtype=log_k.dtype, device=log_k.device)
    positive("eps", float(eps.detach()), "the paper uses 0.5")
    support = None if target is None else Full.checked(target, (log_k.shape[0], log_k.shape[1]), log_k)
    sets = as_constraints(constraints)
    number = math.nan if isinstance(value, Tensor) else float(value)
    with torch.autocast(log_k.device.type, enabled=False):
        problem = Problem.of(Given(log_k), sets, geometry, eps, support, eps_value=number)
        return operator.solve(problem, Options(iterations, tol, gradient, accelerate), Reads(plan=True))


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
