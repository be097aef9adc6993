"""Ours, not the paper's: which losses notice that all scores rise together. The reason for E7 (`fig-cone`).

A KL loss has the gradient P − T in the scores, so its derivative in a common shift is the mass of P less that of T. A
loss that fixes the mass of its plan, like InfoNCE, is blind to it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gcalign.lab.verify.claims import Case, Draw, claim
from gcalign.public import (
    KL,
    Alignment,
    Columns,
    Constraint,
    Cosine,
    Divergence,
    Logistic,
    LogKernel,
    Rows,
    TotalMass,
)

RELAX, STEPS = 0.2, 400
SIDES = (Rows(RELAX), Columns(RELAX))


def _derivative(log_k: Tensor, eps: float, sides: tuple[Constraint, ...], divergence: Divergence) -> float:
    """∂L/∂c of log K + c at c = 0, by the library."""
    c = torch.zeros((), dtype=log_k.dtype, requires_grad=True)
    kernel = LogKernel(lambda x, y: log_k + c, eps)
    rows = torch.eye(len(log_k), dtype=log_k.dtype)  # which the kernel does not read
    loss = Alignment(kernel, sides, divergence, iterations=10_000, tol=1e-13)(rows, rows)
    return float(torch.autograd.grad(loss, c)[0])


def _relaxed_mass(log_k: Tensor, eps: float) -> float:
    """The mass of the plan with both marginals relaxed, by plain scalings."""
    tau = RELAX / (RELAX + eps)
    f = g = torch.zeros(len(log_k), dtype=log_k.dtype)
    for _ in range(STEPS):
        f = -tau * (log_k + g).logsumexp(1)
        g = -tau * (log_k + f[:, None]).logsumexp(0)
    return float((f[:, None] + log_k + g).exp().sum())


@claim(
    "shift",
    "Ours: InfoNCE, and the KL term of GCA-UOT with its total mass fixed, do not notice that all scores rise together; "
    "SigLIP and the KL term of GCA-UOT do: ∂L/∂c of log K + c is the mass of the plan less that of the target, per "
    "row; with at least the mass of the target it is never negative",
    sides=("∂L/∂c of the loss that is nearest to failing", "=", "(ΣP − ΣT)/B"),
    tell="InfoNCE and total mass: at most {worst.blind:.0e}; SigLIP {median.siglip:.2f} and GCA-UOT "
    "{median.relaxed:.2f} in the median; a direction that all embeddings share gives different ones a mean cosine of "
    "{median.cone:.2f}, and {median.centred:.2f} once their mean is subtracted",
    tolerance=1e-9,
)
def common_shift(draw: Draw) -> Case:
    batch = draw.batch((8, 32), eps=(0.1, 1.0))
    b, eps = len(batch.z1), batch.eps
    log_k = batch.scores + draw.uniform(-1 / eps, 1.0)
    surplus = _relaxed_mass(log_k, eps) / b - 1
    sides = {
        "ince": (_derivative(log_k, eps, (Rows(),), KL()), 0.0),
        "mass": (_derivative(log_k, eps, (*SIDES, TotalMass()), KL()), 0.0),
        "relaxed": (_derivative(log_k, eps, SIDES, KL()), surplus),
        "at least": (_derivative(log_k, eps, (*SIDES, TotalMass(at_least=True)), KL()), max(0.0, surplus)),
        "siglip": (_derivative(log_k, eps, (), Logistic()), float(log_k.sigmoid().sum()) / b - 1),
    }
    left, right = max(sides.values(), key=lambda pair: abs(pair[0] - pair[1]))
    shared = batch.z1 + 3 * draw.normal(1, batch.z1.shape[1])
    numbers = {"blind": max(abs(sides["ince"][0]), abs(sides["mass"][0]))}
    numbers |= {name: abs(sides[name][0]) for name in ("siglip", "relaxed")}
    numbers |= {"cone": _negatives(Cosine(), shared), "centred": _negatives(Cosine(center=True), shared)}
    return Case(left, right, numbers)


def _negatives(kernel: Cosine, z: Tensor) -> float:
    """The mean cosine of two different embeddings."""
    x = kernel.features(z)
    return float(((x @ x.T).sum() - x.square().sum()) / (len(x) * (len(x) - 1)))
