"""What a run is compared with: the pixels themselves, or the weights that it started from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from gcalign.lab.data.images import Images
from gcalign.lab.models import Factory, encoder
from gcalign.lab.training.config import Config
from gcalign.lab.training.load import factory_of
from gcalign.lab.training.runs import Run

NAMES = ("pixels", "untrained")


@dataclass(frozen=True)
class Baseline:
    """A baseline, and the config that it takes its model and seed from."""

    name: str
    config: Config
    build: str | Factory  # what makes the encoder

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


def baseline_of(name: str, run: Run, given: Mapping[str, str]) -> Baseline:
    """The baseline of a run; `encoder` among the words is for a run that was made with one of the user's own."""
    config, own = run.config(), given.get("encoder")
    if name == "pixels" and own is not None:
        raise ValueError(f"encoder={own} has no effect on run=pixels, which has no encoder; leave it out")
    if "seed" in given:
        said = f"seed={given['seed']} cannot be combined with run={name}"
        raise ValueError(f"{said}: like={run.path} decides it; leave it out")
    build = "" if name == "pixels" else factory_of(config.model.encoder, own, f"like={run.path}")
    return Baseline(name, config, build)
