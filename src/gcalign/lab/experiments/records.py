"""Result files: one measurement of one run to a line, with what it takes to judge it and to do it again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcalign.lab import files


@dataclass(frozen=True)
class Record:
    """A number, what it is of (`labels`), and how it was got (`about`, `words`)."""

    experiment: str  # table1, fig-noise, …
    scale: str  # tiny, small, paper
    measure: str  # linear-fast, knn, cifar10c, alignment, …
    value: float | None  # accuracies between 0 and 1; None where `about` is the result
    labels: dict[str, Any] = field(default_factory=dict)  # method, setting, noise, alpha, …: what tables group by
    seed: int | None = None
    about: dict[str, Any] = field(default_factory=dict)  # protocol, split, images, hyper-parameters chosen, spread
    run: str | None = None  # the run's folder name, which ends in the hash of its config
    words: tuple[str, ...] = ()  # of `gcalign train`


_KINDS: Mapping[str, Any] = {
    "experiment": str,
    "scale": str,
    "measure": str,
    "value": (int, float, type(None)),
    "labels": dict,
    "seed": (int, type(None)),
    "about": dict,
    "run": (str, type(None)),
}


def read(path: Path) -> list[Record]:
    """The records of a result file, in its order."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist; `gcalign reproduce {path.stem}` writes it")
    lines = files.read(path).decode("utf-8", "replace").removesuffix("\n").split("\n")  # a text may hold other ends
    return [_parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if lines != [""]]


def _parsed(line: str, where: str) -> Record:
    try:
        content = files.from_json(line)
        record = Record(**content | {"words": tuple(content.get("words", ()))})
        for name, kinds in _KINDS.items():
            if not isinstance(getattr(record, name), kinds):
                raise TypeError(f"{name}={getattr(record, name)!r}")
        for name, value in record.labels.items():
            if isinstance(value, list | dict):
                raise TypeError(f"the label {name}={value!r} is no text or number")
        return record
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{where} is no result ({error}); delete the line or the file") from error


def write(path: Path, records: Iterable[Record]) -> None:
    """All records at once, sorted, so that the same results are the same bytes whoever finished first."""
    lines = sorted(json.dumps(dataclasses.asdict(r), sort_keys=True, ensure_ascii=False) for r in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, "".join(f"{line}\n" for line in lines))
