"""`gcalign.load`: what a run trained, ready for use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcalign.lab.training.pair_runs import Encoders, load_encoders
from gcalign.lab.training.ready import Encoder
from gcalign.lab.training.runs import Run, load_encoder


def load(run: str | Path, *, encoder: Any = None) -> Encoder | Encoders:
    """Load what a run trained, in eval mode. `gcalign.load` is this function.

    Args:
        run: the folder of a finished run, as `gcalign train` makes it.
        encoder: the function that makes the network, or its name `module:function`, for a run with an encoder of your
            own; of a run on pairs, a list with one for each side. A name in the run's files is never imported.

    Returns:
        A module: normalised images [B, C, H, W] → features [B, D]. Its `embed` takes PIL images, arrays or paths. Of a
        run on pairs, such modules by column: `load(run)["name_en"].embed(["red heart"])`.

    Example:
        >>> import gcalign, numpy
        >>> encoder = gcalign.load("runs/first")  # after: gcalign train data=scenes name=first
        >>> images = numpy.zeros((2, 24, 24, 3), dtype="uint8")  # or paths, or PIL images
        >>> len(encoder.embed(images))
        2
    """
    place = Run.at(run)
    return load_encoders(place, encoder) if place.config().data.paired else load_encoder(place.path, encoder=encoder)
