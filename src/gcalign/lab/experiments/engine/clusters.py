"""Intervals over clusters and seeds: records that count their hits in each cluster, drawn again both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gcalign.lab.experiments.engine import records
from gcalign.lab.experiments.engine.claims import ABOVE, ALPHA, Bounds, Judgement, NotMeasured, Results, planned_seeds
from gcalign.lab.experiments.engine.statistics import Estimate, points

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

DRAWS = 2000


@dataclass(frozen=True)
class Counts:
    """Hits and trials of some rows of a table, by place (e.g. a language), seed and cluster."""

    rows: Sequence[Any]
    hits: np.ndarray  # [rows, places, seeds, clusters]
    trials: np.ndarray

    @staticmethod
    def of(frame: pd.DataFrame, rows: Sequence[Any], by: str, over: str | None, seeds: Sequence[int]) -> Counts | None:
        """From `about["clusters"]`, {name: [hits, trials]}; None where a row lacks one of the seeds at a place."""
        import numpy as np

        some = frame[frame[by].isin(list(rows)) & frame["seed"].isin(list(seeds))]
        places = list(dict.fromkeys(some[over])) if over else [None]
        names = {name: k for k, name in enumerate(sorted({c for about in some["about"] for c in about["clusters"]}))}
        shape = (len(rows), len(places), len(seeds), len(names))
        hits, trials = np.zeros(shape), np.zeros(shape)
        for _, record in some.iterrows():
            place = places.index(record[over]) if over else 0
            row, seed = list(rows).index(record[by]), list(seeds).index(record["seed"])
            for name, (found, n) in record["about"]["clusters"].items():
                hits[row, place, seed, names[name]], trials[row, place, seed, names[name]] = found, n
        complete = trials.size and (trials.sum(3) > 0).all()
        return Counts(rows, hits, trials) if complete else None

    def means(self) -> np.ndarray:  # [rows]
        """The share of hits of each row: over clusters and seeds together, then the mean over places."""
        return (self.hits.sum((2, 3)) / self.trials.sum((2, 3))).mean(1)

    def contrast(self, weights: Sequence[float]) -> Estimate:
        """Σ weight · share. Its error is that of a bootstrap: clusters and seeds are drawn again, independently."""
        import numpy as np

        generator = np.random.default_rng(0)
        _, _, seeds, clusters = self.hits.shape
        ways = [generator.multinomial(n, np.full(n, 1 / n), DRAWS).astype(float) for n in (seeds, clusters)]
        found, n = (np.einsum("rpsc,bs,bc->brp", a, *ways, optimize=True) for a in (self.hits, self.trials))
        whole = (n > 0).all((1, 2))  # a draw of few clusters may leave a place without trials
        again = (found[whole] / n[whole]).mean(2) @ np.asarray(weights)
        return Estimate(float(self.means() @ np.asarray(weights)), float(again.std()), clusters - 1, clusters)


@dataclass(frozen=True)
class ClusteredContrast:
    """A judge: Σ weight · share over rows of a measure, with an interval over clusters and seeds.

    All planned seeds are needed. With `over`, a row is the mean over the values of another label.
    """

    experiment: str
    weights: Mapping[Any, float]
    measure: str
    clusters: str  # what they are called
    by: str = "method"
    at: Mapping[str, Any] = field(default_factory=dict)
    over: str | None = None
    rule: Bounds = ABOVE
    text: str = "{gap} points"

    def __call__(self, results: Results) -> Judgement:
        frame = records.having(results.of(self.experiment), measure=self.measure, **self.at)
        rows = list(self.weights)
        counts = Counts.of(frame, rows, self.by, self.over, planned_seeds(self.experiment, results.scale))
        if counts is None:
            raise NotMeasured(f"gcalign reproduce {self.experiment} scale={results.scale}")
        e = counts.contrast([*self.weights.values()])
        percent = {row: f"{100 * mean:.1f}" for row, mean in zip(rows, counts.means(), strict=True)}
        written = self.text.format(gap=points(e, results.level), percent=percent)
        p = self.rule.p(e)
        held = self.rule.low < e.mean <= self.rule.high
        word = "not shown" if p > ALPHA else "held" if held else "failed"
        return Judgement(word, written, e.n, self.clusters, p, None, e)  # type: ignore[arg-type]  # a Word
