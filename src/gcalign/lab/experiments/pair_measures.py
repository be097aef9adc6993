"""What is measured of a run on pairs: retrieval among pairs that training never saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gcalign.lab.training.pair_runs import load_encoders, pairs_of
from gcalign.lab.training.pair_use import EmbeddedPairs, Retrieved, retrieval, zeroshot

if TYPE_CHECKING:
    from gcalign.lab.experiments.subject import MeasuredRun

Numbers = list[tuple[str, float, dict[str, Any]]]  # name of the measure, value, about


def _embedded(of: MeasuredRun) -> EmbeddedPairs:
    encoders = load_encoders(of.run, of.config.model.encoders or None)  # named by the command
    return EmbeddedPairs(encoders, pairs_of(of.config.data), of.device)


def _about(found: Retrieved) -> dict[str, Any]:
    return {"protocol": found.protocol, "tested on": found.split, "n_test": found.n_test, "candidates": found.gallery}


def tested(of: MeasuredRun) -> Numbers:
    """R@1, 5 and 10 both ways on the test pairs, their means, and R@k among all names of the table."""
    embedded = _embedded(of)
    found, names = retrieval(embedded, "test"), zeroshot(embedded, "test", show=0)
    about, out = _about(found) | {"eps": embedded.encoders.eps}, []
    for k in ("1", "5", "10"):
        ways = [by[k] for by in found.recall.values()]
        out.append((f"R@{k}", sum(ways) / len(ways), about | {"ways": {w: by[k] for w, by in found.recall.items()}}))
    for by in names.recall.values():
        out += [(f"zeroshot R@{k}", by[k], _about(names)) for k in ("1", "10")]
    return out


def validated(of: MeasuredRun) -> Numbers:
    """R@10, mean of both ways, on the validation pairs; test pairs are not embedded."""
    found = retrieval(_embedded(of), "validation", (10,))
    return [("validation", found.accuracy, _about(found) | {"measure": "R@10, mean of both ways"})]
