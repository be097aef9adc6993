"""Stateless twins of the methods: `functional.gca_uot(z1, z2, eps=0.5)` is `method("gca-uot", eps=0.5)(z1, z2)`.

Every function takes the method's options and, by name, what a criterion takes: ids, labels, domains, weights and a
target, which may be a matrix or a `Target`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gcalign.methods import method

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
