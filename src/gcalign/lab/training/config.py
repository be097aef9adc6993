"""What a run is: typed, composed by Hydra from groups and overrides, hashed into the run's name."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gcalign import methods
from gcalign.errors import count, did_you_mean, one_of, positive
from gcalign.lab.data.sources import names as data_names
from gcalign.lab.training import loggers

DATA = tuple(name for name in data_names() if name != "cifar10c")  # that one is for testing
VIEWS = ("plain", "C0", "C1", "C2", "C3")
COMMON = ("iterations", "tol", "layout", "gradient", "block")


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
)


def digest(path: str) -> str:
    """A hash of a file's bytes."""
    if not Path(path).is_file():
        raise ValueError(f"pairs.weights={path} does not exist; `gcalign audit … --feedback weights.npy` writes one")
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:10]


@dataclass
class Data:
    name: str = MISSING
    root: str | None = None  # local files; None is the hub
    size: int | None = None  # side of an image in pixels
    limit: int | None = None  # so many images, balanced over classes; scenes can also make more than it has digits
    on_error: str = "skip"  # what to do with a corrupt image


@dataclass
class Pairs:
    noise: float = 0.0  # share of pairs that are mismatched on purpose
    views: int = 2
    fixed: bool = False  # whether the same pairs are mismatched in every epoch, instead of others in each step
    weights: str | None = None  # .npy with a weight for each image, as `gcalign audit --feedback` writes; 0 drops it


@dataclass
class Target:
    name: str = "default"  # the method's own: pairs, or labels for supcon
    alpha: float = 0.0  # blocks: weight within a domain
    beta: float = 0.0  # blocks: weight across domains


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

    def check(self) -> None:
        """Every rule that needs no data, before anything is written."""
        one_of("method", self.method["name"], methods.names())
        one_of("views", self.view_name, VIEWS)
        one_of("augment_in", self.augment_in, ("device", "workers"))
        loggers.check(self.logger)
        count("knn_every", self.knn_every, "0 is never", least=0)
        one_of("target.name", self.target.name, ("default", "labels", "blocks"))
        one_of("optimizer.name", self.optimizer.name, ("adam", "sgd"))
        one_of("optimizer.schedule", self.optimizer.schedule, ("cosine", "linear", "constant"))
        for name in ("epochs", "batch_size", "accumulate", "devices", "log_every", "checkpoint_every"):
            count(name, getattr(self, name), "a whole number of at least 1")
        count("pairs.views", self.pairs.views, "two views make a pair", least=2)
        positive("optimizer.lr", self.optimizer.lr, "Adam likes 1e-3, the paper's SGD 0.6")
        if not 0 <= self.pairs.noise <= 1:
            raise ValueError(
                f"pairs.noise={self.pairs.noise} must be a share between 0 and 1; 0.3 mismatches 30 % of pairs"
            )
        if self.batch_size % (self.devices * self.accumulate):
            raise ValueError(
                f"batch_size={self.batch_size} must divide among devices={self.devices} × accumulate={self.accumulate}"
            )
        if self.pairs.weights is not None:
            digest(self.pairs.weights)
            if self.method["name"] == "byol":
                raise ValueError("pairs.weights is for methods with a plan of pairs; byol compares each pair alone")
        if self.method["name"] == "byol" and self.pairs.views != 2:
            raise ValueError(
                f"pairs.views={self.pairs.views} must be 2 for byol, which predicts one view from the other"
            )

    @property
    def view_name(self) -> str:
        return self.views or ("plain" if self.data.name == "scenes" else "C0")

    @property
    def identity(self) -> dict[str, Any]:
        """What the weights depend on."""
        content = {key: value for key, value in self.as_dict().items() if key not in _SHOWN}
        if not self.pairs.fixed:  # runs from before there was a choice keep their names
            del content["pairs"]["fixed"]
        if self.pairs.weights is None:
            del content["pairs"]["weights"]
        else:  # the weights themselves, wherever they are
            content["pairs"]["weights"] = digest(self.pairs.weights)
        return content

    @property
    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def folder(self) -> str:
        return f"{self.name or self.method['name'] + '-' + self.data.name.replace('/', '_')}-{self.hash}"

    def as_dict(self) -> dict[str, Any]:
        found = OmegaConf.to_container(OmegaConf.structured(self), resolve=True)
        assert isinstance(found, dict)
        return {str(key): value for key, value in found.items()}

    @staticmethod
    def from_dict(content: dict[str, Any]) -> Config:
        found = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), content))
        assert isinstance(found, Config)
        return found


RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    # app:hpdetails; the paper's lr belongs to batches of 512
    "cifar": {
        "epochs": 500,
        "batch_size": 512,
        "model": {"encoder": "resnet18", "projector": "mlp2", "hidden": 2048, "out": 128},
        "optimizer": {
            "name": "sgd",
            "lr": 0.6,
            "momentum": 0.9,
            "weight_decay": 1e-6,
            "schedule": "linear",
            "warmup": 0.0,
        },
    },
    "svhn": {
        "epochs": 500,
        "batch_size": 512,
        "model": {"encoder": "resnet50", "projector": "mlp2", "hidden": 2048, "out": 128},
        "optimizer": {"name": "adam", "lr": 3e-4, "weight_decay": 0.0, "schedule": "constant", "warmup": 0.0},
    },
    "imagenet100": {
        "epochs": 200,
        "batch_size": 512,
        "model": {"encoder": "resnet50", "projector": "mlp2", "hidden": 2048, "out": 128},
        "optimizer": {"name": "adam", "lr": 3e-4, "weight_decay": 0.0, "schedule": "constant", "warmup": 0.0},
    },
    # appendix:dgsetting
    "pacs": {
        "epochs": 1500,
        "batch_size": 256,
        "model": {"encoder": "resnet18", "projector": "mlp3-bn", "hidden": 2048, "out": 2048},
        "optimizer": {
            "name": "adam",
            "lr": 3e-4,
            "weight_decay": 1.5e-6,
            "schedule": "cosine",
            "warmup": 0.0,
            "final": 0.0,
        },
    },
}


def _method_node(name: str) -> dict[str, Any]:
    own = inspect.signature(methods._REGISTRY[name]).parameters.values()
    defaults = {p.name: p.default for p in own if p.kind is not p.VAR_KEYWORD}
    defaults = {k: list(v) if isinstance(v, tuple) else v for k, v in defaults.items()}
    return {"name": name, **defaults, **{k: None for k in COMMON if k not in defaults}}


def _register() -> None:
    store = ConfigStore.instance()
    store.store(name="config", node=Config)
    for name in methods.names():
        store.store(group="method", name=name, node=_method_node(name))
    for name in DATA:
        store.store(group="data", name=name, node=Data(name=name))
    for name, recipe in RECIPES.items():
        store.store(group="recipe", name=name, node=recipe, package="_global_")


def configured(overrides: Sequence[str]) -> Config:
    """`["method=gca-uot", "data=cifar10", "epochs=5"]` as a checked `Config`."""
    _register()
    given = [word for word in overrides if word.partition("=")[0].lstrip("+~") in ("method", "data", "recipe")]
    groups = {word.partition("=")[0]: word.partition("=")[2] for word in given}
    one_of("method", groups.setdefault("method", "gca-ince"), methods.names())
    data = groups.setdefault("data", "scenes")
    # a logger's arguments are the one part with keys of its own
    rest = [f"++{word}" if word.startswith("logger_args.") else word for word in overrides if word not in given]
    if "/" in data:  # any name on the hub
        groups["data"] = "folder"
        rest.append(f"data.name={data}")
    else:
        one_of("data", data, DATA)
    one_of("recipe", groups.setdefault("recipe", "default"), RECIPES)
    words = [f"+{key}={groups[key]}" for key in ("method", "data", "recipe")]
    GlobalHydra.instance().clear()
    try:
        with initialize(version_base=None):
            composed = compose("config", overrides=[*words, *rest])
        found = OmegaConf.to_object(composed)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(_readable(error, rest, groups["method"])) from None
    assert isinstance(found, Config)
    found.check()
    return found


def _readable(error: Exception, overrides: Sequence[str], method: str) -> str:
    """Hydra's complaint in one line, with the key that may have been meant."""
    known = [*Config.__dataclass_fields__, *(f"method.{name}" for name in _method_node(method))]
    for part, kind in (
        ("data", Data),
        ("pairs", Pairs),
        ("target", Target),
        ("model", Model),
        ("optimizer", Optimizer),
    ):
        known += [f"{part}.{name}" for name in kind.__dataclass_fields__]
    for word in overrides:
        key = word.partition("=")[0].lstrip("+~")
        if key not in known and not key.startswith("logger_args."):
            return f"{word!r} sets {key!r}, which is no key of a run; {did_you_mean(key, known)}"
    return " ".join(str(error.__cause__ or error).split())
