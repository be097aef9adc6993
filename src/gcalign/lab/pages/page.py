"""One self-contained HTML page: works offline, on a phone, in the dark and on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

HERE = Path(__file__).parent
Json = dict[str, Any]  # what scripts read: sprites and tensors are encoded when a page is written


class Grid(NamedTuple):
    """A table of texts."""

    head: list[str]
    rows: list[list[str]]


def filled(template: str, styles: tuple[str, ...], **content: Any) -> str:
    """A template of this folder with its style sheets; everything in it that is not marked as HTML is escaped."""
    environment = Environment(autoescape=True, loader=FileSystemLoader(HERE), trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(style=Markup("".join(map(asset, styles))), **content)


def asset(name: str) -> str:
    """A style sheet or script of this folder."""
    return (HERE / name).read_text(encoding="utf-8")
