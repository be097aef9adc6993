"""A record as what a torch operator takes: lists of tensors, integers and numbers, and a text that has their places.

A record is made of tensors, numbers, strings, None, tuples and the classes in `KINDS`. The text is JSON; "t", "i" and
"f" stand for the next tensor, integer and number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcalign.constraints import Hard, Marginal, Relaxed, TotalVariation
from gcalign.transport.operators.sources import Given, Inner, Mask
from gcalign.transport.problem import Options
from gcalign.transport.statistics import Reads
from gcalign.transport.support import Full, Groups, Pairs

SUPPORTS = (Pairs, Groups, Full)
PENALTIES = (Hard, Relaxed, TotalVariation)
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (*SUPPORTS, *PENALTIES, Marginal, Inner, Given, Mask, Options, Reads)
}
_FIELDS: dict[str, tuple[str, ...]] = {
    name: tuple(f.name for f in fields(kind) if f.init) if is_dataclass(kind) else kind._fields
    for name, kind in KINDS.items()
}


class Packed(NamedTuple):
    """A record in the types of an operator's schema, in the order of the record's fields."""

    tensors: list[Tensor]
    integers: list[Any]
    numbers: list[Any]
    words: str


def pack(record: Any) -> Packed:
    """A record as tensors, numbers and a text; torch.compile traces this."""
    packed = Packed([], [], [], "")
    return packed._replace(words=_write(record, packed))


def _write(x: Any, packed: Packed) -> str:
    if isinstance(x, Tensor):
        packed.tensors.append(x)
        return '"t"'
    if x is None:
        return "null"
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, (int, torch.SymInt)):
        packed.integers.append(x)
        return '"i"'
    if isinstance(x, (float, torch.SymFloat)):
        packed.numbers.append(x)
        return '"f"'
    if isinstance(x, str):
        return f'"={x}"'
    name = type(x).__name__
    if name in _FIELDS:
        parts = [f'"{name}"', *[_write(getattr(x, field), packed) for field in _FIELDS[name]]]
    else:
        parts = ['"tuple"', *[_write(part, packed) for part in x]]
    return f"[{', '.join(parts)}]"


def unpack(packed: Packed) -> Any:
    """The record again."""
    values: Mapping[str, Iterator[Any]] = {
        "t": iter(packed.tensors),
        "i": iter(packed.integers),
        "f": iter(packed.numbers),
    }
    return _read(json.loads(packed.words), values)


def _read(node: Any, values: Mapping[str, Iterator[Any]]) -> Any:
    if isinstance(node, str):
        return node[1:] if node.startswith("=") else next(values[node])
    if not isinstance(node, list):
        return node
    kind, *parts = node
    parts = [_read(part, values) for part in parts]
    return tuple(parts) if kind == "tuple" else KINDS[kind](**dict(zip(_FIELDS[kind], parts, strict=True)))
