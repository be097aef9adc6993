"""Draws docs/life-of-a-call.png: one call of GCA-UOT, from the embeddings to their gradient.

python docs/life_of_a_call.py [PATH]
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
# Okabe and Ito's colours, pale: distinct to the colour-blind and, by their outlines, in grey
BLUE, ORANGE, GREEN, GREY = ("#0072B2", "#E3F0F8"), ("#D55E00", "#FBEADF"), ("#009E73", "#E0F3EC"), ("0.35", "0.97")

ARROW = {"arrowstyle": "-|>", "color": "0.2", "linewidth": 1.6, "mutation_scale": 15, "shrinkA": 0, "shrinkB": 0}


class Box(NamedTuple):
    """A step of the call: where it stands, what it is, which modules do it, and what it makes."""

    x: float
    y: float
    width: float
    height: float
    title: str
    modules: tuple[str, ...]
    lines: str
    colours: tuple[str, str]


TOP, LOW, TALL = 4.35, 0.85, 2.5
FORWARD = (
    Box(0.1, TOP, 1.65, TALL, "embeddings", (), "$z_1, z_2$\n$[n, D]$\n\nnot normalised", GREY),
    Box(
        2.2, TOP, 2.65, TALL, "problem",
        ("objective", "alignment", "batch", "kernels", "targets", "constraints", "problem"),
        "$\\phi, \\psi$: unit rows\nlog K = $\\phi\\psi^T/\\varepsilon - 1/\\varepsilon$\n"
        "masses $\\mu$, $\\nu$; pairs of $T$", BLUE,
    ),
    Box(
        5.55, TOP, 2.15, TALL, "kernel blocks", ("operators.sources", "operators.blocked"),
        "rows of $\\hat{K} = e^{\\phi\\psi^T/\\varepsilon}$,\ncomputed once and\nstored, or recomputed", ORANGE,
    ),
    Box(
        7.95, TOP, 2.15, TALL, "scalings", ("sinkhorn",),
        "$u = (\\mu / Kv)^{\\tau_1}$\n$v = (\\nu / K^Tu)^{\\tau_2}$\n\none sync per test", ORANGE,
    ),
    Box(
        10.35, TOP, 1.75, TALL, "record", ("sinkhorn",),
        "$Kv$, $u$, $v$, $K^Tu$\nof each iteration\n\nfor backward", ORANGE,
    ),
    Box(
        12.8, TOP, 1.95, TALL, "plan", ("plan",),
        "log P on the pairs,\nlog P1, log P$^T$1,\nlog u, log v", BLUE,
    ),
    Box(
        15.2, TOP, 2.15, TALL, "divergence", ("divergences",),
        "KL(T‖P) + penalties\n+ 0.02 · robust\n\nmean over rows", BLUE,
    ),
    Box(17.8, TOP, 1.0, TALL, "loss", (), "one\nnumber", GREY),
)  # fmt: skip
BACKWARD = (
    Box(0.1, LOW, 1.65, TALL, "gradient", (), "$\\partial L/\\partial z_1$\n$\\partial L/\\partial z_2$", GREY),
    Box(
        2.2, LOW, 2.65, TALL, "unit rows, reversed", ("kernels",),
        "$\\partial L/\\partial\\phi$, $\\partial L/\\partial\\psi$\nwithout the part\nalong the embedding", GREEN,
    ),
    Box(
        5.55, LOW, 2.95, TALL, "block by block", ("gradients", "operators.sources"),
        "$W = \\hat{K} \\circ (left \\cdot right^T)$\n+ the pairs' own part,\nthen $W\\psi$ and $W^T\\phi$", ORANGE,
    ),
    Box(
        8.75, LOW, 3.35, TALL, "iterations, reversed", ("gradients",),
        "last to first, from the record;\ntwo products with $\\hat{K}$ each\ngive columns of left and right", ORANGE,
    ),
    Box(
        12.8, LOW, 4.55, TALL, "adjoints", (),
        "plain autograd through the divergence:\n$\\partial L/\\partial$ of log P on the pairs,\n"
        "of log P1, log P$^T$1, log u, log v", GREEN,
    ),
    Box(17.8, LOW, 1.0, TALL, "1", (), "the first\nadjoint", GREY),
)  # fmt: skip
# an operator, its module, the foot of its frame and of its name
OPERATORS = (
    ("gcalign::solve", "operator", TOP - 0.25, TOP + TALL + 0.2),
    ("gcalign::solve_backward", "operator", LOW - 0.6, LOW - 0.4),
)


def draw(path: Path) -> None:
    """Write the picture; the same bytes each time."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    with mpl.rc_context({"font.size": 11, "font.family": "DejaVu Sans", "mathtext.fontset": "dejavusans"}):
        figure = Figure(figsize=(15.2, 6.4))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, 19)
        axes.set_ylim(0.05, 7.95)
        axes.axis("off")
        for name, module, foot, y in OPERATORS:
            frame = FancyBboxPatch(
                (5.3, foot), 7.05, TALL + 0.85, boxstyle="round,pad=0,rounding_size=0.12", facecolor="white",
                edgecolor=ORANGE[0], linewidth=1.6, linestyle="--",
            )  # fmt: skip
            axes.add_patch(frame)
            axes.text(5.5, y, name, family="DejaVu Sans Mono", weight="bold", color=ORANGE[0], size=12)
            axes.text(12.15, y, module, ha="right", family="DejaVu Sans Mono", size=9.5, color="0.35")
        for boxes, back in ((FORWARD, False), (BACKWARD, True)):
            for box in boxes:
                _box(axes, box, FancyBboxPatch)
            for left, right in pairwise(boxes):
                start, stop = left.x + left.width + 0.03, right.x - 0.03
                ends = (start, stop) if back else (stop, start)  # where the arrow points, and where it comes from
                y = left.y + TALL / 2
                axes.annotate("", (ends[0], y), (ends[1], y), arrowprops=ARROW)
        axes.text(11.32, 3.75, "kept", size=10, color=ORANGE[0])
        axes.text(6.72, 3.75, "kept", size=10, color=ORANGE[0])
        axes.annotate("", (18.3, LOW + TALL + 0.03), (18.3, TOP - 0.03), arrowprops=ARROW)
        saved = {**ARROW, "linestyle": (0, (4, 3)), "color": ORANGE[0]}
        axes.annotate("", (11.2, LOW + TALL + 0.03), (11.2, TOP - 0.03), arrowprops=saved)
        axes.annotate("", (6.6, LOW + TALL + 0.03), (6.6, TOP - 0.03), arrowprops=saved)
        axes.text(0.1, TOP + TALL + 0.75, "forward", weight="bold", size=13)
        axes.text(0.1, LOW + TALL + 0.3, "backward", weight="bold", size=13)
        figure.savefig(path, dpi=130, metadata={"Software": None})


def _box(axes: Any, box: Box, shape: Any) -> None:
    edge, face = box.colours
    look = {"boxstyle": "round,pad=0,rounding_size=0.1", "facecolor": face, "edgecolor": edge, "linewidth": 1.5}
    axes.add_patch(shape((box.x, box.y), box.width, box.height, **look))
    middle, top = box.x + box.width / 2, box.y + box.height
    axes.text(middle, top - 0.3, box.title, ha="center", va="center", weight="bold", size=12, color=edge)
    names = ""
    for k, name in enumerate(box.modules):
        names += ("" if k == 0 else ",\n" if k % 2 == 0 or len(name) > 14 else ", ") + name
    if names:
        axes.text(middle, top - 0.52, names, ha="center", va="top", size=9, family="DejaVu Sans Mono", color="0.35")
    axes.text(middle, box.y + 0.72, box.lines, ha="center", va="center", size=10.5, linespacing=1.35)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "life-of-a-call.png")
