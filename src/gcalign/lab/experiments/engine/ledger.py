"""`gcalign claims`: every claim, judged by result files: a table for the terminal, Markdown for the docs, or JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from gcalign.lab import files, terminal
from gcalign.lab.experiments.engine.claims import Judgement, Results, Word, judged
from gcalign.lab.experiments.engine.experiment import every_claim, named
from gcalign.lab.experiments.engine.tables import escaped
from gcalign.lab.words import path_of

if TYPE_CHECKING:
    from gcalign.lab import verify

_STYLE: Mapping[Word, str] = {
    "held": "green",
    "failed": "bold red",
    "not shown": "yellow",
    "not judgeable": "magenta",
    "true by construction": "cyan",
    "not measured": "dim",
}
_MEANS: Mapping[Word, str] = {
    "held": "the results agree with the claim, and Holm's p is at most 0.05",
    "failed": "the results show the opposite, by the same test",
    "not shown": "neither of the two at this scale",
    "not judgeable": "the runs differ from the claim's setting in something that can decide it",
    "true by construction": "it follows from the way it is computed",
    "not measured": "there is no result yet; the command makes one",
}
_WIDTH = 160  # where the output is no terminal and has no width of its own


def claims(
    folder: str,
    *,
    scale: str,
    write: str | None = None,
    to_json: str | None = None,
    theorems: bool = False,
    experiments: Sequence[str] = (),
) -> None:
    """Judge every claim and print the verdicts.

    `theorems` runs the checks of `gcalign verify` as well; `experiments` are `module:EXPERIMENT` of the user's own.
    """
    if write is not None:
        path_of(write).parent.mkdir(parents=True, exist_ok=True)
        files.writable("--write", write)
    results = Results.read(Path(folder), scale)
    judgements = judged(results, [named(name) for name in experiments])
    proofs: list[verify.ClaimCheck] = []
    if theorems:
        from gcalign.lab import verify

        proofs = verify.run()
    if write is not None:
        files.write(path_of(write), markdown(judgements, results, proofs))
    if to_json is not None:
        content = {"scale": scale, "claims": [j.as_dict() for j in judgements]}
        files.to_json_file(to_json, content | {"theorems": [asdict(v) for v in proofs]})
    if to_json != "-":
        _show(judgements, proofs)


def summary(judgements: Sequence[Judgement]) -> str:
    """The paper's claims by our runs; our own questions and the paper's own tables are counted apart."""
    claimed, planned, printed = (
        [j for j in judgements if j.family.kind == kind] for kind in ("claimed", "planned", "printed")
    )
    held = sum(j.word == "held" for j in printed)
    text = f"{len(claimed)} claims: {_counted(claimed, get_args(Word))}"
    text += f"; of {len(printed)} statements about its own tables {held} held"
    there = [word for word in get_args(Word) if any(j.word == word for j in planned)]
    return f"{text}; {len(planned)} comparisons of our plan: {_counted(planned, there)}"


def _counted(judgements: Sequence[Judgement], words: Sequence[Word]) -> str:
    counts = Counter(j.word for j in judgements)
    return ", ".join(f"{counts[word]} {word}" for word in words)


def markdown(judgements: Sequence[Judgement], results: Results, proofs: Sequence[verify.ClaimCheck] = ()) -> str:
    """The claims as a page; the same results give the same bytes. Those of our own studies stand on their pages."""
    built_in = {claim.label for claim in every_claim()}
    ours = [j for j in judgements if j.family.kind == "planned" and j.claim is not None and j.claim.label in built_in]
    others = [j for j in judgements if j not in ours and j.family.kind != "printed"]
    parts = [
        "# Claims",
        f"What the paper claims about its experiments, and what our results of scale `{results.scale}` say. "
        f"Written by `gcalign claims --scale {results.scale} --write docs/claims.md`, which also prints the claims "
        "that are not measured.",
        f"**{summary(judgements)}.**",
        "\n".join(f"* **{word}**: {meaning}." for word, meaning in _MEANS.items()),
        "**How to read a row.** Differences are paired by seed, and in percentage points of accuracy unless the row "
        "names another measure. Brackets are 95 % intervals from the [pooled residual](studies/paper-small.md); those "
        "of a section hold together (Bonferroni). p is after Holm's correction over the section, and decides. "
        "*Exploratory*: the rule was chosen after results had been seen, or the paired interval alone does not give "
        "the verdict.",
        "**GCA-UOT** is the Fenchel–Young loss; [that of the published code](choose.md#gca-uot-and-the-published-code) "
        "was not measured.",
    ]
    for family in dict.fromkeys(j.family for j in others):
        parts += [f"## {family.title}", table([j for j in others if j.family == family])]
    words = [word for word in get_args(Word) if any(j.word == word for j in ours)]
    parts += [
        "## Our own experiments",
        f"{len(ours)} planned comparisons: {_counted(ours, words)}. They are on the pages of the "
        "[studies](studies/index.md).",
        "## The paper against its own tables, and theorems",
        "`gcalign claims` prints what the paper says about its own tables, compared with them. `gcalign verify` checks "
        "theorems on random batches: [statement by statement](paper.md).",
    ]
    if proofs:
        from gcalign.lab import verify

        rows = ["| verdict | claim | says | evidence |", "|---|---|---|---|"]
        for v in proofs:
            word = f"**{v.verdict}**" + (f", {v.kind}" if v.kind else "")
            rows.append(f"| {word} | `{v.label}` | {' | '.join(map(escaped, (v.claim, v.evidence)))} |")
        parts += [f"**{verify.summary(proofs)}**", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def table(judgements: Sequence[Judgement]) -> str:
    """One row for each claim; what is not measured is counted below, by the command that would."""
    measured = [j for j in judgements if j.word != "not measured"]
    printed = any(_paper(j) for j in measured)
    tested = any(j.adjusted is not None for j in measured)
    head = ["verdict", "claim", *(["paper"] if printed else []), "found", *(["p"] if tested else [])]
    rows = [f"|{'|'.join(head)}|", f"|{'---|' * len(head)}"]
    for j in measured:
        assert j.claim is not None
        cells = [j.claim.says, *([_paper(j)] if printed else []), _briefly(j)]
        cells += ([f"{j.adjusted:.2g}"] if j.adjusted is not None else [""]) if tested else []
        rows.append(f"|**{j.verdict}**|{'|'.join(map(escaped, cells))}|")
    missing = Counter(j.result for j in judgements if j.word == "not measured" and j.claim is not None)
    notes = [f"{n} {'claim is' if n == 1 else 'claims are'} not measured: {c}." for c, n in missing.items()]
    return "\n\n".join([*(["\n".join(rows)] if measured else []), *notes])


def _paper(judgement: Judgement) -> str:
    """What the paper has of it; nothing where it gives no figure."""
    assert judgement.claim is not None
    return "" if judgement.claim.paper.startswith("no figure") else judgement.claim.paper


def _briefly(judgement: Judgement) -> str:
    """The result without the interval of the other error."""
    text = re.sub(r"; (?:paired|pooled) \[[^]]*\](?: %)?", "", judgement.result)
    return text.replace(" points", "")


def _show(judgements: Sequence[Judgement], proofs: Sequence[verify.ClaimCheck]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=False, expand=True)
    for name, ratio in (("claim", 4), ("paper", 3), ("found", 5)):
        table.add_column(name, ratio=ratio, overflow="fold")
    table.add_column("basis", no_wrap=True)
    table.add_column("p → Holm", no_wrap=True)
    table.add_column("verdict")
    family = None
    for j in judgements:
        assert j.claim is not None
        if j.family != family:
            family = j.family
            table.add_section()
            table.add_row(Text(family.title, style="bold"))
        cells = (j.claim.says, j.claim.paper, j.result.replace("`", ""), j.basis, j.ps)
        table.add_row(*map(Text, cells), Text(j.verdict, style=_STYLE[j.word]))
    if proofs:
        table.add_section()
        table.add_row(Text("Theorems", style="bold"))
        for p in proofs:
            word = f"{p.verdict}, {p.kind}" if p.kind else p.verdict
            table.add_row(*map(Text, (p.claim, p.label, p.evidence, f"{p.cases} cases", "–", word)))
    console = terminal.console(_WIDTH)
    console.print(terminal.fitting(table, console))
    console.print(Text(f"{summary(judgements)}."))
    if proofs:
        from gcalign.lab import verify

        console.print(Text(f"Theorems. {verify.summary(proofs)}"))
    else:
        console.print(Text("Theorems: gcalign verify, or --theorems here."))
