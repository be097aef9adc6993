"""`gcalign bench data`: views per second, and where a training step goes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.utils.data import DataLoader

from gcalign.lab.bench import table
from gcalign.lab.bench.losses import backward
from gcalign.lab.bench.pillow import PillowViews
from gcalign.lab.bench.table import BenchResult, BenchTable, Column, Row
from gcalign.lab.bench.timing import Progress, interleaved, median_seconds, threads
from gcalign.lab.data.views import make_views
from gcalign.lab.models import encoder, projector
from gcalign.methods import method

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
SHAPE = (3, 32, 32)
VIEWS_COLUMNS: tuple[Column, ...] = (
    ("name", "", str),
    ("views", "views/s", table.whole),
    ("ratio", "against Pillow", table.ratio),
)
STEP_COLUMNS: tuple[Column, ...] = (
    ("name", "", str),
    ("seconds", "ms", table.milliseconds),
    ("share", "share of the step with InfoNCE", lambda value: f"{value:.1%}"),
    ("step", "step against InfoNCE", lambda value: f"{value:.3f}"),
)


def views_per_second(workers: int, repeats: int = 5, images: int = 2048) -> dict[str, float]:
    """C0 of 32×32 images: ours in batches on `workers` threads, Pillow's one by one in as many processes."""
    pixels = torch.randint(0, 256, (images, *SHAPE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
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


def step_shares(batch: int = 64, repeats: int = 3) -> dict[str, float]:
    """A ResNet-18 training step (CIFAR stem) on the CPU: seconds of the data, the network and each loss."""
    pixels = torch.randint(0, 256, (batch, *SHAPE), dtype=torch.uint8)
    views = make_views("C0", SHAPE, MEAN, STD)
    network = torch.nn.Sequential(encoder("resnet18", shape=SHAPE, seed=0), projector("mlp2", 512, seed=0))

    def networks_part() -> None:
        x = torch.cat([views(pixels, 1), views(pixels, 2)])
        network(x).square().mean().backward()

    found = {"data": median_seconds(lambda: [views(pixels, 1), views(pixels, 2)], 3 * repeats)}
    found["network"] = median_seconds(networks_part, repeats) - found["data"]
    z = torch.randn(2, batch, 128)
    for name in ("ince", "gca-ince", "gca-rince", "gca-uot"):
        criterion = method(name)
        z1, z2 = (part.clone().requires_grad_() for part in z)
        found[name] = median_seconds(partial(backward, criterion, z1, z2), 20 * repeats)
    return found


def bench_data(*, repeats: int, progress: Progress, images: int = 2048, batch: int = 64) -> BenchResult:
    """Measure the views and a step."""
    workers = torch.get_num_threads()
    jobs: dict[str, Callable[[], dict[str, float]]] = {
        "views": lambda: views_per_second(workers, repeats, images),
        "step": lambda: step_shares(batch, repeats),
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
        "data",
        f"C0 views of 32×32 images; a ResNet-18 step (CIFAR stem) on {batch} pairs of them; medians",
        {"images": images, "batch": batch, "repeats": repeats, "workers": workers},
        [
            BenchTable("views", "C0 views of 32×32 images", VIEWS_COLUMNS, made),
            BenchTable("step", f"ResNet-18 step, {batch} pairs of 32×32", STEP_COLUMNS, parts),
        ],
    )
