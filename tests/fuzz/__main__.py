"""`python -m fuzz --cases 20000 --seed 0`: random calls; `--only 1234` replays one and prints it."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable

import torch

from fuzz.cases import draw
from fuzz.check import Verdict, judge
from fuzz.compiled import draw_compiled, judge_compiled


def run(
    seed: int, numbers: Iterable[int], *, most: int = 20, compiled: bool = False
) -> tuple[list[Verdict], list[Verdict]]:
    """The verdicts on these cases, and those that fail; stops after `most` failures."""
    verdicts, failed = [], []
    for number in numbers:
        verdicts.append(judge_compiled(draw_compiled(seed, number)) if compiled else judge(draw(seed, number)))
        verdicts[-1].number = number
        if verdicts[-1].failure:
            failed.append(verdicts[-1])
            if len(failed) >= most:
                break
    return verdicts, failed


def figures(verdicts: list[Verdict], failed: int, seconds: float, *, oracle: str = "float64") -> str:
    """One line with what was run and what came of it."""
    refused = Counter(v.error for v in verdicts if v.kind == "refused")
    kinds = Counter(v.kind for v in verdicts)
    parts = [
        f"{len(verdicts)} cases: {kinds['agrees']} agree with {oracle}, {kinds['finite']} have nothing to compare with",
        f"{kinds['refused']} refused (" + ", ".join(f"{k} {v}" for k, v in sorted(refused.items())) + ")",
        f"{kinds['beyond']} are beyond the range of their dtype",
        f"{sum(v.converged for v in verdicts)} say that they converged",
        f"{failed} fail",
    ]
    worst = []
    for dtype in ("float64", "float32"):
        those = [v for v in verdicts if v.case.dtype == dtype and v.case.options.get("cache") is None and not v.failure]
        for what in ("loss", "gradient"):
            values = [getattr(v, what) for v in those if getattr(v, what) == getattr(v, what)]
            worst.append(f"{what} {dtype} {max(values, default=0.0):.1e}")
    return "; ".join(parts) + f"; worst relative deviation: {', '.join(worst)}; {seconds:.0f} s"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", type=int, help="replay this case alone")
    parser.add_argument("--most", type=int, default=20, help="stop after so many failures")
    parser.add_argument("--compile", action="store_true", help="compare compiled with eager code, some seconds each")
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    numbers = range(asked.first, asked.first + asked.cases) if asked.only is None else [asked.only]
    start = time.perf_counter()
    verdicts, failed = run(asked.seed, numbers, most=asked.most, compiled=asked.compile)
    for verdict in failed if asked.only is None else verdicts:
        print(f"{verdict.case}\n  {verdict.failure or verdict}")
        how = " --compile" if asked.compile else ""
        print(f"  replay: python -m fuzz --seed {asked.seed}{how} --only {verdict.number}\n")
    oracle = "eager code" if asked.compile else "float64"
    print(figures(verdicts, len(failed), time.perf_counter() - start, oracle=oracle))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
