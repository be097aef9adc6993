"""Settings of the paper, by data set: `recipe=`."""

from __future__ import annotations

from typing import Any

_HEAD = {"projector": "mlp2", "hidden": 2048, "out": 128}
_ADAM = {"name": "adam", "lr": 3e-4, "weight_decay": 0.0, "schedule": "constant", "warmup": 0.0}
_SGD = {"name": "sgd", "lr": 0.6, "momentum": 0.9, "weight_decay": 1e-6, "schedule": "linear", "warmup": 0.0}
_COSINE = {**_ADAM, "weight_decay": 1.5e-6, "schedule": "cosine", "final": 0.0}
_RESNET18, _RESNET50 = {"encoder": "resnet18", **_HEAD}, {"encoder": "resnet50", **_HEAD}
_LARGE = {"encoder": "resnet18", "projector": "mlp3-bn", "hidden": 2048, "out": 2048}

RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {},  # the paper's ε alone; the others below have it, too
    # app:hpdetails; the paper's lr belongs to batches of 512
    "cifar": {"epochs": 500, "batch_size": 512, "model": _RESNET18, "optimizer": _SGD},
    "svhn": {"epochs": 500, "batch_size": 512, "model": _RESNET50, "optimizer": _ADAM},
    "imagenet100": {"epochs": 200, "batch_size": 512, "model": _RESNET50, "optimizer": _ADAM},
    # appendix:dgsetting
    "pacs": {"epochs": 1500, "batch_size": 256, "model": _LARGE, "optimizer": _COSINE},
}
PAPER_EPS = 0.5  # of all methods but those whose ε is not the paper's
OTHER_EPS = ("byol", "clip", "siglip")
