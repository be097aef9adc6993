"""Heads on the features: the projector before the loss, and BYOL's predictor."""

from __future__ import annotations

from torch import nn

from gcalign.errors import count, one_of
from gcalign.lab.models.state import made

PROJECTORS = ("mlp2", "mlp3-bn", "none")


class Head(nn.Sequential):
    """Layers in a row that know the size of their output: [B, D] -> [B, features]."""

    def __init__(self, *layers: nn.Module, features: int) -> None:
        super().__init__(*layers)
        self.features = features


def projector(kind: str, features: int, hidden: int = 2048, out: int = 128, seed: int = 0) -> Head:
    """`mlp2`: 2048→128 of app:hpdetails; `mlp3-bn`: appendix:dgsetting, where `out` is 2048 too; `none`: the identity.

    Weights follow from `seed`; the global random state is left alone.
    """
    one_of("projector", kind, PROJECTORS)
    count("features", features, "the encoder's `features`")
    count("hidden", hidden, "the paper uses 2048")
    count("out", out, "the paper uses 128")
    if kind == "none":
        return Head(features=features)

    def make() -> Head:
        if kind == "mlp2":
            return Head(nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out), features=out)
        layers = (*_normalised(features, hidden), *_normalised(hidden, hidden))
        return Head(*layers, nn.Linear(hidden, out), features=out)

    return made(make, seed, f"projector={kind} hidden={hidden} out={out}")


def predictor(dim: int, hidden: int = 2048, seed: int = 0) -> Head:
    """BYOL's predictor dim → hidden → dim, of the online branch only."""
    count("dim", dim, "the projector's `features`")
    count("hidden", hidden, "2048 matches the projector; BYOL itself uses 4096")
    size = f"predictor dim={dim} hidden={hidden}"
    return made(lambda: Head(*_normalised(dim, hidden), nn.Linear(hidden, dim), features=dim), seed, size)


def _normalised(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    # no bias: BatchNorm subtracts it again
    return nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True)
