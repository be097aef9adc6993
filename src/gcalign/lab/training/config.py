"""What a run is: typed options, composed from recipes and overrides, hashed into the run's name. Plain data only.

Nothing heavy is imported before a config is made, so that help and completion can list the options at once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from gcalign.errors import did_you_mean, one_of
from gcalign.lab.training import loggers
from gcalign.lab.training.typed import keys, merged, option, read, typed, value_of, written

if TYPE_CHECKING:
    from gcalign.objective import Objective

COMMON = ("iterations", "tol", "layout", "gradient", "block", "learnable")  # options of every method
GROUPS = ("method", "data", "recipe")  # words that choose many values at once
LARGEST = 1e6  # of a learning rate, a weight decay, a weight of pairs
_SHARE = {"least": 0, "most": 1}
_later = partial(option, later=True)
_unhashed = partial(option, hashed=False)


@dataclass
class Data:
    name: str = ""  # set by data=
    root: str | None = option(None, "folder of local files; null is GCALIGN_DATA, or the hub")
    size: int | None = option(None, "image side in pixels; null keeps the data set's own", least=1, limit="IMAGE_SIDE")
    limit: int | None = option(None, "number of images, balanced over classes; null takes all", least=1)
    on_error: Literal["skip", "raise"] = option("skip", "what to do with an unreadable image")
    tail: float = _later(1.0, "ratio of the largest class to the smallest", least=1, remedy="1 is balanced")
    columns: str = _later("", "columns of pairs, one per side, e.g. [image,name_en]; a+b puts two on one side")
    group: str | None = _later(None, "column of near-duplicates that a split keeps together, or emoji:base")
    fold: int = _later(0, "index of the split by groups", least=0)
    validation: float = _later(0.1, "fraction of the pairs for choosing settings")
    test: float = _later(0.2, "fraction of the pairs for testing")

    def __post_init__(self) -> None:
        self.columns = ",".join(part.strip() for part in self.columns.strip("[]").split(","))

    @property
    def paired(self) -> bool:
        """Whether it is a table of pairs."""
        from gcalign.lab.data.sources import TABLES

        return self.name in TABLES

    def check_place(self) -> None:
        """That its files are where they should be; a config of a run is read without them."""
        from gcalign.lab.data import sources

        if self.paired:
            from gcalign.lab.data.table_sides import table_of

            table_of(self.name, self.root, self.size)
        else:
            sources.check_place(self.name, self.root)


@dataclass
class PairOptions:
    noise: float = option(0.0, "fraction of pairs mismatched on purpose", **_SHARE, remedy="0.3 mismatches 30 %")
    views: int = option(2, "views per image", least=2, remedy="two views make a pair")
    multi: Literal["pairwise", "joint"] = _later("pairwise", "plans of three or more columns")
    fixed: bool = _later(False, "same mismatched pairs in every epoch")
    weights: str | None = _unhashed(None, "pair weights (.npy) that `gcalign audit --feedback` wrote; 0 drops a pair")
    digest: str | None = _later(None, "hash of that file, computed when the run is configured")


@dataclass
class TargetOptions:
    name: Literal["default", "labels", "blocks"] = option("default", "target plan; default is the method's own")
    alpha: float = option(0.0, "blocks: weight of pairs within a domain", least=0, most=LARGEST)
    beta: float = option(0.0, "blocks: weight of pairs across domains", least=0, most=LARGEST)
    noise: float = _later(0.0, "fraction of labels replaced by wrong ones", **_SHARE, remedy="0.3 replaces 30 %")


@dataclass
class Model:
    encoder: str = option("small", "backbone: small, resnet18, resnet50, or module:function of your own")
    encoders: str = _later("", "backbones of pairs, one per column, e.g. [small,ngrams]; default: by the column's type")
    width: float = option(1.0, "channel multiplier", above=0, remedy="1 is the published size")
    stem: Literal["auto", "cifar", "imagenet", "paper"] = option("auto", "first layers; auto: by the image size")
    projector: Literal["mlp2", "mlp3-bn", "none"] = option("mlp2", "projection head, used in training only")
    hidden: int = option(2048, "hidden width of the projection head", least=1)
    out: int = option(128, "embedding dimension of the loss", least=1)
    momentum: float = option(0.996, "momentum of the target encoder (byol)", **_SHARE, remedy="BYOL uses 0.996")


@dataclass
class Optimizer:
    name: Literal["adam", "adamw", "sgd", "lars"] = option("adam", "optimizer")
    lr: float = option(1e-3, "peak learning rate", above=0, most=LARGEST, remedy="the paper's SGD has 0.6")
    momentum: float = option(0.9, "momentum of sgd and lars", **_SHARE, remedy="0.9 is usual")
    weight_decay: float = option(1e-6, "weight decay; lars leaves out biases and norms", least=0, most=LARGEST)
    schedule: Literal["cosine", "linear", "constant"] = option("cosine", "learning-rate schedule")
    warmup: float = option(0.05, "fraction of the steps with a rising learning rate", **_SHARE)
    final: float = option(1e-3, "final learning rate as a fraction of lr", **_SHARE)


@dataclass
class Config:
    """A run. Everything but where it is written and how it is shown decides its weights."""

    method: dict[str, Any] = field(default_factory=lambda: {"name": ""})  # set by method=
    data: Data = field(default_factory=Data)
    views: Literal["plain", "C0", "C1", "C2", "C3", "domainbed"] | None = option(
        None, "augmentation policy; null is plain for scenes and pairs, C0 otherwise"
    )
    pairs: PairOptions = field(default_factory=PairOptions)
    target: TargetOptions = field(default_factory=TargetOptions)
    center: bool = _later(False, "subtract the mean direction of each side of a batch, in the loss")
    total_mass: bool = _later(False, "fix the sum of all entries of the plan")
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    epochs: int = option(20, "passes over the data", least=1, limit="EPOCHS")
    batch_size: int = option(256, "pairs per step, over all devices", least=1)
    seed: int = option(0, "random seed of weights, batches and views", least=0)
    accumulate: int = option(1, "chunks in which a batch is encoded: same loss and gradient, less memory", least=1)
    # what Lightning also has casts the images or the whole model, and the loss needs float32
    precision: Literal["32-true", "16-mixed", "bf16-mixed", "32", "16", "bf16"] = option("32-true", "precision")
    devices: int = option(1, "number of processes or GPUs per machine", least=1)
    nodes: int = option(1, "number of machines; torchrun or SLURM starts their processes", least=1)
    strategy: Literal["auto", "ddp"] = _later("auto", "how processes share a run; more than one always use ddp")
    sync_batchnorm: bool = _later(False, "BatchNorm statistics over all GPUs")
    compile: bool = _later(False, "torch.compile for encoder and head")
    channels_last: bool = _later(False, "channels-last memory layout of weights and images")
    accelerator: str = _unhashed("auto", "cpu, gpu, mps, or auto: the best that Lightning finds")
    workers: int = _unhashed(0, "number of processes that load images; 0: the main process", least=0, limit="WORKERS")
    augment_in: Literal["device", "workers"] = _unhashed("device", "where views are made")
    logger: str = _unhashed("tensorboard", "tensorboard, csv, wandb, mlflow, none, or module:Class of a logger")
    logger_args: dict[str, Any] = _unhashed(dict, "arguments of the logger, as logger_args.NAME=")
    knn_every: int = _unhashed(0, "epochs between kNN accuracies on held-out training images; 0 is never", least=0)
    log_every: int = _unhashed(10, "steps between log lines", least=1)
    checkpoint_every: int = _unhashed(100, "steps between checkpoints", least=1)
    name: str | None = _unhashed(None, "folder name of the run; null is METHOD-DATA")
    runs: str = _unhashed("runs", "folder of the runs")
    wait: bool = _unhashed(False, "wait for another process that works on the same run")

    def check(self) -> None:
        """Every rule that needs no data, before anything is written."""
        sides, remedy = (
            ("images with views", "leave it out") if self.data.paired else ("pairs of columns", "add data=pairs")
        )
        for key in keys(Config):
            *parents, last = key.name.split(".")
            value = getattr(getattr(self, parents[0]) if parents else self, last)
            key.check(value)
            if key.name in _ONLY_FOR[sides] and value != key.default:
                raise ValueError(f"{key.name}={written(value)} is for {sides}, not for data={self.data.name}; {remedy}")
        _check_together(self)

    @property
    def view_name(self) -> str:
        return self.views or ("plain" if self.data.name == "scenes" or self.data.paired else "C0")

    @property
    def identity(self) -> dict[str, Any]:
        """What the weights depend on. Later options are left out at their defaults: older runs keep their names."""
        from gcalign.lab.data.catalogue import OF_USERS

        content = self.as_dict()
        for key in keys(Config):
            *parents, last = key.name.split(".")
            place = content[parents[0]] if parents else content
            if not key.about.hashed or (key.about.later and place[last] == key.default):
                del place[last]
        if self.data.name not in OF_USERS:
            content["data"]["root"] = None  # the name says which data it is, wherever it lies
        for name in ("learnable", "least_mass"):  # runs of earlier versions do not have them
            if content["method"].get(name) is None:
                content["method"].pop(name, None)
        content["devices"] *= content.pop("nodes")  # 2 × 4 processes are the same run as 8 on one machine
        return content

    @property
    def world(self) -> int:
        """The number of processes."""
        return self.devices * self.nodes

    @property
    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def folder(self) -> str:
        return f"{self.name or self.method['name'] + '-' + self.data.name.replace('/', '_')}-{self.hash}"

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(content: Any) -> Config:
        """A config as `as_dict` gave it. Nothing in it is resolved or imported; `check` is for commands."""
        config: Config = typed(Config, content)
        if not isinstance(config.method.get("name"), str):
            raise ValueError("method.name is missing")
        return config


def data_choices() -> tuple[str, ...]:
    """The data sets that can be trained on, those that a user has registered by now included."""
    from gcalign.lab.data import sources

    return (*(name for name in sources.names() if name != "cifar10c"), *sources.TABLES)  # that one is for testing


def configured(overrides: Sequence[str]) -> Config:
    """`["method=gca-uot", "data=cifar10", "epochs=5"]` as a checked `Config`."""
    from gcalign import methods
    from gcalign.lab.training.weights import digest

    given: dict[str, str] = {}
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} must be key=value, e.g. epochs=20")
        given[key] = text
    method = one_of("method", given.pop("method", "gca-ince"), methods.names())
    data, recipe = given.pop("data", "scenes"), given.pop("recipe", "default")
    if "/" not in data:  # any name on the hub has one
        one_of("data", data, data_choices())
    content: dict[str, Any] = {"method": _method_options(method), "data": {"name": data}}
    if Data(data).paired:
        content["data"]["on_error"] = "raise"  # a pair with a side missing is a fault of the table
    content = merged(content, RECIPES[one_of("recipe", recipe, RECIPES)])
    if recipe != "default" and method not in OTHER_EPS and "eps" in content["method"]:
        content["method"]["eps"] = PAPER_EPS
    if recipe != "default" and "least_mass" in content["method"]:
        content["method"]["least_mass"] = False  # which is ours
    known = {key.name: key for key in keys(Config)}
    names = [*(name for name in known if name != "logger_args"), *(f"method.{name}" for name in content["method"])]
    names.remove("method.name")
    for name, text in given.items():
        *parents, last = name.split(".")
        if name not in names and parents[:1] != ["logger_args"]:  # a logger's arguments have names of their own
            raise ValueError(_unknown(name, text, names))
        value: Any = read(known[name], text) if name in known else value_of(name, text)
        for part in (last, *reversed(parents)):
            value = {part: value}
        content = merged(content, value)
    config = Config.from_dict(content)
    config.check()
    config.pairs.digest = None if config.pairs.weights is None else digest(config.pairs.weights)
    return config


def _method_options(name: str) -> dict[str, Any]:
    """The method with its own options at their defaults, and those that all have, unset."""
    from gcalign import methods

    own = inspect.signature(methods._REGISTRY[name]).parameters.values()
    defaults = {p.name: p.default for p in own if p.kind is not p.VAR_KEYWORD}
    defaults = {k: list(v) if isinstance(v, tuple) else v for k, v in defaults.items()}
    return {"name": name, **defaults, **{k: None for k in COMMON if k not in defaults}}


def _unknown(key: str, text: str, known: Sequence[str]) -> str:
    if key in ("method.name", "data.name"):
        return f"{key}={text} must be written {key.removesuffix('.name')}={text}, which brings its other keys"
    group, _, option = key.rpartition(".")
    if group == "method":
        own = [name.removeprefix("method.") for name in known if name.startswith("method.")]
        return f"{key}={text}: the method has no option {option!r}; {did_you_mean(option, own)}; or choose another"
    near = did_you_mean(key, [*known, *GROUPS])
    return f"unknown key {key!r} in {f'{key}={text}'!r}; {near}: see `gcalign train --help`"


def criterion_of(config: Config) -> Objective:
    """The method with the options that were chosen; None leaves a default alone."""
    from gcalign import methods
    from gcalign.constraints import TotalMass
    from gcalign.targets import Blocks, Labels

    chosen = {k: v for k, v in config.method.items() if v is not None and k != "name"}
    if isinstance(chosen.get("relax"), list):
        chosen["relax"] = tuple(chosen["relax"])
    if config.target.name == "labels":
        chosen["target"] = Labels()
    elif config.target.name == "blocks":
        chosen["target"] = Blocks(config.target.alpha, config.target.beta)
    if config.center:
        chosen["center"] = True
    criterion: Any = methods.method(config.method["name"], **chosen)
    one_way = getattr(criterion, "alignment", criterion)
    if config.total_mass:
        others = (c for c in one_way.constraints if not isinstance(c, TotalMass))
        one_way.constraints = (*others, TotalMass())
    return criterion


# --- which options go together ------------------------------------------------------------------------------------

_ONLY_FOR = {
    "images with views": ("data.tail", "pairs.views", "model.stem", "knn_every", "augment_in"),
    "pairs of columns": ("data.columns", "data.group", "data.fold", "model.encoders"),
}


def _check_together(config: Config) -> None:
    """Which options go together. That each is allowed by itself is said where it is declared."""
    from gcalign import methods

    one_of("method", config.method["name"], methods.names())
    loggers.check(config.logger)
    if config.data.paired:
        _check_pairs(config)
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
        raise ValueError(f"batch_size={config.batch_size} must be divisible by {parts}")
    if config.batch_size // (config.world * config.accumulate) < 2:
        raise ValueError(f"batch_size={config.batch_size} must be at least 2 × {parts}: BatchNorm needs two in each")
    if config.world == 1:
        several = {
            f"strategy={config.strategy}": config.strategy != "auto",
            "sync_batchnorm=true": config.sync_batchnorm,
        }
        _refuse(several, "is for several processes, and devices=1 is one; drop it, or raise devices")


def _check_pairs(config: Config) -> None:
    """Pairs of columns do not take what is for images with views."""
    data, columns = config.data, len(config.data.columns.split(",")) if config.data.columns else 2
    if config.model.encoder != "small":
        own = config.model.encoder
        raise ValueError(f"model.encoder={own} is for images; write model.encoders=[…], one per column")
    refused = {
        "method=byol": config.method["name"] == "byol",
        f"target.name={config.target.name}": config.target.name == "labels",
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


# --- settings of the paper, by data set: `recipe=` ----------------------------------------------------------------

_HEAD = {"projector": "mlp2", "hidden": 2048, "out": 128}
_ADAM = {"name": "adam", "lr": 3e-4, "weight_decay": 0.0, "schedule": "constant", "warmup": 0.0}
_SGD = {"name": "sgd", "lr": 0.6, "momentum": 0.9, "weight_decay": 1e-6, "schedule": "linear", "warmup": 0.0}
_COSINE = {**_ADAM, "weight_decay": 1.5e-6, "schedule": "cosine", "final": 0.0}
_RESNET18, _RESNET50 = {"encoder": "resnet18", **_HEAD}, {"encoder": "resnet50", **_HEAD}
_LARGE = {"encoder": "resnet18", "projector": "mlp3-bn", "hidden": 2048, "out": 2048}

RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {},  # the paper's ε alone; the others below have it, too
    # app:hpdetails; the paper's lr belongs to batches of 512
    "cifar": {"epochs": 500, "batch_size": 512, "model": _RESNET18, "optimizer": _SGD},
    "svhn": {"epochs": 500, "batch_size": 512, "model": _RESNET50, "optimizer": _ADAM},
    "imagenet100": {"epochs": 200, "batch_size": 512, "model": _RESNET50, "optimizer": _ADAM},
    # appendix:dgsetting
    "pacs": {"epochs": 1500, "batch_size": 256, "model": _LARGE, "optimizer": _COSINE},
}
PAPER_EPS = 0.5  # of all methods but those whose ε is not the paper's
OTHER_EPS = ("byol", "clip", "siglip")
