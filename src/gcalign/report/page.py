"""One self-contained HTML page: works offline, on a phone, in the dark and on paper."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment

_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #fdfdfc; --line: #d0d0d4; --soft: #6b6b70; --best: #0b6e4f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececee; --paper: #161618; --line: #3a3a3e; --soft: #a0a0a6; --best: #5fd3a8; }
  img { background: #fff; border-radius: 6px; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; max-width: 60rem; padding: 1.5rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p.note, figcaption { color: var(--soft); font-size: .92rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.best { color: var(--best); font-weight: 600; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
code { background: color-mix(in srgb, var(--ink) 8%, transparent); padding: .1rem .35rem; border-radius: 4px; }
@media print { body { max-width: none; } h2 { break-after: avoid; } figure { break-inside: avoid; } }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ lead }}</p>
{% for s in sections %}
<h2>{{ s.title }}</h2>
{% if s.text %}<p>{{ s.text }}</p>{% endif %}
{% if s.table %}
<div class="scroll"><table>
<thead><tr>{% for h in s.table.head %}<th>{{ h }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in s.table.rows %}<tr>{% for cell in row %}<td{% if cell.best %} class="best"{% endif %}>{{ cell.text }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endif %}
{% if s.figure %}<figure><img src="data:image/png;base64,{{ s.figure }}" alt="{{ s.alt }}"><figcaption>{{ s.caption }}</figcaption></figure>{% endif %}
{% if s.note %}<p class="note">{{ s.note }}</p>{% endif %}
{% endfor %}
<h2>Again</h2>
{% for c in commands %}<p><code>{{ c }}</code></p>{% endfor %}
</body>
</html>
"""  # noqa: E501  # HTML lines


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


def page(title: str, lead: str, sections: list[Section], commands: list[str]) -> str:
    """The page as one string; everything in it is escaped."""
    template = Environment(autoescape=True).from_string(_TEMPLATE)
    return template.render(title=title, lead=lead, sections=sections, commands=commands)


def png(figure: Any) -> str:
    """A matplotlib figure as base64."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, bbox_inches="tight")
    return base64.b64encode(buffer.getvalue()).decode()
