"""The little Markdown that tables are drawn in: pipe tables, headings, paragraphs, bold, emphasis and code."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

ESCAPED = re.compile(r"\\([*_`|])")  # a star that is a star
NUMBER = re.compile(r"[*_]*[+−-]?\d")
INLINE = (
    (re.compile(r"`([^`]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*(.+?)\*\*"), r"<b>\1</b>"),
    (re.compile(r"&lt;u&gt;(.+?)&lt;/u&gt;"), r'<span class="second">\1</span>'),
    (re.compile(r"(?<![\w*])[*_](?=\S)(.+?)(?<=\S)[*_](?![\w*])"), r"<em>\1</em>"),
)


def html(text: str) -> Markup:
    """Everything is escaped first; what is not known stays as it is written."""
    blocks = [block.splitlines() for block in re.split(r"\n\s*\n", text.strip())]
    return Markup("\n").join(Markup("\n").join(_parts(lines)) for lines in blocks)


def _parts(lines: list[str]) -> list[Markup]:
    if lines[0].startswith("#"):
        rest = lines[1:]
        heading = Markup("<p><b>{}</b></p>").format(_inline(lines[0].lstrip("# ")))
        return [heading, *(_parts(rest) if rest else [])]
    if all(line.lstrip().startswith("|") for line in lines) and len(lines) > 1:
        return [_table(lines)]
    return [Markup("<p>{}</p>").format(_inline(" ".join(lines)))]


def _inline(text: str) -> Markup:
    out = ESCAPED.sub(lambda found: f"&#{ord(found[1])};", str(escape(text)))
    for pattern, replacement in INLINE:
        out = pattern.sub(replacement, out)
    return Markup(out)


def _table(lines: list[str]) -> Markup:
    head, rule, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines)
    if not all(re.fullmatch(r":?-+:?", cell) for cell in rule):
        head, rows = [], [head, rule, *rows]

    columns = zip(*rows, strict=False)
    numeric = [any(NUMBER.match(cell) for cell in column) for column in columns]

    def cells(tag: str, row: list[str]) -> Markup:
        kinds = ("" if k < len(numeric) and numeric[k] else ' class="text"' for k in range(len(row)))
        return Markup("").join(
            Markup(f"<{tag}{kind}>{{}}</{tag}>").format(_inline(cell)) for kind, cell in zip(kinds, row, strict=True)
        )

    body = Markup("\n").join(Markup("<tr>{}</tr>").format(cells("td", row)) for row in rows)
    return Markup('<div class="scroll"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>').format(
        cells("th", head), body
    )
