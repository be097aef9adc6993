"""fig:time_comp (app:time): what a loss costs, in seconds, and how accuracy depends on the iterations.

Seconds of a whole epoch and of the loss alone are measured with the methods taking turns, so that what slows the
machine down hits all of them. Rounds are paired like seeds.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcalign.lab import paper
from gcalign.lab.experiments.engine import drawing
from gcalign.lab.experiments.engine.claims import BELOW, Bounds, EmpiricalClaim, Judgement, Results, compared
from gcalign.lab.experiments.engine.drawing import ACCURACIES, DOUBLE, STD, Look, letter, look, ordered, page
from gcalign.lab.experiments.engine.experiment import (
    Chosen,
    Computing,
    Experiment,
    Job,
    Scale,
    grid,
    joined,
    method_words,
    options,
)  # fmt: skip
from gcalign.lab.experiments.engine.records import Record, by_seed, check_any, having
from gcalign.lab.experiments.engine.statistics import Estimate, estimates, signed
from gcalign.lab.experiments.paper import COST
from gcalign.lab.paper import NAMES, PAIRS

if TYPE_CHECKING:
    import pandas as pd

    from gcalign.lab.data.images import Images
    from gcalign.lab.training.config import Config

TRAINED = (1, 2, 3, 5, 10, 20)  # iterations of the runs whose accuracy is measured
TIMED = (1, 2, 5, 10, 20, 50, 100)  # those that are timed, panel B
STEPS = 5  # that are timed in each turn


def jobs(scale: Scale, chosen: Chosen) -> list[Job]:
    """Run time of each method and of iterations, and accuracy against iterations."""
    return grid(scale, chosen, (scale.probe,), ("gca-ince",), options([{"iterations": n} for n in TRAINED]))


# --- times ---------------------------------------------------------------------------------------------------------


def compute(of: Computing) -> Iterator[list[Record]]:
    """Seconds of a whole epoch and of a step's loss alone, for each method and for GCA-INCE with set iterations."""
    from gcalign.lab.timing import threads
    from gcalign.lab.training.config import configured
    from gcalign.lab.training.samples import images_of

    scale = of.scale
    contestants: list[tuple[dict[str, Any], tuple[str, ...]]] = [({"method": name}, ()) for name in paper.METHODS]
    contestants += [
        ({"method": "gca-ince", "iterations": n}, (f"method.iterations={n}", "method.tol=0.0")) for n in TIMED
    ]
    images = images_of(configured(joined((f"method={paper.METHODS[0]}",), scale.images)).data, "train")
    rounds = 2 * len(scale.seeds) - 1
    with threads(1):
        for turn in range(rounds):
            first = turn % len(contestants)
            for labels, more in contestants[first:] + contestants[:first]:
                words = joined(method_words(labels["method"]), scale.train, scale.images, more)
                yield _timed(scale, labels, words, images, turn, rounds)


def _timed(
    scale: Scale, labels: dict[str, Any], words: tuple[str, ...], images: Images, turn: int, rounds: int
) -> list[Record]:
    """Both measures of one contestant in one round; its number stands for the seed, since rounds are paired, too."""
    from gcalign.lab.training.config import configured

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
    return [
        Record("fig-time", scale.name, measure, value, known, turn, about, words=words)
        for measure, value in seconds.items()
    ]


def _device(config: Config) -> str:
    import torch

    return "cuda" if torch.cuda.is_available() and config.accelerator in ("auto", "gpu", "cuda") else "cpu"


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _step(config: Config, images: Images) -> float:
    """Median seconds of a real training step, from batch to batch: data, views, network, loss, optimiser."""
    import logging
    import warnings

    import lightning
    from lightning.pytorch.callbacks import LambdaCallback
    from torch.utils.data import DataLoader

    from gcalign.lab.data.sides import views_of
    from gcalign.lab.training.module import Training
    from gcalign.lab.training.stream import Stream

    ends: list[float] = []  # of each step

    def end(trainer: lightning.Trainer, module: lightning.LightningModule, *args: Any) -> None:
        _wait(module.device.type)
        ends.append(time.perf_counter())

    samples = views_of(images, config.pairs.views)
    stream = Stream.of(config, samples)
    module = Training(config, samples, stream.total)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # its greetings and tips
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Lightning says of loaders and batch sizes
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator=config.accelerator,
            devices=1,
            precision=config.precision,
            logger=False,
            callbacks=[LambdaCallback(on_train_batch_end=end)],
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
        )
        # the first step, which warms up, only starts the clock
        trainer.fit(module, DataLoader(stream, batch_size=None, sampler=[k % len(stream) for k in range(STEPS + 1)]))
    return statistics.median(b - a for a, b in pairwise(ends))


def _loss(config: Config) -> float:
    """Median seconds of the loss alone, forward and backward to the embeddings."""
    import torch

    from gcalign.lab.timing import median_seconds
    from gcalign.lab.training.config import criterion_of

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


# --- the figure ----------------------------------------------------------------------------------------------------


def draw(records: pd.DataFrame, folder: Path) -> list[Path]:
    """Seconds per epoch of each method and against iterations; accuracy against iterations."""
    steps = {about["steps"] for about in records["about"] if "steps" in about}
    per_epoch = steps.pop() if len(steps) == 1 else math.nan  # what the loss alone takes of an epoch
    plain = having(records, iterations=None)
    whole = estimates(by_seed(plain, "seconds-per-epoch", "method"))
    loss = estimates(by_seed(plain, "step-seconds-loss", "method", unit=per_epoch))
    epoch = by_seed(records, "seconds-per-epoch", "iterations")
    alone = by_seed(records, "step-seconds-loss", "iterations", unit=per_epoch)
    check_any(whole or epoch, "fig-time", "seconds-per-epoch")
    with page(folder, "fig-time", DOUBLE, 2.8) as made:
        first, second, third = made.figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
        methods = ordered(whole)[::-1]
        for k, method in enumerate(methods):
            seconds, spread = whole[method].mean, whole[method].std
            error = {"xerr": spread or None, "error_kw": drawing.THIN}
            first.barh(k, seconds, 0.68, linewidth=0.8, **error, **look(method).bar)
            part = f" ({loss[method].mean:.2f})" if method in loss else ""
            first.annotate(
                f"{seconds:.2f}{part}", (seconds + spread, k), (2, 0), textcoords="offset points", va="center", size=6
            )
        first.set_yticks(range(len(methods)), [look(method).name for method in methods])
        first.set_xlim(0, 1.5 * max((e.mean for e in whole.values()), default=1))
        first.grid(visible=False, axis="y")
        drawing.line(second, epoch, Look("whole step", look("gca-ince").colour, "o", "-", True))
        drawing.line(second, alone, Look("loss alone", look("gca-ince").colour, "o"))
        second.set_yscale("log")
        second.yaxis.set_major_formatter("{x:g}")
        second.legend(loc="best")
        shown = [m for m in ACCURACIES if len(by_seed(records, m, "iterations"))]
        for measure in shown[:1]:
            reached = by_seed(records, measure, "iterations", unit=100)
            drawing.line(third, reached, look("gca-ince"))
            drawing.log_ticks(third, list(reached.index))
        if not shown:
            drawing.absent(third, "accuracy")
        letter(first, 0, "each method", xlabel="seconds per epoch (of that, the loss)")
        letter(second, 1, "GCA-INCE, time", xlabel="Sinkhorn iterations", ylabel="seconds per epoch")
        letter(third, 2, "GCA-INCE, accuracy", xlabel="Sinkhorn iterations", ylabel="accuracy (%)")
        if len(epoch) or len(alone):
            drawing.log_ticks(second, sorted({*epoch.index, *alone.index}))
        where = sorted({str(about["timed"]) for about in records["about"] if "timed" in about})
        probes = [f"Accuracy: {ACCURACIES[measure]}." for measure in shown[:1]]
        trained = records[records["measure"].isin(shown)]
        rounds = ["A, B bars: ± 1 standard deviation over rounds."]
        of = trained if len(trained) else plain
        made.caption(of, *where, *rounds, *probes, spread=f"C {STD}", seeded=bool(len(trained)))
    return made.paths


# --- claims --------------------------------------------------------------------------------------------------------

SIMILAR = Bounds(math.log1p(-0.10), math.log1p(0.10))  # "very similar" is an interval within ± 10 %


def similar(results: Results, a: str, b: str) -> Judgement:
    """How much longer an epoch of a takes than one of b."""
    text = "an epoch takes {gap} more time{other}"
    return _ratio(results, "seconds-per-epoch", a, b, SIMILAR, text)


def faster(results: Results, a: str, b: str) -> Judgement:
    """The same of the loss alone: all else of an epoch is the same for both, so it decides which is faster."""
    epoch = _ratio(results, "seconds-per-epoch", a, b, BELOW, "{gap}").result
    text = f"the loss takes {{gap}} more time{{other}}; an epoch {epoch}"
    return _ratio(results, "step-seconds-loss", a, b, BELOW, text)


def _ratio(results: Results, measure: str, a: str, b: str, rule: Bounds, text: str) -> Judgement:
    """In logarithms: times multiply, and so does what slows a machine down."""
    table = by_seed(results.of("fig-time"), measure, "method", iterations=None).map(math.log)
    return compared(results, "fig-time", table, {a: 1, b: -1}, rule, text, show=_percent, of="rounds")


def _percent(e: Estimate, level: float) -> str:
    """The ratio less one, with its interval."""
    ends = (e.mean, *e.interval(level))
    mean, low, high = (signed(100 * math.expm1(x), 1) if math.isfinite(x) else "" for x in ends)
    return f"{mean} [{low}, {high}] %" if e.df else f"{mean} %"


def claims() -> Iterator[EmpiricalClaim]:
    where, none = "app:time", "no figure in the text"
    for a, b in PAIRS:
        says = f"{NAMES[a]} has a “very similar run time” as {NAMES[b]} (held: within ± 10 %)"
        yield EmpiricalClaim(COST, f"run time {NAMES[a]}, {NAMES[b]}", says, partial(similar, a=a, b=b), where, none)
    for a, b, how in (
        ("rince", "ince", "has a lower run time"),
        ("gca-rince", "gca-ince", "has a lower run time"),
        ("gca-uot", "ince", "is faster"),
        ("gca-uot", "gca-ince", "is faster"),
    ):
        # by whole epochs none could be told from its rival; the loss alone was looked at after that
        says, judge = f"{NAMES[a]} {how} than {NAMES[b]}", partial(faster, a=a, b=b)
        yield EmpiricalClaim(COST, f"run time {NAMES[a]}, {NAMES[b]}", says, judge, where, none, exploratory=True)


EXPERIMENTS = (Experiment("fig-time", draw, jobs, compute=compute, searched=("gca-ince",), claims=claims, place=7),)
