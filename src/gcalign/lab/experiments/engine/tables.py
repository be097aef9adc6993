"""A table as it is written: Markdown to read, LaTeX (booktabs) to print; the same cells give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gcalign.lab import files
from gcalign.lab.experiments.engine.statistics import Estimate, points
from gcalign.lab.paper import METHODS, NAMES

if TYPE_CHECKING:
    import pandas as pd

_SYMBOLS = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    "÷": r"$\div$",
    "Δ": r"$\Delta$",
    "Γ": r"$\Gamma$",
    "θ": r"$\theta$",
    "ε": r"$\varepsilon$",
    "∩": r"$\cap$",
    "▲": r"$\uparrow$",
    "▼": r"$\downarrow$",
}


Rank = Literal["", "best", "second"]  # of its column
Cell = str | tuple[str, Rank]
_MARKS = {"": ("{}", "{}"), "best": ("**{}**", r"\textbf{{{}}}"), "second": ("_{}_", r"\underline{{{}}}")}


def _forms(cell: Cell) -> tuple[str, str]:
    """A cell in Markdown and in LaTeX."""
    text, rank = cell if isinstance(cell, tuple) else (cell, "")
    markdown, latex = _MARKS[rank]
    return markdown.format(escaped(text)), latex.format(tex(text))


@dataclass(frozen=True)
class Sheet:
    """`groups` stand over the header in LaTeX, each over so many columns; `notes` are the caption."""

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str]
    groups: Sequence[tuple[str, int]] = ()

    def markdown(self) -> str:
        lines = [[escaped(h) for h in self.header], ["---"] * len(self.header)]
        lines += [[_forms(cell)[0] for cell in row] for row in self.rows]
        body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"# {self.name}\n\n{body}\n\n" + "\n\n".join(self.notes) + "\n"

    def tex(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return " & ".join(cells) + r" \\"

        body = [rf"\begin{{tabular}}{{l{'c' * (len(self.header) - 1)}}}", r"\toprule"]
        if self.groups:
            body += [line(["", *(rf"\multicolumn{{{n}}}{{c}}{{{tex(name)}}}" for name, n in self.groups)])]
            start = 2
            for _, n in self.groups:
                body += [rf"\cmidrule(lr){{{start}-{start + n - 1}}}"]
                start += n
        body += [line([tex(h) for h in self.header]), r"\midrule"]
        body += [line([_forms(cell)[1] for cell in row]) for row in self.rows]
        caption = rf"\caption{{{tex(' '.join(self.notes))}}}"
        ends = (r"\bottomrule", r"\end{tabular}}", caption, rf"\label{{tab:{self.name}}}", r"\end{table}")
        head = ("% needs booktabs and graphicx", r"\begin{table}", r"\centering", r"\resizebox{\textwidth}{!}{%")
        return "\n".join([*head, *body, *ends]) + "\n"

    def write(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.name}.md", folder / f"{self.name}.tex"]
        for path, content in zip(paths, (self.markdown(), self.tex()), strict=True):
            files.write(path, content)
        return paths


NOTHING = "–"


def percent(e: Estimate | None, digits: int = 2) -> str:
    """54.12 ± 0.30, from a share; one seed has no deviation."""
    if e is None:
        return NOTHING
    wide = f" ± {100 * e.std:.{digits}f}" if e.df else ""
    return f"{100 * e.mean:.{digits}f}{wide}"


def gap(e: Estimate | None) -> str:
    """A difference in points with its interval, marked where this excludes zero."""
    if e is None:
        return NOTHING
    return f"{points(e)}{' ▲' if e.better else ' ▼' if e.worse else ''}"


# --- notes ---------------------------------------------------------------------------------------------------------


def listed(things: Iterable[object]) -> str:
    """Each once."""
    return ", ".join(map(str, dict.fromkeys(things)))


def settings(records: pd.DataFrame) -> list[str]:
    """A note: the words that all runs share, then those that each method has for itself: its hyper-parameters."""
    runs = records[records["words"].map(len) > 0]
    if runs.empty:
        return []
    shared = _common(runs["words"])
    own = {m: _common(runs.loc[runs["method"] == m, "words"]) for m in METHODS}
    chosen = {m: " ".join(w for w in own[m] if w not in shared and not w.startswith("method=")) for m in METHODS}
    each = "; ".join(f"{NAMES[m]} `{words}`" for m, words in chosen.items() if words)
    return [f"All runs: `{' '.join(shared)}`. {f'Chosen for each method: {each}.' if each else ''}".rstrip()]


def _common(runs: Iterable[Sequence[str]]) -> list[str]:
    """The words in every run, in the order of the first."""
    first, *others = [*runs] or [()]
    return [word for word in first if all(word in other for other in others)]


# --- text ----------------------------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    """For a cell of a Markdown table."""
    return text.replace("|", r"\|").replace("*", r"\*")


def tex(text: str) -> str:
    """Plain words as LaTeX, `code` in typewriter."""
    parts = re.split(r"`([^`]*)`", text)
    return "".join(rf"\texttt{{{_symbols(part)}}}" if k % 2 else _symbols(part) for k, part in enumerate(parts))


def _symbols(text: str) -> str:
    return "".join(_SYMBOLS.get(character, character) for character in text)
