"""Checksums of tensors, by which a flipped bit in a file is found."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def crc32(tensors: Mapping[str, Tensor], about: str = "") -> str:
    """A checksum of names, types, shapes and bytes, by which a flipped bit is found."""
    code = zlib.crc32(about.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        code = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), code)
        code = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, code)
    return f"{code:08x}"


def check_crc32(file: Path, tensors: Mapping[str, Tensor], about: str, given: str | None) -> None:
    """That a file holds what was written; files of before checksums have none."""
    if given is not None and crc32(tensors, about) != given:
        raise ValueError(
            f"{file} is damaged: its checksum is not that of its content; delete it to start this run again"
        )
