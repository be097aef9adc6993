"""What is wrong with a target plan: errors with the value, the rule and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gcalign.transport.support import Full, Pairs, Support

Kind = TypeVar("Kind", bound="Support")


def values_readable() -> bool:
    """Whether values of tensors can be read: not under torch.compile, nor while a CUDA graph is captured."""
    if torch.compiler.is_compiling():
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def true_if_eager(flag: Tensor) -> bool:
    """Whether a test on values is true; False where values cannot be read."""
    return values_readable() and bool(flag)


def check_weights(values: Tensor) -> None:
    """Raise unless the values of a target are non-negative, finite and without gradient."""
    if values.requires_grad:
        raise ValueError("target requires a gradient, but a target is data; pass target.detach()")
    if true_if_eager(~torch.isfinite(values).all()) or true_if_eager((values < 0).any()):
        raise ValueError("target has a negative or non-finite entry; every weight must be ≥ 0 and finite")


def check_no_self_pairs(support: Full | Pairs) -> None:
    """Raise if an embedding of the joint layout is its own positive."""
    w = support.weight  # [n, m], or [k] of pairs
    own = w.diagonal() if w.ndim == 2 else w * (support.i == support.j)  # type: ignore[union-attr]  # a vector: Pairs
    if true_if_eager((own > 0).any()):
        raise ValueError(
            "target pairs an embedding with itself, which the joint layout forbids; "
            "set its diagonal to 0 or use layout='cross'"
        )


def check_rows(support: Support, remedy: str, names: Tensor | None = None) -> None:
    """Raise if a row has no positive; `names` are the ids or labels of the rows."""
    empty = support.mu == 0
    if true_if_eager(empty.any()):
        row = int(empty.nonzero()[0])
        name = "" if names is None else f" ({names[row].item()!r})"
        raise ValueError(f"row {row}{name} of the target has no positive ({int(empty.sum())} such rows); {remedy}")
