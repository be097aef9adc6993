"""Coloured shapes with captions, drawn here: pairs of images and texts that need no file."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from gcalign.lab.data.decode import Arrays, Encoded
from gcalign.lab.data.tables import Table

SIZE = 24
DRAWN = 4  # times as large, then made smaller, for smooth edges
COLOURS = {
    "red": ("#d62728", "rot"),
    "green": ("#2ca02c", "grün"),
    "blue": ("#1f77b4", "blau"),
    "yellow": ("#ffd92f", "gelb"),
    "purple": ("#9467bd", "lila"),
    "orange": ("#ff7f0e", "orange"),
    "black": ("#202020", "schwarz"),
    "white": ("#f8f8f8", "weiß"),
}
FIGURES = {"circle": "Kreis", "square": "Quadrat", "triangle": "Dreieck", "cross": "Kreuz", "ring": "Ring"}
SIZES = {"small": (0.2, "klein"), "large": (0.38, "groß")}
PLACES = {"left": ((0.4, 0.5), "links"), "right": ((0.6, 0.5), "rechts"), "top": ((0.5, 0.4), "oben")}


class Shapes(Table):
    """Columns `image`, `caption`, `caption_de` and `what`: the colour and shape, which a split must not share."""

    origin = "shapes"
    columns = ("image", "caption", "caption_de", "what")

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows = list(itertools.product(COLOURS, FIGURES, SIZES, PLACES))

    def __len__(self) -> int:
        return len(self.rows)

    def kind(self, column: str) -> str:
        return "image" if column == "image" else "text"

    def values(self, column: str) -> list[Any]:
        german = [f"{FIGURES[f]}, {SIZES[s][1]} und {COLOURS[c][1]}, {PLACES[p][1]}" for c, f, s, p in self.rows]
        made: dict[str, list[Any]] = {
            "caption": [f"a {s} {c} {f}, {p}" for c, f, s, p in self.rows],
            "caption_de": german,
            "what": [f"{c} {f}" for c, f, _, _ in self.rows],
        }
        return made[column]

    def images(self, column: str) -> Encoded:
        return Arrays(_drawn(self.size), self.origin)


@functools.cache
def _drawn(size: int) -> Any:  # [N, size, size, 3] uint8
    return np.stack([_draw(size, *row) for row in itertools.product(COLOURS, FIGURES, SIZES, PLACES)])


def _draw(size: int, colour: str, figure: str, large: str, place: str) -> Any:
    side = size * DRAWN
    image = Image.new("RGB", (side, side), "#8c9eb0")
    pen, fill = ImageDraw.Draw(image), COLOURS[colour][0]
    (x, y), r = PLACES[place][0], SIZES[large][0]
    left, top, right, bottom = (side * v for v in (x - r, y - r, x + r, y + r))
    width = (right - left) / 3
    if figure == "circle":
        pen.ellipse((left, top, right, bottom), fill)
    elif figure == "square":
        pen.rectangle((left, top, right, bottom), fill)
    elif figure == "triangle":
        pen.polygon([(left, bottom), (right, bottom), ((left + right) / 2, top)], fill)
    elif figure == "cross":
        pen.rectangle((left + width, top, right - width, bottom), fill)
        pen.rectangle((left, top + width, right, bottom - width), fill)
    else:
        pen.ellipse((left, top, right, bottom), outline=fill, width=max(1, int(width / 1.5)))
    return np.asarray(image.resize((size, size), Image.Resampling.BOX))
