"""Which settings of a run go with pairs of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcalign.errors import count, one_of

if TYPE_CHECKING:
    from gcalign.lab.training.config import Config


def refuse(words: dict[str, bool], why: str) -> None:
    """An error for the first word that is wrong."""
    for word, wrong in words.items():
        if wrong:
            raise ValueError(f"{word} {why}")


def check_paired(config: Config) -> None:
    """What goes with pairs of columns, and what goes with images alone."""
    data, many = config.data, len(config.data.columns.split(",")) if config.data.columns else 2
    if not data.paired:
        keys = {f"data.{key}={getattr(data, key)}": bool(getattr(data, key)) for key in ("columns", "group", "fold")}
        refuse(keys, f"is for pairs of columns, not for data={data.name}; add data=pairs")
        if config.model.encoders:
            raise ValueError(f"model.encoders={config.model.encoders} is for data=pairs; images have model.encoder=")
        return
    if config.model.encoder != "small":
        raise ValueError(f"model.encoder={config.model.encoder} is for images; write model.encoders=[…], one a column")
    refused = {
        "method=byol": config.method["name"] == "byol",
        f"model.stem={config.model.stem}": config.model.stem != "auto",
        f"knn_every={config.knn_every}": config.knn_every > 0,
        f"pairs.views={config.pairs.views}": config.pairs.views != 2,
        f"target.name={config.target.name}": config.target.name == "labels",
        f"augment_in={config.augment_in}": config.augment_in != "device",
        f"data.tail={data.tail:g}": data.tail != 1,
    }
    refuse(refused, f"is for images with views, not for data={data.name}; leave it out")
    one_of("pairs.multi", config.pairs.multi, ("pairwise", "joint"))
    count("data.fold", data.fold, "a whole number of at least 0", least=0)
    if not (data.test > 0 and data.validation > 0 and data.test + data.validation < 1):
        raise ValueError(
            f"data.validation={data.validation:g} and data.test={data.test:g} must be shares above 0 that leave pairs "
            "for training; 0.1 and 0.2 are usual"
        )
    if config.model.encoders and len(encoders_of(config)) != many:
        raise ValueError(f"model.encoders={config.model.encoders} must have one for each of the {many} columns")


def encoders_of(config: Config) -> list[str]:
    """The names of the encoders of pairs, as they were given."""
    return [name.strip() for name in config.model.encoders.strip("[]").split(",")] if config.model.encoders else []
