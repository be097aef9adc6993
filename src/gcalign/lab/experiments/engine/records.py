"""Result files: one measurement of one run to a line; and their records as a frame, from which everything is drawn."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab import files

if TYPE_CHECKING:
    import pandas as pd

NO_SEED = -1  # in a frame, of what has none
PROBES = ("linear", "linear-fast")  # the measure of accuracy is the first of these that was taken


@dataclass(frozen=True)
class Record:
    """A number, what it is of (`labels`), and how it was got (`about`, `words`)."""

    experiment: str = ""  # table1, fig-noise, …
    scale: str = ""  # tiny, small, paper
    measure: str = ""  # linear-fast, knn, cifar10c, alignment, …
    value: float | None = None  # accuracies between 0 and 1; None where `about` is the result
    labels: dict[str, Any] = field(default_factory=dict)  # method, setting, noise, alpha, …: what tables group by
    seed: int | None = None
    about: dict[str, Any] = field(default_factory=dict)  # protocol, split, images, hyper-parameters chosen, spread
    run: str | None = None  # the run's folder name, which ends in the hash of its config
    words: tuple[str, ...] = ()  # of `gcalign train`


_OWN = tuple(f.name for f in dataclasses.fields(Record) if f.name != "labels")
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
            if name not in content and name in ("experiment", "scale", "measure", "value"):
                raise TypeError(f"{name} is missing")
            if not isinstance(getattr(record, name), kinds):
                raise TypeError(f"{name}={getattr(record, name)!r}")
        for name, value in record.labels.items():
            if isinstance(value, list | dict):
                raise TypeError(f"the label {name}={value!r} must be a text or a number")
        return record
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{where} is not a result ({error}); delete the line or the file") from error


def write(path: Path, records: Iterable[Record]) -> None:
    """All records at once, sorted, so that the same results are the same bytes whoever finished first."""
    lines = sorted(json.dumps(dataclasses.asdict(r), sort_keys=True, ensure_ascii=False) for r in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, "".join(f"{line}\n" for line in lines))


# --- as a frame ----------------------------------------------------------------------------------------------------


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """A row for each record, in their order; a column for each of its fields and for each label that any has.

    A label that a record does not have is None.
    """
    import pandas as pd

    records = list(records)
    labels = dict.fromkeys(name for r in records for name in r.labels)
    columns: dict[str, list[Any]] = {name: [getattr(r, name) for r in records] for name in _OWN}
    columns["seed"] = [NO_SEED if r.seed is None else r.seed for r in records]
    columns |= {name: [r.labels.get(name) for r in records] for name in labels if name not in columns}
    made = pd.DataFrame(columns, dtype=object)
    return made.astype({"seed": int, "value": float})


def having(frame: pd.DataFrame, *labels: str, **where: Any) -> pd.DataFrame:
    """The records that have these labels, with these values; a value of None is a label that it must not have."""
    import pandas as pd

    keep = pd.Series(True, index=frame.index)
    for name in labels:
        keep &= frame[name].notna() if name in frame else False
    for name, value in where.items():
        if name in frame:
            keep &= frame[name].isna() if value is None else frame[name] == value
        elif value is not None:
            keep &= False
    return frame[keep]


def by_seed(frame: pd.DataFrame, measure: str, *labels: str, unit: float = 1.0, **where: Any) -> pd.DataFrame:
    """The values of a measure: a row for each value of the labels, sorted, and a column for each seed.

    NaN is what was not measured. `unit` multiplies; `where` chooses records as in `having`.
    """
    some = _measured(having(frame, *labels, **where), measure, labels)
    return unit * some.reindex(columns=[*labels, "seed", "value"]).set_index([*labels, "seed"])["value"].unstack("seed")


def series(frame: pd.DataFrame, measure: str, **where: Any) -> pd.Series:
    """The values of a measure in one setting, by seed."""
    return _measured(having(frame, **where), measure).set_index("seed")["value"].sort_index()


def _measured(frame: pd.DataFrame, measure: str, labels: tuple[str, ...] = ()) -> pd.DataFrame:
    some = frame[(frame["measure"] == measure) & frame["value"].notna()]
    for record in some[some.duplicated([*labels, "seed"])].to_dict("records"):
        place = ", ".join(f"{name}={record[name]}" for name in labels or ("method",) if name in record)
        raise ValueError(
            f"{record['experiment']} has {measure} of {place} with seed {record['seed']} twice; one result file holds "
            "each once, and one figure shows one data set: delete a line, or draw them separately"
        )
    return some


def values(frame: pd.DataFrame, label: str) -> list[Any]:
    """The values of a label, in the order in which they come."""
    return list(frame[label].dropna().unique()) if label in frame else []


def seeds(frame: pd.DataFrame) -> list[int]:
    """The seeds, sorted."""
    return sorted(int(seed) for seed in frame["seed"].unique() if seed != NO_SEED)


def check_any(things: Sized, name: str, what: str) -> None:
    """That there is something to show."""
    if not len(things):
        raise ValueError(f"{name} needs records of {what}, and there is none; `gcalign reproduce {name}` makes them")


def probe(frame: pd.DataFrame) -> str:
    """The measure that is the accuracy of these records: that of their scale's probe."""
    taken = set(frame["measure"])
    return next((name for name in PROBES if name in taken), PROBES[0])
