"""Plain values as typed ones: words of a command as values, mappings as dataclasses. Nothing is resolved."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from gcalign.errors import did_you_mean

_CALLED = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", dict: "a mapping"}


def value_of(key: str, text: str) -> Any:
    """A number, a list or a word in Hydra's grammar: 3, 1e-3, [0.1,0.01], true, null, sgd. Nothing is resolved."""
    wrong = ValueError(f"{key}={text} is not a value; write a number, a word, or a list such as [0.1,0.01]")
    try:
        override = OverridesParser.create().parse_override(f"value={text}")
    except HydraException:
        if text[:1] in ("[", "{", "(", '"', "'"):
            raise wrong from None
        return text  # a word with characters that Hydra has no place for
    if override.is_sweep_override() or not _is_plain(found := override.value()):
        raise wrong
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, [*value.keys(), *value.values()]))
    return value is None or isinstance(value, bool | int | float | str)


def merged(content: Any, over: Any) -> Any:
    """`over` laid over `content`, mapping by mapping."""
    if not isinstance(content, dict) or not isinstance(over, dict):
        return over
    return {**content, **{key: merged(content.get(key), value) for key, value in over.items()}}


def typed(kind: Any, content: Any, where: str = "") -> Any:
    """A dataclass from plain values, each of its type; an unknown key is refused."""
    if not isinstance(content, dict):
        raise ValueError(f"{where.rstrip('.') or 'the config'} must be a mapping of names to values")
    hints = get_type_hints(kind)
    for key in content:
        if key not in hints:
            raise ValueError(f"unknown key {where}{key}; {did_you_mean(str(key), hints)}")
    return kind(**{key: _checked(hints[key], value, f"{where}{key}") for key, value in content.items()})


def _checked(hint: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return typed(hint, value, f"{key}.")
    kinds = (dict,) if get_origin(hint) is dict else get_args(hint) or (hint,)
    if float in kinds and type(value) is int:
        value = float(value)
    if type(value) not in kinds or (type(value) is float and math.isnan(value)):
        said = " or ".join(_CALLED.get(kind, "null") for kind in kinds)
        raise ValueError(f"{key}={value!r} must be {said}")
    return value
