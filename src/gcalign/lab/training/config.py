"""What a run is: typed, composed from groups and overrides, hashed into the run's name. Its values are plain data."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin, get_type_hints

from gcalign import methods
from gcalign.errors import did_you_mean, one_of
from gcalign.lab.data.catalogue import OF_USERS
from gcalign.lab.data.pair_sources import NAMES as PAIRED
from gcalign.lab.data.pair_sources import table_of
from gcalign.lab.data.sources import check_place
from gcalign.lab.data.sources import names as data_names
from gcalign.lab.training import rules
from gcalign.lab.training.recipes import RECIPES
from gcalign.lab.training.typed import merged, typed, value_of
from gcalign.lab.training.weights import digest
from gcalign.objective import Objective
from gcalign.targets import Blocks, Labels

DATA = (*(name for name in data_names() if name != "cifar10c"), *PAIRED)  # that one is for testing
COMMON = ("iterations", "tol", "layout", "gradient", "block", "learnable")
MISSING = ""  # a name that a group gives


# where a run is written, how it is watched, who does the work: nothing of it reaches the weights
_SHOWN = (
    "name",
    "runs",
    "log_every",
    "checkpoint_every",
    "logger",
    "logger_args",
    "knn_every",
    "accelerator",
    "workers",
    "augment_in",
    "wait",
)


_LATER = (  # options that came after the first committed runs
    ("data", "tail", 1.0),
    ("target", "noise", 0.0),
    ("pairs", "fixed", False),
    ("pairs", "digest", None),
    ("data", "columns", ""),
    ("data", "group", None),
    ("data", "fold", 0),
    ("data", "validation", 0.1),
    ("data", "test", 0.2),
    ("model", "encoders", ""),
    ("pairs", "multi", "pairwise"),
    ("method", "learnable", None),
    ("", "strategy", "auto"),  # "" is the run itself
    ("", "sync_batchnorm", False),
    ("", "compile", False),
    ("", "channels_last", False),
)


@dataclass
class Data:
    name: str = MISSING  # from data=
    root: str | None = None  # folder of local files; null is GCALIGN_DATA, or the hub
    size: int | None = None  # side of an image in pixels; null is the data set's own
    limit: int | None = None  # number of images, balanced over classes; scenes can make more than it has digits
    on_error: str = "skip"  # what to do with an image that cannot be read: skip or raise
    tail: float = 1.0  # long tail: the first class has this many times the images of the last
    columns: str = ""  # of a table of pairs: one for each side, e.g. [image,name_en]; a+b are two on one side
    group: str | None = None  # its column of near-duplicates, which a split keeps together, or emoji:base
    fold: int = 0  # which of the splits by group
    validation: float = 0.1  # share of the pairs that is held out for choosing settings
    test: float = 0.2  # share of the pairs that is held out for testing

    def __post_init__(self) -> None:
        self.columns = ",".join(part.strip() for part in self.columns.strip("[]").split(","))

    @property
    def paired(self) -> bool:
        """Whether it is a table of pairs."""
        return self.name in PAIRED

    def check_place(self) -> None:
        """That its files are where they should be; a config of a run is read without them."""
        if self.paired:
            table_of(self.name, self.root, self.size)
        else:
            check_place(self.name, self.root)


@dataclass
class PairOptions:
    noise: float = 0.0  # share of pairs that are mismatched on purpose
    views: int = 2  # number of views of each image
    multi: str = "pairwise"  # of three columns or more: a plan for each pair, or one "joint" plan
    fixed: bool = False  # whether the same pairs are mismatched in every epoch, instead of others in each step
    weights: str | None = None  # .npy with a weight for each image, as `gcalign audit --feedback` writes; 0 drops it
    digest: str | None = None  # of that file, found when the run is configured


@dataclass
class TargetOptions:
    name: str = "default"  # labels, blocks, or default: the method's own (pairs; labels for supcon)
    alpha: float = 0.0  # blocks: weight within a domain
    beta: float = 0.0  # blocks: weight across domains
    noise: float = 0.0  # share of the labels that are wrong on purpose, where the target reads labels


@dataclass
class Model:
    encoder: str = "small"  # small, resnet18, resnet50, or module:function of your own
    encoders: str = ""  # of pairs: one for each column, e.g. [small,ngrams]; by default, by what it holds
    width: float = 1.0  # times the published number of channels
    stem: str = "auto"  # first layers: cifar, imagenet or paper; auto chooses by the size of the images
    projector: str = "mlp2"  # head that is used in training alone: mlp2, mlp3-bn or none
    hidden: int = 2048  # width of the projector
    out: int = 128  # dimension of the embeddings that the loss compares
    momentum: float = 0.996  # of BYOL's second encoder


@dataclass
class Optimizer:
    name: str = "adam"  # adam, adamw, sgd or lars
    lr: float = 1e-3  # learning rate at its highest
    momentum: float = 0.9  # of sgd and lars
    weight_decay: float = 1e-6  # penalty on the squares of all weights; of lars, not on biases and norms
    schedule: str = "cosine"  # of the learning rate: cosine, linear or constant
    warmup: float = 0.05  # share of the steps in which the learning rate rises
    final: float = 1e-3  # learning rate at the end, as a share of lr


@dataclass
class Config:
    """A run. Everything but where it is written and how it is shown decides its weights."""

    method: dict[str, Any] = field(default_factory=lambda: {"name": MISSING})
    data: Data = field(default_factory=Data)
    views: str | None = None  # plain, C0 to C3 or domainbed; null is plain for scenes, C0 for the rest
    pairs: PairOptions = field(default_factory=PairOptions)
    target: TargetOptions = field(default_factory=TargetOptions)
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    epochs: int = 20  # passes over the data
    batch_size: int = 256  # pairs in a step, over all devices
    seed: int = 0  # of weights, batches and views
    accumulate: int = 1  # parts in which a batch is encoded, to save memory; loss and gradient are of the whole batch
    precision: str = "32-true"  # or bf16-mixed, 16-mixed
    devices: int = 1  # processes or GPUs on each machine
    nodes: int = 1  # machines; torchrun or SLURM starts the processes on more than one
    strategy: str = "auto"  # how processes share a run: ddp, or fsdp, which also shares the weights; auto is ddp
    sync_batchnorm: bool = False  # whether BatchNorm takes the batch of all GPUs together, instead of one by one
    compile: bool = False  # torch.compile encoder and head: a slow first step, then faster ones
    channels_last: bool = False  # memory layout of weights and images, faster for convolutions on most GPUs
    accelerator: str = "auto"  # cpu, gpu, mps or what Lightning finds
    workers: int = 0  # processes that load images; 0 is the main process
    augment_in: str = "device"  # where views are made: device, or workers of the loader
    logger: str = "tensorboard"  # csv, wandb, mlflow, none, or module:Class of a Lightning logger
    logger_args: dict[str, Any] = field(default_factory=dict)  # further arguments of the logger, as logger_args.NAME=
    knn_every: int = 0  # epochs between online kNN accuracies on held-out training images; 0 is never
    log_every: int = 10  # steps between two lines of the log
    checkpoint_every: int = 100  # steps between two checkpoints
    name: str | None = None  # of the run's folder; null is method and data
    runs: str = "runs"  # folder of the runs
    wait: bool = False  # wait for another process that works on the same run, instead of an error

    def check(self) -> None:
        """Every rule that needs no data, before anything is written."""
        rules.check(self)

    @property
    def view_name(self) -> str:
        return self.views or ("plain" if self.data.name == "scenes" or self.data.paired else "C0")

    @property
    def identity(self) -> dict[str, Any]:
        """What the weights depend on. Defaults of `_LATER` are left out, so that older runs keep their names."""
        found = {key: value for key, value in self.as_dict().items() if key not in _SHOWN}
        if self.data.name not in OF_USERS:
            found["data"]["root"] = None  # the name says which data it is, wherever it lies
        found["pairs"].pop("weights")  # what they are, wherever they are: their digest is in it
        found["devices"] *= found.pop("nodes")  # 2 × 4 processes are the same run as 8 on one machine
        for part, key, usual in _LATER:
            place = found[part] if part else found
            if place.get(key, usual) == usual:
                place.pop(key, None)
        return found

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
        found: Config = typed(Config, content)
        if not isinstance(found.method.get("name"), str):
            raise ValueError("method.name is missing")
        return found


GROUPS = ("method", "data", "recipe")


def _method_node(name: str) -> dict[str, Any]:
    own = inspect.signature(methods._REGISTRY[name]).parameters.values()
    defaults = {p.name: p.default for p in own if p.kind is not p.VAR_KEYWORD}
    defaults = {k: list(v) if isinstance(v, tuple) else v for k, v in defaults.items()}
    return {"name": name, **defaults, **{k: None for k in COMMON if k not in defaults}}


def configured(overrides: Sequence[str]) -> Config:
    """`["method=gca-uot", "data=cifar10", "epochs=5"]` as a checked `Config`."""
    given: dict[str, str] = {}
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} must be key=value, e.g. epochs=20")
        given[key] = text
    method = one_of("method", given.pop("method", "gca-ince"), methods.names())
    data, recipe = given.pop("data", "scenes"), given.pop("recipe", "default")
    if "/" not in data:  # any name on the hub has one
        one_of("data", data, DATA)
    content: dict[str, Any] = {"method": _method_node(method), "data": {"name": data}}
    if data in PAIRED:
        content["data"]["on_error"] = "raise"  # a pair with a side missing is a fault of the table
    content = merged(content, RECIPES[one_of("recipe", recipe, RECIPES)])
    known = _keys(method)
    for key, text in given.items():
        *parents, last = key.split(".")
        if key not in known and parents[:1] != ["logger_args"]:  # a logger's arguments have names of their own
            raise ValueError(_unknown(key, text, known))
        value: Any = _read(known.get(key), key, text)
        for name in (last, *reversed(parents)):
            value = {name: value}
        content = merged(content, value)
    found = Config.from_dict(content)
    found.check()
    found.pairs.digest = None if found.pairs.weights is None else digest(found.pairs.weights)
    return found


def criterion_of(config: Config) -> Objective:
    """The method with the options that were chosen; None leaves a default alone."""
    chosen = {k: v for k, v in config.method.items() if v is not None and k != "name"}
    if isinstance(chosen.get("relax"), list):
        chosen["relax"] = tuple(chosen["relax"])
    if config.target.name == "labels":
        chosen["target"] = Labels()
    elif config.target.name == "blocks":
        chosen["target"] = Blocks(config.target.alpha, config.target.beta)
    return methods.method(config.method["name"], **chosen)


def _keys(method: str) -> dict[str, Any]:
    """Every key that can be set, and its type; the names of groups are set by method= and data=."""
    found: dict[str, Any] = {f"method.{name}": Any for name in _method_node(method) if name != "name"}
    for key, hint in get_type_hints(Config).items():
        if dataclasses.is_dataclass(hint):
            found |= {f"{key}.{name}": kind for name, kind in get_type_hints(hint).items()}
        elif get_origin(hint) is not dict:
            found[key] = hint
    del found["data.name"]
    return found


def _unknown(key: str, text: str, known: Iterable[str]) -> str:
    plain = key.lstrip("+~")
    if plain in ("method.name", "data.name"):
        return f"{key}={text} must be written {plain.removesuffix('.name')}={text}, which brings its other keys"
    if plain != key and plain in known:
        return f"{key}={text} must be written {plain}={text}; every key of a run has a value already"
    near = did_you_mean(plain, [*known, *GROUPS])
    return f"unknown key {plain!r} in {f'{key}={text}'!r}; {near}: see `gcalign train --help`"


def _read(hint: Any, key: str, text: str) -> Any:
    """The value of a word: text as it was typed where text is expected, which is how paths can contain anything."""
    kinds = get_args(hint) or (hint,)
    if str in kinds:
        return None if text == "null" and type(None) in kinds else text
    return value_of(key, text)
