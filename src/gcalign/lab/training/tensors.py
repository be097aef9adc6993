"""Tensors in a safetensors file, with what is known about them: no pickles, nothing half-written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from gcalign.lab import files
from gcalign.lab.words import explained

AGAIN = "delete it to start this run again"


def save(path: Path, tensors: Mapping[str, Tensor], about: dict[str, Any]) -> None:
    """Tensors and what is known about them, whole or not at all; the same content gives the same bytes."""
    seen: set[int] = set()
    plain = {}
    for key, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        plain[key] = value.clone() if value.data_ptr() in seen else value  # safetensors refuses shared memory
        seen.add(value.data_ptr())
    # one entry: safetensors writes several in any order
    files.write(path, to_bytes(plain, {"gcalign": json.dumps(about, sort_keys=True)}))


def read(path: Path, *, tensors: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (unless they are not wanted) and what is known about them; a damaged file is an error with a remedy."""
    with explained(f"{path} cannot be read", AGAIN, SafetensorError, OSError, RuntimeError, ValueError):
        if not path.is_file():
            raise OSError("it is not a file")
        with safe_open(path, framework="pt") as file:
            content = {k: file.get_tensor(k) for k in (file.keys() if tensors else ())}
            metadata = dict(file.metadata() or {})
    with explained(f"{path} does not say what it holds", AGAIN, ValueError, KeyError):
        about = files.from_json(metadata["gcalign"])
        if not isinstance(about, dict):
            raise ValueError(f"{about!r} instead of a mapping")
    return content, about
