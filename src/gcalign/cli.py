"""The command `gcalign`: parses, then calls one function. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any, NoReturn

from gcalign.errors import one_of

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
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the random cases (default: %(default)s)"
    )
    parser.add_argument(
        "--cases", type=int, default=200, metavar="N", help="number of cases per claim (default: %(default)s)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="LABEL",
        help="check only this claim, e.g. thm:lowest; can be repeated; an unknown label lists all labels",
    )
    parser.add_argument("--case", type=int, metavar="K", help="with --only: run case K again and print its numbers")
    parser.add_argument(
        "--json", metavar="PATH", help="write the verdicts to this JSON file; - writes only JSON to standard output"
    )

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
    parser.add_argument(
        "results",
        nargs="?",
        default="docs/results",
        help="folder of result files, with one subfolder per scale (default: %(default)s)",
    )
    parser.add_argument("--scale", default="small", metavar="NAME", help="tiny, small or paper (default: %(default)s)")
    parser.add_argument("--write", metavar="PATH", help="write the list of claims and verdicts to this Markdown file")
    parser.add_argument(
        "--json", metavar="PATH", help="write the verdicts to this JSON file; - writes only JSON to standard output"
    )
    parser.add_argument("--theorems", action="store_true", help="also run `gcalign verify` and add its verdicts")

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
        help="options: run=, protocol=, seed=, and those of the protocol; run=untrained takes model.* or like=",
    )

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.training.use import probe

        result = probe(args.overrides, progress=sys.stderr.isatty())
        spread = "" if result.std is None else f" ± {100 * result.std:.1f}"
        subject = "" if result.of is None else f"{result.of}, "
        print(
            f"{subject}{result.protocol}: {100 * result.accuracy:.1f}{spread} % on {result.split} "
            f"({result.n_test} images), {result.labels_used} labels, seed {result.seed}, "
            f"chosen: {result.hyperparameters}"
        )

    return run


@command(
    "embed",
    "write the embeddings of a data set or a folder of images",
    example="gcalign embed run=runs/gca-uot-scenes-1a2b3c4d5e data=folder data.root=pictures -o features.parquet",
)
def _embed(parser: Parser) -> Run:
    parser.add_argument("overrides", nargs="+", metavar="key=value", help="options: run=, data=, data.root=, split=")
    parser.add_argument("-o", "--output", required=True, metavar="PATH", help="the .parquet file to write")

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.training.use import embed

        print(f"written: {embed(args.overrides, args.output, progress=sys.stderr.isatty())}")

    return run


@command("list", "list the runs in a folder", example="gcalign list runs --mean")
def _list(parser: Parser) -> Run:
    parser.add_argument("folder", nargs="?", default="runs", help="folder of the runs (default: %(default)s)")
    parser.add_argument("--mean", action="store_true", help="show mean ± standard deviation over seeds for each method")

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.training.use import show

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
    parser.add_argument("folder", nargs="?", default="runs", help="folder of the runs (default: %(default)s)")
    parser.add_argument(
        "-o", "--output", default="report.html", metavar="PATH", help="file to write (default: %(default)s)"
    )
    parser.add_argument("--results", metavar="DIR", help="folder of tables and figures that `gcalign reproduce` wrote")
    parser.add_argument(
        "--runs-shown",
        type=int,
        default=9,
        metavar="N",
        help="number of runs in the interactive parts (default: %(default)s)",
    )
    parser.add_argument(
        "--images", type=int, default=256, metavar="N", help="number of rows of the plans (default: %(default)s)"
    )

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.experiments.report import report

        path = report(args.folder, args.output, results=args.results, shown=args.runs_shown, images=args.images)
        print(f"written: {path} ({path.stat().st_size / 1e6:.1f} MB)")

    return run


def main(argv: list[str] | None = None) -> int:
    """Run a command. Returns 0 if it ran, whatever its result, and 2 after an error."""
    argv = sys.argv[1:] if argv is None else argv
    if "" not in sys.path:  # an encoder given as module:function may be in the current folder
        sys.path.insert(0, "")
    try:
        args = _parsed(argv)
        args.run(args)
    except SystemExit as stop:  # argparse, after --help and --version
        return int(stop.code or 0)
    except (ValueError, TypeError, OSError) as error:
        print(f"gcalign: {error}", file=sys.stderr)
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
