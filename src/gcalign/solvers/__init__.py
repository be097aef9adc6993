"""From a kernel to its proximal point: `scaling` for marginals on any operator, `dykstra` for any constraint set."""

from gcalign.solvers.conjugate import conjugate_gradients
from gcalign.solvers.dykstra import dykstra
from gcalign.solvers.near import Near
from gcalign.solvers.scaling import Marginal, Scalings, contraction, scaling

__all__ = ["Marginal", "Near", "Scalings", "conjugate_gradients", "contraction", "dykstra", "scaling"]
