"""Two loans that are always paid back (the global random state, the train/eval mode), and the size of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from gcalign.lab.limits import within

M = TypeVar("M", bound=nn.Module)


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


def made(make: Callable[[], M], seed: int, what: str) -> M:
    """A network with weights that follow from `seed`, if it is within the limit: its size is known without them."""
    try:
        with seeded(seed), torch.device("meta"):
            number = sum(p.numel() for p in make().parameters())
    except (RuntimeError, TypeError, OverflowError):  # sizes that do not fit into 64 bits
        number = 2**63
    within("MODEL_PARAMETERS", number, f"{what}: the number of parameters")
    with seeded(seed):
        return make()
