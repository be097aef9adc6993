"""The theorems and claims of the paper, each checked on random cases: `gcalign verify`.

A claim is one small function that turns a random draw into the two sides of what the paper says; the modules
imported here register theirs in the paper's order.
"""

from gcalign.lab.verify import theorems  # isort: skip  # the order of import is the order of the table
from gcalign.lab.verify import rince, lemmas, uniformity, costs, paper  # isort: skip
from gcalign.lab.verify.claims import Case, Claim, Draw, claim, labels
from gcalign.lab.verify.runner import ClaimCheck, Outcome, replay, run

__all__ = [
    "Case",
    "Claim",
    "ClaimCheck",
    "Draw",
    "Outcome",
    "claim",
    "costs",
    "labels",
    "lemmas",
    "paper",
    "replay",
    "rince",
    "run",
    "theorems",
    "uniformity",
]
