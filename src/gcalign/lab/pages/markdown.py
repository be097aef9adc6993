"""The Markdown that tables are drawn in, as HTML: tables, headings, emphasis and code; no links, images or HTML."""

from __future__ import annotations

import re
from itertools import groupby

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

NUMBER = re.compile(r"[*_]*[+−-]?\d")
SECOND = re.compile(r"&lt;u&gt;(.+?)&lt;/u&gt;")  # the second best of a column
FRAME = {"table_open": '<div class="scroll"><table>', "table_close": "</table></div>"}
FRAME |= {"heading_open": "<p><strong>", "heading_close": "</strong></p>\n"}


def html(text: str) -> Markup:
    """Everything else in the text is escaped."""
    parser = MarkdownIt("zero").enable(["table", "heading", "emphasis", "backticks", "escape"])
    for name, tag in FRAME.items():
        parser.add_render_rule(name, lambda self, tokens, k, *_, tag=tag: tag)
    tokens = parser.parse(text)
    for _, cells in groupby(sorted(_cells(tokens), key=lambda cell: cell[0]), key=lambda cell: cell[0]):
        column = [(cell, content) for _, cell, content in cells]
        kind = {} if any(cell.tag == "td" and NUMBER.match(content) for cell, content in column) else {"class": "text"}
        for cell, _ in column:
            cell.attrs = dict(kind)
    return Markup(SECOND.sub(r'<span class="second">\1</span>', parser.renderer.render(tokens, parser.options, {})))


def _cells(tokens: list[Token]) -> list[tuple[tuple[int, int], Token, str]]:
    """Each cell with its table and column, and what it says."""
    cells, table, column = [], 0, 0
    for k, token in enumerate(tokens):
        table += token.type == "table_open"
        column = 0 if token.type == "tr_open" else column
        if token.type in ("th_open", "td_open"):
            cells.append(((table, column), token, tokens[k + 1].content))
            column += 1
    return cells
