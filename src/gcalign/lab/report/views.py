"""The views that training saw: batches of a run, made again from its seed and the step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from gcalign.lab.data.images import Images
from gcalign.lab.data.sides import views_of
from gcalign.lab.pages.pack import pixels, sprite
from gcalign.lab.pages.page import Json
from gcalign.lab.training.config import Config
from gcalign.lab.training.places import check_known, is_known
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import images_of
from gcalign.lab.training.stream import Stream

SHOWN = 8  # images of a batch
SIDE = 64  # pixels of an image, at most
HEAVIEST = 2**28  # numbers of a batch that is made for the sake of a picture


def seen(run: Run, config: Config, roots: Sequence[Path]) -> Json | None:
    """The first images of the first and the last step, as rank 0 got them; None where the config does not tell.

    The sprite of a step has the images as they are, then their first views, then the second ones, …
    """
    # a run in the folder of another was trained on some of its pairs, for its audit
    if config.data.paired or Run(run.path.parent.parent).config_file.exists():
        return None
    check_known(config.data, {}, f"run={run.path}", roots)
    if config.pairs.weights is not None and not is_known(config.pairs.weights):
        raise ValueError(f"pairs.weights={config.pairs.weights} was set by another user's run, so it is not read")
    images = images_of(config.data, "train")
    samples = views_of(images, config.pairs.views)
    stream = Stream.of(config, samples, world=config.world)
    numbers = len(samples.sides) * config.batch_size * torch.Size(images.shape).numel()
    if numbers > HEAVIEST:
        raise ValueError(f"a batch has {numbers:,} numbers, and at most {HEAVIEST:,} are made again for a picture")
    steps = []
    for step in sorted({0, stream.total - 1}):
        batch = stream[step]
        index = batch.index[:SHOWN]
        prepare = samples.sides[0].preprocessing
        seeded = zip(batch.items, batch.seeds, strict=True)
        views = batch.items if stream.views else [prepare(items, config.view_name, seed) for items, seed in seeded]
        rows = [images.get(index), *(pixels(view[:SHOWN], images.mean, images.std) for view in views)]
        partners = stream.partners(stream.indices(step), step)[:SHOWN]
        wrong = (partners != index).tolist()
        shown = {"sprite": sprite(torch.cat(rows), SIDE), "names": [_said(images, k) for k in index.tolist()]}
        steps.append({"number": step + 1, **shown, "mismatched": wrong})
    about = (
        f"{images.name} ({images.split}), views {config.view_name}, seed {config.seed}, batches of {config.batch_size}"
    )
    if config.pairs.noise:
        about += f", {config.pairs.noise:.0%} of the pairs mismatched"
    return {"about": about, "views": len(samples.sides), "steps": steps}


def _said(images: Images, k: int) -> str:
    if images.labels is None:
        return f"#{k}"
    label = int(images.labels[k])
    return f"#{k}: {images.classes[label] if 0 <= label < len(images.classes) else label}"
