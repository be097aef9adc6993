"""One self-contained HTML page: works offline, on a phone, in the dark and on paper."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False


@dataclass(frozen=True)
class Grid:
    head: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Section:
    """A heading with any of a sentence, a table and a figure; `alt` says in words what the figure shows."""

    title: str
    text: str = ""
    table: Grid | None = None
    figure: str = ""  # base64 of a PNG
    alt: str = ""
    caption: str = ""
    note: str = ""


def filled(template: str, styles: tuple[str, ...], **content: Any) -> str:
    """A template of this folder with its style sheets; everything in it that is not marked as HTML is escaped."""
    found = Environment(autoescape=True, loader=FileSystemLoader(HERE), trim_blocks=True, lstrip_blocks=True)
    return found.get_template(template).render(style=Markup("".join(map(asset, styles))), **content)


def asset(name: str) -> str:
    """A style sheet or script of this folder."""
    return (HERE / name).read_text(encoding="utf-8")


def page(title: str, lead: str, sections: list[Section], commands: list[str]) -> str:
    """The page as one string; everything in it is escaped."""
    return filled("page.html.jinja", ("style.css",), title=title, lead=lead, sections=sections, commands=commands)


def png(figure: Any) -> str:
    """A matplotlib figure as base64."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, bbox_inches="tight")
    return base64.b64encode(buffer.getvalue()).decode()
