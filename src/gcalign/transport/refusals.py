"""What is wrong with a target plan: errors with the value, the rule and the remedy."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from gcalign.transport.support import Full, Pairs, Support, seen

Kind = TypeVar("Kind", bound=Support)


def refuse_self_pairs(support: Full | Pairs) -> None:
    """Raise if an embedding of the joint layout is its own positive."""
    own = support.weight.diagonal() if isinstance(support, Full) else support.weight * (support.i == support.j)
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
