"""Every public name; `gcalign` itself opens this room on first use."""

from gcalign import functional, methods, metrics
from gcalign.alignment import Alignment, Objective, Symmetric
from gcalign.caching import cached_backward
from gcalign.constraints import (
    BlockSums,
    Capacity,
    Columns,
    Constraint,
    Hard,
    NonNegative,
    Penalty,
    Problem,
    Relaxed,
    Rows,
    TotalVariation,
)
from gcalign.divergences import KL, W1, Divergence, Robust, SquaredL2, Summary, Uniformity
from gcalign.geometry import Entropic, Euclidean, Geometry
from gcalign.kernels import Cosine, Kernel, LogKernel, SquaredEuclidean
from gcalign.methods import method, register
from gcalign.plan import Plan, Side, Sides
from gcalign.proximal import solve
from gcalign.targets import Blocks, Hierarchy, Identity, Labels, Soft, Target, Weighted

__all__ = [
    "KL",
    "W1",
    "Alignment",
    "BlockSums",
    "Blocks",
    "Capacity",
    "Columns",
    "Constraint",
    "Cosine",
    "Divergence",
    "Entropic",
    "Euclidean",
    "Geometry",
    "Hard",
    "Hierarchy",
    "Identity",
    "Kernel",
    "Labels",
    "LogKernel",
    "NonNegative",
    "Objective",
    "Penalty",
    "Plan",
    "Problem",
    "Relaxed",
    "Robust",
    "Rows",
    "Side",
    "Sides",
    "Soft",
    "SquaredEuclidean",
    "SquaredL2",
    "Summary",
    "Symmetric",
    "Target",
    "TotalVariation",
    "Uniformity",
    "Weighted",
    "cached_backward",
    "functional",
    "method",
    "methods",
    "metrics",
    "register",
    "solve",
]
