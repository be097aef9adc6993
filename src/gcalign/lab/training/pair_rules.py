"""Which settings of a run go with pairs of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcalign.errors import count, one_of

if TYPE_CHECKING:
    from gcalign.lab.training.config import Config

PAIR_OPTIONS = (  # with their defaults, under which a run has the name it had before there were any
    ("data", "columns", ""),
    ("data", "group", None),
    ("data", "fold", 0),
    ("data", "validation", 0.1),
    ("data", "test", 0.2),
    ("model", "encoders", ""),
    ("pairs", "multi", "pairwise"),
    ("method", "learnable", None),
)


def check_paired(config: Config) -> None:
    """What goes with pairs of columns, and what goes with images alone."""
    data, many = config.data, len(config.data.columns.split(",")) if config.data.columns else 2
    if not data.paired:
        for key, value in (("data.columns", data.columns), ("data.group", data.group), ("data.fold", data.fold)):
            if value:
                raise ValueError(
                    f"{key}={value} is for pairs of columns, and data={data.name} has none; add data=pairs"
                )
        if config.model.encoders:
            raise ValueError(
                f"model.encoders={config.model.encoders} is for data=pairs; write model.encoder= for images"
            )
        return
    refused = {
        "method=byol": config.method["name"] == "byol",
        f"model.encoder={config.model.encoder}": config.model.encoder != "small",
        f"model.stem={config.model.stem}": config.model.stem != "auto",
        f"knn_every={config.knn_every}": config.knn_every > 0,
        f"pairs.views={config.pairs.views}": config.pairs.views != 2,
        f"target.name={config.target.name}": config.target.name == "labels",
        f"augment_in={config.augment_in}": config.augment_in != "device",
        f"data.tail={data.tail:g}": data.tail != 1,
    }
    for word, wrong in refused.items():
        if wrong:
            remedy = "; write model.encoders=[…], one for each column" if word.startswith("model.encoder=") else ""
            raise ValueError(
                f"{word} is for images with views of their own, not for data={data.name}; leave it out{remedy}"
            )
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
