"""K_θ as an operator: sums over its rows and columns, whether it is stored, made again, or shared among ranks."""

from gcalign.operators.base import Operator, Reference
from gcalign.operators.blocked import Blocked
from gcalign.operators.dense import Dense
from gcalign.operators.sources import Given, Inner, Pairwise, Source
from gcalign.operators.streamed import Streamed

__all__ = ["Blocked", "Dense", "Given", "Inner", "Operator", "Pairwise", "Reference", "Source", "Streamed"]
