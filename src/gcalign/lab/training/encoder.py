"""A trained encoder with its preprocessing, ready for items as they are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from gcalign.errors import count, one_of
from gcalign.kernels import normalize
from gcalign.lab.data.decode import pixels_of
from gcalign.lab.data.sides import Items, Preprocessing
from gcalign.lab.evaluation.features import in_batches
from gcalign.lab.words import explained


class Encoder(nn.Module):
    """A network with the preprocessing it was trained with. `gcalign.load` returns one, or one for each column.

    Called, it maps prepared items (normalised images [B, C, H, W], texts, standardised arrays [B, D]) to features, as
    any module. `embed` takes items as they are.

    Args:
        network: prepared items → features.
        side: the kind and shape of its items, and how they are normalised.
        unit: whether `embed` gives unit rows, whose products are the cosines that training compared.

    Example:
        >>> from PIL import Image
        >>> from gcalign.lab.data.sides import Preprocessing
        >>> from gcalign.lab.models import encoder
        >>> network = encoder("small", shape=(3, 32, 32))
        >>> side = Preprocessing("image", "image", (3, 32, 32), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
        >>> Encoder(network, side).embed([Image.new("RGB", (64, 48), "red")]).shape
        torch.Size([1, 256])
    """

    def __init__(self, network: nn.Module, side: Preprocessing, *, unit: bool = False) -> None:
        super().__init__()
        self.network, self.side, self.unit = network, side, unit
        self.features: int = network.features  # type: ignore[assignment]  # every encoder has this number

    def forward(self, x: Any) -> Tensor:  # prepared items -> [B, D]
        return self.network(x)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one item: [C, H, W] of an image, [D] of an array, () of a text."""
        return self.side.shape

    def normalised(self, x: Tensor) -> Tensor:
        """What the network takes, of RGB images [B, C, H, W] in [0, 1] or of arrays [B, D]."""
        after = (1,) * (len(self.shape) - 1)
        mean, std = (torch.tensor(v, device=x.device).view(-1, *after) for v in (self.side.mean, self.side.std))
        return (x - mean) / std

    def embed(self, items: Any, *, batch_size: int = 256) -> Tensor:  # [N, D] float32 on the CPU
        """The features of items, one row for each.

        Each image becomes RGB, its shorter side is brought to the size of training, and the square in the middle is
        taken, as in training and probing.

        Args:
            items: of images, a list of PIL images, paths, or arrays [H, W] or [H, W, 3] of uint8, also mixed; or one
                array [N, H, W, 3] or tensor [N, 3, H, W] of uint8. A single image is a list of one. Of texts, a list
                of texts. Of arrays, [N, D] numbers.
            batch_size: items that are encoded at once.

        Returns:
            The features [N, D]; of a run on columns, unit rows.

        Raises:
            ValueError, TypeError: if an item cannot be read, or is none; the message has its position.
        """
        count("batch_size", batch_size, "256 is the default")
        if self.side.kind == "image":
            images = _listed(items)
            if not images:
                raise ValueError("images is empty; pass at least one image")
            return self._embedded(len(images), batch_size, lambda rows: self._pixels(images, rows))
        return self.embed_items(_texts(items) if self.side.kind == "text" else self._arrays(items), batch_size)

    def embed_items(self, items: Items, batch_size: int = 256) -> Tensor:
        """The same for items as `Samples` hold them."""
        return self._embedded(len(items), batch_size, lambda rows: items[int(rows[0]) : int(rows[-1]) + 1])

    def _embedded(self, n: int, batch_size: int, take: Callable[[Tensor], Items]) -> Tensor:
        device = next((x.device for x in self.network.parameters()), torch.device("cpu"))

        def prepared(rows: Tensor) -> Any:
            some = take(rows)
            return self.side(some.to(device) if isinstance(some, Tensor) else some)

        features = in_batches(self, n, prepared, batch_size)
        return normalize(features) if self.unit else features

    def _pixels(self, images: Sequence[Any], rows: Tensor) -> Tensor:  # [B, 3, H, W] uint8
        return torch.from_numpy(np.stack([self._image(k, images[k]) for k in rows.tolist()])).movedim(3, 1)

    def _image(self, k: int, image: Any) -> Any:  # [H, W, 3] uint8
        # Pillow's readers raise whatever damaged bytes lead them to
        with explained(f"images[{k}] cannot be read", "leave it out, or repair it", Exception):
            return pixels_of(Path(image) if isinstance(image, str) else image, self.shape[1])

    def _arrays(self, items: Any) -> Tensor:
        arrays = torch.as_tensor(np.asarray(items), dtype=torch.float32)
        arrays = arrays[None] if arrays.dim() == 1 else arrays
        if arrays.dim() != 2 or arrays.shape[1:] != self.shape or not len(arrays):
            raise ValueError(f"items of shape {tuple(arrays.shape)} must be [N, {self.shape[0]}], as in training")
        return arrays

    def extra_repr(self) -> str:
        return f"side={self.side}"


def _texts(items: Any) -> tuple[str, ...]:
    items = [items] if isinstance(items, str) else list(items)
    for k, text in enumerate(items):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"items[{k}]={text!r} must be a text with a character; leave it out")
    if not items:
        raise ValueError("items is empty; pass at least one text")
    return tuple(items)


def _listed(images: Any) -> Sequence[Any]:
    """One image or many, as a sequence of paths, PIL images and arrays [H, W] or [H, W, 3]."""
    if isinstance(images, Tensor):
        if images.dim() not in (3, 4) or images.shape[-3] not in (1, 3):
            raise ValueError(f"images of shape {tuple(images.shape)} must be a tensor [N, 3, H, W], or [3, H, W]")
        images = images.movedim(-3, -1).cpu().numpy()
    if isinstance(images, np.ndarray):
        images = list(images) if images.ndim == 4 else [images]
    elif isinstance(images, (str, Path, Image.Image)):
        images = [images]
    if not isinstance(images, (list, tuple)):
        raise TypeError(f"images is a {type(images).__name__}; it must be a list of images, an array or a tensor")
    return [_array(k, image) for k, image in enumerate(images)]


def _array(k: int, image: Any) -> Any:
    if isinstance(image, (str, Path, Image.Image)):
        return image
    if isinstance(image, Tensor):
        (image,) = _listed(image)
    if not isinstance(image, np.ndarray):
        raise TypeError(f"images[{k}] is a {type(image).__name__}; it must be a PIL image, a path or an array")
    image = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
        raise ValueError(
            f"images[{k}] of shape {image.shape} and dtype {image.dtype} must be [H, W] or [H, W, 3] of uint8, "
            "0 to 255; for images that are normalised already, call encoder(x)"
        )
    return np.ascontiguousarray(image)


class Encoders(nn.Module):
    """The encoders of a run on columns: `model["name_en"].embed(["red heart"])`. `gcalign.load` returns one.

    All sides share one space: the product of two embeddings is their cosine.
    """

    def __init__(self, sides: Sequence[Encoder], eps: float) -> None:
        super().__init__()
        self.sides, self.eps = nn.ModuleList(sides), eps

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the sides."""
        return tuple(encoder.side.name for encoder in self.sides)  # type: ignore[union-attr, misc]  # each an Encoder

    def __getitem__(self, column: str) -> Encoder:
        parts = {part: k for k, name in enumerate(self.columns) for part in (name, *name.split("+"))}
        encoder = self.sides[parts[one_of("column", column, parts)]]
        assert isinstance(encoder, Encoder)
        return encoder

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.sides)
