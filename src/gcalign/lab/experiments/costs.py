"""What a loss costs: floating-point operations, counted, and seconds, measured with the methods taking turns."""

from __future__ import annotations

import logging
import os
import statistics
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import lightning as L  # noqa: N812  # Lightning's own habit
import torch
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from gcalign.lab import paper
from gcalign.lab.data.images import Images
from gcalign.lab.data.sides import views_of
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.registry import Scale
from gcalign.lab.experiments.scales import joined
from gcalign.lab.timing import median_seconds, threads
from gcalign.lab.training.config import Config, configured, criterion_of
from gcalign.lab.training.module import Training
from gcalign.lab.training.samples import images_of
from gcalign.lab.training.stream import Stream
from gcalign.lab.verify.costs import counted

BATCH, DIM = 512, 128  # pairs, and width of the head (app:hpdetails)
COUNTED = 5  # iterations whose operations are counted
ITERATIONS = (1, 2, 5, 10, 20, 50, 100)  # of fig:time_comp, panel B
STEPS = 5  # that are timed in each turn


def flops(scale: Scale) -> list[Record]:
    """MFLOP of each loss, forward and backward, at the paper's batch whatever the scale."""
    generator = torch.Generator().manual_seed(0)
    z1 = torch.randn(BATCH, DIM, generator=generator)
    z2 = z1 + 0.5 * torch.randn(BATCH, DIM, generator=generator)
    fixed = {"iterations": COUNTED, "tol": 0.0}
    about = {
        "n": BATCH,
        "dim": DIM,
        "iterations": COUNTED,
        "counted": "matrix products 2mnk by torch.utils.flop_counter, taught products with vectors and in place; of "
        "the rest, reductions one per input element, other arithmetic one per output element, views and copies none",
    }
    records = []
    for name in paper.METHODS:
        total, products = counted(name, z1, z2, **fixed)
        known = about | ({"paper": paper.MFLOPS[name]} if name in paper.MFLOPS else {})
        for part, value in (("matmul", products), ("elementwise", total - products), ("total", total)):
            records.append(Record("flops", scale.name, "mflops", value, {"method": name, "part": part}, about=known))
    return records


def times(scale: Scale) -> list[Record]:
    """Seconds of a whole epoch and of a step's loss alone, for each method and for GCA-INCE with set iterations."""
    contestants: list[tuple[dict[str, Any], tuple[str, ...]]] = [({"method": name}, ()) for name in paper.METHODS]
    contestants += [
        ({"method": "gca-ince", "iterations": n}, (f"method.iterations={n}", "method.tol=0.0")) for n in ITERATIONS
    ]
    images = images_of(configured(joined((f"method={paper.METHODS[0]}",), scale.images)).data, "train")
    found: list[Record] = []
    rounds = 2 * len(scale.seeds) - 1
    with threads(1):
        for turn in range(rounds):
            first = turn % len(contestants)
            for labels, more in contestants[first:] + contestants[:first]:
                words = joined((f"method={labels['method']}",), scale.train, scale.images, more)
                found += _timed(scale, labels, words, images, turn, rounds)
    return found


def _timed(
    scale: Scale, labels: dict[str, Any], words: tuple[str, ...], images: Images, turn: int, rounds: int
) -> Iterator[Record]:
    """Both measures of one contestant in one round; its number stands for the seed, since rounds are paired, too."""
    config = configured(words)
    n, steps, device = config.batch_size, len(images) // config.batch_size, _device(config)
    seconds = {"seconds-per-epoch": steps * _step(config, images), "step-seconds-loss": _loss(config)}
    about = {
        "n": n,
        "dim": config.model.out,
        "steps": steps,
        "threads": 1,
        "device": device,
        "load": round(os.getloadavg()[0], 1),  # above 1, others were running: trust ratios, not seconds
        "timed": f"Times: medians of {STEPS} steps of {n} pairs, {rounds} rounds, methods taking turns, one thread "
        f"({device}).",
    }
    known = {**labels, "data": config.data.name}
    for measure, value in seconds.items():
        yield Record("fig-time", scale.name, measure, value, known, turn, about, words=words)


def _device(config: Config) -> str:
    return "cuda" if torch.cuda.is_available() and config.accelerator in ("auto", "gpu", "cuda") else "cpu"


class _Clock(Callback):
    """When each step of a training ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *args: Any) -> None:
        _wait(module.device.type)
        self.ends.append(time.perf_counter())


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _step(config: Config, images: Images) -> float:
    """Median seconds of a real training step, from batch to batch: data, views, network, loss, optimiser."""
    samples = views_of(images, config.pairs.views)
    stream = Stream.of(config, samples)
    module, clock = Training(config, samples, stream.total), _Clock()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its greetings and tips
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Lightning says of loaders and batch sizes
        trainer = L.Trainer(
            max_epochs=1,
            accelerator=config.accelerator,
            devices=1,
            precision=config.precision,
            logger=False,
            callbacks=[clock],
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
        )
        # the first step, which warms up, only starts the clock
        trainer.fit(module, DataLoader(stream, batch_size=None, sampler=[k % len(stream) for k in range(STEPS + 1)]))
    return statistics.median(b - a for a, b in pairwise(clock.ends))


def _loss(config: Config) -> float:
    """Median seconds of the loss alone, forward and backward to the embeddings."""
    device, generator = _device(config), torch.Generator().manual_seed(0)
    z1 = torch.randn(config.batch_size, config.model.out, generator=generator)
    z2 = z1 + 0.5 * torch.randn(z1.shape, generator=generator)
    z1, z2 = (z.to(device).requires_grad_() for z in (z1, z2))
    criterion = criterion_of(config).to(device)

    def once() -> None:
        z1.grad = z2.grad = None
        criterion(z1, z2).backward()
        _wait(device)

    return median_seconds(once, STEPS)
