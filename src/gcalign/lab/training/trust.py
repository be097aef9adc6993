"""Which configs a user's own commands wrote: those signed with a key that stays in the user's home.

A run that somebody else made, or whose config was changed since, is read like any other; but the paths in it are not
followed unless the command names them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any

SIZE = 32  # bytes of the key


def signature(content: dict[str, Any]) -> str | None:
    """The user's signature of a config; None where no key can be kept."""
    key = _key() or _made()
    return None if key is None else _digest(key, content)


def is_signed(content: dict[str, Any], given: object) -> bool:
    """Whether a command of this user wrote this content."""
    key = _key()
    return key is not None and isinstance(given, str) and hmac.compare_digest(_digest(key, content), given)


def _digest(key: bytes, content: dict[str, Any]) -> str:
    return hmac.new(key, json.dumps(content, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _file() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(home) / "gcalign" / "key"


def _key() -> bytes | None:
    try:
        key = _file().read_bytes()
    except OSError:
        return None
    return key if len(key) == SIZE else None


def _made() -> bytes | None:
    """A new key, unless another process was faster; never half of one."""
    file = _file()
    part = file.with_name(f"key.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(secrets.token_bytes(SIZE))
        try:
            os.link(part, file)
        except FileExistsError:
            pass
        finally:
            part.unlink()
    except OSError:
        return None
    return _key()
