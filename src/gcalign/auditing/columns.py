"""What is audited: two matrices, or two columns of a table with texts, numbers or images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gcalign.auditing.crossfit import ImageItems, Items, NumberItems, TextItems
from gcalign.errors import did_you_mean

SIDE = 32  # pixels of an image


def column(frame: Any, name: str) -> Any:
    """A column of a data frame, table or mapping: a list of texts or images, or a matrix."""
    if isinstance(frame, str):
        raise TypeError(f"{frame!r} is a text; read the table first, e.g. pandas.read_csv({frame!r})")
    try:
        values = frame[name]
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise ValueError(f"the table has no column {name!r}; {did_you_mean(name, _names(frame))}") from error
    return listed(name, values)


def listed(name: str, values: Any) -> Any:
    """A column as a list of texts or images, or as a matrix."""
    if len(getattr(values, "shape", ())) == 2:
        return values
    for read in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, read):
            values = getattr(values, read)()
            break
    values = list(values)
    for row, value in enumerate(values):
        if _missing(value):
            raise ValueError(f"{name!r} is empty in row {row}; every pair must have both sides: drop such rows first")
    if values and not isinstance(values[0], str) and not hasattr(values[0], "convert"):
        return _matrix(name, values)
    return values


def _missing(value: Any) -> bool:
    """None, a blank text, or what pandas and numpy have for a missing value."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))


def _names(frame: Any) -> list[str]:
    for attribute in ("column_names", "columns", "keys"):  # of pyarrow and datasets, pandas and polars, a dict
        if (names := getattr(frame, attribute, None)) is not None:
            return [str(name) for name in (names() if callable(names) else names)]
    return []


def _matrix(name: str, values: Sequence[Any]) -> Tensor:
    try:
        matrix = torch.stack([torch.as_tensor(value, dtype=torch.float32) for value in values])
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name!r} holds {type(values[0]).__name__}; a side is texts, images, or lists of numbers of one length"
        ) from error
    if matrix.dim() != 2:
        raise TypeError(f"{name!r} holds one number for each pair; a side is texts, images, or lists of numbers")
    return matrix


def is_matrix(side: Any) -> bool:
    """Whether a side is embeddings [n, D]."""
    if len(getattr(side, "shape", ())) != 2 or 0 in side.shape:
        return False
    return not side.is_complex() if isinstance(side, Tensor) else str(getattr(side.dtype, "kind", "")) in "fiu"


def is_learnable(side: Any) -> bool:
    """Whether an encoder can be trained on a side: embeddings, images [n, 3, H, W], or a list of texts or images."""
    if isinstance(side, (list, tuple)):
        return bool(side) and all(isinstance(item, str) or hasattr(item, "convert") for item in side)
    return is_matrix(side) or (isinstance(side, Tensor) and side.dim() == 4)


def items(side: Any) -> Items:
    """A side as what an encoder can be trained on."""
    if is_matrix(side):
        return NumberItems(side)
    if isinstance(side, Tensor):
        return ImageItems(side)
    if isinstance(side[0], str):
        return TextItems(side)
    return ImageItems(torch.stack([_pixels(image) for image in side]))


def _pixels(image: Any) -> Tensor:  # [3, SIDE, SIDE]
    small = image.convert("RGB").resize((SIDE, SIDE))
    return torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).view(SIDE, SIDE, 3).permute(2, 0, 1)
