"""The embeddings that every measurement uses, and the loss they are compared with."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

COSINE = 0.7
WORDS = f"float32, pairs of Gaussian embeddings with cosine about {COSINE} (z2 = z1 + noise)"


def pairs(n: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:  # [n, dim] twice
    """z1 Gaussian and z2 = z1 + s·noise, s such that partners have cosine about 0.7; leaves with gradient."""
    generator = torch.Generator().manual_seed(seed)
    z1 = torch.randn(n, dim, generator=generator)
    z2 = z1 + math.sqrt(COSINE**-2 - 1) * torch.randn(n, dim, generator=generator)
    return z1.requires_grad_(), z2.requires_grad_()


def cost(n: int, dim: int, seed: int = 0) -> Tensor:  # [n, n]
    """C = 1 − cos of such pairs."""
    x, y = (functional.normalize(z.detach(), dim=1) for z in pairs(n, dim, seed))
    return 1 - x @ y.T


def eager_info_nce(z1: Tensor, z2: Tensor, eps: float) -> Tensor:
    """InfoNCE as most code has it: `cross_entropy` on the logits."""
    logits = functional.normalize(z1, dim=1) @ functional.normalize(z2, dim=1).T / eps
    return functional.cross_entropy(logits, torch.arange(len(z1), device=z1.device))


def linear_info_nce(z1: Tensor, z2: Tensor, eps: float) -> Tensor:
    """The same by torch's own product and cross-entropy in one, which need not store the logits."""
    x, y = functional.normalize(z1, dim=1) / eps, functional.normalize(z2, dim=1)
    return functional.linear_cross_entropy(x, y, torch.arange(len(z1), device=z1.device))
