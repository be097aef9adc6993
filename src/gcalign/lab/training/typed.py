"""Options as fields of dataclasses, each declared once: type, default, one-line description and range.

Words of a command are read by these types, values are checked against these ranges, and help and completion list them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gcalign.errors import did_you_mean, one_of
from gcalign.lab.limits import within

_KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", dict: "a mapping"}
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class About:
    """What is known of an option besides its type and default."""

    text: str
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf  # as `least`, but the bound itself is refused
    limit: str = ""  # the name of a limit that users can raise
    remedy: str = ""
    hashed: bool = True  # whether the weights of a run depend on it
    later: bool = False  # whether it came after the first committed runs, whose hashes leave it out


def option(default: Any, text: str, **about: Any) -> Any:
    """A field of a dataclass of options; the default of a mapping is `dict`."""
    kind = "default_factory" if default is dict else "default"
    return field(**{kind: default}, metadata={"about": About(text, **about)})


@dataclass(frozen=True)
class Key:
    """An option by its full name, as in `optimizer.lr=0.1`."""

    name: str
    kinds: tuple[type, ...]  # `str | None` are two
    choices: tuple[str, ...]  # of a `Literal`
    default: Any
    about: About

    @property
    def values(self) -> tuple[str, ...]:
        """What a shell may complete."""
        return ("true", "false") if bool in self.kinds else self.choices

    def __str__(self) -> str:
        return f"{self.name}={written(self.default)}"

    def check(self, value: Any) -> None:
        """Raise an error if the value is none of the choices, or out of range."""
        if self.choices and value is not None:
            one_of(self.name, value, self.choices)
        if type(value) not in (int, float):
            return
        about = self.about
        remedy = about.remedy or ("leave it out" if self.default is None else f"the default is {written(self.default)}")
        shown = value if isinstance(value, int) else f"{value:g}"
        rules = {
            "a share between 0 and 1": (about.least, about.most) != (0, 1) or 0 <= value <= 1,
            f"at least {about.least:g}": value >= about.least,
            f"> {about.above:g}": value > about.above,
            f"at most {about.most:g}": value <= about.most,
            "finite": math.isfinite(value),
            "below 2^63": isinstance(value, float) or value < 2**63,  # torch counts in 64 bits
        }
        for rule, holds in rules.items():
            if not holds:
                raise ValueError(f"{self.name}={shown} must be {rule}; {remedy}")
        if about.limit:
            within(about.limit, int(value), self.name)


@cache
def keys(kind: Any) -> tuple[Key, ...]:
    """The options of a dataclass and of the dataclasses in it, in their order."""
    return tuple(_keys(kind, ""))


def _keys(kind: Any, prefix: str) -> Iterator[Key]:
    hints = get_type_hints(kind)
    for each in dataclasses.fields(kind):
        hint = hints[each.name]
        if dataclasses.is_dataclass(hint):
            yield from _keys(hint, f"{prefix}{each.name}.")
        elif "about" in each.metadata:
            made = each.default_factory
            default = each.default if made is dataclasses.MISSING else made()
            yield Key(f"{prefix}{each.name}", *_kinds(hint), default, each.metadata["about"])


def _kinds(hint: Any) -> tuple[tuple[type, ...], tuple[str, ...]]:
    """The types of an annotation, and the choices of a `Literal` in it."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    choices = tuple(word for part in parts if get_origin(part) is Literal for word in get_args(part))
    return tuple(str if get_origin(part) is Literal else get_origin(part) or part for part in parts), choices


def value_of(key: str, text: str) -> Any:
    """A number, a list or a word: 3, 1e-3, [0.1,0.01], true, null, sgd. Nothing is resolved."""
    text = text.strip()
    if text[:1] == "[" and text[-1:] == "]":
        return [value_of(key, part) for part in text[1:-1].split(",")] if text[1:-1].strip() else []
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text[:1] in ("[", "{", "(", "'", '"') or text[-1:] == "]" or "," in text:
        raise ValueError(f"{key}={text} is not a value; write a number, a word, or a list such as [0.1,0.01]")
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return text


def read(key: Key, text: str) -> Any:
    """The value of a word. Where text is expected it is taken as it was typed: paths can contain anything."""
    if str in key.kinds:
        return None if text == "null" and type(None) in key.kinds else text
    return value_of(key.name, text)


def written(value: Any) -> str:
    """A value as it is typed in a command."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def merged(content: Any, over: Any) -> Any:
    """`over` laid over `content`, mapping by mapping."""
    if not isinstance(content, dict) or not isinstance(over, dict):
        return over
    return {**content, **{key: merged(content.get(key), value) for key, value in over.items()}}


def typed(kind: Any, content: Any, where: str = "") -> Any:
    """A dataclass from plain values, each of its type; an unknown key is refused. Ranges are for `Key.check`."""
    if not isinstance(content, dict):
        raise ValueError(f"{where.rstrip('.') or 'the config'} must be a mapping of names to values")
    hints = get_type_hints(kind)
    for key in content:
        if key not in hints:
            raise ValueError(f"unknown key {where}{key}; {did_you_mean(str(key), hints)}")
    return kind(**{key: _typed(hints[key], value, f"{where}{key}") for key, value in content.items()})


def _typed(hint: Any, value: Any, key: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return typed(hint, value, f"{key}.")
    kinds, _ = _kinds(hint)
    if float in kinds and type(value) is int:
        value = float(value)
    if type(value) not in kinds or (type(value) is float and math.isnan(value)):
        raise ValueError(f"{key}={value!r} must be {' or '.join(_KINDS.get(kind, 'null') for kind in kinds)}")
    return value
