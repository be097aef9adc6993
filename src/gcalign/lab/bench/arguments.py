"""What `gcalign bench` takes on the command line. Nothing heavy is imported here: help answers at once."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

from gcalign.lab.commands import Parser, Run, add_subcommand, json_path

Options = dict[str, Any]


@dataclass(frozen=True)
class What:
    """One measurement: its help, its example, and its settings in full, with --quick and with --large."""

    does: str
    example: str
    full: Options
    quick: Options
    large: tuple[str, Options] | None = None  # the help of --large, and what it changes


_GRID = {"n": [4096, 1024, 256], "dim": [128, 512], "eps": [0.5, 0.1, 0.05], "repeats": 7}
WHAT = {
    "losses": What(
        "forward plus backward of each loss against eager InfoNCE and installed peers",
        "gcalign bench losses --n 4096 --dim 128 --eps 0.5 0.1 --repeats 7 --json losses.json",
        _GRID,
        {"n": [64], "dim": [16], "eps": [0.5], "repeats": 2},
    ),
    "launches": What(
        "torch operations and host waits of one step of each loss, and an estimate of their time on a GPU",
        "gcalign bench launches --n 256 --eps 0.1 --json launches.json",
        {"n": [256, 1024, 4096], "dim": 128, "eps": [0.5, 0.1], "iterations": 10},
        {"n": [64], "dim": 16, "eps": [0.5], "iterations": 10},
    ),
    "solvers": What(
        "plans to one marginal error against POT and geomloss, and what warm starts save",
        "gcalign bench solvers --n 4096 --eps 0.1 0.05 --json solvers.json",
        {"n": [4096], "dim": 128, "eps": [0.1, 0.05], "tol": 1e-5, "repeats": 5},
        {"n": [64], "dim": 16, "eps": [0.5], "tol": 1e-4, "repeats": 2},
    ),
    "memory": What(
        "peak memory each loss adds: dense in n × n matrices, streaming (--large) in megabytes",
        "gcalign bench memory --n 4096 8192 --large --json memory.json",
        {"n": [4096, 8192], "dim": 128, "eps": 0.1},
        {"n": [256], "dim": 16, "eps": 0.5, "names": ["eager InfoNCE", "GCA-INCE"]},
        ("streaming at n = 65,536 too; takes minutes", {"large": [65_536]}),
    ),
    "scaling": What(
        "time and memory of the streaming losses against n, with exponents and a plot",
        "gcalign bench scaling --large --plot scaling.png --json scaling.json",
        {"n": [1024, 2048, 4096, 8192], "dim": 128, "eps": 0.1, "repeats": 3},
        {"n": [64, 128], "dim": 16, "eps": 0.5, "repeats": 1},
        ("up to n = 32,768; takes minutes", {"n": [1024, 2048, 4096, 8192, 16_384, 32_768]}),
    ),
    "data": What(
        "views per second against Pillow, and where a training step goes",
        "gcalign bench data --json data.json",
        {"repeats": 5},
        {"repeats": 1, "images": 128, "batch": 4},
    ),
    "audit": What(
        "audit of many pairs: time, memory, and what batches of the plan lose in AUROC",
        "gcalign bench audit --large --json audit.json",
        {"n": [8192], "dim": 512},
        {"n": [300], "dim": 16},
        ("100,000 pairs too; takes an hour", {"n": [8192, 100_000]}),
    ),
    "distributed": What(
        "one joined batch on 1 to 4 gloo processes against one process",
        "gcalign bench distributed --ranks 1 2 4 --n 4096 --json distributed.json",
        {"ranks": [1, 2, 3, 4], "n": 4096, "dim": 128, "eps": 0.1, "repeats": 6},
        {"ranks": [1, 2], "n": 64, "dim": 16, "eps": 0.5, "repeats": 1},
    ),
}
DEFAULT = ("losses", "solvers")


def declare(parser: Parser) -> Run:
    """Add the measurements as subcommands; return what runs on the arguments."""
    _common(parser, {"json": None, "quick": False, "threads": None, "seed": 0, "what": None})
    subparsers = parser.add_subparsers(title=f"what (default: {' and '.join(DEFAULT)})", metavar="WHAT", dest="what")
    for name, what in WHAT.items():
        sub = add_subcommand(subparsers, name, what.does, what.example)
        _own(sub, what)
        _common(sub, {})

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.bench.command import bench

        names = DEFAULT if args.what is None else (args.what,)
        plot = getattr(args, "plot", None)
        bench({name: chosen(name, args) for name in names}, args.threads, args.json, plot)

    return run


def chosen(name: str, args: argparse.Namespace) -> Options:
    """The settings of one measurement: what was given, else --quick's, else the full ones, with --large more."""
    what, given = WHAT[name], vars(args)
    settings = (what.quick if args.quick else what.full) | {"seed": args.seed}
    if what.large and given.get("large") and not args.quick:
        settings |= what.large[1]
    return settings | {key: given[key] for key in what.full if given.get(key) is not None}


def _own(parser: argparse.ArgumentParser, what: What) -> None:
    words = {
        "n": (size, "N", "pairs in the batch"),
        "dim": (size, "D", "dimension of the embeddings"),
        "eps": (amount, "ε", "temperature of the kernel exp(−C/ε)"),
        "iterations": (size, "I", "maximum number of iterations of a plan"),
        "tol": (amount, "T", "marginal error to reach, of the mass"),
        "ranks": (size, "R", "numbers of processes; one is always among them"),
        "repeats": (size, "K", "number of timed runs of each; the median is shown"),
    }
    for key, value in what.full.items():
        kind, letter, text = words[key]
        many = isinstance(value, list)
        shown = " ".join(map(str, value)) if isinstance(value, list) else value
        more: dict[str, Any] = {"nargs": "+"} if many else {}
        parser.add_argument(f"--{key}", type=kind, metavar=letter, help=f"{text} (default: {shown})", **more)
    if what.large:
        parser.add_argument("--large", action="store_true", help=what.large[0])
    if what is WHAT["scaling"]:
        parser.add_argument("--plot", metavar="PATH", help="file for a plot of both against n: .png, .svg or .pdf")


def _common(parser: argparse.ArgumentParser, defaults: Options) -> None:
    """Options of all; a subcommand has no defaults for them, so that they may stand before or after its name."""

    def add(flag: str, **how: Any) -> None:
        parser.add_argument(f"--{flag}", default=defaults.get(flag, argparse.SUPPRESS), **how)

    add(
        "json",
        type=json_path,
        metavar="PATH",
        help="write the results to this JSON file; - writes only JSON to standard output",
    )
    add("quick", action="store_true", help="run a tiny version, only to see that it works")
    add("threads", type=size, metavar="N", help="number of threads of torch (default: chosen by torch)")
    add("seed", type=int, metavar="N", help="random seed of the embeddings (default: 0)")


def size(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number of at least 1")
    return int(text)


def amount(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} must be a number > 0")
    return value
