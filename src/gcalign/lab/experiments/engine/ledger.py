"""`gcalign claims`: every claim, judged by result files: a table for the terminal, Markdown for the docs, or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from gcalign.lab import files, terminal
from gcalign.lab.experiments.engine.claims import Judgement, Results, Word, judged
from gcalign.lab.experiments.engine.experiment import named
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
    "not shown": "neither of the two at this scale; one seed never shows anything",
    "not judgeable": "the runs differ from the claim's setting in something that can decide it; the row says in what",
    "true by construction": "it follows from the way it is computed, so no experiment could find otherwise",
    "not measured": "there is no result file yet; the command in the row makes one",
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
    """The ledger as a page; the same results give the same bytes."""
    scale, families = results.scale, dict.fromkeys(j.family for j in judgements)
    parts = [
        "# Claims",
        f"What the paper claims about its experiments, and what our result files of scale `{scale}` say. Written by "
        f"`gcalign claims --scale {scale}{' --theorems' if proofs else ''} --write docs/claims.md`; do not edit.",
        f"**{summary(judgements)}.**",
        "\n".join(f"* **{word}**: {meaning}." for word, meaning in _MEANS.items()),
        "**How to read a row.** Differences are paired by seed. They are percentage points of accuracy if nothing "
        "else is said. The brackets are the 95 % interval from the pooled residual; "
        "[Results](results.md#the-papers-tables-and-figures-at-scale-small) explains it. After “paired” is the "
        "interval from the seeds of this difference alone, by Student's t. Intervals are simultaneous: all those of "
        "a section hold together with 95 % (Bonferroni over its tested claims). The column p has the p-value of the "
        "pooled test, and after the arrow the same with Holm's correction over the tested claims of the section. "
        "The corrected one decides the verdict. Holm's test is sharper than Bonferroni's intervals: a claim can be "
        "held while its interval still includes zero. Claims that count methods or settings are corrected among "
        "these, and have no p here.",
        "**GCA-UOT** is here the Fenchel–Young loss of relaxed transport plus a small robust term. The published code "
        "takes `cross_entropy(P.log())`, in which the scaling of the rows cancels. That is another loss; it was "
        "not measured.",
        "**Exploratory**: how to measure or to judge this was decided after results had been seen. When the runs were "
        "made, the rule was the paired interval alone. If that rule does not give the verdict, it is called "
        "exploratory, too.",
        "**E1 to E5** are our own experiments, [planned](plan.md) before their runs. Here the first brackets are the "
        "paired interval, and its p decides. Each section is corrected as one family. Nothing is judged before all "
        + " ".join(["planned seeds are done.", *(family.note for family in families if family.note)]),
        f"Result files: {', '.join(f'`{name}`' for name in results.frames) or 'none yet'}.",
    ]
    for family in families:
        rows = ["| verdict | claim | paper | found | basis | p | where |", "|---|---|---|---|---|---|---|"]
        for j in (j for j in judgements if j.family == family):
            assert j.claim is not None
            cells = (j.claim.says, j.claim.paper, j.result, j.basis, j.ps, f"`{j.claim.place}`")
            rows.append(f"| **{j.verdict}** | {' | '.join(map(escaped, cells))} |")
        parts += [f"## {family.title}", "\n".join(rows)]
    parts.append("## Theorems")
    if proofs:
        from gcalign.lab import verify

        rows = ["| verdict | claim | says | evidence |", "|---|---|---|---|"]
        for v in proofs:
            word = f"**{v.verdict}**" + (f", {v.kind}" if v.kind else "")
            rows.append(f"| {word} | `{v.label}` | {' | '.join(map(escaped, (v.claim, v.evidence)))} |")
        there = {v.verdict for v in proofs} | {v.kind for v in proofs}
        means = [f"* **{word}**: {meaning}." for word, meaning in verify.MEANS.items() if word in there]
        parts += [f"**{verify.summary(proofs)}**", "\n".join(means), "\n".join(rows)]
    else:
        parts.append(
            "`gcalign verify` checks them on random batches; `gcalign claims --theorems` adds its verdicts here."
        )
    return "\n\n".join(parts) + "\n"


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
