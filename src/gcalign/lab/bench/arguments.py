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


WHAT = {
    "losses": What(
        "forward plus backward of each loss against eager InfoNCE and installed peers",
        "gcalign bench losses --n 4096 --dim 128 --eps 0.5 0.1 --repeats 7 --json losses.json",
        {"n": [4096, 1024, 256], "dim": [128, 512], "eps": [0.5, 0.1, 0.05], "repeats": 7},
        {"n": [64], "dim": [16], "eps": [0.5], "repeats": 2},
    ),
    "launches": What(
        "torch operations and host waits of one step of each loss",
        "gcalign bench launches --n 256 --eps 0.1 --json launches.json",
        {"n": [256, 1024, 4096], "dim": 128, "eps": [0.5, 0.1], "iterations": 10},
        {"n": [64], "dim": 16, "eps": [0.5], "iterations": 10},
    ),
    "solvers": What(
        "plans to one marginal error, against POT",
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
        bench({name: chosen(name, args) for name in names}, args.threads, args.json)

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
        "repeats": (size, "K", "number of timed runs of each; the median is shown"),
    }
    for key, value in what.full.items():
        kind, letter, text = words[key]
        many: dict[str, Any] = {"nargs": "+"} if isinstance(value, list) else {}
        shown = " ".join(map(str, value)) if isinstance(value, list) else value
        parser.add_argument(f"--{key}", type=kind, metavar=letter, help=f"{text} (default: {shown})", **many)
    if what.large:
        parser.add_argument("--large", action="store_true", help=what.large[0])


def _common(parser: argparse.ArgumentParser, defaults: Options) -> None:
    """Options of all; a subcommand has no defaults for them, so that they may stand before or after its name."""

    def add(flag: str, **how: Any) -> None:
        parser.add_argument(f"--{flag}", default=defaults.get(flag, argparse.SUPPRESS), **how)

    to_json = "write the results to this JSON file; - prints only JSON"
    add("json", type=json_path, metavar="PATH", help=to_json)
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
