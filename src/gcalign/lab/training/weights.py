"""The weights of pairs that `pairs.weights` names: a file that the command gives, known to its run by a digest."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gcalign.lab import arrays, files
from gcalign.lab.words import explained, path_of

if TYPE_CHECKING:
    from gcalign.lab.training.config import PairOptions


def digest(path: str) -> str:
    """A hash of the file's bytes."""
    return _read(path)[1]


def _read(path: str) -> tuple[bytes, str]:
    remedy = "`gcalign audit … --feedback weights.npy` writes one"
    with explained(f"pairs.weights={path} cannot be read", remedy, OSError):
        content = files.read(path_of(path), "ARRAY_BYTES")
    return content, hashlib.sha256(content).hexdigest()[:10]


def weights_of_pairs(pairs: PairOptions, n: int) -> Tensor | None:  # [n]
    """A weight for each of n pairs, or None if the run has no weights."""
    if pairs.weights is None:
        return None
    content, known = _read(pairs.weights)
    if known != pairs.digest:
        raise ValueError(f"pairs.weights={pairs.weights} is not the file the run was configured with; train it again")
    with explained(f"pairs.weights={pairs.weights} cannot be read", "it must be numbers in an npy file", TypeError):
        weights = torch.tensor(arrays.from_bytes(content, path_of(pairs.weights))).float()
    if weights.shape != (n,) or not bool((weights >= 0).all() & weights.isfinite().all()):
        raise ValueError(
            f"pairs.weights={pairs.weights} has the shape {tuple(weights.shape)}; it must have a finite weight ≥ 0 for "
            f"each of the {n} pairs: audit this run's pairs, with the same data"
        )
    return weights
