"""A trained encoder with its preprocessing, ready for images as they are found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from gcalign.errors import count
from gcalign.lab.data.catalogue import DATA_SETS, Normalisation
from gcalign.lab.data.decode import pixels_of
from gcalign.lab.models.state import evaluating
from gcalign.lab.words import explained


class Encoder(nn.Module):
    """A network with the preprocessing it was trained with. `gcalign.load` returns one.

    Called, it maps normalised images [B, C, H, W] to features [B, D], as any module. `embed` takes images as they are.

    Args:
        network: normalised images → features.
        shape: [C, H, W] of its images.
        normalisation: mean and standard deviation of each channel, in [0, 1]; None if they are not known.

    Example:
        >>> from PIL import Image
        >>> from gcalign.lab.models import encoder
        >>> network = encoder("small", shape=(3, 32, 32))
        >>> ready = Encoder(network, (3, 32, 32), ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))
        >>> ready.embed([Image.new("RGB", (64, 48), "red")]).shape
        torch.Size([1, 256])
    """

    def __init__(self, network: nn.Module, shape: tuple[int, int, int], normalisation: Normalisation | None) -> None:
        super().__init__()
        self.network, self.shape, self.normalisation = network, shape, normalisation
        self.features: int = network.features  # type: ignore[assignment]  # every encoder has this number
        self.register_state_dict_post_hook(_unwrapped)  # type: ignore[no-untyped-call]  # torch's own
        self.register_load_state_dict_pre_hook(_wrapped)  # type: ignore[no-untyped-call]  # torch's own

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, D]
        return self.network(x)

    def normalised(self, pixels: Tensor) -> Tensor:  # [B, C, H, W] in [0, 1]
        """What the network takes, of RGB images in [0, 1]."""
        if self.normalisation is None:
            raise ValueError(
                "the run does not say how its images were normalised; train it again, or normalise them yourself and "
                "call encoder(x)"
            )
        mean, std = (torch.tensor(x, device=pixels.device).view(-1, 1, 1) for x in self.normalisation)
        return (pixels - mean) / std

    def embed(self, images: Any, *, batch_size: int = 256) -> Tensor:  # [N, D] float32 on the CPU
        """The features of images, one row for each.

        Each image becomes RGB, its shorter side is brought to the size of training, and the square in the middle is
        taken, as in training and probing.

        Args:
            images: a list of PIL images, paths, or arrays [H, W] or [H, W, 3] of uint8, also mixed; or one array
                [N, H, W, 3] or tensor [N, 3, H, W] of uint8. A single image is a list of one.
            batch_size: images that are encoded at once.

        Returns:
            The features [N, D].

        Raises:
            ValueError, TypeError: if an image cannot be read, or is none; the message has its position.
        """
        count("batch_size", batch_size, "256 is the default")
        found, parts = _listed(images), []
        if not found:
            raise ValueError("images is empty; pass at least one image")
        device = next((x.device for x in self.network.parameters()), torch.device("cpu"))
        with evaluating(self), torch.inference_mode():
            for start in range(0, len(found), batch_size):
                batch = [self._pixels(k, found[k]) for k in range(start, min(start + batch_size, len(found)))]
                pixels = torch.from_numpy(np.stack(batch)).movedim(3, 1).to(device)
                parts.append(self(self.normalised(pixels.float() / 255)).float().cpu())
        return torch.cat(parts)

    def _pixels(self, k: int, image: Any) -> Any:  # [size, size, 3] uint8
        # Pillow's readers raise whatever damaged bytes lead them to
        with explained(f"images[{k}] cannot be read", "leave it out, or repair it", Exception):
            return pixels_of(Path(image) if isinstance(image, str) else image, self.shape[1])

    def extra_repr(self) -> str:
        return f"shape={self.shape}, normalisation={self.normalisation}"


def _unwrapped(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    """Names as the network itself has them, so that weights fit both."""
    for key in [key for key in state if key.startswith(f"{prefix}network.")]:
        state[prefix + key.removeprefix(f"{prefix}network.")] = state.pop(key)


def _wrapped(_: nn.Module, state: dict[str, Any], prefix: str, *__: Any) -> None:
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}network.{key.removeprefix(prefix)}"] = state.pop(key)


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


def normalisation_of(about: Any, data: str, channels: int) -> Normalisation | None:
    """What a file says, if it says it; else what is published for the data set. None: neither."""
    mean, std = (about.get(name) for name in ("mean", "std"))
    if mean is None and std is None:
        if data == "scenes":
            from gcalign.lab.data.scenes import Scenes

            return Scenes.mean, Scenes.std
        return DATA_SETS[data].normalisation if data in DATA_SETS else None
    for values, least in ((mean, -math.inf), (std, 0.0)):
        fine = isinstance(values, list) and len(values) == channels
        if not fine or not all(isinstance(x, (int, float)) and math.isfinite(x) and x > least for x in values):
            raise ValueError(f"mean={mean} and std={std} must have {channels} numbers each, and std > 0")
    return tuple(map(float, mean)), tuple(map(float, std))
