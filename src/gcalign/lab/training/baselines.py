"""What a run is compared with: the pixels themselves, or the weights a run of the same model and seed starts from."""

from __future__ import annotations

from collections.abc import Mapping
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
    name = given["run"]
    own = {key: value for key, value in given.items() if key in (*MODEL, "seed")}
    if name not in NAMES:
        for key in WORDS:
            if key in given:
                raise ValueError(
                    f"{key}={given[key]} is for run=untrained, and run={name} has its own model; leave it out"
                )
        return None
    if name == "pixels":
        for key in (*MODEL, "encoder"):
            if key in given:
                raise ValueError(f"{key}={given[key]} has no effect on run=pixels, which has no encoder; leave it out")
    if "like" not in given:
        if "encoder" in given:
            raise ValueError(f"encoder={given['encoder']} goes with a run; for run=untrained write model.encoder=")
        config = configured([f"{key}={value}" for key, value in own.items()])
        return Baseline(name, config, outside(config.model.encoder))
    for key, value in own.items():
        raise ValueError(f"{key}={value} cannot go with like={given['like']}, which decides it; leave one of them out")
    like = Run.at(given["like"])
    config = like.config()
    build = "" if name == "pixels" else factory_of(config.model.encoder, given.get("encoder"), f"like={like.path}")
    return Baseline(name, config, build, like)
