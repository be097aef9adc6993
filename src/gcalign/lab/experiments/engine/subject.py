"""A finished run and the images it is measured on, each made once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gcalign.lab.data import corruptions
from gcalign.lab.data.images import Images, InMemory
from gcalign.lab.data.sources import labels_of
from gcalign.lab.data.views import make_views
from gcalign.lab.evaluation import extract
from gcalign.lab.experiments.engine.experiment import Scale
from gcalign.lab.models import outside
from gcalign.lab.models.state import evaluating
from gcalign.lab.training import use
from gcalign.lab.training.baselines import Baseline
from gcalign.lab.training.config import Config, Data
from gcalign.lab.training.runs import Run, load_encoder, load_whole
from gcalign.lab.training.supervised import supervised
from gcalign.lab.training.train import images_of


class MeasuredRun:
    """A finished run about to be measured. What several measurements need is made once."""

    def __init__(self, run: Run, scale: Scale, config: Config) -> None:
        # the config of the command, not of the run's files: its paths and its encoder are named by the user
        self.run, self.scale, self.config = run, scale, config
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    @functools.cached_property
    def encoder(self) -> nn.Module:
        return load_encoder(self.run.path, encoder=self.config.model.encoder)

    @functools.cached_property
    def network(self) -> nn.Module:
        """Encoder and projector: what the loss saw."""
        return load_whole(self.run.path, encoder=self.config.model.encoder)

    @functools.cached_property
    def data(self) -> Data:
        """All of the run's data set, at the size of its encoder."""
        return use.data_of(self.run, {}, named=self.config.data)

    def images(self, split: str) -> Images:
        """As many training images as the run had, without its long tail; all of every other split."""
        own = dataclasses.replace(self.config.data, tail=1.0)
        data = own if split == "train" else self.data
        return loaded(data, split)

    @functools.cache  # noqa: B019  # a subject lives as long as its measurements
    def features(self, split: str) -> Tensor:
        return extract(self.encoder, self.images(split), device=self.device)

    @functools.cache  # noqa: B019  # as above
    def everything(self, which: str = "trained") -> Everything:
        """The whole data set, however much of it the run was trained on, as one of its ENCODERS sees it."""
        splits = [loaded(self.data, split) for split in ("train", "test")]
        encoder = ENCODERS[which](self)
        features = [extract(encoder, images, device=self.device) for images in splits]
        return Everything(
            torch.cat(features),
            labels=torch.cat([labels_of(images, "a probe across domains") for images in splits]),
            domains=torch.cat([images.domains for images in splits if images.domains is not None]),
            unseen=torch.arange(sum(map(len, splits))) >= len(splits[0]),
            classes=splits[0].classes,
            domain_names=splits[0].domain_names,
        )

    def pairs(self, images: Images, index: Tensor) -> tuple[Tensor, Tensor]:
        """Both views' projections, in the run's own setting; the same views for every run of a setting."""
        augment = make_views(self.config.view_name, images.shape, images.mean, images.std)
        z: tuple[list[Tensor], list[Tensor]] = ([], [])
        network = self.network.to(self.device)
        with evaluating(network), torch.inference_mode():
            for k, some in enumerate(index.split(500)):
                for view in (0, 1):
                    seed = 2 * k + view
                    x = augment(images.draw(some, seed).to(self.device), seed)
                    z[view].append(network(x).float().cpu())
        return torch.cat(z[0]), torch.cat(z[1])


def _supervised(of: MeasuredRun) -> nn.Module:
    images = of.images("train")
    if images.domains is None:
        raise ValueError(f"{images.name} has no domains to supervise with; use data that has them, such as pacs")
    return supervised(of.config, images, images.domains, of.device)


# of a run: its own, the one it started from, and that one trained on the domains of the same images
ENCODERS: Mapping[str, Callable[[MeasuredRun], nn.Module]] = {
    "trained": lambda of: of.encoder,
    "untrained": lambda of: Baseline("untrained", of.config, outside(of.config.model.encoder))(
        of.images("train")
    ).eval(),
    "supervised": _supervised,
}


def loaded(data: Data, split: str) -> Images:
    """A split, read once by a process however many runs it measures."""
    return _loaded(tuple(dataclasses.asdict(data).items()), split)


@functools.lru_cache(maxsize=8)
def _loaded(data: tuple[tuple[str, Any], ...], split: str) -> Images:
    return images_of(Data(**dict(data)), split)


@dataclass(frozen=True)
class Everything:
    """Features of every image, and which of them were held out of training."""

    features: Tensor  # [N, D]
    labels: Tensor  # [N]
    domains: Tensor  # [N]
    unseen: Tensor  # [N] bool
    classes: tuple[str, ...]
    domain_names: tuple[str, ...]


@dataclass(frozen=True)
class Pool:
    """Corrupted test images, as many of each corruption and severity; no image is in it twice."""

    images: InMemory
    cell: Tensor  # [N] which corruption and severity, in the order of `cells`


def cells() -> list[tuple[str, int]]:
    return [(name, severity) for name in corruptions.names() for severity in range(1, 6)]


@functools.lru_cache(maxsize=4)
def _pool(data: tuple[tuple[str, Any], ...], each: int) -> Pool:
    test = _loaded(data, "test")
    if each * len(cells()) > len(test):
        raise ValueError(
            f"{each} images of each of {len(cells())} corruptions are more than the {len(test)} of {test.name}; "
            f"take at most {len(test) // len(cells())}"
        )
    parts = torch.arange(each * len(cells())).split(each)
    pixels = [
        corruptions.corrupt(test.get(part), name, severity, seed=k)
        for k, (part, (name, severity)) in enumerate(zip(parts, cells(), strict=True))
    ]
    images = InMemory(
        torch.cat(pixels),
        name=f"{test.name} corrupted",
        split="test",
        labels=labels_of(test, "a corrupted set")[: each * len(cells())],
        classes=test.classes,
        mean=test.mean,
        std=test.std,
    )
    return Pool(images, torch.arange(len(cells())).repeat_interleave(each))


def corrupted(of: MeasuredRun, each: int) -> Pool:
    """The same images for every run, made once by a process."""
    return _pool(tuple(dataclasses.asdict(of.data).items()), each)
