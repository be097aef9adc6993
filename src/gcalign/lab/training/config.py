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
from gcalign.errors import count, did_you_mean, one_of, positive
from gcalign.lab.data.sources import names as data_names
from gcalign.lab.limits import within
from gcalign.lab.models.encoders import STEMS
from gcalign.lab.models.heads import PROJECTORS
from gcalign.lab.training import loggers
from gcalign.lab.training.recipes import RECIPES
from gcalign.lab.training.typed import merged, typed, value_of
from gcalign.lab.training.weights import digest

DATA = tuple(name for name in data_names() if name != "cifar10c")  # that one is for testing
VIEWS = ("plain", "C0", "C1", "C2", "C3", "domainbed")
COMMON = ("iterations", "tol", "layout", "gradient", "block")
# what Lightning also has casts the images or the whole model, and the loss needs float32
PRECISIONS = ("32-true", "16-mixed", "bf16-mixed", "32", "16", "bf16")
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
)


@dataclass
class Data:
    name: str = MISSING
    root: str | None = None  # local files; None is the hub
    size: int | None = None  # side of an image in pixels
    limit: int | None = None  # so many images, balanced over classes; scenes can also make more than it has digits
    on_error: str = "skip"  # what to do with a corrupt image
    tail: float = 1.0  # of training images: so many times more of the first class than of the last


@dataclass
class Pairs:
    noise: float = 0.0  # share of pairs that are mismatched on purpose
    views: int = 2
    fixed: bool = False  # whether the same pairs are mismatched in every epoch, instead of others in each step
    weights: str | None = None  # .npy with a weight for each image, as `gcalign audit --feedback` writes; 0 drops it
    digest: str | None = None  # of that file, found when the run is configured


@dataclass
class Target:
    name: str = "default"  # the method's own: pairs, or labels for supcon
    alpha: float = 0.0  # blocks: weight within a domain
    beta: float = 0.0  # blocks: weight across domains
    noise: float = 0.0  # share of the labels that are wrong on purpose, where the target reads labels


@dataclass
class Model:
    encoder: str = "small"
    width: float = 1.0
    stem: str = "auto"
    projector: str = "mlp2"
    hidden: int = 2048
    out: int = 128
    momentum: float = 0.996  # of BYOL's twin


@dataclass
class Optimizer:
    name: str = "adam"
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 1e-6
    schedule: str = "cosine"
    warmup: float = 0.05  # share of the steps
    final: float = 1e-3  # of lr, at the end


@dataclass
class Config:
    """A run. Everything but where it is written and how it is shown decides its weights."""

    method: dict[str, Any] = field(default_factory=lambda: {"name": MISSING})
    data: Data = field(default_factory=Data)
    views: str | None = None  # None: plain for scenes, C0 for the rest
    pairs: Pairs = field(default_factory=Pairs)
    target: Target = field(default_factory=Target)
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    epochs: int = 20
    batch_size: int = 256
    seed: int = 0
    accumulate: int = 1
    precision: str = "32-true"
    devices: int = 1
    accelerator: str = "auto"
    workers: int = 0
    augment_in: str = "device"  # or in the loader's "workers"
    logger: str = "tensorboard"  # csv, wandb, mlflow, none, or module:Class of a Lightning logger
    logger_args: dict[str, Any] = field(default_factory=dict)  # over those it is given here
    knn_every: int = 0  # epochs between online kNN accuracies on held-out training images; 0 is never
    log_every: int = 10
    checkpoint_every: int = 100
    name: str | None = None
    runs: str = "runs"
    wait: bool = False  # for another process that works on the same run

    def check(self) -> None:
        """Every rule that needs no data, before anything is written."""
        one_of("method", self.method["name"], methods.names())
        one_of("views", self.view_name, VIEWS)
        one_of("augment_in", self.augment_in, ("device", "workers"))
        one_of("precision", self.precision, PRECISIONS)
        loggers.check(self.logger)
        one_of("target.name", self.target.name, ("default", "labels", "blocks"))
        one_of("model.stem", self.model.stem, STEMS)
        one_of("model.projector", self.model.projector, PROJECTORS)
        one_of("optimizer.name", self.optimizer.name, ("adam", "sgd"))
        one_of("optimizer.schedule", self.optimizer.schedule, ("cosine", "linear", "constant"))
        one_of("data.on_error", self.data.on_error, ("skip", "raise"))
        for name in ("epochs", "batch_size", "accumulate", "devices", "log_every", "checkpoint_every"):
            count(name, getattr(self, name), "a whole number of at least 1")
        for name in ("seed", "workers", "knn_every"):
            count(name, getattr(self, name), "a whole number of at least 0", least=0)
        if self.seed >= 2**63:
            raise ValueError(f"seed={self.seed} must be below 2^63, as torch's generators take it; any number will do")
        for name in ("hidden", "out"):
            count(f"model.{name}", getattr(self.model, name), "the paper's are 2048 and 128")
        count("pairs.views", self.pairs.views, "two views make a pair", least=2)
        if self.data.size is not None:
            within("IMAGE_SIDE", count("data.size", self.data.size, "the side of an image in pixels"), "data.size")
        if self.data.limit is not None:
            count("data.limit", self.data.limit, "leave it out to take every image")
        self._check_numbers()
        if self.batch_size % (self.devices * self.accumulate):
            raise ValueError(
                f"batch_size={self.batch_size} must divide among devices={self.devices} × accumulate={self.accumulate}"
            )
        if self.pairs.weights is not None and self.method["name"] == "byol":
            raise ValueError("pairs.weights is for methods with a plan of pairs; byol compares each pair alone")
        if self.method["name"] == "byol" and self.pairs.views != 2:
            raise ValueError(
                f"pairs.views={self.pairs.views} must be 2 for byol, which predicts one view from the other"
            )
        if self.name is not None and not _is_folder_name(self.name):
            raise ValueError(
                f"name={self.name!r} must be the name of a folder: 1 to 150 printable characters without / and \\; say "
                "where with runs="
            )

    def _check_numbers(self) -> None:
        """Real values in the range in which they mean something."""
        o = self.optimizer
        positive("optimizer.lr", o.lr, "Adam likes 1e-3, the paper's SGD 0.6")
        positive("optimizer.weight_decay", o.weight_decay, "the paper uses 1e-6", zero=True)
        positive("model.width", self.model.width, "1 is the published size")
        shares = {
            "pairs.noise": (self.pairs.noise, "0.3 mismatches 30 % of pairs"),
            "target.noise": (self.target.noise, "0.3 replaces 30 % of labels"),
            "optimizer.momentum": (o.momentum, "0.9 is usual"),
            "optimizer.warmup": (o.warmup, "0.05 warms up for 5 % of the steps"),
            "optimizer.final": (o.final, "0.001 ends at a thousandth of lr"),
            "model.momentum": (self.model.momentum, "BYOL uses 0.996"),
        }
        for name, (value, remedy) in shares.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value:g} must be a share between 0 and 1; {remedy}")
        if not 1 <= self.data.tail < float("inf"):
            raise ValueError(f"data.tail={self.data.tail:g} must be at least 1, which is balanced; 100 is a long tail")
        for name in ("alpha", "beta"):
            value = positive(f"target.{name}", getattr(self.target, name), "a weight of pairs", zero=True)
            if value and self.target.name != "blocks":
                raise ValueError(f"target.{name}={value:g} has no effect without target.name=blocks; add it")

    @property
    def view_name(self) -> str:
        return self.views or ("plain" if self.data.name == "scenes" else "C0")

    @property
    def identity(self) -> dict[str, Any]:
        """What the weights depend on. Defaults of `_LATER` are left out, so that older runs keep their names."""
        found = {key: value for key, value in self.as_dict().items() if key not in _SHOWN}
        found["pairs"].pop("weights")  # what they are, wherever they are: their digest is in it
        for part, key, usual in _LATER:
            if found[part][key] == usual:
                del found[part][key]
        return found

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
    content = {"method": _method_node(method), "data": {"name": data}}
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
    return f"{f'{key}={text}'!r} sets {plain!r}, which is no key of a run; {did_you_mean(plain, [*known, *GROUPS])}"


def _read(hint: Any, key: str, text: str) -> Any:
    """The value of a word: text as it was typed where text is expected, which is how paths can contain anything."""
    kinds = get_args(hint) or (hint,)
    if str in kinds:
        return None if text == "null" and type(None) in kinds else text
    return value_of(key, text)


def _is_folder_name(name: str) -> bool:
    return 1 <= len(name) <= 150 and name.isprintable() and not set("/\\") & set(name) and name not in (".", "..")
