"""tab:diff: what each method is made of, printed by the methods themselves. There is nothing to measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gcalign.lab.experiments.engine.experiment import Experiment
from gcalign.lab.experiments.engine.tables import Sheet
from gcalign.lab.paper import METHODS, NAMES

if TYPE_CHECKING:
    import pandas as pd


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """What each method is made of, read from the methods themselves."""
    from gcalign.alignment import Alignment
    from gcalign.geometry import Entropic
    from gcalign.methods import method

    rows = []
    for name in METHODS:
        made = method(name)
        assert isinstance(made, Alignment)
        sets = " ∩ ".join(map(repr, made.constraints)) or "none"
        d_gamma = type(made.geometry or Entropic()).__name__ if made.constraints else "–"  # nothing is projected
        kernel, divergence, target = map(repr, (made.kernel, made.divergence, made.target))
        iterated = "yes" if len(made.constraints) > 1 else "no"
        rows.append([NAMES[name], kernel, d_gamma, sets, divergence, target, made.layout, iterated])
    header = ["Method", "K_θ", "d_Γ", "constraints B", "d_M", "P_tgt", "layout", "iterated"]
    notes = [
        "`tab:diff` of the paper, printed by the methods themselves (`gcalign.method(name)`) with their defaults. A "
        "penalty makes a constraint soft; the layout says whether the negatives are the other view alone (cross) or "
        "all embeddings of the batch (joint)."
    ]
    return Sheet("table-methods", header, rows, notes).write(folder)


EXPERIMENTS = (Experiment("table-methods", draw, place=5),)
