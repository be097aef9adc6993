"""Generalized contrastive alignment: contrastive learning as distribution alignment.

>>> import torch, gcalign
>>> criterion = gcalign.method("gca-uot")
>>> z1, z2 = torch.randn(8, 4, requires_grad=True), torch.randn(8, 4)
>>> criterion(z1, z2).backward()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gcalign.lab.estimator import GCAEncoder as GCAEncoder
    from gcalign.lab.training.load import load as load
    from gcalign.public import *  # noqa: F403  # the one list of public names is there

__version__ = "0.1.0"
_LAB = {"load": "gcalign.lab.training.load", "GCAEncoder": "gcalign.lab.estimator"}  # need the extra `train`


def __getattr__(name: str) -> Any:
    # imported on first use, so that `gcalign --help` does not wait for torch
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module 'gcalign' has no attribute {name!r}")
    if name in _LAB:
        return getattr(import_module(_LAB[name]), name)
    public = import_module("gcalign.public")
    if name != "__all__" and name not in public.__all__:
        raise AttributeError(f"module 'gcalign' has no attribute {name!r}")
    return getattr(public, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *import_module("gcalign.public").__all__])
