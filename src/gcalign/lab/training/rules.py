"""The rules of a config that need no data: each value is allowed, or an error says which are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gcalign import methods
from gcalign.errors import count, one_of, positive
from gcalign.lab.data import views
from gcalign.lab.limits import within
from gcalign.lab.models.encoders import STEMS
from gcalign.lab.models.heads import PROJECTORS
from gcalign.lab.training import loggers, optimizers
from gcalign.lab.training.pair_rules import check_paired, refuse
from gcalign.lab.training.pair_rules import encoders_of as encoders_of

if TYPE_CHECKING:
    from gcalign.lab.training.config import Config

# what Lightning also has casts the images or the whole model, and the loss needs float32
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed", "32", "16", "bf16")
_LARGEST = 1e6  # of a learning rate, a weight decay, a weight of pairs


def check(config: Config) -> None:
    """Every rule that needs no data, before anything is written."""
    one_of("method", config.method["name"], methods.names())
    one_of("views", config.view_name, views.names())
    one_of("augment_in", config.augment_in, ("device", "workers"))
    one_of("precision", config.precision, PRECISIONS)
    one_of("strategy", config.strategy, ("auto", "ddp", "fsdp"))
    loggers.check(config.logger)
    one_of("target.name", config.target.name, ("default", "labels", "blocks"))
    one_of("model.stem", config.model.stem, STEMS)
    one_of("model.projector", config.model.projector, PROJECTORS)
    one_of("optimizer.name", config.optimizer.name, optimizers.NAMES)
    one_of("optimizer.schedule", config.optimizer.schedule, ("cosine", "linear", "constant"))
    one_of("data.on_error", config.data.on_error, ("skip", "raise"))
    for name in ("epochs", "batch_size", "accumulate", "devices", "nodes", "log_every", "checkpoint_every"):
        count(name, getattr(config, name), "a whole number of at least 1")
    for name in ("seed", "workers", "knn_every"):
        count(name, getattr(config, name), "a whole number of at least 0", least=0)
    within("EPOCHS", config.epochs, "epochs")
    within("WORKERS", config.workers, "workers")
    for name in ("hidden", "out"):
        count(f"model.{name}", getattr(config.model, name), "the paper's are 2048 and 128")
    count("pairs.views", config.pairs.views, "two views make a pair", least=2)
    if config.data.size is not None:
        within("IMAGE_SIDE", count("data.size", config.data.size, "the side of an image in pixels"), "data.size")
    if config.data.limit is not None:
        count("data.limit", config.data.limit, "leave it out to take every image")
    _check_numbers(config)
    check_paired(config)
    _check_processes(config)
    if config.pairs.weights is not None and config.method["name"] == "byol":
        raise ValueError("pairs.weights is for methods with a plan of pairs; byol compares each pair alone")
    if config.method["name"] == "byol" and config.pairs.views != 2:
        raise ValueError(f"pairs.views={config.pairs.views} must be 2 for byol, which predicts one view from the other")
    folder = config.name
    if folder is not None and (
        not 1 <= len(folder) <= 150 or not folder.isprintable() or set("/\\") & set(folder) or folder in (".", "..")
    ):
        raise ValueError(
            f"name={config.name!r} must be the name of a folder: 1 to 150 printable characters without / and \\; say "
            "where with runs="
        )


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
        refuse(several, "is for several processes, and devices=1 is one; drop it, or raise devices")
    if config.strategy == "fsdp":
        refused = {
            "method=byol": config.method["name"] == "byol",
            f"accumulate={config.accumulate}": config.accumulate > 1,
            "optimizer.name=lars": config.optimizer.name == "lars",
            "compile=true": config.compile,
            f"knn_every={config.knn_every}": config.knn_every > 0,
            f"precision={config.precision}": config.precision in ("16-mixed", "16"),
        }
        refuse(refused, "does not go with strategy=fsdp, which splits the weights; use strategy=ddp")


def _check_numbers(config: Config) -> None:
    """Real values in the range in which they mean something."""
    o = config.optimizer
    positive("optimizer.lr", o.lr, "Adam likes 1e-3, the paper's SGD 0.6")
    positive("optimizer.weight_decay", o.weight_decay, "the paper uses 1e-6", zero=True)
    positive("model.width", config.model.width, "1 is the published size")
    for name in ("lr", "weight_decay"):
        if (value := getattr(o, name)) > _LARGEST:
            raise ValueError(f"optimizer.{name}={value:g} must be at most {_LARGEST:g}; larger values diverge")
    shares = {
        "pairs.noise": (config.pairs.noise, "0.3 mismatches 30 % of pairs"),
        "target.noise": (config.target.noise, "0.3 replaces 30 % of labels"),
        "optimizer.momentum": (o.momentum, "0.9 is usual"),
        "optimizer.warmup": (o.warmup, "0.05 warms up for 5 % of the steps"),
        "optimizer.final": (o.final, "0.001 ends at a thousandth of lr"),
        "model.momentum": (config.model.momentum, "BYOL uses 0.996"),
    }
    for name, (value, remedy) in shares.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value:g} must be a share between 0 and 1; {remedy}")
    if not 1 <= config.data.tail < float("inf"):
        raise ValueError(f"data.tail={config.data.tail:g} must be at least 1, which is balanced; 100 is a long tail")
    for name in ("alpha", "beta"):
        value = positive(f"target.{name}", getattr(config.target, name), "a weight of pairs", zero=True)
        if value > _LARGEST:
            raise ValueError(f"target.{name}={value:g} must be at most {_LARGEST:g}; the pair itself has 1")
        if value and config.target.name != "blocks":
            raise ValueError(f"target.{name}={value:g} has no effect without target.name=blocks; add it")
