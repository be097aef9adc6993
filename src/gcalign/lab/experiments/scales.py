"""How much of the paper is done: `tiny` proves the path, `small` is a night without a GPU, `paper` is the paper's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from gcalign.errors import one_of
from gcalign.lab.experiments.registry import Experiment, Scale

PAPER_SEEDS = (71, 68, 42, 36, 15)  # of appendix:dgsetting

SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            name="tiny",
            images=("data=scenes", "data.limit=256"),
            domains=("data=scenes", "data.limit=256"),
            train=("model.width=0.25", "model.hidden=64", "model.out=32", "batch_size=64", "epochs=1"),
            seeds=(0, 1),
            domain_seeds=PAPER_SEEDS[:2],
            probe="linear-fast",
            corrupted=5,
            does="256 rendered digits, a quarter of the small encoder, 1 epoch, 2 seeds: the path, not the result",
            readout={"exact": True},
            search_seeds=(100,),
        ),
        Scale(
            name="small",
            images=("data=cifar10", "data.root=../shared/data", "data.limit=5000"),
            domains=("data=pacs", "data.root=../shared/data", "data.size=32", "epochs=8"),
            train=("model.width=0.5", "model.hidden=512", "batch_size=128", "epochs=6", "optimizer.lr=2e-3"),
            seeds=(0, 1, 2),
            domain_seeds=PAPER_SEEDS,
            probe="linear-fast",
            corrupted=105,
            does="5000 training images, half of the small encoder, 6 epochs of batches of 128, 3 seeds",
            others={
                "cifar100": ("data=cifar100", "data.root=../shared/data", "data.limit=5000"),
            },
            readout={"exact": True},
            noise=(0.0, 0.2, 0.4, 0.6),
        ),
        Scale(
            name="paper",
            images=("data=cifar10", "recipe=cifar"),
            # appendix:dgsetting pretrains on a fifth of the images
            domains=("data=pacs", "recipe=pacs", "data.size=224", "data.limit=1998"),
            train=(),
            seeds=(0, 1, 2, 3, 4),
            domain_seeds=PAPER_SEEDS,
            probe="linear",
            corrupted=None,
            does="the paper's own encoders, epochs and data, 5 seeds",
            others={
                "cifar100": ("data=cifar100", "recipe=cifar"),
                "svhn": ("data=svhn", "recipe=svhn"),
                "imagenet100": ("data=imagenet100", "recipe=imagenet100"),
            },
            columns=("cifar100", "svhn", "imagenet100"),
            noise=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
        ),
    )
}


def scaled(name: str, overrides: Sequence[str] = (), experiment: Experiment | None = None) -> Scale:
    """The scale of this name, as an experiment has it; `overrides` are words of `gcalign train` for every run."""
    scale = SCALES[one_of("scale", name, SCALES)]
    scale = scale if experiment is None else experiment.at(scale)
    return dataclasses.replace(
        scale,
        images=joined(scale.images, overrides),
        domains=joined(scale.domains, overrides),
        others={data: joined(words, overrides) for data, words in scale.others.items()},
        variants={name: joined(words, overrides) for name, words in scale.variants.items()},
    )


def joined(*groups: Iterable[str]) -> tuple[str, ...]:
    """The words of all groups; of several with one key the last."""
    return tuple({word.partition("=")[0]: word for group in groups for word in group}.values())
