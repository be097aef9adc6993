"""What a run is compared with: the pixels themselves, or the weights a run of the same model and seed starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from gcalign.lab.data.images import Images
from gcalign.lab.models import Factory, encoder, outside
from gcalign.lab.training.config import Config, configured
from gcalign.lab.training.load import factory_of
from gcalign.lab.training.runs import Run

NAMES = ("pixels", "untrained")
MODEL = ("model.encoder", "model.width", "model.stem")  # all of a model that a probe sees: the head is left out
WORDS = ("like", *MODEL)  # and `encoder`, for a run that was made with one of the user's own


@dataclass(frozen=True)
class Baseline:
    """A baseline and the config it takes its model and seed from; `like` is the run that config belongs to, if any."""

    name: str
    config: Config
    build: str | Factory  # what makes the encoder
    like: Run | None = None

    def __call__(self, images: Images) -> nn.Module:
        if self.name == "pixels":
            return nn.Flatten()
        m = self.config.model
        return encoder(self.build, shape=images.shape, width=m.width, stem=m.stem, seed=self.config.seed)

    def __str__(self) -> str:
        if self.name == "pixels":
            return self.name
        m = self.config.model
        return f"{self.name} (encoder {m.encoder}, width {m.width:g}, stem {m.stem}, seed {self.config.seed})"


def named(given: Mapping[str, str]) -> Baseline | None:
    """The baseline that `run=` names: like a run (`like=`), or in words of `gcalign train`; None if it names a run."""
    name, like = given["run"], given.get("like")
    if name not in NAMES:
        _refuse(given, WORDS, f"is for run=untrained, and run={name} has its own model")
        return None
    if name == "pixels":
        _refuse(given, (*MODEL, "encoder"), "has no effect on run=pixels, which has no encoder")
    if like is None:
        _refuse(given, ("encoder",), "goes with a run; for run=untrained write model.encoder=")
        config = configured([f"{key}={given[key]}" for key in (*MODEL, "seed") if key in given])
        return Baseline(name, config, outside(config.model.encoder))
    _refuse(given, (*MODEL, "seed"), f"cannot go with like={like}, which decides it")
    run = Run.at(like)
    config = run.config()
    build = "" if name == "pixels" else factory_of(config.model.encoder, given.get("encoder"), f"like={run.path}")
    return Baseline(name, config, build, run)


def _refuse(given: Mapping[str, str], keys: Iterable[str], why: str) -> None:
    for key in keys:
        if key in given:
            raise ValueError(f"{key}={given[key]} {why}; leave it out")
