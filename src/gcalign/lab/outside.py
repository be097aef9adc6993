"""Code of the user's own, by name. Only what a command or a call names is imported, never what a file names."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def imported(key: str, name: str, remedy: str) -> Any:
    """Import the object that `module:object` names, for the setting `key`.

    The current folder is looked at only for a module that lies nowhere else, and for what that module imports.
    """
    where, _, what = name.partition(":")
    try:
        with _current_folder(where):
            return getattr(importlib.import_module(where), what)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"{key}={name!r} cannot be imported ({error}); {remedy}") from error


@contextmanager
def _current_folder(module: str) -> Iterator[None]:
    top = module.partition(".")[0]
    if top in sys.modules or importlib.util.find_spec(top) is not None:
        yield
        return
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]
