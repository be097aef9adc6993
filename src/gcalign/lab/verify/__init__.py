"""The theorems and claims of the paper, each checked on random cases: `gcalign verify`.

A claim is one small function that turns a random draw into the two sides of what the paper says; the modules
imported here register theirs in the paper's order.
"""

from gcalign.lab.verify import theorems, rince, lemmas, uniformity, costs, paper, shift  # noqa: F401, I001  # order of the table
from gcalign.lab.verify.claims import MEANS, ClaimCheck, labels, replay, run, summary

__all__ = ["MEANS", "ClaimCheck", "labels", "replay", "run", "summary"]
