"""`gcalign bench distributed`: one joined batch over several gloo processes, against one process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.multiprocessing.spawn import spawn

from gcalign.lab.bench import losses, table
from gcalign.lab.bench.batches import WORDS, pairs
from gcalign.lab.bench.probe import measured
from gcalign.lab.bench.table import BenchResult, BenchTable, Row
from gcalign.lab.terminal import Progress
from gcalign.lab.timing import Times, timed
from gcalign.methods import method

NAMES = (losses.INCE, losses.GCA_INCE)
_COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast")
COLUMNS = table.columns(
    "name",
    ("ranks", "processes", table.whole),
    "seconds",
    "repeats",
    ("against_one", "/ one process", table.ratio),
    ("megabytes", "extra MB a rank", table.ratio),
    "iterations",
    ("all_reduces", "all-reduces", table.whole),
    ("other", "other collectives", table.whole),
    ("communicated", "MB put in by a rank", table.ratio),
    ("loss_error", "loss, off by", table.error),
)


def bench_distributed(
    *, ranks: Sequence[int], n: int, dim: int, eps: float, repeats: int, seed: int, progress: Progress
) -> BenchResult:
    """Time the joined batch of n pairs on each number of processes, one thread each."""
    if not (dist.is_available() and dist.is_gloo_available()):
        raise ValueError("this torch has no gloo, which `bench distributed` runs on; install a build that has")
    if any(count < 1 or count > n for count in ranks):
        raise ValueError(f"--ranks {' '.join(map(str, ranks))} must be between 1 and n = {n}; try --ranks 1 2 4")
    worlds = sorted({1, *ranks})
    # numbers of processes take turns too, each turn with a share of the repeats
    shares = [share for share in (repeats - repeats // 2, repeats // 2) if share]
    found: dict[int, list[Row]] = {world: [] for world in worlds}
    for share, world in progress.over([(s, w) for s in shares for w in worlds], lambda turn: f"{turn[1]} processes"):
        spec = {"ranks": world, "n": n, "dim": dim, "eps": eps, "repeats": share, "seed": seed}
        with tempfile.TemporaryDirectory() as folder:
            spawn(_rank, args=(spec, folder), nprocs=world)
            parts = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(world)]
        found[world].append(_joined(parts))
    rows = [{"name": name, "ranks": world, **_median(found[world], name)} for name in NAMES for world in worlds]
    for row in rows:
        one = next(other for other in rows if other["name"] == row["name"] and other["ranks"] == 1)
        row["against_one"] = row["seconds"] / one["seconds"]
        row["loss_error"] = abs(row["loss"] - one["loss"]) / abs(one["loss"])
    return BenchResult(
        f"forward plus backward of one joined batch of n = {n}, {WORDS}, D = {dim}, ε = {eps:g}, "
        f"tol = {losses.TOL:g} of ‖P − T‖₁; gloo on this machine, one thread a process; the slowest rank of each "
        "run, medians; memory and collectives of the rank with most, counted in one forward plus backward",
        [BenchTable("distributed", f"joined batch of {n:,} pairs", COLUMNS, rows)],
        notes=["more processes than cores take turns: the table then shows overhead, not speed"],
        settings={"ranks": worlds},
    )


def _joined(found: Sequence[Row]) -> Row:
    """What all ranks found, by loss: a run takes as long as its slowest rank."""
    joined: Row = {}
    for name in NAMES:
        mine = [rank[name] for rank in found]
        slowest = [max(runs) for runs in zip(*(rank["seconds"] for rank in mine), strict=True)]
        joined[name] = {key: max(rank[key] for rank in mine) for key in mine[0] if key != "seconds"}
        joined[name]["seconds"] = slowest
    return joined


def _median(turns: Sequence[Row], name: str) -> Row:
    seconds = [run for turn in turns for run in turn[name]["seconds"]]
    return {**turns[0][name], **Times(tuple(seconds)).figures()}


def _rank(rank: int, spec: Row, folder: str) -> None:
    torch.set_num_threads(1)
    world = spec["ranks"]
    if world > 1:
        store = (Path(folder) / "store").as_uri()
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    n = spec["n"]
    mine = slice(rank * n // world, (rank + 1) * n // world)
    z1, z2 = (z.detach()[mine].clone().requires_grad_() for z in pairs(n, spec["dim"], spec["seed"]))
    found = {name: _measured(name, spec, z1, z2) for name in NAMES}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))
    if world > 1:
        dist.destroy_process_group()


def _measured(name: str, spec: Row, z1: Tensor, z2: Tensor) -> Row:
    called, chosen = losses.OURS[name]
    criterion: Any = method(called, eps=spec["eps"], **chosen)

    def job() -> None:
        losses.backward(criterion, z1, z2)

    losses.backward(criterion, z1[:8].detach().requires_grad_(), z2[:8].detach().requires_grad_())
    _together()
    _, _, extra = measured(job)
    with Counted() as counted:
        job()
    seconds = []
    for _ in range(spec["repeats"]):
        _together()
        seconds.append(timed(job))
    with torch.no_grad():
        loss, iterations = criterion(z1, z2).item(), criterion.plan(z1, z2, gather=True).iterations
    return {"seconds": seconds, "megabytes": extra / 1e6, "iterations": iterations, "loss": loss, **counted.figures()}


def _together() -> None:
    if dist.is_initialized():
        dist.barrier()


class Counted:
    """Counts the collectives a rank takes part in, and the bytes it puts in."""

    def __init__(self) -> None:
        self.calls = dict.fromkeys(_COLLECTIVES, 0)
        self.bytes = 0
        self._originals: dict[str, Any] = {}

    def __enter__(self) -> Counted:
        for name in _COLLECTIVES:
            self._originals[name] = getattr(dist, name)
            setattr(dist, name, self._counting(name, self._originals[name]))
        return self

    def __exit__(self, *error: object) -> None:
        for name, original in self._originals.items():
            setattr(dist, name, original)

    def _counting(self, name: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            own = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)][-1]  # outputs come first
            self.calls[name] += 1
            self.bytes += own.numel() * own.element_size()
            return original(*args, **kwargs)

        return call

    def figures(self) -> Row:
        others = sum(count for name, count in self.calls.items() if name != "all_reduce")
        return {"all_reduces": self.calls["all_reduce"], "other": others, "communicated": self.bytes / 1e6}
