"""The public names and their signatures are those of `public_api.txt`: a change to them is a decision, not an accident.

`python tests/test_api.py` writes the file anew.
"""

from __future__ import annotations

import difflib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import gcalign

SNAPSHOT = Path(__file__).with_name("public_api.txt")


def described() -> list[str]:
    """A line for each public name, method and property, sorted."""
    lines: list[str] = []
    for name in sorted({*gcalign.__all__, "load"}):
        lines += _lines(f"gcalign.{name}", getattr(gcalign, name))
    return lines


def _lines(name: str, value: Any) -> list[str]:
    if isinstance(value, ModuleType):
        members = [(key, f) for key, f in vars(value).items() if not key.startswith("_") and inspect.isfunction(f)]
        return [
            line for key, f in sorted(members) if f.__module__ == value.__name__ for line in _lines(f"{name}.{key}", f)
        ]
    if not inspect.isclass(value):
        return [f"{name}{_signature(value)}"]
    lines = [f"class {name}{_signature(value)}"]
    for key in sorted(dir(value)):
        owner = next((c for c in value.__mro__ if key in vars(c)), None)
        if key.startswith("_") or owner is None or not owner.__module__.startswith("gcalign"):
            continue  # what torch and Python give is theirs
        member = vars(owner)[key]
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        if inspect.isfunction(member):
            lines.append(f"{name}.{key}{_signature(member)}")
        elif isinstance(member, property) or hasattr(member, "func"):
            lines.append(f"{name}.{key}")
    return lines


def _signature(value: Any) -> str:
    try:
        text = str(inspect.signature(value))
    except ValueError:  # an exception or a tuple type has none
        return ""
    text = re.sub(r"<function ([\w.]+) at 0x[0-9a-f]+>", r"\1", text)
    return text.replace("'", "")  # annotations are quoted or not, depending on the version of Python


def test_the_public_names_are_those_of_the_snapshot():
    before, now = SNAPSHOT.read_text().splitlines(), described()
    changes = list(difflib.unified_diff(before, now, "public_api.txt", "now", lineterm="", n=0))
    assert not changes, "\n".join(
        [
            "the public interface has changed:",
            *changes[2:],
            "If that is wanted: run `python tests/test_api.py`, commit tests/public_api.txt and write a line in "
            "CHANGELOG.md. What was removed or renamed must first have been deprecated; CONTRIBUTING.md says how.",
        ]
    )


def test_a_changed_signature_is_noticed(monkeypatch):
    monkeypatch.setattr(gcalign.methods, "ince", lambda temperature=0.5: None)
    assert described() != SNAPSHOT.read_text().splitlines()


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(described()) + "\n")
    print(f"{SNAPSHOT.name}: {len(described())} lines")
