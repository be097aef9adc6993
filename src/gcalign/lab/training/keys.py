"""Every key of a run with its default and meaning, read from the source of the config classes and the methods.

Nothing is imported for it, so `gcalign train --help` answers at once. The comment beside a field is its meaning.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CONFIG = Path(__file__).with_name("config.py")
_METHODS = Path(__file__).parents[2] / "methods.py"
_CHOSEN = (
    ("method", "gca-ince", "the loss; its options are below"),
    ("data", "scenes", "the data set: scenes is embedded; folder and parquet are your own files"),
    ("recipe", "default", "settings of the paper: cifar, svhn, imagenet100 or pacs"),
)


@dataclass(frozen=True)
class Key:
    """A key that can be set, as `name=value`."""

    name: str
    default: str
    meaning: str


def every() -> list[Key]:
    """The keys of every run, in the order of the classes; those that choose a group come first."""
    source = _CONFIG.read_text(encoding="utf-8")
    lines = source.splitlines()
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    chosen = [Key(*words) for words in _CHOSEN]
    return [*chosen, *(key for key in _fields(classes, lines, "Config", "") if key.name not in ("method", "data.name"))]


def _fields(classes: dict[str, ast.ClassDef], lines: list[str], name: str, prefix: str) -> Iterator[Key]:
    for field in classes[name].body:
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name) or field.value is None:
            continue
        key = prefix + field.target.id
        if isinstance(field.annotation, ast.Name) and field.annotation.id in classes:
            yield from _fields(classes, lines, field.annotation.id, f"{key}.")
        else:
            yield Key(key, _value(field.value), lines[field.lineno - 1].partition("  # ")[2].strip())


def _value(node: ast.expr) -> str:
    """A default as it is typed in a command."""
    try:
        return typed(ast.literal_eval(node))
    except ValueError:  # a call or a name
        return "{}" if "dict" in ast.unparse(node) else ast.unparse(node)


def typed(value: Any) -> str:
    """A value as it is typed in a command."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def options() -> dict[str, list[tuple[str, str]]]:
    """The options of each method with their defaults; all of them also take those in `COMMON`."""
    found = {}
    for node in ast.parse(_METHODS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            call = node.decorator_list[0]
            if isinstance(call, ast.Call) and isinstance(call.args[0], ast.Constant):
                given = zip(node.args.args, node.args.defaults, strict=True)
                found[str(call.args[0].value)] = [(argument.arg, _value(value)) for argument, value in given]
    return found


def help_text() -> str:
    """The keys as text for a terminal of 100 columns."""
    known = every()
    wide = max(len(f"{key.name}={key.default}") for key in known) + 2
    lines = [f"  {f'{key.name}={key.default}':{wide}}{key.meaning}" for key in known]
    methods = [f"  {name:10} {'  '.join(f'method.{k}={v}' for k, v in own)}" for name, own in options().items()]
    common = "  every one   method.iterations=  method.tol=  method.layout=  method.gradient=  method.block="
    return "\n".join(["keys, with their defaults:", *lines, "", "options of the methods:", *methods, common])


def resolved(content: dict[str, Any], folder: str) -> str:
    """A run as its words, one to a line, and the folder that it would have."""
    lines = []
    for key, value in content.items():
        parts = value.items() if isinstance(value, dict) and value else [(None, value)]
        for part, inner in parts:
            chosen = part is None or (part == "name" and key in ("method", "data"))
            name = key if chosen else f"{key}.{part}"
            lines.append(f"{name}={typed(inner)}")
    return "\n".join([*lines, f"folder: {Path(content['runs']) / folder}", "dry=true: nothing was written"])
