"""Measures of embeddings that the paper uses: alignment, uniformity and compactness; and signs of a collapse."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gcalign.errors import positive
from gcalign.kernels import normalize


def alignment(z1: Tensor, z2: Tensor) -> Tensor:  # [B, D], [B, D] -> []
    """Mean squared distance of pairs, mean_i ‖z'_i − z''_i‖² after normalising (Eq. 82, eq:alignment). Lower is better.

    Args:
        z1, z2: embeddings; row i of both is one pair.

    Example:
        >>> import torch, gcalign
        >>> gcalign.metrics.alignment(torch.eye(3), 2 * torch.eye(3))
        tensor(0.)
    """
    _check_pairs(z1, z2)
    return (normalize(_real(z1)) - normalize(_real(z2))).square().sum(1).mean()


def uniformity(z: Tensor, t: float = 2.0, *, block: int = 1024) -> Tensor:  # [n, D] -> []
    """log mean_{i≠j} exp(−t‖z_i − z_j‖²) after normalising (Eq. 87, eq:uniformity). Lower is more uniform.

    Args:
        z: embeddings [n, D], n ≥ 2.
        t: t > 0; 2 is the usual value.
        block: rows that are computed at once.

    Example:
        >>> import torch, gcalign
        >>> round(float(gcalign.metrics.uniformity(torch.eye(3))), 3)
        -4.0
    """
    _matrices(z=z)
    positive("t", t, "2 is the usual value")
    n = len(z)
    if n < 2:
        raise ValueError(f"uniformity needs pairs, and there is {n} embedding; give at least 2")
    x = normalize(_real(z))
    parts = []
    for start in range(0, n, block):
        rows = torch.arange(start, min(start + block, n), device=x.device)
        log_kernel = -t * (x[rows].square().sum(1)[:, None] + x.square().sum(1) - 2 * (x[rows] @ x.T))
        itself = rows[:, None] == torch.arange(n, device=x.device)
        parts.append(log_kernel.masked_fill(itself, -torch.inf).logsumexp((0, 1)))
    return torch.stack(parts).logsumexp(0) - math.log(n * (n - 1))


def compactness(h: Tensor, labels: Tensor) -> Tensor:  # [n, D], [n] -> []
    """Mean distance to the centre of the class, mean_i ‖h_i − c_{y_i}‖ (Figure A6, fig:sensitivity_study).

    Lower is more compact.

    Args:
        h: features of the encoder [n, D]; they are not normalised.
        labels: class y_i of each point [n].

    Example:
        >>> import torch, gcalign
        >>> features, labels = torch.tensor([[0.0], [2.0], [5.0], [7.0]]), torch.tensor([0, 0, 1, 1])
        >>> gcalign.metrics.compactness(features, labels)
        tensor(1.)
    """
    _matrices(h=h)
    x = _real(h)
    labels = torch.as_tensor(labels, device=x.device)
    if labels.shape != h.shape[:1]:
        raise ValueError(f"labels of shape {tuple(labels.shape)} must be ({len(h)},): one for each row of h")
    classes, code = torch.unique(labels, return_inverse=True)
    centres = x.new_zeros(len(classes), x.shape[1]).index_add(0, code, x)
    centres = centres / torch.bincount(code, minlength=len(classes))[:, None]
    return torch.linalg.vector_norm(x - centres[code], dim=1).mean()


def negative_similarity(z1: Tensor, z2: Tensor) -> Tensor:  # [B, D], [B, D] -> []
    """Mean cosine of embeddings that are not pairs, Σ_{i≠j} cos(z'_i, z''_j) / (B(B − 1)), in time B·D.

    It is near 1 if all embeddings point in one direction.

    Args:
        z1, z2: embeddings, at least 2; row i of both is one pair.

    Example:
        >>> import torch, gcalign
        >>> gcalign.metrics.negative_similarity(torch.eye(3), torch.eye(3))
        tensor(0.)
    """
    _check_pairs(z1, z2, least=2)
    n = len(z1)
    x, y = normalize(_real(z1)), normalize(_real(z2))
    return (x.sum(0) @ y.sum(0) - (x * y).sum()) / (n * (n - 1))


def collapse(
    z1: Tensor,  # [B, D]
    z2: Tensor,  # [B, D]
    share: Tensor | float | None = None,
    *,
    start: float = 0.0,
    most: float = 0.5,
    least: float = 0.5,
) -> str | None:
    """What is wrong if embeddings move together, or if a plan has lost most of its mass; None if neither is so.

    With relaxed marginals, and no bound on the mass of the plan, a loss can fall by moving all embeddings together,
    because the plan then gains mass. A loss with hard marginals does not notice if they move together.

    Args:
        z1, z2: embeddings; row i of both is one pair.
        share: the mass of their plan relative to that of the target, plan.mass / B, if marginals are relaxed.
        start: the mean cosine of negatives when the training started; some encoders start high.
        most: the highest mean cosine of negatives, unless it is within 0.1 of `start`.
        least: the lowest share of the target's mass.

    Returns:
        One sentence with the value, the rule and the remedy, for a log.

    Example:
        >>> import torch, gcalign
        >>> z = 1 + 0.01 * torch.eye(4)
        >>> print(gcalign.metrics.collapse(z, z))
        the mean cosine of negatives is 1.00 (0.00 at the start; above 0.50 embeddings are moving together); ...
    """
    remedy = "subtract their mean, e.g. gcalign.Cosine(eps, center=True), or lower the learning rate"
    if share is not None:
        remedy = "leave out relax=, or write least_mass=True, which is gcalign.TotalMass(at_least=True) as a constraint"
        rule = f"below {least:.0%} it follows few pairs"
        if float(share) < least:
            return f"the plan has {float(share):.0%} of the target's mass ({rule}); {remedy}"
    cosine = float(negative_similarity(z1, z2))
    if cosine > max(most, start + 0.1):
        return (
            f"the mean cosine of negatives is {cosine:.2f} ({start:.2f} at the start; above {most:.2f} embeddings are "
            f"moving together); {remedy}"
        )
    return None


def _real(z: Tensor) -> Tensor:
    return z.to(torch.promote_types(z.dtype, torch.float32))


def _check_pairs(z1: Tensor, z2: Tensor, least: int = 1) -> None:
    _matrices(z1=z1, z2=z2)
    if z1.shape != z2.shape or len(z1) < least:
        got = f"z1 of shape {tuple(z1.shape)} and z2 of shape {tuple(z2.shape)}"
        raise ValueError(f"{got} must be pairs, row by row, at least {least}")


def _matrices(**tensors: Tensor) -> None:
    for name, z in tensors.items():
        if z.dim() != 2 or 0 in z.shape or not z.is_floating_point():
            raise ValueError(f"{name} of shape {tuple(z.shape)} and dtype {z.dtype} must be real embeddings [n, D]")
