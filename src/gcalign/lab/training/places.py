"""Places that files of a run name: followed if this command names them, or an earlier command of this user did.

A run that somebody else made is read like any other; but a folder or a data set on the hub that only its config names
is not. Commands that train note the places they name in a list in the user's home.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gcalign.lab import files
from gcalign.lab.training.config import Data
from gcalign.lab.words import path_of, quoted


def remember(*places: str) -> None:
    """Note places that a command named; where no list can be kept, they must be named again."""
    with suppress(OSError, ValueError):
        new = [place for place in places if place not in _known()]
        if new:
            _list().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            files.append(_list(), "".join(f"{place}\n" for place in new).encode())


def check_known(data: Data, given: Mapping[str, str], what: str, roots: Sequence[Path] = ()) -> None:
    """That what is about to be read or fetched was named by the user; anything within `roots` was."""
    if given.get("data", data.name) != data.name:
        return
    asked = []
    if "/" in data.name and "data" not in given:
        asked.append(f"data={data.name}")
    if data.root is not None and "data.root" not in given:
        place = path_of(data.root).resolve()
        if not any(place.is_relative_to(folder.resolve()) for folder in roots):
            asked.append(f"data.root={data.root}")
    asked = [word for word in asked if _place(word) not in _known()]
    if asked:
        raise ValueError(
            f"{what} names folders or code that you have not named, so they are not used; if you trust them, add "
            f"{quoted(*asked)}"
        )


def places_of(data: Data, *files_named: str | None) -> list[str]:
    """The places that the data of a command name, and further files."""
    words = [f"data={data.name}"] if "/" in data.name else []
    words += [] if data.root is None else [f"data.root={data.root}"]
    return [_place(word) for word in (*words, *(f"file={name}" for name in files_named if name is not None))]


def is_known(name: str) -> bool:
    """Whether a command of this user named this file."""
    return _place(f"file={name}") in _known()


def _place(word: str) -> str:
    """A word as it is listed, in one line: paths in full, as the user may be in another folder next time."""
    key, _, value = word.partition("=")
    return ascii(word if key == "data" else f"{key}={path_of(value).resolve()}")


def _list() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home) / "gcalign" / "places"


def _known() -> set[str]:
    try:
        return set(files.read(_list()).decode().split("\n"))
    except (OSError, ValueError):
        return set()
