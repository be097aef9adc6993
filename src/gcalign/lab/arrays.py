"""Arrays in npy and npz files: nothing is unpickled, and their sizes are known before memory is asked for."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import numpy as np

from gcalign.lab import files
from gcalign.lab.limits import within
from gcalign.lab.words import explained

# what damaged bytes lead numpy and zipfile to
_DAMAGED = (
    OSError, ValueError, TypeError, EOFError, KeyError, RuntimeError, OverflowError, SyntaxError, struct.error,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def names(path: Path) -> list[str]:
    """The arrays of an npz file."""
    with _readable(path), zipfile.ZipFile(path) as packed:
        return [name.removesuffix(".npy") for name in packed.namelist()]


def from_npz(path: Path, name: str) -> Any:
    """One array of an npz file."""
    with _readable(path), zipfile.ZipFile(path) as packed:
        member = next(part for part in packed.infolist() if part.filename in (f"{name}.npy", name))
        with packed.open(member) as file:
            _check_header(file, member.file_size, f"{name!r} of {path}")
        with packed.open(member) as file:
            return np.lib.format.read_array(file, allow_pickle=False)


def from_npy(path: Path) -> Any:
    """The array of an npy file."""
    return from_bytes(files.read(path, "ARRAY_BYTES"), path)


def from_bytes(content: bytes, path: Path) -> Any:
    """The array of an npy file that was read from `path`."""
    with _readable(path):
        _check_header(io.BytesIO(content), len(content), str(path))
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


def _check_header(file: IO[bytes], stored: int, what: str) -> None:
    """That an array is within the limit, holds no objects, and is not larger than what is stored of it."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    if kind.hasobject:
        raise ValueError(
            "it holds Python objects, and reading those would run code from the file; it must hold plain numbers: save "
            "it again with np.save(path, array.astype('float32'))"
        )
    size = math.prod(shape) * kind.itemsize
    within("ARRAY_BYTES", size, f"the number of bytes of {what}")
    if size > stored:
        raise ValueError(f"its header promises {size:,} bytes, and it has {stored:,}")


def _readable(path: Path) -> AbstractContextManager[None]:
    return explained(f"{path} cannot be read", "write it again with np.save or np.savez", *_DAMAGED)
