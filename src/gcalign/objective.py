"""What every criterion is: a module that is called with two views."""

from __future__ import annotations

from torch import Tensor, nn

from gcalign.batch import PerSide
from gcalign.plan import Plan
from gcalign.targets import Target


class Objective(nn.Module):
    """A criterion: `criterion(z1, z2)` is the loss of two views.

    Args:
        z1: embeddings of the first views [B, D]; they need not be normalised.
        z2: embeddings of the second views [B, D].
        ids: which embeddings come from one sample. Default: by position, z1[k] and z2[k] belong together.
        labels: class of each sample, for targets such as `Labels`.
        domains: domain of each sample, for targets such as `Blocks`.
        weights: how much each sample counts.
        target: a matrix [n, m] or a `Target`, in place of the criterion's own for this call.

    Each of the optional inputs is one value for both sides or a tuple, (for z1, for z2).

    Returns:
        The loss, a 0-dim tensor; with `reduction="none"` the loss of each row, whose mean it is.

    Raises:
        ValueError: if an input has the wrong shape or a non-finite value; the message has the remedy.

    Example:
        >>> import torch, gcalign
        >>> z1, z2 = torch.randn(8, 4), torch.randn(8, 4)
        >>> gcalign.method("gca-ince")(z1, z2).shape
        torch.Size([])
    """

    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
        *,
        labels: PerSide | None = None,
        domains: PerSide | None = None,
        ids: PerSide | None = None,
        weights: PerSide | None = None,
        target: Tensor | Target | None = None,
    ) -> Tensor:
        """The loss; see the class for what it takes."""
        raise NotImplementedError

    def plan(
        self,
        z1: Tensor,
        z2: Tensor,
        *,
        target: Tensor | Target | None = None,
        gather: bool = False,
        **known: PerSide | None,
    ) -> Plan:
        """P_θ, without gradient; takes what the criterion takes."""
        raise NotImplementedError
