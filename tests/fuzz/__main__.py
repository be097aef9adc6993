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


def run(seed: int, numbers: Iterable[int], *, most: int = 20) -> tuple[list[Verdict], list[Verdict]]:
    """The verdicts on these cases, and those that fail; stops after `most` failures."""
    verdicts, failed = [], []
    for number in numbers:
        verdicts.append(judge(draw(seed, number)))
        if verdicts[-1].failure:
            failed.append(verdicts[-1])
            if len(failed) >= most:
                break
    return verdicts, failed


def figures(verdicts: list[Verdict], failed: int, seconds: float) -> str:
    """One line with what was run and what came of it."""
    refused = Counter(v.error for v in verdicts if v.kind == "refused")
    kinds = Counter(v.kind for v in verdicts)
    parts = [
        f"{len(verdicts)} cases: {kinds['agrees']} agree with float64, {kinds['finite']} are finite without an oracle",
        f"{kinds['refused']} refused (" + ", ".join(f"{k} {v}" for k, v in sorted(refused.items())) + ")",
        f"{sum(v.converged for v in verdicts)} converged",
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
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    numbers = range(asked.first, asked.first + asked.cases) if asked.only is None else [asked.only]
    start = time.perf_counter()
    verdicts, failed = run(asked.seed, numbers, most=asked.most)
    for verdict in failed if asked.only is None else verdicts:
        print(f"{verdict.case}\n  {verdict.failure or verdict}")
        print(f"  replay: python -m fuzz --seed {asked.seed} --only {verdict.case.number}\n")
    print(figures(verdicts, len(failed), time.perf_counter() - start))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
