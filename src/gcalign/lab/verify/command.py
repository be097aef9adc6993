"""`gcalign verify`: runs the claims with a progress bar and prints a table, one case, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gcalign.lab import terminal
from gcalign.lab.files import to_json_file
from gcalign.lab.terminal import fitting
from gcalign.lab.verify.claims import MEANS, Claim, ClaimCheck, Outcome, named, replay, run, summary

_STYLE = {"holds": "green", "holds as a bound": "yellow", "holds after correction": "yellow", "fails": "bold red"}
_WIDTH = 140  # where the output is no terminal and has no width of its own


def verify(only: Sequence[str], *, seed: int, cases: int, case: int | None, to_json: str | None) -> None:
    """Check the claims named, or replay one case of them, and print what came out."""
    payload: dict[str, Any] = {"gcalign": version("gcalign"), "seed": seed}
    if case is None:
        verdicts = run(only, seed=seed, cases=cases)
        payload |= {"verdicts": [asdict(v) for v in verdicts], "summary": summary(verdicts)}
        shown: list[RenderableType] = [_table(verdicts), _legend(verdicts), Text(summary(verdicts))]
    else:
        if not only:
            raise ValueError(f"--case {case} replays a case of one claim; say which with --only LABEL")
        outcomes = {label: replay(label, seed=seed, case=case) for label in only}
        payload["replays"] = {label: asdict(outcome) for label, outcome in outcomes.items()}
        shown = [_sheet(named(label), outcome) for label, outcome in outcomes.items()]
    if to_json is not None:
        to_json_file(to_json, payload)
    if to_json == "-":
        return
    console = terminal.console(_WIDTH)
    console.print(*(fitting(x, console) if isinstance(x, Table) else x for x in shown), sep="\n")


def _table(verdicts: Sequence[ClaimCheck]) -> Table:
    table = Table(show_lines=True, expand=True)
    table.add_column("claim", ratio=3, overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("evidence", ratio=7, overflow="fold")
    for v in verdicts:
        claim = Text.assemble((v.label, "bold"), "\n", v.claim)
        verdict = Text(v.verdict, style=_STYLE[v.verdict]) + Text(f"\n{v.kind}" if v.kind else "")
        table.add_row(claim, verdict, Text(v.evidence.replace("; replay: ", "\nreplay: ")))
    return table


def _legend(verdicts: Sequence[ClaimCheck]) -> Text:
    """What the words of this table mean."""
    there = {v.verdict for v in verdicts} | {v.kind for v in verdicts}
    return Text("\n".join(f"{word}: {meaning}." for word, meaning in MEANS.items() if word in there))


def _sheet(claim: Claim, outcome: Outcome) -> Group:
    """One case in full: what was drawn, what was measured, and the two sides."""
    table = Table(show_header=False)
    for name, number in outcome.numbers.items():
        table.add_row(Text(name), number if isinstance(number, str) else f"{number:.10g}")
    table.add_section()
    table.add_row(Text(claim.left), f"{outcome.left!r}")
    table.add_row(Text(f"{claim.relation} {claim.right}"), f"{outcome.right!r}")
    table.add_row("excess, relative", f"{outcome.excess:.3g}")
    table.add_row("violated", "yes" if outcome.violated else "no")
    return Group(Text(f"{claim.label}, case {outcome.case}: {claim.words}"), table)
