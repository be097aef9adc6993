"""Which operator holds the kernel: stored while there is room, streamed where there is none."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from gcalign.operators.blocked import Blocked
from gcalign.operators.dense import Dense
from gcalign.operators.sharded import Shard
from gcalign.operators.sources import Source
from gcalign.operators.streamed import Cached, Streamed

_SMALL = 1 << 28  # bytes that nobody misses
_ENTRIES = 1 << 22  # of a block, where its rows are ours to choose
_said = False


def operator(source: Source, block: int | str | None, cache: str | None, shard: Shard | None) -> Blocked:
    """`block` rows at a time: None stores the matrix, "auto" does so where it fits in half of the free memory."""
    n, m = source.shape
    like = source.tensors[0]
    streamed = Streamed if cache is None else Cached
    if isinstance(block, int):
        return streamed(source, block, shard)
    if block == "auto" or cache is not None:
        mine = n if shard is None else n // shard.world + 1
        size = mine * m * like.element_size()
        if cache is not None or (size > _SMALL and size > _free(like.device) // 2):
            rows = max(1, _ENTRIES // m)
            if cache is None:
                _say(size, rows)
            return streamed(source, rows, shard)
    return Dense(source, shard)


def _free(device: torch.device) -> int:
    """Bytes that can still be had."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 << 30  # nobody says: a modest machine


def _say(size: int, rows: int) -> None:
    global _said
    if not _said:
        _said = True
        warnings.warn(
            f"a kernel of {size / 2**30:.1f} GiB does not fit in half of the free memory, so block='auto' streams it, "
            f"{rows} rows at a time; block={rows} says so without this warning, block=None stores it",
            stacklevel=2,
        )
