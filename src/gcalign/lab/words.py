"""Words of a command line: how a path is read, how words are shown so that they can be typed again, and errors."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


def path_of(text: str | Path) -> Path:
    """A path as it was typed; a shell leaves the `~` of `runs=~/x` alone, so it is expanded here."""
    return Path(os.path.expanduser(text))  # pathlib raises for a folder called ~x, this leaves it


def quoted(*words: str | Path) -> str:
    """Words as a shell takes them: one command, nothing expanded, whatever they contain."""
    return " ".join(_quoted(str(word)) for word in words)


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    # $'…' of bash, zsh and ksh: a control character in a copied command would reach the terminal
    return "$'" + "".join(f"\\{c}" if c in "'\\" else c if c.isprintable() else _escaped(c) for c in word) + "'"


def _escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


FULL = (errno.ENOSPC, errno.EDQUOT)  # of a disk, or of what a user may have of it


def printable(text: object) -> str:
    """Text for a terminal: control characters and undecodable bytes of a name are shown, not sent."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(text))


def some(items: Iterable[object], n: int = 3) -> str:
    """The first few, for a message."""
    items = list(items)
    return ", ".join(map(str, items[:n])) + (f", … ({len(items)} in all)" if len(items) > n else "")


def brief(error: BaseException) -> str:
    """The message of another library in one line."""
    message = " ".join(str(error).split())[:1000] or type(error).__name__
    return f"no {message}" if isinstance(error, KeyError) else message


def explanation(error: BaseException) -> str:
    """The message of the error that ended a command, with a remedy where Python or the system gives none."""
    if isinstance(error, ModuleNotFoundError):
        return missing(error)
    if isinstance(error, OSError) and error.errno in FULL:
        file = f"{error.filename}: " if error.filename else ""
        return f"{file}{error.strerror}; the file is as it was before: make room, and use the same command again"
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}; check the name and the permissions, or choose another path"
    if isinstance(error, TypeError):  # perhaps a mistake of ours
        return f"{error} (--debug shows where)"
    return str(error) or "not enough memory; try a smaller batch_size= or data.size="


@contextmanager
def explained(what: str, remedy: str, *errors: type[BaseException]) -> Iterator[None]:
    """Inside, such an error becomes a ValueError with what failed, why, and the remedy."""
    try:
        yield
    except errors as error:
        raise ValueError(f"{what} ({brief(error)}); {remedy}") from error


_EXTRAS = {
    "launch": ("hydra_plugins", "submitit", "joblib", "ray"),
    "bench": ("ot", "pytorch_metric_learning"),
    "train": (
        "lightning", "hydra", "omegaconf", "datasets", "filelock", "kornia", "sklearn", "scipy", "safetensors",
        "matplotlib", "pyarrow", "PIL", "jinja2", "markdown_it", "tensorboard", "numpy", "pandas",
    ),
}  # fmt: skip


def missing(error: ModuleNotFoundError) -> str:
    """Which extra brings a module that is not installed."""
    name = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in _EXTRAS.items() if name in modules), None)
    if extra is None:
        return f"{error}; install it, or check the name"
    return (
        f"this command needs {name}, which is not installed; it comes with the extra {extra!r}: "
        f"pip install -c constraints.txt '.[{extra}]' in a checkout, "
        f"or pip install 'FILE.whl[{extra}]' with the wheel that you installed"
    )
