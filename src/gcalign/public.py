"""Every public name. `gcalign` imports this module when one of them is first used."""

from gcalign import functional, methods, metrics
from gcalign.aligning.aligner import Aligner, align
from gcalign.alignment import Alignment, Symmetric
from gcalign.auditing.door import audit
from gcalign.auditing.result import Audit
from gcalign.batch import Side, Sides
from gcalign.constraints import (
    BlockSums,
    Capacity,
    Columns,
    Constraint,
    Hard,
    NonNegative,
    Penalty,
    Relaxed,
    Rows,
    TotalMass,
    TotalVariation,
)
from gcalign.divergences import KL, W1, Divergence, Logistic, Robust, SquaredL2, Uniformity
from gcalign.entries import Queue
from gcalign.functional import solve
from gcalign.geometry import Entropic, Euclidean, Geometry
from gcalign.interop.caching import cached_backward
from gcalign.interop.guides import guided
from gcalign.kernels import Cosine, Kernel, LogKernel, SquaredEuclidean
from gcalign.methods import method, register
from gcalign.objective import Objective
from gcalign.plan import Plan
from gcalign.targets import Blocks, Hierarchy, Identity, Labels, Soft, Target, Teacher, Weighted
from gcalign.transport.problem import Problem
from gcalign.transport.support import Full, Pairs, Support

__all__ = [
    "KL", "W1", "Aligner", "Alignment", "Audit", "BlockSums", "Blocks", "Capacity", "Columns", "Constraint",
    "Cosine", "Divergence", "Entropic", "Euclidean", "Full", "Geometry", "Hard", "Hierarchy", "Identity", "Kernel",
    "Labels", "LogKernel", "Logistic", "NonNegative", "Objective", "Pairs", "Penalty", "Plan", "Problem", "Queue",
    "Relaxed", "Robust", "Rows", "Side", "Sides", "Soft", "SquaredEuclidean", "SquaredL2", "Support", "Symmetric",
    "Target", "Teacher", "TotalMass", "TotalVariation", "Uniformity", "Weighted", "align", "audit",
    "cached_backward", "functional", "guided", "method", "methods", "metrics", "register", "solve",
]  # fmt: skip
