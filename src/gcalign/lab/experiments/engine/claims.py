"""Claims as data: which records, which contrast of them, which rule; and what comes of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gcalign.errors import one_of
from gcalign.lab.experiments.engine import records
from gcalign.lab.experiments.engine.experiment import SCALES, Experiment, every_claim, named
from gcalign.lab.experiments.engine.statistics import (
    LEVEL,
    Estimate,
    contrast,
    estimates,
    holm,
    mean_of,
    points,
    simultaneous,
)

if TYPE_CHECKING:
    import pandas as pd

Word = Literal["held", "failed", "not shown", "not judgeable", "true by construction", "not measured"]
ALPHA = 1 - LEVEL
NEGLIGIBLE = 0.01  # of accuracy: "without loss" is an interval above −1 point
OURS = "no figure (our experiment)"


@dataclass(frozen=True)
class Family:
    """Claims that are corrected together; a section of the page."""

    title: str
    place: float  # of the section
    kind: Literal["claimed", "planned", "printed"] = "claimed"  # by the paper, by our plan, of the paper's own tables
    note: str = ""  # what a reader of the page must know


@dataclass(frozen=True)
class Judgement:
    """What a claim comes to: by itself, as its judge gives it, then in its family."""

    word: Word
    result: str  # as it is printed
    n: int | None = None  # repetitions; None where there are none, nor need be
    of: str = "seeds"
    p: float | None = None  # goes into the correction of the family; None where nothing was tested
    first: Word | None = None  # by the paired interval alone, which was the rule when the runs were made
    estimate: Estimate | None = None  # that decides
    claim: EmpiricalClaim | None = None
    scale: str = ""
    adjusted: float | None = None  # Holm's p
    level: float = LEVEL  # of the interval of each of its family, so that all of them hold together

    @property
    def family(self) -> Family:
        assert self.claim is not None
        return self.claim.family

    @property
    def exploratory(self) -> bool:
        """Decided, but by a measure or a rule that was chosen with results in view."""
        assert self.claim is not None
        chosen_late = self.claim.exploratory or self.first not in (None, self.word)
        return self.word in ("held", "failed") and chosen_late

    @property
    def verdict(self) -> str:
        """As it is printed."""
        return f"{self.word}, exploratory" if self.exploratory else self.word

    @property
    def ps(self) -> str:
        """p by itself, then within the family."""
        return "–" if self.p is None or self.adjusted is None else f"{self.p:.2g} → {self.adjusted:.2g}"

    @property
    def basis(self) -> str:
        """What the verdict rests on."""
        if self.family.kind == "printed":
            return "the paper's numbers"
        if self.word == "not measured":
            return "–"
        unit = self.of.removesuffix("s") if self.n == 1 else self.of
        return self.scale if self.n is None else f"{self.scale}, {self.n} {unit}"

    def as_dict(self) -> dict[str, object]:
        assert self.claim is not None
        c, e = self.claim, self.estimate
        text = {"section": c.family.title, "label": c.label, "where": c.place, "says": c.says, "paper": c.paper}
        tested = {"p": self.p, "holm": self.adjusted, "exploratory": self.exploratory}
        interval = None if e is None or not e.df else {"level": self.level, "ends": e.interval(self.level)}
        of_all = {"simultaneous": interval, "verdict": self.word}
        return {**text, "ours": self.result, "basis": self.basis, "n": self.n, **tested, **of_all}


class NotMeasured(Exception):  # noqa: N818  # an answer, not an error
    """Nothing says enough of it: the command that would, and perhaps how much there is so far."""


@dataclass(frozen=True)
class Results:
    """The records of one scale, by experiment."""

    scale: str
    frames: Mapping[str, pd.DataFrame]
    level: float = LEVEL  # of the intervals that are printed

    @staticmethod
    def read(folder: Path, scale: str) -> Results:
        """Every result file of a scale; a scale without any has nothing measured."""
        one_of("scale", scale, SCALES)
        if not folder.is_dir():
            raise ValueError(
                f"{folder} is not a results folder. The project's own result files are in docs/results of its "
                "repository, not in the installed package: run this in a clone, or name their folder; "
                f"`gcalign reproduce table1 scale={scale}` makes one of your own in results"
            )
        paths = [path for path in sorted((folder / scale).glob("*.jsonl")) if not path.stem.startswith("search")]
        return Results(scale, {path.stem: records.frame(records.read(path)) for path in paths})

    def of(self, *experiments: str) -> pd.DataFrame:
        """Those of the first experiment that has any."""
        for name in experiments:
            if name in self.frames and len(self.frames[name]):
                return self.frames[name]
        raise NotMeasured(f"gcalign reproduce {experiments[0]} scale={self.scale}")

    def missing(self, experiment: str) -> NotMeasured:
        """For what this scale has no runs of."""
        return NotMeasured(f"gcalign reproduce {experiment} scale=paper")


@dataclass(frozen=True)
class EmpiricalClaim:
    """Where a claim stands, what it says, and what judges it by result files."""

    family: Family
    label: str
    says: str
    judge: Callable[[Results], Judgement]  # a Contrast, or a function
    where: str = ""  # in the paper; else in our plan
    paper: str = OURS  # what the paper has of it
    exploratory: bool = False  # how it is judged, or measured, was decided with results in view

    @property
    def place(self) -> str:
        """Where it is said."""
        return self.where or f"plan, {self.family.title.partition(':')[0]}"

    def judged(self, results: Results) -> Judgement:
        """By itself, before the correction over its family."""
        try:
            judgement = self.judge(results)
        except NotMeasured as missing:
            command, *so_far = missing.args
            text = " ".join([f"`{command}`", *(f"({how})" for how in so_far)])
            judgement = Judgement("not measured", text)
        return replace(judgement, claim=self, scale=results.scale)


def judged(results: Results, more: Sequence[Experiment] = ()) -> list[Judgement]:
    """Every claim, and those of experiments of the user's own, after Holm's correction over each family.

    The intervals that are printed hold together, over the claims of a family that were tested.
    """
    claims = [*every_claim(), *(claim for experiment in more for claim in experiment.claims())]
    tested = Counter(claim.family for claim in claims if claim.judged(results).p is not None)
    levels = {claim.family: simultaneous(tested[claim.family]) for claim in claims}
    judgements = [claim.judged(replace(results, level=levels[claim.family])) for claim in claims]
    for family in tested:
        among = [k for k, j in enumerate(judgements) if j.family == family and j.p is not None]
        for k, p in zip(among, holm([judgements[k].p or 0.0 for k in among]), strict=True):
            one = replace(judgements[k], adjusted=p, level=levels[family])
            judgements[k] = one if p <= ALPHA else replace(one, word="not shown")
    return judgements


# --- the contrast and its rule -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bounds:
    """The rule: held where the interval lies between the bounds, failed where it lies outside."""

    low: float = 0.0
    high: float = math.inf

    def p(self, e: Estimate) -> float:
        """The least α at which the interval decides: inside, of both bounds; outside, of the nearer one."""
        return max(e.p(bound) for bound in (self.low, self.high) if math.isfinite(bound))


ABOVE, BELOW = Bounds(), Bounds(-math.inf, 0.0)
NOT_WORSE = Bounds(-NEGLIGIBLE)
plainly = partial(points, unit=1, digits=3)  # for measures that are no shares


def compared(
    results: Results,
    experiment: str,
    table: pd.DataFrame,
    weights: Mapping[Any, float],
    rule: Bounds = ABOVE,
    text: str = "{gap} points{other}",
    *,
    planned: bool = False,
    show: Callable[[Estimate, float], str] = points,
    of: str = "seeds",
    over: int = 1,
) -> Judgement:
    """Σ weight · value over the rows of a table, judged by a rule.

    The pooled error decides, and the verdict of the paired one stands beside it. What was planned needs all planned
    seeds, and is decided by the paired error. In `text`, {gap} is the contrast as `show` writes it, {other} its
    interval by the other error, {over} a number, {percent[ROW]} and {value[ROW]} the mean of a row.
    """
    if planned:
        table = only_planned(results, experiment, table, weights)
    paired, pooled = contrast(table, weights), contrast(table, weights, pooled=True)
    if paired is None or pooled is None:
        raise results.missing(experiment)
    e, other = (paired, pooled) if planned else (pooled, paired)
    decided: Word = "held" if rule.low < e.mean <= rule.high else "failed"
    first: Word | None = None if planned else decided if rule.p(paired) <= ALPHA else "not shown"
    # str.format takes {percent[2]} for a number and {percent[0.05]} for a text
    means = {key: e.mean for row, e in estimates(table).items() for key in (row, str(row))}
    _, _, beside = show(other, results.level).partition("[")
    written = text.format(
        gap=show(e, results.level),
        other=f"; {'pooled' if planned else 'paired'} [{beside}" if other.df else "",
        over=over,
        percent={row: f"{100 * mean:.1f}" for row, mean in means.items()},
        value={row: f"{mean:.3f}" for row, mean in means.items()},
    )
    p = rule.p(e)
    return Judgement(decided if p <= ALPHA else "not shown", written, e.n, of, p, first, e)


@dataclass(frozen=True)
class Contrast:
    """A judge: Σ weight · value over the rows of a measure, by a rule, as `compared` says it.

    The rows are the values of the label `by`, among the records that `at` chooses. With `over`, each is the mean over
    the values of another label that all rows with a weight have; values in `among` must be there.
    """

    experiment: str
    weights: Mapping[Any, float]
    measure: str | None = None  # None is the accuracy of the scale's probe
    by: str = "method"
    at: Mapping[str, Any] = field(default_factory=dict)
    over: str | None = None
    among: Sequence[Any] = ()
    rule: Bounds = ABOVE
    planned: bool = False
    text: str = "{gap} points{other}"
    show: Callable[[Estimate, float], str] = points

    def __call__(self, results: Results) -> Judgement:
        tables = self.tables(results)
        if not tables:
            raise results.missing(self.experiment)
        how: dict[str, Any] = {"planned": self.planned, "show": self.show, "over": len(tables)}
        return compared(results, self.experiment, mean_of(tables), self.weights, self.rule, self.text, **how)

    def tables(self, results: Results) -> list[pd.DataFrame]:
        """Rows × seeds: one table, or one for each value of `over`."""
        frame = results.of(self.experiment)
        measure = self.measure or records.probe(frame)
        if self.over is None:
            return [records.by_seed(frame, measure, self.by, **self.at)]
        whole = records.by_seed(frame, measure, self.over, self.by, **self.at)
        places = self.among or whole.index.unique(0)
        if any(place not in whole.index.unique(0) for place in places):
            raise NotMeasured(f"gcalign reproduce {self.experiment} scale={results.scale}")
        every = [whole.loc[place] for place in places]
        return [part for part in every if all(row in part.index for row in self.weights)]


def planned_seeds(experiment: str, scale: str) -> list[int]:
    """Those that the plan has at this scale."""
    planned = named(experiment)
    if planned.jobs is None:
        return [*planned.at(scale).seeds]
    jobs = planned.jobs(planned.at(scale), dict.fromkeys(planned.searched, ()))
    return [*dict.fromkeys(job.seed for job in jobs)]


def only_planned(
    results: Results, experiment: str, table: pd.DataFrame, rows: Sequence[Any] | Mapping[Any, float]
) -> pd.DataFrame:
    """The rows that have all planned seeds, without others; a look at some of the seeds decides nothing."""
    wanted = planned_seeds(experiment, results.scale)
    table = table.reindex(columns=wanted)
    asked = table.reindex(list(rows))
    have = int(asked.notna().all().sum())
    if have < len(wanted):
        so_far = (f"{have} of {len(wanted)} seeds so far",) if have else ()
        raise NotMeasured(f"gcalign reproduce {experiment} scale={results.scale}", *so_far)
    return table.dropna()
