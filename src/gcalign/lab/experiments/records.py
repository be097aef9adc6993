"""Result files: one measurement of one run to a line, with what it takes to judge it and to do it again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gcalign.lab.files import write as write_file


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

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def read(path: Path) -> list[Record]:
    """The records of a result file, in its order."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist; `gcalign reproduce {path.stem}` writes it")
    return [_parsed(line, f"{path}, line {number}") for number, line in enumerate(path.read_text().splitlines(), 1)]


def _parsed(line: str, where: str) -> Record:
    try:
        content = json.loads(line)
        return Record(**content | {"words": tuple(content.get("words", ()))})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where} is no result ({error}); delete the line or the file") from error


def write(path: Path, records: Iterable[Record]) -> None:
    """All records at once, sorted, so that the same results are the same bytes whoever finished first."""
    lines = sorted(json.dumps(r.as_dict(), sort_keys=True, ensure_ascii=False) for r in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, "".join(f"{line}\n" for line in lines))
