"""The NT-Xent loss of lightly, for any method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import normalize

from gcalign.alignment import Alignment
from gcalign.entries import Queue
from gcalign.interop.ranks import with_own_value, world
from gcalign.kernels import Cosine, Kernel
from gcalign.methods import method as named


class NTXentLoss(nn.Module):
    """`lightly.loss.NTXentLoss` for any method. It has the constructor and the call of the original and, with the
    default method, its loss and gradients.

    Args:
        temperature: ε. Below 0, as there, unlike embeddings are the similar ones.
        memory_bank_size: 0, the number of keys, or (number of keys, dimension). The keys are then the negatives, as in
            MoCo: see `Queue`. They start as random unit vectors; without a dimension, in the first call. `out1` is
            pushed if `out0` has a gradient. One thing differs: no key is dropped if the size is not a multiple of the
            batch.
        gather_distributed: whether the batches of all processes are joined. The value is the mean over this rank's
            own rows.
        method: the name of a method, e.g. "gca-ince". The default is NT-Xent.
        options: options of the method other than `eps`.

    Example:
        >>> import torch
        >>> from gcalign.interop.lightly import NTXentLoss
        >>> criterion = NTXentLoss(temperature=0.2, memory_bank_size=(16, 4), method="gca-ince")
        >>> criterion(torch.randn(8, 4, requires_grad=True), torch.randn(8, 4)).shape
        torch.Size([])
    """

    def __init__(
        self,
        temperature: float = 0.5,
        memory_bank_size: int | Sequence[int] = 0,
        gather_distributed: bool = False,
        *,
        method: str = "simclr",
        **options: Any,
    ) -> None:
        super().__init__()
        size = [memory_bank_size] if isinstance(memory_bank_size, int) else list(memory_bank_size)
        if len(size) not in (1, 2) or not all(isinstance(n, int) and n >= 0 for n in size):
            raise ValueError(
                f"memory_bank_size={memory_bank_size} must be 0, the number of keys, or that and their dimension, "
                "e.g. (4096, 128)"
            )
        if abs(temperature) < 1e-8:
            raise ValueError(f"temperature={temperature} must not be 0; 0.5 is the default")
        if gather_distributed and not dist.is_available():
            raise ValueError("gather_distributed=True needs torch.distributed, which this torch has not; leave it out")
        self.temperature, self.gather_distributed = temperature, gather_distributed
        if size[0]:
            options = {"layout": "cross", **options}
        reduction = "none" if gather_distributed else "mean"
        self.criterion: Any = named(
            method, eps=abs(temperature), gather=gather_distributed, reduction=reduction, **options
        )
        if temperature < 0:
            if not isinstance(self.criterion, Alignment) or not isinstance(self.criterion.kernel, Cosine):
                raise ValueError(f"temperature={temperature} must be > 0 for method={method!r}; try 'simclr'")
            self.criterion.kernel = _Repelling(-temperature)
        self._keys = size[0]
        self.memory_bank = self._bank(*size) if len(size) == 2 and size[0] else None
        self._equal = False  # whether the banks of all ranks are known to be equal

    def _bank(self, size: int, dim: int) -> Queue:
        bank = Queue(size, dim, gather=self.gather_distributed)
        bank.keys.copy_(normalize(torch.randn(size, dim), dim=-1))
        bank.pushed.fill_(size)
        return bank

    def forward(self, out0: Tensor, out1: Tensor) -> Tensor:  # [B, D], [B, D] -> []
        """The loss of two views."""
        if self._keys and self.memory_bank is None:
            self.memory_bank = self._bank(self._keys, out1.shape[1]).to(out1)
        bank = self.memory_bank
        if bank is not None and self.gather_distributed and not self._equal and world() > 1:
            dist.broadcast(bank.keys, 0)
            self._equal = True
        loss: Tensor = self.criterion(out0, out1, queue=bank)
        if bank is not None and out0.requires_grad:
            bank.push(normalize(out1.detach(), dim=1))
        return with_own_value(loss, len(out0)) if self.gather_distributed else loss

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}, gather_distributed={self.gather_distributed}"


class _Repelling(Kernel):
    """log K = −(1 + cos)/ε: a negative temperature."""

    def features(self, z: Tensor) -> Tensor:
        return normalize(z, dim=1)

    def cost(self, x: Tensor, y: Tensor) -> Tensor:
        return 1 + x @ y.T
