"""K_θ as an operator: sums over its rows and columns, whether it is stored, made again, or shared among ranks."""

from gcalign.operators.base import Operator, Reference
from gcalign.operators.blocked import Blocked
from gcalign.operators.choice import operator
from gcalign.operators.dense import Dense
from gcalign.operators.sharded import Shard
from gcalign.operators.sources import Given, Inner, Pairwise, Source
from gcalign.operators.streamed import Cached, Streamed

__all__ = [
    "Blocked",
    "Cached",
    "Dense",
    "Given",
    "Inner",
    "Operator",
    "Pairwise",
    "Reference",
    "Shard",
    "Source",
    "Streamed",
    "operator",
]
