"""How many rows of the kernel are held at once: all while there is room."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from gcalign.transport.operators.sharded import Shard
from gcalign.transport.operators.sources import Source

_SMALL = 1 << 28  # bytes that nobody misses
_ENTRIES = 1 << 22  # of a block, where its rows are ours to choose
_warned = False


def block_rows(source: Source, block: int | str | None, cache: str | None, shard: Shard | None) -> int:
    """How many rows are held at once; 0 stores them all, which "auto" does where half of the free memory is enough."""
    n, m = source.shape
    if isinstance(block, int):
        return block
    if cache is not None:
        return max(1, _ENTRIES // m)
    if block == "auto":
        like = source.tensors[0]
        size = (n if shard is None else n // shard.world + 1) * m * like.element_size()
        if size > _SMALL and size > _free(like.device) // 2:
            _warn(size, max(1, _ENTRIES // m))
            return max(1, _ENTRIES // m)
    return 0


def _free(device: torch.device) -> int:
    """Bytes that can still be had."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 << 30  # nobody says: a modest machine


def _warn(size: int, rows: int) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"a kernel of {size / 2**30:.1f} GiB does not fit in half of the free memory, so block='auto' streams it, "
            f"{rows} rows at a time; block={rows} does the same without this warning, block=None stores it",
            stacklevel=2,
        )
