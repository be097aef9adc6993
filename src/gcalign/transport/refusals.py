"""What is wrong with a target plan: errors with the value, the rule and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gcalign.transport.support import Full, Pairs, Support

Kind = TypeVar("Kind", bound="Support")


def seen(flag: Tensor) -> bool:
    """Whether a test on values is true; always False under torch.compile, where values cannot be read."""
    return not torch.compiler.is_compiling() and bool(flag)


def refuse_bad_weights(values: Tensor) -> None:
    """Raise unless the values of a target are non-negative, finite and without gradient."""
    if values.requires_grad:
        raise ValueError("target requires a gradient, but a target is data; pass target.detach()")
    if seen(~torch.isfinite(values).all()) or seen((values < 0).any()):
        raise ValueError("target has a negative or non-finite entry; every weight must be ≥ 0 and finite")


def refuse_self_pairs(support: Full | Pairs) -> None:
    """Raise if an embedding of the joint layout is its own positive."""
    w = support.weight  # [n, m], or [k] of pairs
    own = w.diagonal() if w.ndim == 2 else w * (support.i == support.j)  # type: ignore[union-attr]  # a vector: Pairs
    if seen((own > 0).any()):
        raise ValueError(
            "target pairs an embedding with itself, which the joint layout forbids; "
            "set its diagonal to 0 or use layout='cross'"
        )


def full_rows(support: Kind, remedy: str, names: Tensor | None = None) -> Kind:
    """Return the support; raise if a row has no positive."""
    empty = support.mu == 0
    if seen(empty.any()):
        row = int(empty.nonzero()[0])
        who = "" if names is None else f" ({names[row].item()!r})"
        raise ValueError(f"row {row}{who} of the target has no positive ({int(empty.sum())} such rows); {remedy}")
    return support
