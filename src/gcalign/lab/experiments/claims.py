"""`gcalign claims`: judges the ledger by result files; a table for the terminal, Markdown for the docs, or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from gcalign.errors import one_of
from gcalign.lab import files, terminal
from gcalign.lab.experiments import records
from gcalign.lab.experiments.ledger import LEDGER, OWN
from gcalign.lab.experiments.planned_claims import SECTIONS
from gcalign.lab.experiments.sheets import escaped
from gcalign.lab.experiments.statistics import holm
from gcalign.lab.experiments.verdicts import ALPHA, EmpiricalClaim, Results, Verdict, Word
from gcalign.lab.words import path_of

if TYPE_CHECKING:
    from gcalign.lab import verify

SCALES = ("tiny", "small", "paper")
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


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict in its family; `adjusted` is Holm's p, None where nothing was tested."""

    claim: EmpiricalClaim
    scale: str
    verdict: Verdict
    adjusted: float | None = None

    @property
    def shown(self) -> str:
        """The verdict as it is printed."""
        return f"{self.verdict.word}, exploratory" if self.exploratory else self.verdict.word

    @property
    def exploratory(self) -> bool:
        """Decided, but by a measure or a rule that was chosen with results in view."""
        word, first = self.verdict.word, self.verdict.first
        return word in ("held", "failed") and (self.claim.exploratory or first not in (None, word))

    @property
    def p(self) -> str:
        """As found, then within the family."""
        return "–" if self.verdict.p is None or self.adjusted is None else f"{self.verdict.p:.2g} → {self.adjusted:.2g}"

    @property
    def basis(self) -> str:
        """What the verdict rests on."""
        if self.claim.section == OWN:
            return "the paper's numbers"
        if self.verdict.word == "not measured":
            return "–"
        n, of = self.verdict.n, self.verdict.of
        return self.scale if n is None else f"{self.scale}, {n} {of.removesuffix('s') if n == 1 else of}"

    def as_dict(self) -> dict[str, object]:
        c, v = self.claim, self.verdict
        named = {"section": c.section, "label": c.label, "where": c.where, "says": c.says, "paper": c.paper_value}
        tested = {"p": v.p, "holm": self.adjusted, "exploratory": self.exploratory}
        return {**named, "ours": v.ours, "basis": self.basis, "n": v.n, **tested, "verdict": v.word}


def loaded(folder: Path, scale: str) -> Results:
    """Every result file of a scale; a scale without any has nothing measured."""
    one_of("scale", scale, SCALES)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder of results; `gcalign reproduce table1 scale={scale}` makes one")
    paths = [path for path in sorted((folder / scale).glob("*.jsonl")) if not path.stem.startswith("search")]
    return Results(scale, {path.stem: records.read(path) for path in paths})


def judged(results: Results) -> list[Judged]:
    """Every claim, after Holm's correction over the tested ones of its section, whose intervals hold together."""
    tested = Counter(claim.section for claim in LEDGER if claim.verdict(results).p is not None)
    found = []
    for claim in LEDGER:
        among = replace(results, family=max(1, tested[claim.section]))
        found.append(Judged(claim, results.scale, claim.verdict(among)))
    for section in tested:
        family = [k for k, j in enumerate(found) if j.claim.section == section and j.verdict.p is not None]
        for k, p in zip(family, holm([found[k].verdict.p or 0.0 for k in family]), strict=True):
            verdict = found[k].verdict
            found[k] = replace(
                found[k], adjusted=p, verdict=verdict if p <= ALPHA else replace(verdict, word="not shown")
            )
    return found


def claims(
    folder: str, *, scale: str, write: str | None = None, to_json: str | None = None, theorems: bool = False
) -> None:
    """Judge every claim and print what came out; `theorems` runs the checks of `gcalign verify` as well."""
    if write is not None:
        path_of(write).parent.mkdir(parents=True, exist_ok=True)
        files.writable("--write", write)
    results = loaded(Path(folder), scale)
    found = judged(results)
    proofs = _verified() if theorems else []
    if write is not None:
        files.write(path_of(write), markdown(found, results, proofs))
    if to_json is not None:
        content = {"scale": scale, "claims": [j.as_dict() for j in found], "theorems": [asdict(v) for v in proofs]}
        files.to_json_file(to_json, content)
    if to_json != "-":
        _show(found, proofs)


def _verified() -> list[verify.ClaimCheck]:
    from gcalign.lab import verify

    return verify.run()


def summary(found: Sequence[Judged]) -> str:
    """The paper's claims by our runs; our own questions and the paper's own tables are counted apart."""
    planned = [j for j in found if j.claim.section in SECTIONS]
    own = [j for j in found if j.claim.section == OWN]
    claimed = [j for j in found if j not in planned and j not in own]
    held = sum(j.verdict.word == "held" for j in own)
    said = f"{len(claimed)} claims: {_counted(claimed, get_args(Word))}"
    said += f"; of {len(own)} statements about its own tables {held} held"
    there = [word for word in get_args(Word) if any(j.verdict.word == word for j in planned)]
    return f"{said}; {len(planned)} comparisons of our plan: {_counted(planned, there)}"


def _counted(found: Sequence[Judged], words: Sequence[Word]) -> str:
    counts = Counter(j.verdict.word for j in found)
    return ", ".join(f"{counts[word]} {word}" for word in words)


def markdown(found: Sequence[Judged], results: Results, proofs: Sequence[verify.ClaimCheck] = ()) -> str:
    """The ledger as a page; the same results give the same bytes."""
    scale = results.scale
    parts = [
        "# Claims",
        f"What the paper claims about its experiments, and what our result files of scale `{scale}` say. Written by "
        f"`gcalign claims --scale {scale}{' --theorems' if proofs else ''} --write docs/claims.md`; do not edit.",
        f"**{summary(found)}.**",
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
        "planned seeds are done. In E1, other pairs are mismatched at every step, by exchanging second views within "
        "the batch: the right partner is always there, as a negative.",
        f"Result files: {', '.join(f'`{name}`' for name in results.records) or 'none yet'}.",
    ]
    for section in dict.fromkeys(j.claim.section for j in found):
        rows = ["| verdict | claim | paper | found | basis | p | where |", "|---|---|---|---|---|---|---|"]
        for j in (j for j in found if j.claim.section == section):
            cells = (j.claim.says, j.claim.paper_value, j.verdict.ours, j.basis, j.p, f"`{j.claim.where}`")
            rows.append(f"| **{j.shown}** | {' | '.join(map(escaped, cells))} |")
        parts += [f"## {section}", "\n".join(rows)]
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


def _show(found: Sequence[Judged], proofs: Sequence[verify.ClaimCheck]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=False, expand=True)
    for name, ratio in (("claim", 4), ("paper", 3), ("found", 5)):
        table.add_column(name, ratio=ratio, overflow="fold")
    table.add_column("basis", no_wrap=True)
    table.add_column("p → Holm", no_wrap=True)
    table.add_column("verdict")
    section = None
    for j in found:
        if j.claim.section != section:
            section = j.claim.section
            table.add_section()
            table.add_row(Text(section, style="bold"))
        c, v = j.claim, j.verdict
        cells = (c.says, c.paper_value, v.ours.replace("`", ""), j.basis, j.p)
        table.add_row(*map(Text, cells), Text(j.shown, style=_STYLE[v.word]))
    if proofs:
        table.add_section()
        table.add_row(Text("Theorems", style="bold"))
        for p in proofs:
            word = f"{p.verdict}, {p.kind}" if p.kind else p.verdict
            table.add_row(*map(Text, (p.claim, p.label, p.evidence, f"{p.cases} cases", "–", word)))
    console = terminal.console(_WIDTH)
    console.print(terminal.fitting(table, console))
    console.print(Text(f"{summary(found)}."))
    if proofs:
        from gcalign.lab import verify

        console.print(Text(f"Theorems. {verify.summary(proofs)}"))
    else:
        console.print(Text("Theorems: gcalign verify, or --theorems here."))
