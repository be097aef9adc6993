"""What is done with a finished run on pairs: retrieval, names for what it never saw, embeddings of each side."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcalign.errors import count, one_of
from gcalign.lab.data.paired import SPLITS, PairedData, PairedSide, coded
from gcalign.lab.evaluation.retrieval import KS, Gallery, nearest, recall
from gcalign.lab.training.config import Data
from gcalign.lab.training.pair_runs import Encoders, load_encoders, pairs_of
from gcalign.lab.training.runs import Run
from gcalign.lab.training.typed import value_of

PROTOCOLS = ("retrieval", "zeroshot")
DATA = ("data.root", "data.on_error")
WORDS = ("run", "encoder", "split", "device", *DATA)


@dataclass(frozen=True)
class Retrieved:
    """R@k between two sides, each way, and examples where they were asked for."""

    protocol: str
    split: str
    accuracy: float  # R@1, mean of both ways
    recall: dict[str, dict[str, float]]  # "image → name_en" -> {"1": …}
    n_test: int  # pairs that were asked about
    gallery: int  # items among which the partner was sought
    examples: list[dict[str, Any]]
    seed: int = 0

    def __str__(self) -> str:
        lines = [
            f"{self.protocol} on {self.split}: {self.n_test} pairs that training never saw, {self.gallery} candidates"
        ]
        for way, found in self.recall.items():
            shares = ", ".join(f"R@{k} {100 * v:.1f} %" for k, v in found.items())
            lines.append(f"  {way}: {shares} (chance {100 / self.gallery:.2f} %)")
        for example in self.examples:
            names = "; ".join(f"{name} {near:.2f}" for name, near in example["found"])
            lines.append(f"  {'✓' if example['right'] else ' '} {example['is']}: {names}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class EmbeddedPairs:
    """A run's encoders and its pairs, embedded once."""

    def __init__(self, encoders: Encoders, pairs: PairedData, device: str = "cpu") -> None:
        self.encoders, self.pairs = encoders.to(device), pairs
        self._z: dict[str, Tensor] = {}
        self._codes = {side.name: _codes(side) for side in pairs.sides}

    def gallery(self, side: PairedSide, rows: Tensor) -> Gallery:
        """The items of these pairs on one side."""
        if side.name not in self._z:
            self._z[side.name] = self.encoders[side.name].embed_items(side.items)
        places, which = side.of(rows)
        return Gallery(self._z[side.name][places], rows[which], self._codes[side.name][places])


def _codes(side: PairedSide) -> Tensor:
    """A number for each item; equal texts share one."""
    return torch.arange(len(side)) if isinstance(side.items, Tensor) else coded(side.items)


def retrieval(of: EmbeddedPairs, split: str, ks: Sequence[int] = KS) -> Retrieved:
    """R@k among the pairs of a split, between the first side and each other, both ways."""
    rows, found = of.pairs.rows(split), {}
    first, *others = of.pairs.sides
    for other in others:
        for a, b in ((first, other), (other, first)):
            found[f"{a.name} → {b.name}"] = recall(of.gallery(a, rows), of.gallery(b, rows), ks)
    shown = {way: {str(k): v for k, v in by.items()} for way, by in found.items()}
    accuracy = statistics.fmean(by[min(ks)] for by in found.values())
    return Retrieved("retrieval", split, accuracy, shown, len(rows), len(rows), [])


def zeroshot(of: EmbeddedPairs, split: str, *, top: int = 3, show: int = 10, ks: Sequence[int] = KS) -> Retrieved:
    """Name items that training never saw: the nearest of all texts of the table, those of training included."""
    first, other = of.pairs.sides[:2]
    if first.kind == "text" and other.kind != "text":
        first, other = other, first
    if other.kind != "text":
        raise ValueError(f"protocol=zeroshot names items, and {other.name} holds no texts; use protocol=retrieval")
    rows, everything = of.pairs.rows(split), of.gallery(other, of.pairs.rows("all"))
    queries = of.gallery(first, rows)
    found = recall(queries, everything, ks)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(queries), generator=generator)[: count("show", show, "examples", least=0)]
    some = Gallery(queries.z[chosen], queries.owner[chosen], queries.code[chosen])
    examples = []
    near, places = nearest(some, everything, count("top", top, "names for each item"))
    assert isinstance(other.items, tuple)
    for k, row in enumerate(some.owner.tolist()):
        own = [other.items[p] for p in other.of(torch.tensor([row]))[0].tolist()]
        names = [(other.items[p], round(float(c), 3)) for p, c in zip(places[k].tolist(), near[k], strict=True)]
        examples.append({"is": " / ".join(own), "found": names, "right": names[0][0] in own, "row": row})
    way = f"{first.name} → {other.name}"
    many = int(torch.unique(everything.code).numel())
    return Retrieved(
        "zeroshot", split, found[min(ks)], {way: {str(k): v for k, v in found.items()}}, len(rows), many, examples
    )


def subject_of(run: Run, given: dict[str, str], device: str) -> EmbeddedPairs:
    """A run with its own pairs, or with those that this command names."""
    changed: dict[str, Any] = {key.removeprefix("data."): value for key, value in given.items() if key in DATA}
    data: Data = dataclasses.replace(run.config().data, **changed)
    encoders = load_encoders(run, given.get("encoder"))
    sides = [encoders[column].side for column in encoders.columns]
    shape = next((side.shape for side in sides if side.kind == "image"), None)
    pairs = pairs_of(dataclasses.replace(data, size=shape[1]) if shape else data)
    for side in pairs.sides:
        known = encoders[side.name].side
        if (known.kind, known.shape) != (side.kind, side.shape):
            raise ValueError(
                f"{side.name} of {pairs.name} holds {side.kind} of shape {side.shape}, and the run was trained on "
                f"{known.kind} of shape {known.shape}; name the data of the run with data.root="
            )
    return EmbeddedPairs(encoders, pairs, device)


def probe(run: Run, given: dict[str, str], device: str) -> Retrieved:
    """Retrieval or zeroshot, as `protocol=` says, on a split."""
    protocol = one_of("protocol", given.get("protocol", "retrieval"), PROTOCOLS)
    split = one_of("split", given.get("split", "test"), SPLITS)
    asked = {key: value_of(key, given[key]) for key in ("top", "show") if key in given}
    if asked and protocol != "zeroshot":
        raise ValueError(f"{next(iter(asked))}= is for protocol=zeroshot; leave it out")
    subject = subject_of(run, given, device)
    return zeroshot(subject, split, **asked) if protocol == "zeroshot" else retrieval(subject, split)


def embed(run: Run, given: dict[str, str], device: str) -> tuple[dict[str, Any], Tensor]:
    """The columns `row`, `split` and, of texts, `item`, and the embeddings of the side that `column=` names.

    Files of two columns are paired row by row where every pair has one item on both sides.
    """
    split = one_of("split", given.get("split", "all"), SPLITS)
    subject = subject_of(run, given, device)
    names = {side.name: side for side in subject.pairs.sides}
    if "column" not in given:
        raise ValueError(f"column= is missing; this run has {', '.join(names)}: write a file for each")
    side = names[one_of("column", given["column"], names)]
    rows = subject.pairs.rows(split)
    places, which = side.of(rows)
    columns: dict[str, Any] = {"row": rows[which].numpy()}
    columns["split"] = [SPLITS[k] for k in subject.pairs.split[rows[which]].tolist()]
    if side.kind == "text":
        columns["item"] = list(side.take(places))
    return columns, subject.gallery(side, rows).z
