"""Floating-point operations of each loss (Computational Complexity), counted at the paper's batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments.engine.claims import EmpiricalClaim, Judgement, Results
from gcalign.lab.experiments.engine.experiment import Computing, Experiment
from gcalign.lab.experiments.engine.records import Record, by_seed, check_any, series
from gcalign.lab.experiments.engine.statistics import estimates, signed
from gcalign.lab.experiments.engine.tables import NOTHING, Sheet
from gcalign.lab.experiments.paper import COST
from gcalign.lab.paper import METHODS, MFLOPS, NAMES

if TYPE_CHECKING:
    import pandas as pd

BATCH, DIM = 512, 128  # pairs, and width of the head (app:hpdetails)
COUNTED = 5  # iterations whose operations are counted
PARTS = ("matmul", "elementwise", "total")


def compute(of: Computing) -> Iterator[list[Record]]:
    """Floating-point operations of each loss."""
    import torch

    from gcalign.lab.verify.costs import counted

    generator = torch.Generator().manual_seed(0)
    z1 = torch.randn(BATCH, DIM, generator=generator)
    z2 = z1 + 0.5 * torch.randn(BATCH, DIM, generator=generator)
    about = {
        "n": BATCH,
        "dim": DIM,
        "iterations": COUNTED,
        "counted": "matrix products 2mnk by torch.utils.flop_counter, taught products with vectors and in place; of "
        "the rest, reductions one per input element, other arithmetic one per output element, views and copies none",
    }
    for name in METHODS:
        total, products = counted(name, z1, z2, iterations=COUNTED, tol=0.0)
        known = about | ({"paper": MFLOPS[name]} if name in MFLOPS else {})
        yield [
            Record("flops", of.scale.name, "mflops", value, {"method": name, "part": part}, about=known)
            for part, value in zip(PARTS, (products, total - products, total), strict=True)
        ]


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Counted operations of each loss beside the paper's three figures."""
    counts = {key: e.mean for key, e in estimates(by_seed(records, "mflops", "method", "part")).items()}
    counted = [m for m in METHODS if any((m, part) in counts for part in PARTS)]
    check_any(counted, "flops", "mflops by method and part")
    base = counts.get(("ince", "total"))
    rows = []
    for m in counted:
        cells = [f"{counts[m, part]:.2f}" if (m, part) in counts else NOTHING for part in PARTS]
        total, theirs = counts.get((m, "total")), MFLOPS.get(m)
        cells.append(NOTHING if total is None or not base else f"{total / base:.2f}")
        cells += [NOTHING] * 2 if theirs is None else [f"{theirs:.2f}", f"{theirs / MFLOPS['ince']:.2f}"]
        rows.append([NAMES[m], *cells])
    header = ["Method", "matrix products", "element-wise", "total", "÷ INCE", "paper", "paper ÷ INCE"]
    about = {k: v for each in records["about"] for k, v in sorted(each.items()) if k != "paper"}
    notes = [
        "MFLOP of one loss, forward and backward, against the paper's figures, whose batch and counting are not given."
    ]
    notes += [f"Settings: {'; '.join(f'{k}: {v}' for k, v in sorted(about.items()))}."] if about else []
    return Sheet("flops", header, rows, notes).write(folder)


# --- claims --------------------------------------------------------------------------------------------------------


def at_most(results: Results, method: str, more: float) -> Judgement:
    """MFLOP of a loss over that of INCE, held up to `more`; counts have no spread."""
    records = results.of("flops")
    mine, base = (series(records, "mflops", method=m, part="total") for m in (method, "ince"))
    if mine.empty or base.empty:
        raise results.missing("flops")
    x, y = float(mine.iloc[0]), float(base.iloc[0])
    return Judgement("held" if x / y - 1 <= more else "failed", f"{x:.2f} against {y:.2f} MFLOP: {_more(x, y)}")


def in_the_published_code(results: Results, method: str, more: float) -> Judgement:
    """The same of the code that the paper counted; that of this library stands beside it."""
    from gcalign.lab.verify.costs import macs  # torch, which `gcalign --help` does not wait for

    x, y = macs(NAMES[method]), macs(NAMES["ince"])
    text = f"published code: {x:.2f} against {y:.2f} million multiply-adds, {_more(x, y)}"
    here = at_most(results, method, more).result
    return Judgement("held" if x / y - 1 <= more else "failed", f"{text}; here {here}")


def _printed(method: str) -> str:
    """MFLOP of a loss against those of INCE, as printed."""
    return f"{MFLOPS[method]} against {MFLOPS['ince']} MFLOP: {_more(MFLOPS[method], MFLOPS['ince'])}"


def _more(x: float, y: float) -> str:
    return f"{signed(100 * (x / y - 1), 1)} %"


WHERE = "Computational Complexity"


def claims() -> Iterable[EmpiricalClaim]:
    return [
        EmpiricalClaim(
            COST,
            "FLOPs GCA-INCE",
            "GCA-INCE has 5 % more FLOPs than INCE (held: in the published code, which was counted)",
            partial(in_the_published_code, method="gca-ince", more=0.055),  # 5 % to the nearest one
            WHERE,
            _printed("gca-ince"),
        ),
        EmpiricalClaim(
            COST,
            "FLOPs GCA-UOT",
            "GCA-UOT saves 30 % of INCE's FLOPs",
            partial(at_most, method="gca-uot", more=MFLOPS["gca-uot"] / MFLOPS["ince"] - 1),
            WHERE,
            f"{_printed('gca-uot')}; its INCE multiplies by dense diagonal matrices",
        ),
    ]


EXPERIMENTS = (Experiment("flops", draw, compute=compute, claims=claims, place=8),)
