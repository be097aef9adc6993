"""The page of an alignment: retrieval beside the rivals, matches to look at, pairs that look wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gcalign.aligning.aligner import Aligner
from gcalign.aligning.retrieval import nearest
from gcalign.lab.audit.page import cell
from gcalign.lab.pages.page import filled

NEAREST = 3  # matches of an item
SUSPECTS = 20  # pairs that the page lists
LEAST = 0.05  # probability of being wrong of those
NAMES = {"cca": "CCA", "procrustes": "Procrustes", "infonce": "InfoNCE"}
BLOCK = 65_536  # rows of B that are compared at once


@dataclass(frozen=True)
class ShownItems:
    """What the items of each side look like, where that is known."""

    a: Sequence[Any] | None
    b: Sequence[Any] | None


def rendered(
    aligner: Aligner, embedded: Sequence[Any], shown: ShownItems, title: str, examples: int, commands: Sequence[str]
) -> str:
    """The page as one string; texts are escaped, images are decoded here."""
    a, b = embedded
    chosen = np.unique(np.linspace(0, len(a) - 1, examples).astype(int))
    parts = (torch.tensor(b[start : start + BLOCK]) for start in range(0, len(b), BLOCK))
    where, near = nearest(torch.tensor(a[chosen]), parts, NEAREST)
    matches = [
        {
            "row": int(i),
            "item": cell(shown.a, int(i)),
            "found": [
                {"row": j, "item": cell(shown.b, j), "cosine": f"{s:.2f}"}
                for j, s in zip(js.tolist(), ss.tolist(), strict=True)
            ],
        }
        for i, js, ss in zip(chosen, where, near, strict=True)
    ]
    suspects = [
        {"a": i, "b": j, "first": cell(shown.a, i), "second": cell(shown.b, j), "probability": f"{p:.0%}"}
        for i, j, p in aligner.report.suspects
        if p >= LEAST
    ]
    return filled(
        "align.html.jinja",
        ("style.css",),
        title=title,
        report=aligner.report,
        names=NAMES,
        shown=shown.a is not None or shown.b is not None,
        matches=matches,
        suspects=suspects[:SUSPECTS],
        least=LEAST,
        commands=commands,
    )
