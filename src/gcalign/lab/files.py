"""Files that are whole or not there, lines that are whole or not there, and reads that end."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import secrets
import shutil
import stat
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from gcalign.lab.limits import within
from gcalign.lab.words import FULL, explained, path_of

CUT_SHORT = "a kill or a full disk cut it short"  # said of a last line that has no end
_PART = ".part"
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)  # a link in a folder that somebody was given is not written through
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a pipe does not wait for its writer


def write(path: Path, content: str | bytes) -> None:
    """All or nothing, on disk before it has its name: readers and later runs never see half a file."""
    part = part_of(path)
    clean(path.parent, path.name)
    data = content.encode() if isinstance(content, str) else content
    try:
        with part.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # not the part's name; of a full disk, none is said
        raise
    finally:
        part.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """Where a file or folder is made until it is whole."""
    if path.parent.resolve() == Path("/dev") or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is a folder, a pipe or a device, which a file would replace; name a file")
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{_PART}")


def clean(folder: Path, name: str | None = None) -> None:
    """Remove what a killed process left half-written of `name`; of every file, for the one owner of a folder."""
    for part in folder.glob(f".*{_PART}"):
        of, *rest = part.name[1 : -len(_PART)].rsplit(".", 2)
        if len(rest) < 2:
            continue
        if name is None or (of == name and not is_alive(rest[0])):
            if part.is_dir() and not part.is_symlink():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


@contextmanager
def new_folder(option: str, path: Path) -> Iterator[Path]:
    """A folder to fill, which has its name when the block has ended, whole or not at all."""
    if path.exists():
        raise ValueError(f"{option} {path} exists; it must be a new folder: choose another name, or remove it")
    part = part_of(path)
    clean(path.parent, path.name)
    remedy = "choose a directory in which you can create files"
    try:
        with explained(f"{option} {path} cannot be made", remedy, OSError):
            part.mkdir(parents=True)
        yield part
        os.replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV, the first of which is the heading."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def write_npy(path: Path, array: Any) -> None:
    """An array as an npy file."""
    import numpy as np

    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write(path, buffer.getvalue())


def write_parquet(path: Path, table: Any) -> None:
    """A table of pyarrow as a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    write(path, buffer.getvalue().to_pybytes())


def own_folder(path: Path) -> Path:
    """A folder inside another one that somebody may have been given: a link there is not written through."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link, and nothing is written through it; remove it")
    return path


def is_alive(pid: int | str) -> bool:
    """Whether a process of this machine has this id; where that cannot be known, it may."""
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except OSError:
        pass
    return True


def read(path: Path, name: str = "TEXT_BYTES") -> bytes:
    """The bytes of a regular file within the limit of this name; a pipe would block, and a device never end."""
    with os.fdopen(os.open(path, os.O_RDONLY | _NONBLOCK), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError(f"{path} is a pipe or a device; it must be a file")
        within(name, about.st_size, f"the number of bytes of {path}")
        data = file.read()
    if data is None:  # of /proc/kmsg and its like
        raise ValueError(f"{path} has nothing to read yet; it must be a file")
    return data


def writable(option: str, path: str, suffixes: Sequence[str] = ()) -> Path:
    """The path, if a file with such a name can be made there: better known before the work than after it."""
    target = path_of(path)
    named = f"{option} {path}".lstrip()
    if (suffixes and target.suffix not in suffixes) or target.is_dir() or not target.resolve().parent.is_dir():
        kind = f"a {', '.join(suffixes)} file" if suffixes else "a file"
        raise ValueError(
            f"{named} must be {kind} in a directory that exists; choose another name, or create the directory"
        )
    part = part_of(target)
    try:
        part.touch(exist_ok=False)
        part.unlink()
    except OSError as error:
        if error.errno in FULL:
            error.filename, error.filename2 = str(target), None
            raise
        said = f"{named} cannot be written ({error.strerror}); choose a directory in which you can create files"
        raise ValueError(said) from error
    return target


def _named(word: str) -> tuple[str, ...]:
    """The files that an argument may name: FILE, FILE:NAME or KEY=FILE."""
    return word, word.rpartition(":")[0], word.partition("=")[2]


def check_apart(outputs: Mapping[str, str | Path | None], inputs: Sequence[str]) -> None:
    """Refuses an output that is an input, or that two options name; inputs are arguments."""
    read = {path_of(text).resolve() for word in inputs for text in _named(word) if text}
    seen: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None or str(path) == "-":
            continue
        place = path_of(str(path)).resolve()
        if place in read:
            raise ValueError(
                f"{option} {path} is an input of this command, which it would overwrite; choose another name"
            )
        if place in seen:
            raise ValueError(f"{seen[place]} and {option} both name {path}; give each a file of its own")
        seen[place] = option


def to_json_line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, sort_keys=True) + "\n"


def to_json_file(path: str, payload: Any) -> None:
    """Write JSON to a file, or to standard output if the path is `-`."""
    text = json.dumps(payload, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    write(Path(path), text)


def from_json(text: str | bytes, *, finite: bool = False) -> Any:
    """Plain values, or a ValueError whatever the text is: a key that is there twice would hide a value."""
    numbers: dict[str, Any] = {"parse_constant": _refused, "parse_float": _finite} if finite else {}
    try:
        return json.loads(text, object_pairs_hook=_unique, **numbers)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(items: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(items)
    if len(content) < len(items):
        twice = next(key for k, (key, _) in enumerate(items) if key in dict(items[:k]))
        raise ValueError(f"the key {twice!r} is there twice")
    return content


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _finite(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else _refused(text)


def read_json_lines(
    path: Path, fault: Callable[[dict[str, Any]], str | None] = lambda record: None
) -> list[dict[str, Any]]:
    """Every whole line; one that is broken, or in which `fault` finds one, is left out, and a warning names it."""
    if not path.exists():
        return []
    lines = read(path).split(b"\n")
    records, wrong = [], []
    for number, line in enumerate(lines, 1):
        try:
            record = from_json(line, finite=True)
            said = fault(record) if isinstance(record, dict) else "it is not a record"
        except ValueError as error:
            said = str(error)
        if said is None:
            records.append(record)
        elif line.strip():
            wrong.append((number, said if number < len(lines) else CUT_SHORT))
    for number, what in wrong:
        warnings.warn(f"{path}, line {number} is left out ({what}); delete the line", stacklevel=2)
    return records


def append_json_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """All of them or none."""
    append(path, "".join(map(to_json_line, records)).encode())


def append(path: Path, data: bytes) -> None:
    """Whole lines, all or none: what a full disk took of them is taken back."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _NOFOLLOW | _NONBLOCK, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data  # a killed process left half a line, which must not take this one with it
        try:
            written = os.write(descriptor, data)
            if written < len(data):
                raise OSError(errno.ENOSPC, f"No space left on device for {len(data)} bytes", str(path))
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
