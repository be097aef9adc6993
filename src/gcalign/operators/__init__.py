"""The kernel as an operator: log(K v), log(Kᵀ u), products with a scaled plan, and its row blocks."""

from gcalign.operators.base import Given, Operator, Pairwise, Scaled, Source
from gcalign.operators.dense import Dense
from gcalign.operators.streamed import Streamed

__all__ = ["Dense", "Given", "Operator", "Pairwise", "Scaled", "Source", "Streamed"]
