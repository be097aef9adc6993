"""Tensors in a safetensors file, with what is known about them and a checksum: no pickles, nothing half-written."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from gcalign.lab import files
from gcalign.lab.words import explained

AGAIN = "delete it to start this run again"


def save(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Tensors as safetensors, whole or not at all."""
    seen: set[int] = set()
    plain = {}
    for key, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        plain[key] = value.clone() if value.data_ptr() in seen else value  # safetensors refuses shared memory
        seen.add(value.data_ptr())
    files.write(path, to_bytes(plain, metadata))


def read(path: Path, *, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors (unless only the metadata is wanted) and metadata; a damaged file is an error that says what to do."""
    with explained(f"{path} cannot be read", AGAIN, SafetensorError, OSError, RuntimeError, ValueError):
        if not path.is_file():
            raise OSError("it is not a file")
        with safe_open(path, framework="pt") as file:
            keys = file.keys() if tensors else ()
            return {k: file.get_tensor(k) for k in keys}, dict(file.metadata() or {})


def save_checked(path: Path, tensors: Mapping[str, Tensor], about: dict[str, Any]) -> None:
    """Tensors with what is known about them, and a checksum of both."""
    code = crc32(tensors, json.dumps(about, sort_keys=True))
    # one entry: safetensors writes several in any order, and the file should be the same byte for byte
    save(path, tensors, {"gcalign": json.dumps({**about, "crc32": code}, sort_keys=True)})


def read_checked(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and what is known about them; a flipped bit is an error. Files from before checksums have none."""
    tensors, metadata = read(path)
    about = about_of(path, metadata)
    code = about.pop("crc32", None)
    if code is not None and crc32(tensors, json.dumps(about, sort_keys=True)) != code:
        raise ValueError(f"{path} is damaged: its checksum is wrong; {AGAIN}")
    return tensors, about


def about_of(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """What the metadata of a file says; of checkpoints from before, each entry is a text."""
    with explained(f"{path} does not say what it holds", AGAIN, ValueError):
        about = files.from_json(metadata["gcalign"]) if "gcalign" in metadata else dict(metadata)
        if not isinstance(about, dict):
            raise ValueError(f"{about!r} instead of a mapping")
        return about


def crc32(tensors: Mapping[str, Tensor], about: str = "") -> str:
    """A checksum of names, types, shapes and bytes."""
    code = zlib.crc32(about.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        code = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), code)
        code = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, code)
    return f"{code:08x}"
