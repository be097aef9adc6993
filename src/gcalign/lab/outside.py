"""Code of the user's own, by name. Only what a command or a call names is imported, never what a file names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def imported(key: str, name: str, remedy: str) -> Any:
    """Import the object that `module:object` names, for the setting `key`; the current folder is looked at last."""
    where, _, what = name.partition(":")
    here = os.getcwd()
    sys.path.append(here)  # for this lookup alone: a file here must not stand in for an installed package
    try:
        return getattr(importlib.import_module(where), what)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ValueError(f"{key}={name!r} cannot be imported ({error}); {remedy}") from error
    finally:
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]
