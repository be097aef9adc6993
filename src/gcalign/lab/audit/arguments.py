"""What `gcalign audit` takes on the command line. Nothing heavy is imported here: help answers at once."""

from __future__ import annotations

import argparse

from gcalign.lab.commands import Parser, Run, json_path


def declare(parser: Parser) -> Run:
    """Add the arguments; return what runs on them."""
    parser.keys |= dict.fromkeys(("run", "folds", "views", "encoder", "data.root"), ())
    add, by_size = parser.add_argument, "(default: depends on the number of pairs)"
    add(
        "overrides",
        nargs="+",
        metavar="INPUT",
        help="a table (.csv, .jsonl, .parquet) and the names of two columns with texts, images or lists of numbers; or "
        "two files of embeddings (.npy, .npz, .parquet, .safetensors; FILE:NAME chooses an array or column); or "
        "run=runs/… with folds= and options of its data such as data.root=",
    )
    add("-o", "--output", metavar="PATH", help="write the ranking of all pairs: .csv, .json or .parquet")
    add("--clean", metavar="PATH", help="write the table without the flagged pairs, in its own format")
    add(
        "--suggest",
        metavar="PATH",
        help="write better partners for flagged pairs and suspects: .csv or .jsonl",
    )
    add(
        "--fit",
        default="auto",
        choices=("auto", "never"),
        help="auto trains cross-fitted encoders if the sides are not embeddings of one space; never refuses to "
        "(default: %(default)s)",
    )
    add("--html", metavar="PATH", help="write an HTML page with the worst pairs and better partners")
    add("--feedback", metavar="PATH", help="write a weight per pair (.npy), for criterion(z1, z2, weights=w)")
    summary = "write the summary and the worst pairs to this JSON file; - prints only JSON"
    add("--json", type=json_path, metavar="PATH", help=summary)
    add(
        "--ids",
        metavar="FILE:NAME",
        help="names of the pairs: a column of the table, or a parquet column or .txt file",
    )
    add("--show-a", metavar="FILE:NAME", help="texts or images of the first side for the page: .txt or .parquet")
    add("--show-b", metavar="FILE:NAME", help="the same for the second side")
    add(
        "--folds",
        metavar="PATH",
        help="file (.npy) with the fold of each pair, if each fold has a model of its own; "
        "with run=, the number of folds",
    )
    add(
        "--worst",
        type=int,
        default=50,
        metavar="N",
        help="number of pairs on the HTML page and in --json (default: %(default)s)",
    )
    add(
        "--score",
        default="plan",
        help="how pairs are scored: plan, cosine, csls, softmax or neighbours (default: %(default)s)",
    )
    add("--eps", type=float, metavar="ε", help="temperature of the plan (default: chosen without labels)")
    add("--batch", type=int, metavar="N", help=f"number of pairs in one plan {by_size}")
    add("--passes", type=int, metavar="N", help=f"passes over all pairs after the batches {by_size}")
    add("--seed", type=int, default=0, metavar="N", help="random seed (default: %(default)s)")

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.audit.command import audit

        audit(args)

    return run
