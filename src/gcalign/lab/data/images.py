"""One split of a data set: images by index, with what is known of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcalign.lab.data.decode import Encoded, Index, decode, report


class Images(ABC):
    """Images [C, H, W] of one size as uint8; labels and domains are optional, so unlabelled data is first-class."""

    places: Sequence[str] = ()
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        shape: Sequence[int],  # [C, H, W]
        *,
        name: str,  # of the data set, e.g. "cifar10"
        split: str,  # "train" or "test"
        labels: Tensor | None = None,  # [N] int64
        domains: Tensor | None = None,  # [N] int64
        classes: Sequence[str] = (),
        domain_names: Sequence[str] = (),
        mean: Sequence[float] = (0.5, 0.5, 0.5),  # of each channel, in [0, 1], for normalisation
        std: Sequence[float] = (0.25, 0.25, 0.25),
        places: Sequence[str] = (),  # the file of each, or its row in one, where there are files
        notes: Sequence[str] = (),  # what became labels, how the images were split, what was passed over
    ) -> None:
        self.shape: tuple[int, int, int] = (shape[0], shape[1], shape[2])
        self.name, self.split, self.labels, self.domains = name, split, labels, domains
        self.classes, self.domain_names = tuple(classes), tuple(domain_names)
        self.mean, self.std, self.places, self.notes = tuple(mean), tuple(std), places, tuple(notes)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def get(self, indices: Sequence[int] | Tensor) -> Tensor:  # -> [B, C, H, W] uint8
        """These images, the same at every call."""

    def draw(self, indices: Sequence[int] | Tensor, seed: int) -> Tensor:  # -> [B, C, H, W] uint8
        """What a view of each starts from: the image itself, unless the data set can make a fresh one from the seed."""
        return self.get(indices)


class Places(Sequence[str]):
    """The place of each image, made when it is asked for: a million texts would be a hundred megabytes."""

    def __init__(self, where: Callable[[int], str], rows: Index) -> None:
        self.where, self.rows = where, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return Places(self.where, self.rows[index]) if isinstance(index, slice) else self.where(int(self.rows[index]))


def described(images: Images) -> str:
    """What a split is, for a person: number, size, labels, domains, and the notes of who read it."""
    channels, height, width = images.shape
    text = f"{images.name}, {images.split}: {len(images):,} images of {channels} × {height} × {width}"
    text += ", no labels (training needs none)" if images.labels is None else ""
    for kinds, codes, names in (
        (("class", "classes"), images.labels, images.classes),
        (("domain", "domains"), images.domains, images.domain_names),
    ):
        if codes is not None:
            number = int(codes.unique().numel())
            shown = ", ".join(map(_in_a_line, names[:4])) + (", …" if len(names) > 4 else "")
            text += f", {number} {kinds[number != 1]}" + (f" ({shown})" if shown else "")
    return "\n  ".join([text, *images.notes])


def _in_a_line(name: str) -> str:
    text = " ".join(name.split())
    return text if len(text) <= 40 else f"{text[:39]}…"


class InMemory(Images):
    """A split held as one uint8 tensor."""

    def __init__(self, pixels: Tensor, **about: Any) -> None:  # [N, C, H, W] uint8
        if pixels.dim() != 4 or pixels.dtype != torch.uint8:
            raise ValueError(f"pixels {tuple(pixels.shape)} {pixels.dtype} must be [N, C, H, W] uint8")
        super().__init__(pixels.shape[1:], **about)
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def get(self, indices: Sequence[int] | Tensor) -> Tensor:
        return self.pixels[torch.as_tensor(indices)]


class OnDemand(Images):
    """A split too large to hold decoded: its stored bytes stay on disk and are decoded when asked for."""

    def __init__(self, encoded: Encoded, rows: Index, size: int, on_error: str, **about: Any) -> None:
        super().__init__((3, size, size), **about)
        self._encoded, self._rows, self._on_error = encoded, rows, on_error

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, indices: Sequence[int] | Tensor) -> Tensor:
        chosen = np.asarray(torch.as_tensor(indices))
        pixels, wrong = decode(self._encoded, self._rows[chosen], self.shape[1])
        report(wrong, self._on_error, "each is replaced by the next image of its class")
        for position in wrong:
            pixels[position] = self._substitute(int(np.arange(len(self))[chosen][position]))
        return pixels

    def _substitute(self, index: int) -> Tensor:
        """The next readable image of the same class and domain: the labels were given out before anything was read."""
        alike = torch.ones(len(self), dtype=torch.bool)
        for known in (self.labels, self.domains):
            if known is not None:
                alike &= known == known[index]
        others = alike.nonzero()[:, 0].roll(-int(alike[: index + 1].sum()))
        for other in others[:100].tolist():
            pixels, wrong = decode(self._encoded, self._rows[[other]], self.shape[1])
            if not wrong:
                return pixels[0]
        raise ValueError(f"{self._encoded.where(int(self._rows[index]))} and 100 images like it cannot be read")


class Subset(Images):
    """Some images of a split."""

    def __init__(self, whole: Images, indices: Tensor) -> None:
        self.whole, self.indices = whole, indices
        kept = ("name", "split", "classes", "domain_names", "mean", "std", "notes")
        super().__init__(
            whole.shape,
            labels=None if whole.labels is None else whole.labels[indices],
            domains=None if whole.domains is None else whole.domains[indices],
            places=Places(whole.places.__getitem__, indices.numpy()) if whole.places else (),
            **{name: getattr(whole, name) for name in kept},
        )

    def __len__(self) -> int:
        return len(self.indices)

    def get(self, indices: Sequence[int] | Tensor) -> Tensor:
        return self.whole.get(self.indices[torch.as_tensor(indices)])

    def draw(self, indices: Sequence[int] | Tensor, seed: int) -> Tensor:
        return self.whole.draw(self.indices[torch.as_tensor(indices)], seed)
