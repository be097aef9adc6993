"""How far a plan on the way is from its target, told from the target's support alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gcalign.support import Support


@dataclass(frozen=True)
class Near:
    """The target, and log K where it has mass."""

    support: Support
    log_k: Tensor

    def _entries(self, a: Tensor, b: Tensor) -> Tensor:
        t = self.support
        return t.where(self.log_k + t.along_rows(a) + t.along_columns(b), -torch.inf).exp()

    def distance(self, a: Tensor, b: Tensor, mass: Tensor) -> Tensor:
        """‖P − T‖₁ of the plan (a, b) with that mass: what its error is measured in."""
        p = self._entries(a, b)  # everything off the support is mass
        return (self.support.weight - p).abs().sum() + (mass - p.sum()).clamp(min=0)

    def overlap(self, a: Tensor, b: Tensor) -> Tensor:  # [m]
        """Σ_i P_ij² / (μ_i ν_j) over the support: near 1 where a column is nearly all one entry."""
        t = self.support
        return t.sum_columns(self._entries(a, b).square() / t.along_rows(t.mu)) / t.nu
