"""One split of a data set: images by index, with what is known of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor


class Images(ABC):
    """Images [C, H, W] of one size as uint8; labels and domains are optional, so unlabelled data is first-class."""

    name: str  # of the data set, e.g. "cifar10"
    split: str  # "train" or "test"
    shape: tuple[int, int, int]  # [C, H, W]
    labels: Tensor | None  # [N] int64
    domains: Tensor | None  # [N] int64
    classes: tuple[str, ...]
    domain_names: tuple[str, ...]
    mean: tuple[float, ...]  # of each channel, in [0, 1], for normalisation
    std: tuple[float, ...]
    places: tuple[str, ...] = ()  # the file of each, or its row in one, where there are files

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def get(self, indices: Sequence[int] | Tensor) -> Tensor:  # -> [B, C, H, W] uint8
        """These images, the same at every call."""

    def draw(self, indices: Sequence[int] | Tensor, seed: int) -> Tensor:  # -> [B, C, H, W] uint8
        """What a view of each starts from: the image itself, unless the data set can make a fresh one from the seed."""
        return self.get(indices)


def described(images: Images) -> str:
    """What a split is, for a person: number, size, labels and where they come from, domains."""
    channels, height, width = images.shape
    said = f"{images.name}, {images.split}: {len(images):,} images of {channels} × {height} × {width}"
    for kind, codes, names in (
        ("class", images.labels, images.classes),
        ("domain", images.domains, images.domain_names),
    ):
        if codes is None:
            said += ", no labels (training needs none)" if kind == "class" else ""
            continue
        found = int(codes.unique().numel())
        shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        plural = {"class": "classes", "domain": "domains"}[kind] if found != 1 else kind
        said += f", {found} {plural}" + (f" ({shown})" if shown else "")
    return said


class InMemory(Images):
    """A split held as one uint8 tensor."""

    def __init__(
        self,
        pixels: Tensor,  # [N, C, H, W] uint8
        *,
        name: str,
        split: str,
        labels: Tensor | None = None,
        domains: Tensor | None = None,
        classes: Sequence[str] = (),
        domain_names: Sequence[str] = (),
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.25, 0.25, 0.25),
        places: Sequence[str] = (),
    ) -> None:
        if pixels.dim() != 4 or pixels.dtype != torch.uint8:
            raise ValueError(f"pixels {tuple(pixels.shape)} {pixels.dtype} must be [N, C, H, W] uint8")
        self.pixels = pixels
        self.name, self.split = name, split
        self.shape = (pixels.shape[1], pixels.shape[2], pixels.shape[3])
        self.labels, self.domains = labels, domains
        self.classes, self.domain_names = tuple(classes), tuple(domain_names)
        self.mean, self.std, self.places = tuple(mean), tuple(std), tuple(places)

    def __len__(self) -> int:
        return len(self.pixels)

    def get(self, indices: Sequence[int] | Tensor) -> Tensor:
        return self.pixels[torch.as_tensor(indices)]


class Subset(Images):
    """Some images of a split."""

    def __init__(self, whole: Images, indices: Tensor) -> None:
        self.whole, self.indices = whole, indices
        self.name, self.split, self.shape = whole.name, whole.split, whole.shape
        self.labels = None if whole.labels is None else whole.labels[indices]
        self.domains = None if whole.domains is None else whole.domains[indices]
        self.classes, self.domain_names = whole.classes, whole.domain_names
        self.mean, self.std = whole.mean, whole.std
        self.places = tuple(whole.places[k] for k in indices.tolist()) if whole.places else ()

    def __len__(self) -> int:
        return len(self.indices)

    def get(self, indices: Sequence[int] | Tensor) -> Tensor:
        return self.whole.get(self.indices[torch.as_tensor(indices)])

    def draw(self, indices: Sequence[int] | Tensor, seed: int) -> Tensor:
        return self.whole.draw(self.indices[torch.as_tensor(indices)], seed)
