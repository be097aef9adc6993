"""The command `gcalign`: parses, then calls one function. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # `python -m` puts the current folder first, where a file would stand in for any module

import argparse
import os
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any, NoReturn

from gcalign.errors import one_of
from gcalign.lab.terminal import steady
from gcalign.lab.words import printable

Run = Callable[[argparse.Namespace], None]
_COMMANDS: dict[str, Callable[[Any], None]] = {}


class Parser(argparse.ArgumentParser):
    """A parser that reports bad usage as one line, with a remedy."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def command(name: str, does: str, *, example: str) -> Callable[[Callable[[Parser], Run]], Callable[[Parser], Run]]:
    """Make a function a subcommand: it declares its arguments and returns the function that runs on them."""

    def add(declare: Callable[[Parser], Run]) -> Callable[[Parser], Run]:
        def build(subparsers: Any) -> None:
            parser = subparsers.add_parser(
                name,
                help=does,
                description=f"{does[0].upper()}{does[1:]}.",
                epilog=f"example:\n  {example}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
            parser.set_defaults(run=declare(parser))

        _COMMANDS[name] = build
        return declare

    return add


@command(
    "verify",
    "check the paper's theorems and claims on random batches",
    example="gcalign verify --only thm:gcarince --only thm:lowest --cases 1000",
)
def _verify(parser: Parser) -> Run:
    add, only = parser.add_argument, "check only this claim, e.g. thm:lowest; can be repeated"
    add("--seed", type=int, default=0, metavar="N", help="seed of the random cases (default: %(default)s)")
    add("--cases", type=int, default=200, metavar="N", help="number of cases per claim (default: %(default)s)")
    add("--only", action="append", default=[], metavar="LABEL", help=f"{only}; an unknown label lists all labels")
    add("--case", type=int, metavar="K", help="with --only: run case K again and print its numbers")
    add("--json", metavar="PATH", help="write the verdicts to this JSON file; - writes only JSON to standard output")

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.verify.command import verify

        verify(args.only, seed=args.seed, cases=args.cases, case=args.case, to_json=args.json)

    return run


@command(
    "claims",
    "compare the paper's empirical claims with result files",
    example="gcalign claims docs/results --scale small --write docs/claims.md",
)
def _claims(parser: Parser) -> Run:
    add, folder = parser.add_argument, "folder of result files, with one subfolder per scale (default: %(default)s)"
    add("results", nargs="?", default="docs/results", help=folder)
    add("--scale", default="small", metavar="NAME", help="tiny, small or paper (default: %(default)s)")
    add("--write", metavar="PATH", help="write the list of claims and verdicts to this Markdown file")
    add("--json", metavar="PATH", help="write the verdicts to this JSON file; - writes only JSON to standard output")
    add("--theorems", action="store_true", help="also run `gcalign verify` and add its verdicts")

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.experiments.claims import claims

        claims(args.results, scale=args.scale, write=args.write, to_json=args.json, theorems=args.theorems)

    return run


@command(
    "demo",
    "pretrain three methods on the embedded data, probe them and write a report",
    example="gcalign demo --seed 1",
)
def _demo(parser: Parser) -> Run:
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: %(default)s)")
    parser.add_argument("--runs", default="runs/demo", metavar="DIR", help="folder for the runs (default: %(default)s)")
    parser.add_argument(
        "-o", "--output", metavar="PATH", help="file of the report (default: report.html in the folder of the runs)"
    )

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.demo import demo

        demo(args.runs, args.seed, args.output)

    return run


@command(
    "train",
    "pretrain an encoder; the same command continues an interrupted run",
    example="gcalign train method=gca-uot data=cifar10 data.root=../shared/data epochs=15 seed=0",
)
def _train(parser: Parser) -> Run:
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="options: method=, data=, recipe=, epochs=, seed=, …"
    )

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.training.config import configured
        from gcalign.lab.training.train import train

        train(configured(args.overrides))

    return run


@command(
    "probe",
    "measure the accuracy of a run's encoder: linear, linear-fast, knn, finetune or few-shot",
    example="gcalign probe run=runs/gca-uot-scenes-1a2b3c4d5e protocol=few-shot labels=200",
)
def _probe(parser: Parser) -> Run:
    parser.add_argument(
        "overrides",
        nargs="+",
        metavar="key=value",
        help="options: run=, protocol=, seed=, and those of the protocol; run=untrained takes model.* or like=; "
        "encoder=module:function for a run that was made with an encoder of your own",
    )

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.training.use import probe

        print(probe(args.overrides, progress=sys.stderr.isatty()))

    return run


@command(
    "embed",
    "write the embeddings of a data set or a folder of images",
    example="gcalign embed run=runs/gca-uot-scenes-1a2b3c4d5e data=folder data.root=pictures -o features.parquet",
)
def _embed(parser: Parser) -> Run:
    options = "options: run=, encoder=, data=, data.root=, split="
    parser.add_argument("overrides", nargs="+", metavar="key=value", help=options)
    parser.add_argument("-o", "--output", required=True, metavar="PATH", help="the .parquet file to write")

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.training.use import embed

        print(f"written: {embed(args.overrides, args.output, progress=sys.stderr.isatty())}")

    return run


@command(
    "export",
    "write a run's encoder for other programs, with a model card, after a comparison with the original",
    example="gcalign export run=runs/gca-uot-scenes-1a2b3c4d5e format=onnx -o encoder",
)
def _export(parser: Parser) -> Run:
    options = "options: run=, format=onnx|torch-export|safetensors, encoder="
    parser.add_argument("overrides", nargs="+", metavar="key=value", help=options)
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="the folder to write, which must be new")

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.training.export import export

        print(f"written: {export(args.overrides, args.output)}")

    return run


@command("list", "list the runs in a folder", example="gcalign list runs --mean")
def _list(parser: Parser) -> Run:
    parser.add_argument("folder", nargs="?", default="runs", help="folder of the runs (default: %(default)s)")
    parser.add_argument("--mean", action="store_true", help="show mean ± standard deviation over seeds for each method")

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.training.listing import show

        show(args.folder, mean=args.mean)

    return run


def _elsewhere(parser: Parser) -> Run:
    """Arguments that the module `arguments` of the command's folder declares; it is as light as this module."""
    declare: Callable[[Parser], Run] = import_module(f"gcalign.lab.{parser.prog.split()[-1]}.arguments").declare
    return declare(parser)


command(
    "audit",
    "rank pairs by how badly they fit, from two files of embeddings or by cross-fitting a run",
    example="gcalign audit images.npy texts.npy -o ranking.csv --html worst.html --feedback weights.npy",
)(_elsewhere)
command(
    "bench",
    "measure time and memory of losses and solvers, compared with InfoNCE and other installed libraries",
    example="gcalign bench losses --n 4096 --json losses.json",
)(_elsewhere)


@command(
    "reproduce",
    "run the experiments of a table or figure of the paper and draw it; the same command continues an interrupted run",
    example="gcalign reproduce table1 scale=small data.root=../shared/data jobs=2",
)
def _reproduce(parser: Parser) -> Run:
    from gcalign.lab.experiments import suite  # as light as this module

    known = "\n".join(f"  {name:18} {suite.named(name).does}" for name in suite.names())
    parser.epilog = f"names:\n{known}\n\n{parser.epilog}"
    parser.add_argument("name", help="table or figure, from the list below")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="scale=tiny|small|paper, jobs= (processes), runs= and out= (folders), redraw=true (from result files), "
        "partial=true (what is finished), dry=true (show the commands), launcher=basic|joblib|ray|submitit_slurm; "
        "anything else is an option of `gcalign train` for every run, e.g. data.root=…",
    )

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.experiments.command import reproduce

        reproduce(args.name, args.overrides)

    return run


@command(
    "report",
    "write an HTML page with runs and results: tables, interactive plans, curves, neighbours, suspicious pairs",
    example="gcalign report runs/small -o report.html --results docs/results/small",
)
def _report(parser: Parser) -> Run:
    add, default = parser.add_argument, "(default: %(default)s)"
    add("folder", nargs="?", default="runs", help=f"folder of the runs {default}")
    add("-o", "--output", default="report.html", metavar="PATH", help=f"file to write {default}")
    add("--results", metavar="DIR", help="folder of tables and figures that `gcalign reproduce` wrote")
    add("--runs-shown", type=int, default=9, metavar="N", help=f"number of runs in the interactive parts {default}")
    add("--images", type=int, default=256, metavar="N", help=f"number of rows of the plans {default}")
    own = "an encoder of your own that runs were made with, to be imported; can be repeated"
    add("--encoder", action="append", default=[], metavar="MODULE:FUNCTION", help=own)
    named = "folder of data sets that runs of other users name, to be read; can be repeated"
    add("--data-root", action="append", default=[], metavar="DIR", help=named)

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.experiments.report import report

        named = {"results": args.results, "encoders": args.encoder, "roots": args.data_root}
        path = report(args.folder, args.output, shown=args.runs_shown, images=args.images, **named)
        print(f"written: {path} ({path.stat().st_size / 1e6:.1f} MB)")

    return run


def main(argv: list[str] | None = None) -> int:
    """Run a command. Returns 0 if it ran, whatever its result, and 2 after an error."""
    argv = sys.argv[1:] if argv is None else argv
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # processes that a command starts do not look in the current folder
    with steady():
        return _run(argv)


def _run(argv: list[str]) -> int:
    try:
        args = _parsed(argv)
        args.run(args)
    except SystemExit as stop:  # argparse, after --help and --version
        return int(stop.code or 0)
    except (ValueError, TypeError, OSError, MemoryError) as error:
        said = str(error) or "not enough memory; try a smaller batch_size= or data.size="
        print(f"gcalign: {printable(said)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parsed(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="gcalign",
        description="Generalized contrastive alignment: contrastive learning as distribution alignment.",
        epilog="example:\n  gcalign verify\n\n`gcalign COMMAND --help` describes a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gcalign {version('gcalign')}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for build in _COMMANDS.values():
        build(subparsers)
    named = next((word for word in argv if not word.startswith("-")), None)
    if named is not None:
        one_of("command", named, _COMMANDS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
