"""The data of a config: a split of its images, or the samples that a run trains on."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from gcalign.lab.data.images import Images, Subset
from gcalign.lab.data.sides import Samples, views_of
from gcalign.lab.data.sources import labels_of, load
from gcalign.lab.data.splits import long_tailed
from gcalign.lab.training.config import Config, Data


def samples_of(config: Config) -> Samples:
    """What a config trains on: views of its images, or the columns of its table."""
    if config.data.paired:
        return columns_of(config.data)
    return views_of(images_of(config.data, "train"), config.pairs.views)


def images_of(data: Data, split: str, **more: Any) -> Images:
    """A split of a config's data set; a long tail is that of the training images alone."""
    about: dict[str, Any] = {"root": data.root, "size": data.size, "on_error": data.on_error, **more}
    if split != "train" or data.tail == 1:
        return load(data.name, split, limit=data.limit, **about)
    whole = load(data.name, split, **about)
    return Subset(whole, long_tailed(labels_of(whole, "data.tail"), data.tail, data.limit, seed=0))


def columns_of(data: Data) -> Samples:
    """The columns of a config's table, read once by a process however many runs need them."""
    return _columns(tuple(dataclasses.asdict(data).items()))


@functools.lru_cache(maxsize=4)
def _columns(items: tuple[tuple[str, Any], ...]) -> Samples:
    from gcalign.lab.data.table_sides import load_columns

    given = dict(items)
    columns = [name for name in given.pop("columns").split(",") if name]
    del given["tail"]
    return load_columns(given.pop("name"), columns=columns, **given)
