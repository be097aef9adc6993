"""Two loans that are always paid back: the global random state, and the train/eval mode of a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within, CPU draws of the global generator follow from `seed`; afterwards it continues as if nothing happened."""
    with torch.random.fork_rng(devices=[]):
        # not torch.manual_seed, which would reseed every GPU as well
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode within; afterwards each submodule is back in the mode it had, frozen ones included."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
