"""Which gradient a solved plan gets: the cheapest exact one, and why."""

from __future__ import annotations

from typing import NamedTuple

MODES = ("auto", "envelope", "implicit", "truncated", "unrolled")


class Choice(NamedTuple):
    """A gradient mode and why it is the one."""

    mode: str
    reason: str


def choose(
    requested: str, *, marginals: bool, constrained: bool, converged: bool, dual: bool, feasible: bool
) -> Choice:
    """The cheapest exact mode, or the one asked for if it would be exact."""
    if not marginals:
        if requested in ("auto", "unrolled"):
            return Choice(
                "unrolled", "the constraints are not only rows and columns, so autograd follows Dykstra's steps"
            )
        raise ValueError(f"gradient={requested!r} is for row and column marginals; use 'unrolled' (or 'auto') here")
    if requested == "unrolled":
        return Choice("unrolled", "asked for: autograd through every iteration")
    if not constrained:
        return Choice("envelope", "nothing is solved: P = K, so log K is all there is to differentiate")
    enveloped = dual and feasible
    if requested == "envelope" and not enveloped:
        why = "the divergence has no dual form here" if not dual else "the target's marginals are not the plan's"
        raise ValueError(f"gradient='envelope' would be wrong: {why}; use 'implicit' or 'auto'")
    if requested == "auto":
        if not converged:
            return Choice("truncated", "the plan has not converged, so its iterations are reversed one by one")
        if enveloped:
            return Choice("envelope", "the plan has converged and the target has its marginals, so ∂L/∂log K = P − T")
        why = "the divergence is not KL" if not dual else "the target does not have the plan's marginals"
        return Choice(
            "implicit",
            f"the plan has converged and {why}, so its fixed point is differentiated (where that is nearly singular, "
            "its iterations)",
        )
    return Choice(
        requested, "asked for" if converged or requested == "truncated" else "asked for, on a plan not converged"
    )
