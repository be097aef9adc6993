"""How claims about cost are judged: seconds, measured with the methods taking turns, and counted operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from gcalign.lab.experiments.judges import Judge, Results, Rule, Verdict, signed, within
from gcalign.lab.experiments.paper import METHODS, NAMES
from gcalign.lab.experiments.statistics import Comparison, Estimate, by_seed, contrast

SIMILAR = 0.10  # of run time: "very similar" is an interval within ± 10 %


def seconds(a: str, b: str, judged: Rule) -> Judge:
    """How much longer an epoch of a takes than one of b."""

    def judge(results: Results) -> Verdict:
        c = _ratio(results, "seconds-per-epoch", a, b)
        told = f"an epoch of {NAMES[a]} takes {_percent(c.pooled)} more time than one of {NAMES[b]}{_paired(c)}"
        return replace(judged(c, told), of="rounds")

    return judge


def loss_seconds(a: str, b: str, judged: Rule) -> Judge:
    """The same of the loss alone: all else of an epoch is the same for both, so it decides which is faster."""

    def judge(results: Results) -> Verdict:
        c, epoch = (_ratio(results, measure, a, b) for measure in ("step-seconds-loss", "seconds-per-epoch"))
        told = f"the loss of {NAMES[a]} takes {_percent(c.pooled)} more time than that of {NAMES[b]}{_paired(c)}"
        return replace(judged(c, f"{told}; a whole epoch {_percent(epoch.pooled)}"), of="rounds")

    return judge


def _ratio(results: Results, measure: str, a: str, b: str) -> Comparison:
    """In logarithms: times multiply, and so does what slows a machine down."""
    records = results.of("fig-time")
    found = {m: by_seed(records, measure, method=m, iterations=None) for m in METHODS}
    table = {m: {s: math.log(x) for s, x in by.items()} for m, by in found.items() if by}
    c = contrast(table, {a: 1, b: -1})
    if c is None:
        raise results.missing("fig-time")
    return c


def _paired(c: Comparison) -> str:
    told = _percent(c.paired)
    return f"; paired {told[told.index('[') :]}" if c.paired.df else ""


def _percent(e: Estimate) -> str:
    """The ratio less one, with its interval."""
    d = e.interval()
    if not e.df:
        return f"{_signed(d.mean)} %"
    return f"{_signed(d.mean)} [{_signed(d.low)}, {_signed(d.high)}] %"


def _signed(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f}".replace("-", "−")


def shorter(c: Comparison, told: str) -> Verdict:
    return signed(c, told, -1)


def similar(c: Comparison, told: str) -> Verdict:
    return within(c, told, math.log1p(-SIMILAR), math.log1p(SIMILAR))


def flops(method: str, told: Callable[[float], str], holds: Callable[[float], bool]) -> Judge:
    """MFLOP of a loss over that of INCE; counts have no spread."""

    def judge(results: Results) -> Verdict:
        records = results.of("flops")
        mine, base = (by_seed(records, "mflops", method=m, part="total") for m in (method, "ince"))
        if not mine or not base:
            raise results.missing("flops")
        x, y = next(iter(mine.values())), next(iter(base.values()))
        ours = f"{x:.2f} against {y:.2f} MFLOP: {told(x / y - 1)}"
        return Verdict("held" if holds(x / y - 1) else "failed", ours)

    return judge
