"""What the examples share: the 8×8 digits of scikit-learn, two noisy views of each, and a k-nearest-neighbour score."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

IMAGES, LABELS = (torch.as_tensor(x) for x in load_digits(return_X_y=True))
IMAGES = (IMAGES / 16).float().view(-1, 1, 8, 8)
TRAIN = 1300  # the first images; the others test


def view(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A random view: other contrast, noise, and some pixels erased."""
    contrast = 0.6 + 0.8 * torch.rand(len(images), 1, 1, 1, generator=generator)
    noise = 0.2 * torch.randn(images.shape, generator=generator)
    return (contrast * images + noise) * (torch.rand(images.shape, generator=generator) > 0.2)


def batches(steps: int, size: int = 128) -> Iterator[tuple[Tensor, Tensor]]:
    """Two views of a random batch, for each step."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        images = IMAGES[torch.randperm(TRAIN, generator=generator)[:size]]
        yield view(images, generator), view(images, generator)


class Pairs(torch.utils.data.Dataset):
    """The same as a map-style dataset: an item is two views of one image."""

    def __len__(self) -> int:
        return TRAIN

    def __getitem__(self, k: int) -> dict[str, Tensor]:
        return {"view1": view(IMAGES[k : k + 1])[0], "view2": view(IMAGES[k : k + 1])[0]}


def encoder(width: int = 128) -> nn.Module:
    """A small encoder of 8×8 images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, width))


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """The share of test images whose five nearest training images have their label."""
    model.eval()
    z = nn.functional.normalize(model(IMAGES), dim=1)
    return KNeighborsClassifier(5).fit(z[:TRAIN], LABELS[:TRAIN]).score(z[TRAIN:], LABELS[TRAIN:])
