"""What a step would take on a GPU, on paper: from its launches, waits, bytes and floating-point operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gcalign.lab.bench import table
from gcalign.lab.bench.table import Column, Row

LAUNCH, WAIT = 5e-6, 15e-6  # seconds of the host for one launch; seconds that one wait leaves the device idle
FLOPS, BANDWIDTH = 19.5e12, 1.5e12  # an A100: float32 operations and bytes of memory a second
WORDS = "5 µs a launch, 15 µs a wait, 19.5 TFLOP/s, 1.5 TB/s (A100, float32)"
_PRODUCTS = {"mm": 0, "mv": 0, "addmm": 1, "addmm_": 1, "addmv": 1, "addmv_": 1}  # and where the matrix stands
COLUMNS: tuple[Column, ...] = (
    ("n", "n", table.whole),
    ("eps", "ε", table.number),
    ("name", "loss", str),
    ("launching", "launches, ms", lambda s: f"{1e3 * s:.2f}"),
    ("waiting", "waits, ms", lambda s: f"{1e3 * s:.2f}"),
    ("gigaflops", "GFLOP", lambda x: f"{x:.2g}"),
    ("megabytes", "MB moved", table.whole),
    ("device", "device, ms", lambda s: f"{1e3 * s:.2f}"),
    ("estimate", "estimate, ms", lambda s: f"{1e3 * s:.2f}"),
    ("estimate_against_eager", "/ eager", table.ratio),
)


class Work(NamedTuple):
    """Of one operation of torch: its floating-point operations, and the bytes it reads and writes (float32)."""

    name: str
    flops: int
    bytes: int

    @staticmethod
    def of(name: str, shapes: Sequence[Sequence[int]]) -> Work:
        """From the shapes of its inputs. What is written is as large as the largest input; of a sum it is less."""
        known = [list(shape) for shape in shapes if shape]
        if name in _PRODUCTS:
            matrix, other = known[_PRODUCTS[name] :][:2]
            columns = other[1] if len(other) == 2 else 1
            moved = math.prod(matrix) + math.prod(other) + matrix[0] * columns
            return Work(name, 2 * math.prod(matrix) * columns, 4 * moved)
        sizes = [math.prod(shape) for shape in known] or [1]
        return Work(name, max(sizes), 4 * (sum(sizes) + max(sizes)))

    @property
    def seconds(self) -> float:
        """On the device, whichever is slower: arithmetic or memory."""
        return max(self.flops / FLOPS, self.bytes / BANDWIDTH)


def step(operations: int, waits: int, work: Sequence[Work]) -> Row:
    """A step takes as long as the host launches or the device works, whichever is longer, and its waits."""
    launching, device = LAUNCH * operations, sum(part.seconds for part in work)
    return {
        "launching": launching,
        "waiting": WAIT * waits,
        "gigaflops": sum(part.flops for part in work) / 1e9,
        "megabytes": sum(part.bytes for part in work) / 1e6,
        "device": device,
        "estimate": max(launching, device) + WAIT * waits,
    }
