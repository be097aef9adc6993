"""What every test shares: one thread, so that suites run side by side, and batches from a seed."""

from __future__ import annotations

import os
import tempfile

import pytest
import torch
from hypothesis import settings
from torch import Tensor

torch.set_num_threads(1)
os.environ.pop("COLUMNS", None)  # the width that a parallel run of tests gives to its workers
os.environ.pop("GCALIGN_DATA", None)  # tests say where their data is
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp()  # the list of places that commands named is not the user's own
settings.register_profile("gcalign", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("gcalign")


@pytest.fixture
def batch():
    """Two views [B, D] in float64, near enough to be pairs."""

    def make(b: int = 7, d: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        z1 = torch.randn(b, d, generator=generator, dtype=torch.float64)
        z2 = z1 + 0.7 * torch.randn(b, d, generator=generator, dtype=torch.float64)
        return z1.to(dtype).requires_grad_(), z2.to(dtype).requires_grad_()

    return make
