"""Which negatives a guide, another encoder, lets through."""

from __future__ import annotations

import torch
from torch import Tensor

from gcalign.batch import check_embeddings
from gcalign.errors import positive
from gcalign.kernels import normalize


def guided(
    z1: Tensor, z2: Tensor, margin: float = 0.0, *, relative: bool = False
) -> Tensor:  # [n, D], [n, D] -> [n, n]
    """Which pairs are allowed by a guide: cos(z1_i, z2_j) ≤ cos(z1_i, z2_i) − margin, or i = j.

    A negative that a guide finds more similar than the positive is probably a false negative. This is the rule of
    GISTEmbed.

    Args:
        z1, z2: the guide's embeddings of the two views; row i of both is one sample.
        margin: pairs are left out if their similarity is above that of the positive minus this margin.
        relative: whether the margin is a part of the similarity of the positive.

    Returns:
        A bool matrix for `criterion(z1, z2, allowed=...)`; the diagonal is True.

    Example:
        >>> import torch, gcalign
        >>> guide = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])  # the first two are almost the same
        >>> gcalign.guided(guide, guide, margin=0.05)
        tensor([[ True, False,  True],
                [False,  True,  True],
                [ True,  True,  True]])
    """
    check_embeddings(z1, z2, alone=True)
    if len(z1) != len(z2):
        raise ValueError(f"z1 has {len(z1)} rows and z2 {len(z2)}; row i of both must be one sample")
    positive("margin", margin, "0 leaves out what is more similar than the positive", zero=True)
    cosines = normalize(z1.detach()) @ normalize(z2.detach()).T
    own = cosines.diagonal()
    bound = own * (1 - margin) if relative else own - margin
    return (cosines <= bound[:, None]) | torch.eye(len(z1), dtype=torch.bool, device=z1.device)
