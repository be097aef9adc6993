"""What `gcalign align` takes on the command line. Nothing heavy is imported here: help answers at once."""

from __future__ import annotations

import argparse
import math

from gcalign.lab.commands import Parser, Run, json_path


def declare(parser: Parser) -> Run:
    """Add the arguments; return what runs on them."""
    add, default = parser.add_argument, "(default: %(default)s)"
    formats = (
        ".npy, .npz, .parquet, .safetensors; FILE:NAME chooses an array or column; or a .csv of texts: FILE:COLUMN"
    )
    add("a", metavar="A", help=f"embeddings of the first side ({formats})")
    add("b", metavar="B", help="embeddings of the second side, in the same formats")
    rows = "pairs: a .csv with two columns, a row of A and a row of B, counted from 0; or .npy [P, 2]"
    add("--pairs", metavar="PATH", help=f"{rows} (default: row i with row i)")
    add("-o", "--output", required=True, metavar="DIR", help="folder to create")
    add("--method", default="auto", help=f"auto, matching, plan, infonce, cca, procrustes or ridge {default}")
    add("--dim", type=int, default=256, metavar="N", help=f"size of the common space {default}")
    add("--budget", type=int, default=3, metavar="N", help=f"number of heads that the search may train {default}")
    relaxed = "cost λ of leaving items unmatched in the plan; use 1 if many items have no partner (default: infinite)"
    add("--relax", type=float, default=math.inf, metavar="λ", help=relaxed)
    add("--no-audit", action="store_true", help="do not look for wrong pairs")
    add("--show-a", metavar="FILE:NAME", help="texts or images of the first side for the page: .txt or .parquet")
    add("--show-b", metavar="FILE:NAME", help="the same for the second side")
    add("--seed", type=int, default=0, metavar="N", help=f"random seed {default}")
    summary = "write the report to this JSON file; - prints only JSON"
    add("--json", type=json_path, metavar="PATH", help=summary)

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.align.command import align

        align(args)

    return run
