"""Errors × shares × geometries: the interval holds the truth, the promised precision is kept, the plan ranks best.

`python tests/auditing/test_calibration.py` prints the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import gcalign
from gcalign.auditing.calibration import separation
from gcalign.lab.experiments.studies.mistakes import rivals

KINDS = ("random", "near", "repeated", "missing", "block")
SHARES = (0.1, 0.3, 0.6, 0.8)
GEOMETRIES = ("gaussian", "plane", "clusters", "hubs", "heavy tails", "wide")


def made(geometry: str, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs that belong together."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    if geometry == "plane":
        a = draw(n, 2)
        return a, a + 0.03 * draw(n, 2)
    if geometry == "wide":
        a = draw(n, 1024)
        return a, a + 2 * draw(n, 1024)
    if geometry == "clusters":
        a = draw(n // 20, 32)[torch.randint(n // 20, (n,), generator=generator)] + 0.5 * draw(n, 32)
        return a, a + 0.4 * draw(n, 32)
    a = draw(n, 24)
    if geometry == "hubs":
        hub = draw(24)
        a, b = (a + 0.7 * draw(n, 24) + 0.4 * draw(n, 1).square() * hub for _ in range(2))
        return a, b
    noise = draw(n, 24)
    if geometry == "heavy tails":
        noise = noise * draw(n, 1).abs().clamp(min=0.05).pow(-0.7)
    return a, a + 0.6 * noise


def spoilt(
    a: torch.Tensor, b: torch.Tensor, spare: torch.Tensor, kind: str, share: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The second side with a share of wrong partners, and which are wrong."""
    generator = torch.Generator().manual_seed(seed)
    n, result = len(a), b.clone()
    wrong = torch.zeros(n, dtype=torch.bool)
    where = torch.randperm(n, generator=generator)[: round(share * n)]
    if kind == "block":
        where = torch.arange(len(where))
    if not len(where):
        return result, wrong
    wrong[where] = True
    if kind == "near":
        s = (normalize(b, dim=1) @ normalize(b, dim=1).T).fill_diagonal_(-2)
        free = torch.ones(n, dtype=torch.bool)
        for i in where.tolist():
            if free[i] and n - int(free.sum()) < len(where):
                j = int(torch.where(free, s[i], -2).argmax())
                result[[i, j]] = result[[j, i]]
                free[[i, j]] = False
        wrong = ~free
    elif kind == "repeated":
        result[where] = b[where[0]]
        wrong[where[0]] = False
    elif kind == "missing":
        result[where] = spare[where]
    else:
        result[where] = b[where.roll(1)]
    return result, wrong


@dataclass(frozen=True)
class Cell:
    """What an audit said of one table of pairs, and what is so."""

    geometry: str
    kind: str
    share: float
    low: float
    high: float
    flagged: int
    n: int
    promised: float
    precision: float
    plan: float
    best: float  # AUROC of the best rival, with the setting that is best for this very cell

    @property
    def inside(self) -> bool:
        return self.low <= self.share <= self.high

    @property
    def near(self) -> bool:
        """Whether the promised precision is within 0.1 of the real one."""
        return self.flagged < 50 or abs(self.promised - self.precision) <= 0.1

    @property
    def kept(self) -> bool:
        """Whether it is not more than 0.1 above."""
        return self.flagged < 50 or self.promised <= self.precision + 0.1


def audited(geometry: str, kind: str, share: float, n: int = 500, seed: int = 0) -> Cell:
    a, b = made(geometry, 2 * n, seed)
    b, wrong = spoilt(a[:n], b[:n], b[n:], kind, share, seed)
    a = a[:n]
    result = gcalign.audit(a, b, fit="never")
    plan = best = math.nan
    if bool(wrong.any()):
        plan = separation(result.suspicion[wrong], result.suspicion[~wrong])
        s = normalize(a, dim=1) @ normalize(b, dim=1).T
        best = max(separation(x[wrong], x[~wrong]) for x in (score(s) for score in rivals().values()))
    hits = wrong[result.flagged].double().mean()
    return Cell(
        geometry, kind, float(wrong.double().mean()), result.share_at_least, result.share_at_most,
        int(result.flagged.sum()), n, result.precision, float(hits), plan, best,
    )  # fmt: skip


def cells(geometries: tuple[str, ...], shares: tuple[float, ...], seed: int = 0) -> list[Cell]:
    clean = [audited(geometry, "random", 0.0, seed=seed) for geometry in geometries]
    return clean + [
        audited(geometry, kind, share, seed=seed) for geometry in geometries for kind in KINDS for share in shares
    ]


def check(table: list[Cell]) -> None:
    clean, wrong = [c for c in table if c.share == 0], [c for c in table if c.share > 0]
    assert all(c.flagged <= 0.005 * c.n for c in clean), [c for c in clean if c.flagged]
    assert np.mean([c.inside for c in table]) >= 0.9, [c for c in table if not c.inside]
    assert np.mean([c.kept for c in table]) >= 0.95, [c for c in table if not c.kept]
    assert np.mean([c.near for c in table]) >= 0.8, [c for c in table if not c.near]
    assert np.mean([c.plan >= c.best - 0.005 for c in wrong]) >= 0.85, [c for c in wrong if c.plan < c.best - 0.005]


def test_it_is_right_or_says_that_it_cannot_tell():
    check(cells(("gaussian", "clusters", "heavy tails"), (0.3,)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_it_is_right_over_the_whole_table(seed):
    check(cells(GEOMETRIES, SHARES, seed))


if __name__ == "__main__":
    import sys

    for seed in map(int, sys.argv[1:] or ["0"]):
        table = cells(GEOMETRIES, SHARES, seed)
        for c in table:
            remarks = [
                *([] if c.inside else ["outside"]),
                *([] if c.kept else ["promise broken"]),
                *(["better than promised"] if c.kept and not c.near else []),
                *(["a rival is better"] if c.plan < c.best - 0.005 else []),
            ]
            print(
                f"{c.geometry:12} {c.kind:9} {c.share:.2f} [{c.low:.2f}, {c.high:.2f}] flagged {c.flagged:4} "
                f"promised {c.promised:.2f} real {c.precision:.2f} AUROC {c.plan:.3f} best rival {c.best:.3f} "
                f"{', '.join(remarks)}",
                flush=True,
            )
        wrong = [c for c in table if c.share > 0]
        print(
            f"inside {np.mean([c.inside for c in table]):.3f}, promises kept {np.mean([c.kept for c in table]):.3f}, "
            f"within 0.1 {np.mean([c.near for c in table]):.3f}, "
            f"plan at least as good (0.005) {np.mean([c.plan >= c.best - 0.005 for c in wrong]):.3f}, best or equal "
            f"{np.mean([c.plan >= c.best for c in wrong]):.3f} of {len(wrong)}"
        )
