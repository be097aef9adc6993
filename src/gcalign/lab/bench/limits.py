"""What the machine allows: matrix products, exponentials and reads of the sizes a loss needs, timed by themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gcalign.lab.bench import table
from gcalign.lab.bench.table import Column, Row
from gcalign.lab.bench.timing import median_seconds
from gcalign.transport.operators.blocked import BLOCK_ENTRIES

COLUMNS: tuple[Column, ...] = (
    ("n", "n", table.whole),
    ("dim", "D", table.whole),
    ("what", "by itself", str),
    ("seconds", "ms", table.milliseconds),
    ("rate", "rate", table.ratio),
    ("unit", "", str),
)


@dataclass(frozen=True)
class Limits:
    """Seconds of each part on an n × n kernel of D-dimensional embeddings."""

    n: int
    dim: int
    products: float  # K = φ ψᵀ, K ψ and Kᵀ φ
    exponentials: float  # of n² numbers in the cache
    read: float  # of n² numbers from memory, by a matrix–vector product

    def floor(self, sweeps: int) -> float:
        """No loss with exact gradients by such parts is faster: every product, one exponential an entry, every sweep
        but the first, which meets each block while it is made, a read."""
        return self.products + self.exponentials + self.read * max(0, sweeps - 1)

    def rows(self) -> list[Row]:
        entries = self.n * self.n
        parts = (
            ("three matrix products", self.products, 6 * entries * self.dim / 1e9, "GFLOP/s"),
            ("exponentials, in the cache", self.exponentials, entries / 1e9, "G/s"),
            ("a read, by a matrix–vector product", self.read, 4 * entries / 1e9, "GB/s"),
        )
        return [
            {"n": self.n, "dim": self.dim, "what": what, "seconds": s, "rate": amount / s, "unit": unit}
            for what, s, amount, unit in parts
        ]


def limits(n: int, dim: int, repeats: int) -> Limits:
    """Medians on this machine, with torch's own threads."""
    x, y = torch.randn(n, dim), torch.empty(n, dim)
    k, v, w = torch.zeros(n, n), torch.ones(n), torch.empty(n)
    block = torch.zeros(max(1, min(n, BLOCK_ENTRIES["cpu"] // n)), n)
    out = torch.empty_like(block)

    def products() -> None:
        torch.mm(x, x.T, out=k)
        torch.mm(k, x, out=y)
        torch.mm(k.T, x, out=y)

    def exponentials() -> None:
        for start in range(0, n, len(block)):
            torch.exp(block[: n - start], out=out[: n - start])

    return Limits(
        n,
        dim,
        median_seconds(products, repeats),
        median_seconds(exponentials, repeats),
        median_seconds(lambda: torch.mv(k, v, out=w), repeats),
    )
