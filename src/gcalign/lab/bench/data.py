"""`gcalign bench data`: views per second, and where a training step goes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import torch
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gcalign.lab.bench import table
from gcalign.lab.bench.losses import backward
from gcalign.lab.bench.table import BenchResult, BenchTable, Row
from gcalign.lab.data.views import make_views
from gcalign.lab.models import encoder, projector
from gcalign.lab.terminal import Progress
from gcalign.lab.timing import interleaved, median_seconds, threads
from gcalign.methods import method

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
SHAPE = (3, 32, 32)
VIEWS_COLUMNS = (("name", "", str), ("views", "views/s", table.whole), ("ratio", "against Pillow", table.ratio))
STEP_COLUMNS = table.columns(
    ("name", "", str),
    "seconds",
    ("share", "share of the step with InfoNCE", "{:.1%}".format),
    ("step", "step against InfoNCE", "{:.3f}".format),
)


def views_per_second(workers: int, repeats: int, images: int, seed: int) -> dict[str, float]:
    """C0 of 32×32 images: ours in batches on `workers` threads, Pillow's one by one in as many processes."""
    pixels = torch.randint(0, 256, (images, *SHAPE), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    views = make_views("C0", SHAPE, MEAN, STD)
    n = 4 * images
    loader = DataLoader(PillowViews(pixels, n), batch_size=256, num_workers=workers, persistent_workers=True)

    def one_by_one() -> None:
        for _ in loader:
            pass

    def batches() -> None:
        for start in range(0, images, 256):
            views(pixels[start : start + 256], start)

    jobs = {"ours": batches, "pillow": one_by_one}
    with threads(workers):
        times = interleaved(jobs, repeats, Progress(shown=False))
    ours, theirs = images / times["ours"].median, n / times["pillow"].median
    return {"ours": ours, "pillow": theirs, "ratio": ours / theirs, "workers": workers}


def step_shares(batch: int, repeats: int, seed: int) -> dict[str, float]:
    """A ResNet-18 training step (CIFAR stem) on the CPU: seconds of the data, the network and each loss."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (batch, *SHAPE), generator=generator, dtype=torch.uint8)
    views = make_views("C0", SHAPE, MEAN, STD)
    network = torch.nn.Sequential(encoder("resnet18", shape=SHAPE, seed=0), projector("mlp2", 512, seed=0))

    def networks_part() -> None:
        x = torch.cat([views(pixels, 1), views(pixels, 2)])
        network(x).square().mean().backward()

    found = {"data": median_seconds(lambda: [views(pixels, 1), views(pixels, 2)], 3 * repeats)}
    found["network"] = median_seconds(networks_part, repeats) - found["data"]
    z = torch.randn(2, batch, 128, generator=generator)
    for name in ("ince", "gca-ince", "gca-rince", "gca-uot"):
        criterion = method(name)
        z1, z2 = (part.clone().requires_grad_() for part in z)
        found[name] = median_seconds(partial(backward, criterion, z1, z2), 20 * repeats)
    return found


def bench_data(*, repeats: int, seed: int, progress: Progress, images: int = 2048, batch: int = 64) -> BenchResult:
    """Measure the views and a step."""
    workers = torch.get_num_threads()
    jobs: dict[str, Callable[[], dict[str, float]]] = {
        "views": lambda: views_per_second(workers, repeats, images, seed),
        "step": lambda: step_shares(batch, repeats, seed),
    }
    found = {name: jobs[name]() for name in progress.over(list(jobs), str)}
    views, step = found["views"], found["step"]
    made: list[Row] = [
        {"name": f"Pillow, one by one, {workers} processes", "views": views["pillow"], "ratio": 1.0},
        {"name": f"gcalign, batches of 256, {workers} threads", "views": views["ours"], "ratio": views["ratio"]},
    ]
    base = step["data"] + step["network"] + step["ince"]
    parts: list[Row] = []
    for name, seconds in step.items():
        whole = None if name in ("network", "data") else (base - step["ince"] + seconds) / base
        parts.append({"name": name, "seconds": seconds, "share": seconds / base, "step": whole})
    return BenchResult(
        f"C0 views of 32×32 images; a ResNet-18 step (CIFAR stem) on {batch} pairs of them; medians",
        [
            BenchTable("views", "C0 views of 32×32 images", VIEWS_COLUMNS, made),
            BenchTable("step", f"ResNet-18 step, {batch} pairs of 32×32", STEP_COLUMNS, parts),
        ],
        settings={"images": images, "batch": batch, "workers": workers},
    )


class PillowViews(Dataset[Tensor]):
    """C0 of each image by Pillow, one by one: resized crop, flip, colour jitter (s = 0.5), greyscale, normalisation."""

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
