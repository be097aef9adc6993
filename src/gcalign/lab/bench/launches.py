"""`gcalign bench launches`: torch operations and host waits of one step, which no other job on the machine disturbs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from gcalign.alignment import Alignment
from gcalign.lab.bench import table
from gcalign.lab.bench.batches import WORDS, eager_info_nce, pairs
from gcalign.lab.bench.losses import EAGER, backward
from gcalign.lab.bench.peers import Loss
from gcalign.lab.bench.table import BenchResult, BenchTable, Row
from gcalign.lab.terminal import Progress
from gcalign.methods import method
from gcalign.plan import Plan, Reads
from gcalign.transport import operator
from gcalign.transport.operators import blocked
from gcalign.transport.problem import Options, Problem

METHODS = ("ince", "gca-ince", "rince", "gca-rince", "gca-uot", "simclr", "iot")
# views, allocations, and the reading of one number, which is a wait and no operation
FREE = frozenset([
    "view", "slice", "t", "expand", "select", "detach", "detach_", "alias", "unsqueeze", "squeeze", "as_strided",
    "transpose", "permute", "split", "chunk", "unbind", "reshape", "_reshape_alias", "item", "_local_scalar_dense",
    "empty", "empty_like", "empty_strided", "resize_", "to", "lift_fresh", "expand_as", "view_as", "numpy_T",
    "is_nonzero", "diagonal", "narrow", "unsafe_split", "split_with_sizes", "result_type", "contiguous", "new_empty",
    "set_",
])  # fmt: skip
WAITS = frozenset(("_local_scalar_dense", "nonzero"))
COLUMNS = table.columns(
    *("n", "eps", "name"),
    ("operations", "operations", table.whole),
    ("waits", "waits", table.whole),
    *("against_eager", "iterations"),
    ("gradient", "gradient", str),
)


class Launches(NamedTuple):
    """What one step asks of the device."""

    operations: int
    waits: int


def bench_launches(
    *, n: Sequence[int], dim: int, eps: Sequence[float], iterations: int, seed: int, progress: Progress
) -> BenchResult:
    """Count every loss at every n and ε."""
    rows: list[Row] = []
    for size, e in progress.over(list(product(n, eps)), lambda cell: f"n = {cell[0]}, ε = {cell[1]:g}"):
        z1, z2 = pairs(size, dim, seed)
        losses: dict[str, Loss] = {EAGER: partial(eager_info_nce, eps=e)}
        losses |= {name: method(name, eps=e, iterations=iterations) for name in METHODS}
        for name, loss in losses.items():
            rows.append({"n": size, "dim": dim, "eps": e, "name": name, **_figures(loss, z1, z2)})
            eager = rows[-1 - list(losses).index(name)]
            rows[-1]["against_eager"] = rows[-1]["operations"] / eager["operations"]
    return BenchResult(
        f"torch operations and host waits of one forward and backward pass, {WORDS}, D = {dim}, at most {iterations} "
        "iterations; by the profiler, inside gcalign's operator too, with blocks as large as on a GPU",
        [BenchTable("launches", "operations and waits of one step", COLUMNS, rows)],
        ["views and allocations are not counted; nothing was run on a GPU"],
    )


def _figures(loss: Loss, z1: Tensor, z2: Tensor) -> Row:
    counts = launches(partial(backward, loss, z1, z2))
    row: Row = {"operations": counts.operations, "waits": counts.waits}
    if isinstance(loss, Alignment):
        row |= {"iterations": _iterations(loss, z1, z2), "gradient": loss.explain(z1, z2).mode}
    return row


def _iterations(loss: Alignment, z1: Tensor, z2: Tensor) -> int:
    """Of the step that is differentiated; `plan`, which is not, may do more."""
    plans: list[Plan] = []
    solve = operator.solve

    def kept(problem: Problem, options: Options, reads: Reads) -> Plan:
        plans.append(solve(problem, options, reads))
        return plans[-1]

    with patch.object(operator, "solve", kept):
        loss(z1, z2)
    return plans[-1].iterations


def launches(step: Callable[[], object]) -> Launches:
    """The operations and waits of one step, after one that is not counted."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes to standard error when it starts
    # blocks as large as on a GPU: on a CPU they are cut to fit its cache, and each would count
    with patch.dict(blocked.BLOCK_ENTRIES, cpu=blocked.ELSEWHERE):
        step()
        with _lists() as lists, profile(use_kineto=False) as seen:
            step()
    events = [event for event in seen.function_events if event.name.startswith("aten::")]
    return Launches(
        sum(map(_counts, events)),
        len(lists) + sum(_name(event) in WAITS for event in events),
    )


def _name(event: Any) -> str:
    return str(event.name).removeprefix("aten::")


def _counts(event: Any) -> bool:
    """Whether an operation is not free and calls no other that is not."""
    inner = (child for child in event.cpu_children if child.name.startswith("aten::"))
    return _name(event) not in FREE and all(_name(child) in FREE for child in inner)


@contextmanager
def _lists() -> Iterator[list[int]]:
    """One entry for each `Tensor.tolist`, a wait that the profiler does not see."""
    calls: list[int] = []
    plain = torch.Tensor.tolist

    def tolist(x: Tensor) -> Any:
        calls.append(1)
        return plain(x)

    with patch.object(torch.Tensor, "tolist", tolist):
        yield calls
