"""C0 done per image with Pillow, as most pipelines do it: the baseline of `gcalign bench data`."""

from __future__ import annotations

import math
import random

import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.utils.data import Dataset


class PillowViews(Dataset[Tensor]):
    """One standard view of each image: resized crop, flip, colour jitter (s = 0.5), greyscale, normalisation."""

    def __init__(self, pixels: Tensor, views: int) -> None:  # [N, 3, H, W] uint8
        self.images = [Image.fromarray(p.permute(1, 2, 0).numpy()) for p in pixels]
        self.views = views

    def __len__(self) -> int:
        return self.views

    def __getitem__(self, k: int) -> Tensor:
        image = self.images[k % len(self.images)]
        image = _crop(image)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if random.random() < 0.8:
            image = _jitter(image)
        if random.random() < 0.2:
            image = image.convert("L").convert("RGB")
        size = image.height
        flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return (flat.view(size, size, 3).permute(2, 0, 1).float() / 255 - 0.5) / 0.25


def _crop(image: Image.Image) -> Image.Image:
    width, height = image.size
    area = width * height * random.uniform(0.2, 1.0)
    ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
    w, h = min(width, round(math.sqrt(area * ratio))), min(height, round(math.sqrt(area / ratio)))
    left, top = random.randint(0, width - w), random.randint(0, height - h)
    return image.resize((width, height), Image.Resampling.BILINEAR, box=(left, top, left + w, top + h))


def _jitter(image: Image.Image) -> Image.Image:
    steps = [0, 1, 2, 3]
    random.shuffle(steps)
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for step in steps:
        if step < 3:
            image = enhancers[step](image).enhance(random.uniform(0.6, 1.4))
        else:
            hue, saturation, value = image.convert("HSV").split()
            shift = round(random.uniform(-0.1, 0.1) * 255)
            hue = hue.point([(x + shift) % 256 for x in range(256)])
            image = Image.merge("HSV", (hue, saturation, value)).convert("RGB")
    return image
