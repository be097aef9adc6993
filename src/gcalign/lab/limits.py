"""How much a file or a word may ask for. Checked from headers, before memory is asked for; each can be raised."""

from __future__ import annotations

import os

LIMITS = {
    "IMAGE_PIXELS": 2**26,  # of one image: 8192 × 8192
    "IMAGE_SIDE": 2048,  # of the square images that data.size= makes
    "IMAGE_BYTES": 2**28,  # of one image as it is stored
    "BATCH_BYTES": 2**34,  # of the pixels of one batch in float32
    "MODEL_PARAMETERS": 2**30,  # of an encoder or a head that gcalign makes
    "EPOCHS": 10**6,
    "WORKERS": 256,  # processes that load data
    "TABLE_ROWS": 2 * 10**7,  # of one split: ImageNet-21k has 14 million
    "TABLE_BYTES": 2**28,  # of the rows of a table that are read together
    "ARRAY_BYTES": 2**31,  # of one array of images
    "TEXT_BYTES": 2**28,  # of one config, result file or index
}


def limit(name: str) -> int:
    """The limit of this name, or what the environment variable GCALIGN_<name> says instead."""
    given = os.environ.get(f"GCALIGN_{name}")
    if given is None:
        return LIMITS[name]
    if not given.isdigit() or int(given) < 1:
        raise ValueError(f"GCALIGN_{name}={given!r} must be a whole number ≥ 1; leave it out for {LIMITS[name]}")
    return int(given)


def within(name: str, value: int, what: str) -> int:
    """Return `value` if it is at most the limit of this name."""
    most = limit(name)
    if value > most:
        raise ValueError(f"{what} is {value:,}, at most {most:,} are allowed; raise the limit with GCALIGN_{name}=…")
    return value
