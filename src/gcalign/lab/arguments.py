"""The commands of `gcalign`: what each takes, and the function that it calls. It imports nothing heavy."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path

from gcalign.lab.commands import COMMANDS, Parser, Run, add_subcommand, calling, command, elsewhere, json_path, output
from gcalign.lab.words import printable

_JSON = "to this JSON file; - prints only JSON"
ORDER = (
    "audit", "align", "demo", "train", "probe", "report", "list", "embed", "export",
    "reproduce", "claims", "verify", "bench", "completion",
)  # of the help: what most people come for stands first  # fmt: skip


def _written(path: Path) -> None:
    print(f"written: {path}" + (f" ({path.stat().st_size / 1e6:.1f} MB)" if path.suffix == ".html" else ""))


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
    add("--json", type=json_path, metavar="PATH", help=f"write the verdicts {_JSON}")
    return calling("gcalign.lab.verify.command:verify", json="to_json")


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
    add("--json", type=json_path, metavar="PATH", help=f"write the verdicts {_JSON}")
    add("--theorems", action="store_true", help="also run `gcalign verify` and add its verdicts")
    own = "also judge the claims of an experiment of your own; can be repeated"
    add("--experiment", action="append", default=[], metavar="MODULE:EXPERIMENT", help=own)
    target = "gcalign.lab.experiments.engine.ledger:claims"
    return calling(target, results="folder", json="to_json", experiment="experiments")


@command(
    "demo",
    "train three methods on built-in data, measure them and write a report",
    example="gcalign demo --seed 1",
)
def _demo(parser: Parser) -> Run:
    add, default = parser.add_argument, "(default: %(default)s)"
    add("--seed", type=int, default=0, metavar="N", help=f"random seed {default}")
    add("--runs", default="runs/demo", metavar="DIR", help=f"folder for the runs {default}")
    add("-o", "--output", metavar="PATH", help="file of the report (default: report.html in the folder of the runs)")
    add("--json", type=json_path, metavar="PATH", help=f"write the rows of the table {_JSON}")
    return calling("gcalign.lab.demo:demo", runs="folder", json="to_json")


@command(
    "train",
    "pretrain an encoder; the same command continues an interrupted run",
    example="gcalign train method=gca-uot data=cifar10 data.root=data epochs=15 seed=0",
)
def _train(parser: Parser) -> Run:
    from gcalign.lab.training import keys
    from gcalign.lab.training.config import COMMON

    parser.add_argument("overrides", nargs="*", metavar="key=value", help="the keys below; dry=true only shows the run")
    parser.epilog = f"{keys.help_text()}\n\n{parser.epilog}"
    parser.keys |= {key.name: key.values for key in keys.every()} | {"dry": ("true",)}
    parser.keys |= {f"method.{name}": () for own in keys.options().values() for name, _ in own}
    parser.keys |= {f"method.{name}": () for name in COMMON}

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.training.config import configured, criterion_of

        words = [word for word in args.overrides if word != "dry=true"]
        config = configured(words)
        if len(words) < len(args.overrides):
            config.data.check_place()
            criterion_of(config)  # refuses options that no loss takes
            if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":  # of torchrun's or SLURM's processes
                print(keys.resolved(config))
            return

        from gcalign.lab.training.train import train

        train(config)

    return run


@command(
    "probe",
    "measure the accuracy of a run's encoder: linear probe, nearest neighbours, few labels, retrieval and others",
    example="gcalign probe run=runs/gca-uot-scenes-1a2b3c4d5e protocol=few-shot labels=200",
)
def _probe(parser: Parser) -> Run:
    parser.takes(
        "run=",
        "protocol=linear|linear-fast|knn|finetune|few-shot|domain|across-domains|cifar10c|retrieval|zeroshot",
        *("seed=", "device=", "encoder=", "like=", "data=", "data.root=", "data.limit="),
        more=", and those of the protocol, e.g. labels=; run=untrained and run=pixels take like=RUN; "
        "encoder=module:function for a run with an encoder of your own",
    )
    parser.add_argument("--json", type=json_path, metavar="PATH", help=f"write the result with its parts {_JSON}")

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.training.probe import probe

        result = probe(args.overrides, progress=sys.stderr.isatty())
        output(result.as_dict, args.json, lambda: print(printable(result)))

    return run


@command(
    "embed",
    "write the embeddings of a data set, a folder of images or a column of a table",
    example="gcalign embed run=runs/gca-uot-scenes-1a2b3c4d5e data=folder data.root=pictures -o features.parquet",
)
def _embed(parser: Parser) -> Run:
    parser.takes("run=", "encoder=", "data=", "data.root=", "split=", "column=", "device=")
    parser.add_argument("-o", "--output", required=True, metavar="PATH", help="the .parquet or .npy file to write")
    return calling("gcalign.lab.training.embed:embed", show=_written)


@command(
    "export",
    "export a run's encoder for use without gcalign, with a model card; the result is checked against the original",
    example="gcalign export run=runs/gca-uot-scenes-1a2b3c4d5e format=onnx -o encoder",
)
def _export(parser: Parser) -> Run:
    parser.takes("run=", "format=onnx|torch-export|safetensors", "encoder=", "column=")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="folder to create")
    return calling("gcalign.lab.training.export:export", show=_written)


@command("list", "list the runs in a folder", example="gcalign list runs")
def _list(parser: Parser) -> Run:
    parser.add_argument("folder", nargs="?", default="runs", help="folder of the runs (default: %(default)s)")
    parser.add_argument("--json", type=json_path, metavar="PATH", help=f"write the rows as numbers {_JSON}")

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.training.listing import records, show

        output(lambda: records(args.folder), args.json, lambda: show(args.folder))

    return run


command(
    "audit",
    "find wrong pairs in a table, in two files of embeddings, or in the data of a run",
    example="gcalign audit images.npy texts.npy -o ranking.csv --html worst.html --feedback weights.npy",
)(elsewhere)
command(
    "align",
    "map the embeddings of two models into one space, from a few known pairs and unpaired items",
    example="gcalign align images.npy texts.npy --pairs pairs.csv -o aligned",
)(elsewhere)
command(
    "bench",
    "measure time and memory of losses and solvers, compared with InfoNCE and other installed libraries",
    example="gcalign bench losses --n 4096 --json losses.json",
)(elsewhere)


@command(
    "reproduce",
    "run the experiments behind a table or figure and draw it; the same command continues an interrupted run",
    example="gcalign reproduce table1 scale=small data.root=data jobs=2",
)
def _reproduce(parser: Parser) -> Run:
    from gcalign.lab.experiments.engine import experiment  # as light as this module

    known = "\n".join(f"  {name:22} {experiment.named(name).does}" for name in experiment.names())
    parser.epilog = f"names:\n{known}\n\n{parser.epilog}"
    parser.names = experiment.names()
    parser.add_argument("name", help="table or figure, from the list below; or module:EXPERIMENT of your own")
    parser.takes(
        "scale=tiny|small|paper",
        *("jobs=", "runs=", "out=", "redraw=true", "partial=true", "dry=true"),
        "launcher=basic|joblib|ray|submitit_slurm",
        nargs="*",
        more="; jobs is a number of processes, runs and out are folders, redraw draws from result files, partial draws "
        "what is finished, dry shows the commands; other keys are options of `gcalign train` for every run",
    )
    return calling("gcalign.lab.experiments.engine.command:reproduce")


@command(
    "report",
    "write an HTML page on runs and results: accuracies, curves, views, maps, interactive plans, suspicious pairs",
    example="gcalign report runs/small -o report.html --results docs/results/small",
)
def _report(parser: Parser) -> Run:
    add, default = parser.add_argument, "(default: %(default)s)"
    add("folder", nargs="?", default="runs", help=f"folder of the runs {default}")
    add("-o", "--output", default="report.html", metavar="PATH", help=f"file to write {default}")
    add("--results", metavar="DIR", help="folder of tables and figures that `gcalign reproduce` wrote")
    add("--runs-shown", type=int, default=9, metavar="N", help=f"number of runs in the interactive parts {default}")
    add("--images", type=int, default=256, metavar="N", help=f"number of images in maps and plans {default}")
    own = "encoder of your own that runs were made with, to be imported; can be repeated"
    add("--encoder", action="append", default=[], metavar="MODULE:FUNCTION", help=own)
    named = "folder of data sets that may be read for the runs of other users; can be repeated"
    add("--data-root", action="append", default=[], metavar="DIR", help=named)
    target = "gcalign.lab.report.command:report"
    return calling(target, show=_written, runs_shown="shown", encoder="encoders", data_root="roots")


@command(
    "completion",
    "print a script for tab completion in bash, zsh or fish",
    example="gcalign completion bash >> ~/.bashrc",
)
def _completion(own: Parser) -> Run:
    from gcalign.lab.completion import SCRIPTS, candidates

    own.add_argument("shell", choices=[*SCRIPTS, "words"], help="words: the possible completions of LINE")
    own.add_argument("line", nargs="?", default="", metavar="LINE", help="the line as it is typed, up to the cursor")

    def run(args: argparse.Namespace) -> None:
        print(SCRIPTS.get(args.shell) or "\n".join(candidates(parser, args.line)))

    return run


def parser(names: Collection[str] = COMMANDS) -> Parser:
    """The parser of all commands; those of `names` have their arguments, of the others it knows what they do."""
    whole = Parser(
        prog="gcalign",
        description="Find wrong pairs, align two encoders, and train with generalized contrastive alignment.",
        epilog="example:\n  gcalign demo\n\n`gcalign COMMAND --help` describes a command.\n"
        "Exit codes: 0 success, 1 some runs of `reproduce` failed, 2 an error, which is printed, 130 interrupted.\n"
        "NO_COLOR=1 turns colours off; COLUMNS=40 sets the width of tables.",
    )
    whole.add_argument("--version", action="version", version=f"gcalign {version('gcalign')}")
    whole.add_argument("--debug", action="store_true", help="print the traceback of an error; works with every command")
    subparsers = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in sorted(COMMANDS, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER)):
        about = COMMANDS[name]
        own = add_subcommand(subparsers, name, about.does, about.example)
        if name in names:
            own.set_defaults(run=about.declare(own))
    return whole
