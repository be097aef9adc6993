"""What `gcalign audit` takes on the command line. Nothing heavy is imported here: help answers at once."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def declare(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], None]:
    """Add the arguments; return what runs on them."""
    add = parser.add_argument
    add(
        "overrides",
        nargs="+",
        metavar="INPUT",
        help="two files of embeddings (.npy, .npz, .parquet, .safetensors; FILE:NAME chooses an array or column), or "
        "run=runs/… with folds= and options of its data such as data.root=",
    )
    add("-o", "--output", required=True, metavar="PATH", help="ranking to write: .csv, .json or .parquet")
    add("--html", metavar="PATH", help="page to write: the worst pairs and what would have fitted better")
    add("--feedback", metavar="PATH", help="weights to write (.npy), one per pair: criterion(z1, z2, weights=w)")
    add("--ids", metavar="FILE:NAME", help="names of the pairs: a parquet column, or a .txt file with one in each line")
    add("--show-a", metavar="FILE:NAME", help="texts or images of the first side for the page, in the same formats")
    add("--show-b", metavar="FILE:NAME", help="the same for the second side")
    add(
        "--folds",
        metavar="PATH",
        help="fold of each pair (.npy), if each was embedded by a model of its own; of a run, how many",
    )
    add("--worst", type=int, default=50, metavar="N", help="pairs on the page (default: %(default)s)")
    add("--score", default="plan", help="plan, cosine, csls, softmax or neighbours (default: %(default)s)")
    add("--eps", type=float, metavar="ε", help="of the plan (default: chosen without labels)")
    add(
        "--relax",
        type=float,
        default=math.inf,
        metavar="λ",
        help="of both marginals, in units of the spread of similarities; 1 where right partners are missing "
        "(default: the balanced plan)",
    )
    add("--batch", type=int, metavar="N", help="pairs solved at once (default: by the number of pairs)")
    add("--passes", type=int, metavar="N", help="passes over all pairs after the batches (default: the same)")
    add("--seed", type=int, default=0, metavar="N", help="of batches and re-paired items (default: %(default)s)")

    def run(args: argparse.Namespace) -> None:
        from gcalign.lab.audit.command import audit

        audit(args)

    return run
