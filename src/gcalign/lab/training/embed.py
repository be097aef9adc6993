"""`gcalign embed`: the features of any data set, folder or column as a parquet or .npy file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import Tensor

from gcalign.errors import one_of
from gcalign.lab import files
from gcalign.lab.data.sides import SPLITS
from gcalign.lab.evaluation import extract
from gcalign.lab.training.load import load_encoder
from gcalign.lab.training.probe import (
    COLUMNS,
    DATA,
    columns_with,
    data_of,
    device_of,
    run_on_columns,
    whole_split,
    words,
)
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import images_of
from gcalign.lab.training.typed import value_of

CORRUPTION = ("corruption", "severity")


def embed(overrides: Sequence[str], output: str) -> Path:
    """`run=… data=…`: features of any data set or folder as a parquet file (index, image, label, domain, f0 … fD).

    A .npy file has the features alone, [N, D] in float32.
    `split=` is all of a data set that comes undivided, else train, unless given; `corruption=` and `severity=` choose
    from cifar10c. Of a run on columns, `column=` is the side.
    """
    path = files.writable("-o", output, (".parquet", ".npy"))
    run = run_on_columns(overrides)
    known = ("run", "encoder", "split", "device", *CORRUPTION, *DATA) if run is None else (*COLUMNS, "column")
    given = words(overrides, known, ("run",))
    roots = (given.get("data.root"), (run or Run.at(given["run"])).config().data.root)
    files.check_apart({"-o": path}, [str(root) for root in roots if root])
    columns, features = _images(given) if run is None else _column(run, given)
    if path.suffix == ".npy":
        files.write_npy(path, features.numpy())
    else:
        columns |= {f"f{k}": features[:, k].numpy() for k in range(features.shape[1])}
        files.write_parquet(path, pa.table(columns))
    return path


def _images(given: dict[str, str]) -> tuple[dict[str, Any], Tensor]:
    device, run = device_of(given), Run.at(given["run"])
    data = data_of(run, given)
    more = {key: value_of(key, given[key]) for key in CORRUPTION if key in given}
    images = images_of(data, given.get("split", whole_split(data.name)), **more)
    encoder = load_encoder(run.path, encoder=given.get("encoder"))
    features = extract(encoder, images, device=device, progress=sys.stderr.isatty())
    columns: dict[str, Any] = {"index": list(range(len(images)))}
    if images.places:
        # undecodable bytes of a name are spelt out: parquet holds UTF-8 alone
        columns["image"] = [place.encode("utf-8", "backslashreplace").decode() for place in images.places]
    for name, values in (("label", images.labels), ("domain", images.domains)):
        if values is not None:
            columns[name] = values.numpy()
    return columns, features


def _column(run: Run, given: Mapping[str, str]) -> tuple[dict[str, Any], Tensor]:
    """The columns `row`, `split` and, of texts, `item`, and the embeddings of the side that `column=` names.

    Files of two columns are paired row by row where every pair has one item on both sides.
    """
    split = one_of("split", given.get("split", "all"), SPLITS)
    subject = columns_with(run, given)
    names = {side.name: side for side in subject.sides}
    if "column" not in given:
        raise ValueError(f"column= is missing; this run has {', '.join(names)}: write a file for each")
    side = names[one_of("column", given["column"], names)]
    rows = subject.samples.rows(split)
    places, which = side.of(rows)
    columns: dict[str, Any] = {"row": rows[which].numpy()}
    columns["split"] = [SPLITS[k] for k in subject.samples.split[rows[which]].tolist()]
    if side.kind == "text":
        columns["item"] = list(side.take(places))
    return columns, subject.gallery(side, rows).z
