"""The loss of OpenCLIP, for any method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from gcalign.alignment import Symmetric, Transposed
from gcalign.errors import count
from gcalign.interop.ranks import with_own_value, world
from gcalign.kernels import Cosine, Factors, Kernel
from gcalign.methods import method as named


class ClipLoss(nn.Module):
    """`open_clip.ClipLoss` for any method: the mean of the loss from images to texts and of that from texts to images.

    It has the constructor and the call of the original and, with the default method, its loss and gradients. ε is
    1 / logit_scale, with the gradient that logit_scale needs. As there, features are not normalised: the model does it.

    Args:
        local_loss: whether the value is the mean over this rank's own rows.
        gather_with_grad: whether the features of other ranks get a gradient.
        cache_labels: has no effect.
        rank: this process.
        world_size: the number of processes whose features are joined.
        use_horovod: must be False.
        method: the name of a method with the cosine kernel, e.g. "gca-uot".
        options: options of the method other than `eps` and `layout`.

    Example:
        >>> import torch
        >>> from gcalign.interop.openclip import ClipLoss
        >>> image, text = torch.eye(4, requires_grad=True), torch.eye(4)
        >>> logit_scale = torch.tensor(10.0, requires_grad=True)
        >>> ClipLoss(method="gca-uot")(image, text, logit_scale, output_dict=True)["contrastive_loss"].backward()
        >>> logit_scale.grad.shape
        torch.Size([])
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        method: str = "ince",
        **options: Any,
    ) -> None:
        super().__init__()
        if use_horovod:
            raise ValueError("use_horovod=True is not supported; start the processes with torchrun instead")
        for word in ("eps", "layout", "gather", "reduction"):
            if word in options:
                why = "eps is 1 / logit_scale" if word == "eps" else "the call and the other arguments decide it"
                raise TypeError(f"{word}={options[word]!r} cannot be chosen here, {why}; leave it out")
        self.local_loss, self.gather_with_grad, self.cache_labels = local_loss, gather_with_grad, cache_labels
        self.rank, self.world_size = rank, count("world_size", world_size, "the number of processes")
        objective = named(
            method, layout="cross", gather=world_size > 1, reduction="none" if local_loss else "mean", **options
        )
        self.criterion: Any = objective.alignment if isinstance(objective, Symmetric) else objective
        if not isinstance(self.criterion.kernel, Cosine):
            raise ValueError(f"method={method!r} has not the cosine kernel, which logits need; try 'ince' or 'gca-uot'")
        self.kernel = self.criterion.kernel = _Logits()

    def forward(
        self,
        image_features: Tensor,  # [B, D]
        text_features: Tensor,  # [B, D]
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """The loss; with `output_dict`, under the name "contrastive_loss"."""
        joined = self.world_size > 1
        if joined and (world() != self.world_size or dist.get_rank() != self.rank):
            raise ValueError(
                f"rank={self.rank} and world_size={self.world_size} must be those of the process group, which has "
                f"{world()} processes; call torch.distributed.init_process_group first, or leave both out"
            )
        a, b = image_features, text_features
        if joined and not self.gather_with_grad and not self.local_loss:  # as there: a rank's share, not times ranks
            a, b = (z.detach() + (z - z.detach()) / self.world_size for z in (a, b))
        constant = joined and not self.gather_with_grad and self.local_loss  # as there: columns have no gradient
        with self.kernel.at(logit_scale, logit_bias):
            there = self.criterion(a, b.detach() if constant else b)
            back = self.criterion(b, a.detach() if constant else a, target=Transposed(self.criterion.target))
        loss = 0.5 * (there + back)
        if self.local_loss:
            loss = with_own_value(loss, len(a)) if joined else loss.mean()
        return {"contrastive_loss": loss} if output_dict else loss

    def extra_repr(self) -> str:
        return f"local_loss={self.local_loss}, gather_with_grad={self.gather_with_grad}, world_size={self.world_size}"


class _Logits(Kernel):
    """log K = scale·(⟨x, y⟩ − 1) + bias, with values for each call."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self._now: tuple[Tensor | float, Tensor | float] = (1.0, 0.0)

    @contextmanager
    def at(self, scale: Tensor | float, bias: Tensor | float | None) -> Iterator[None]:
        """Use these values until the end of a `with`."""
        number = float(scale.detach() if isinstance(scale, Tensor) else scale)
        if not number > 0:
            raise ValueError(f"logit_scale={number:g} must be > 0; pass the exponential of the learnt parameter")
        learnt = isinstance(scale, Tensor) and scale.requires_grad
        self._now = (
            scale.reshape(()) if learnt and isinstance(scale, Tensor) else number,
            0.0 if bias is None else bias,
        )
        try:
            yield
        finally:
            self._now = (1.0, 0.0)  # keeps no graph

    @property
    def eps(self) -> Tensor | float:
        return 1 / self._now[0]

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        scale, bias = self._now
        return 1 - x @ y.T - bias / scale

    def factors(self, x: Tensor, y: Tensor) -> Factors | None:
        scale, bias = (torch.as_tensor(value, dtype=x.dtype, device=x.device) for value in self._now)
        return Factors(x * scale, y, (bias - scale).view(1), x.new_zeros(1))

    def extra_repr(self) -> str:
        return "eps=1/logit_scale"
