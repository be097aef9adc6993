"""Errors that state the value, the rule and the remedy, and reprs that show how an object was made."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

LISTED = 40  # names that an error lists; of more, it gives their number


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: a similar name, if there is one, then all names, or their number."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return guess + (f"known: {', '.join(known)}" if len(known) <= LISTED else f"{len(known)} names are known")


def one_of(what: str, value: str, known: Iterable[str]) -> str:
    """Return `value` if it is one of `known`; otherwise raise an error that suggests a similar one."""
    known = tuple(known)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{what}={value!r} is unknown; {did_you_mean(str(value), known)}")
    return value


def positive(
    what: str, value: float, remedy: str, *, infinite: bool = False, zero: bool = False, least: float = 0.0
) -> float:
    """Return `value` as a float if it is > 0 (or ≥ 0 with `zero`), at least `least` and, unless `infinite`, finite."""
    if isinstance(value, bool) or not isinstance(value, Real):  # numpy's scalars are Real, its bool is not
        raise TypeError(f"{what}={value!r} must be a number; {remedy}")
    value = float(value)
    low = value >= 0 if zero else value > 0
    if not low or (math.isinf(value) and not infinite):
        rule = ("≥ 0" if zero else "> 0") + ("" if infinite else " and finite")
        raise ValueError(f"{what}={value:g} must be {rule}; {remedy}")
    if value < least:
        raise ValueError(f"{what}={value:g} must be at least {least:g}, or rounding is all that counts; {remedy}")
    return value


def count(what: str, value: int, remedy: str, *, least: int = 1) -> int:
    """Return `value` if it is a whole number of at least `least` that fits into 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{what}={value!r} must be a whole number; {remedy}")
    value = int(value)
    if value < least:
        raise ValueError(f"{what}={value} must be at least {least}; {remedy}")
    if value >= 2**63:  # torch counts in 64 bits
        raise ValueError(f"{what}={value} must be below 2^63; {remedy}")
    return value


def plain(value: Any) -> Any:
    """A scalar of numpy as the number it is; anything else unchanged."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.item() if isinstance(value, Real) and hasattr(value, "item") else value


class CallRepr:
    """A dataclass that prints as the call that makes it, without the defaults."""

    def __repr__(self) -> str:
        shown: list[str] = []
        if not dataclasses.is_dataclass(self):  # a user's own
            return f"{type(self).__name__}()"
        for field in dataclasses.fields(self):
            if not field.init:
                continue
            value: Any = plain(getattr(self, field.name))
            default = field.default
            if value is default or (not hasattr(value, "shape") and value == default):
                continue
            text = f"<{tuple(value.shape)}>" if hasattr(value, "shape") else f"{value!r}"
            shown.append(text if default is dataclasses.MISSING else f"{field.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"
