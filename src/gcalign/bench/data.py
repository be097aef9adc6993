"""`gcalign bench data`: views per second, and where a training step goes."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader

from gcalign import files
from gcalign.alignment import Objective
from gcalign.bench.pillow import PillowViews
from gcalign.data.views import make_views
from gcalign.methods import method
from gcalign.models import encoder, projector

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
SHAPE = (3, 32, 32)


def median_seconds(job: Callable[[], object], repeats: int) -> float:
    """The median of several, after one that is not counted."""
    job()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@contextmanager
def _threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def views_per_second(workers: int, repeats: int = 5) -> dict[str, float]:
    """C0 of 32×32 images: ours in batches on `workers` threads, Pillow's one by one in as many processes."""
    pixels = torch.randint(0, 256, (2048, *SHAPE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    views = make_views("C0", SHAPE, MEAN, STD)
    with _threads(workers):
        ours = median_seconds(lambda: [views(pixels[k : k + 256], k) for k in range(0, 2048, 256)], repeats)
    n = 8192
    loader = DataLoader(PillowViews(pixels, n), batch_size=256, num_workers=workers, persistent_workers=True)

    def one_by_one() -> None:
        for _ in loader:
            pass

    theirs = median_seconds(one_by_one, repeats)
    return {"ours": 2048 / ours, "pillow": n / theirs, "ratio": (2048 / ours) / (n / theirs), "workers": workers}


def step_shares(batch: int = 64, repeats: int = 3) -> dict[str, float]:
    """A ResNet-18 training step (CIFAR stem) on the CPU or GPU: seconds of the network, the data and each loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pixels = torch.randint(0, 256, (batch, *SHAPE), dtype=torch.uint8, device=device)
    views = make_views("C0", SHAPE, MEAN, STD)
    network = torch.nn.Sequential(encoder("resnet18", shape=SHAPE, seed=0), projector("mlp2", 512, seed=0)).to(device)

    def networks_part() -> None:
        x = torch.cat([views(pixels, 1), views(pixels, 2)])
        network(x).square().mean().backward()

    found = {"data": median_seconds(lambda: [views(pixels, 1), views(pixels, 2)], 3 * repeats)}
    found["network"] = median_seconds(networks_part, repeats) - found["data"]
    z = torch.randn(2, batch, 128, device=device)
    for name in ("ince", "gca-ince", "gca-rince", "gca-uot"):
        criterion = method(name)
        z1, z2 = (part.clone().requires_grad_() for part in z)
        found[name] = median_seconds(partial(_backward, criterion, z1, z2), 20 * repeats)
    return found


def _backward(criterion: Objective, z1: Tensor, z2: Tensor) -> None:
    criterion(z1, z2).backward()


def bench_data(to_json: str | None = None, *, progress: bool = False) -> dict[str, Any]:
    """Measure, print two tables, and write JSON where asked."""
    jobs: dict[str, Callable[[], dict[str, float]]] = {
        "views": lambda: views_per_second(os.cpu_count() or 1),
        "step": step_shares,
    }
    found = {name: jobs[name]() for name in track(jobs, description="measuring", disable=not progress)}
    if to_json is not None:
        files.write(Path(to_json), json.dumps({"torch": torch.__version__, **found}, indent=2) + "\n")
    console = Console()
    views = found["views"]
    table = Table("C0 views of 32×32 images", "views/s", "against Pillow")
    table.add_row(f"Pillow, one by one, {views['workers']} processes", f"{views['pillow']:,.0f}", "1.00")
    table.add_row(
        f"gcalign, batches of 256, {views['workers']} threads", f"{views['ours']:,.0f}", f"{views['ratio']:.2f}"
    )
    console.print(table)
    step = found["step"]
    base = step["data"] + step["network"] + step["ince"]
    table = Table("ResNet-18 step, 64 pairs of 32×32", "ms", "share of the step with InfoNCE", "step against InfoNCE")
    for name in ("network", "data", "ince", "gca-ince", "gca-rince", "gca-uot"):
        whole = "" if name in ("network", "data") else f"{(base - step['ince'] + step[name]) / base:.3f}"
        table.add_row(name, f"{1e3 * step[name]:.1f}", f"{step[name] / base:.1%}", whole)
    console.print(table)
    return found
