"""Which options of a run go together. That each value is allowed by itself is said where the option is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcalign.errors import one_of
from gcalign.lab.training import loggers

if TYPE_CHECKING:
    from gcalign.lab.training.config import Config


def check(config: Config) -> None:
    """Every rule that needs no data, before anything is written."""
    from gcalign import methods

    one_of("method", config.method["name"], methods.names())
    loggers.check(config.logger)
    if config.data.paired:
        _check_pairs(config)
    else:
        _check_images(config)
    _check_processes(config)
    for key in ("alpha", "beta"):
        value = getattr(config.target, key)
        if value and config.target.name != "blocks":
            raise ValueError(f"target.{key}={value:g} has no effect without target.name=blocks; add it")
    if config.method["name"] == "byol":
        if config.pairs.weights is not None:
            raise ValueError("pairs.weights is for methods with a plan of pairs; byol compares each pair alone")
        if config.pairs.views != 2:
            raise ValueError(
                f"pairs.views={config.pairs.views} must be 2 for byol, which predicts one view from the other"
            )
    name = config.name
    if name is not None and (
        not 1 <= len(name) <= 150 or not name.isprintable() or set("/\\") & set(name) or name in (".", "..")
    ):
        raise ValueError(
            f"name={name!r} must be the name of a folder: 1 to 150 printable characters without / and \\; say where "
            "with runs="
        )


def _refuse(words: dict[str, bool], why: str) -> None:
    """An error for the first word that is wrong."""
    for word, wrong in words.items():
        if wrong:
            raise ValueError(f"{word} {why}")


def _check_processes(config: Config) -> None:
    """What each process does in a step, and what goes with several of them."""
    nodes = f" × nodes={config.nodes}" if config.nodes > 1 else ""
    parts = f"devices={config.devices}{nodes} × accumulate={config.accumulate}"
    if config.batch_size % (config.world * config.accumulate):
        raise ValueError(f"batch_size={config.batch_size} must divide among {parts}")
    if config.batch_size // (config.world * config.accumulate) < 2:
        raise ValueError(f"batch_size={config.batch_size} must be at least 2 × {parts}: BatchNorm needs two in each")
    if config.world == 1:
        several = {
            f"strategy={config.strategy}": config.strategy != "auto",
            "sync_batchnorm=true": config.sync_batchnorm,
        }
        _refuse(several, "is for several processes, and devices=1 is one; drop it, or raise devices")
    if config.strategy == "fsdp":
        refused = {
            "method=byol": config.method["name"] == "byol",
            f"accumulate={config.accumulate}": config.accumulate > 1,
            "optimizer.name=lars": config.optimizer.name == "lars",
            "compile=true": config.compile,
            f"knn_every={config.knn_every}": config.knn_every > 0,
            f"precision={config.precision}": config.precision in ("16-mixed", "16"),
        }
        _refuse(refused, "does not go with strategy=fsdp, which splits the weights; use strategy=ddp")


def _check_images(config: Config) -> None:
    """Images do not take what is for pairs of columns."""
    data = config.data
    words = {f"data.{key}={getattr(data, key)}": bool(getattr(data, key)) for key in ("columns", "group", "fold")}
    _refuse(words, f"is for pairs of columns, not for data={data.name}; add data=pairs")
    if config.model.encoders:
        raise ValueError(f"model.encoders={config.model.encoders} is for data=pairs; images have model.encoder=")


def _check_pairs(config: Config) -> None:
    """Pairs of columns do not take what is for images with views."""
    data, columns = config.data, len(config.data.columns.split(",")) if config.data.columns else 2
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
    _refuse(refused, f"is for images with views, not for data={data.name}; leave it out")
    if not (data.test > 0 and data.validation > 0 and data.test + data.validation < 1):
        raise ValueError(
            f"data.validation={data.validation:g} and data.test={data.test:g} must be shares above 0 that leave pairs "
            "for training; 0.1 and 0.2 are usual"
        )
    if config.model.encoders and len(encoders_of(config)) != columns:
        raise ValueError(f"model.encoders={config.model.encoders} must have one for each of the {columns} columns")


def encoders_of(config: Config) -> list[str]:
    """The names of the encoders of pairs, as they were given."""
    return [name.strip() for name in config.model.encoders.strip("[]").split(",")] if config.model.encoders else []
