"""Tests over several processes: each is a rank of one gloo group, and gives back what its function returns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed as dist

needs_gloo = pytest.mark.skipif(sys.platform == "win32" or not dist.is_gloo_available(), reason="needs gloo")


def ranks(main: Callable[..., Any], folder: Path, world: int = 2, *more: Any) -> list[Any]:
    """What main(rank, *more) returns, tensors and plain values, on each rank of a group of this size."""
    mp.spawn(_rank, args=(main, str(folder), world, more), nprocs=world)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


def _rank(rank: int, main: Callable[..., Any], folder: str, world: int, more: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save(main(rank, *more), Path(folder) / f"{rank}.pt")
    dist.barrier()  # torch 2.6 may hang if a rank leaves early
    dist.destroy_process_group()
