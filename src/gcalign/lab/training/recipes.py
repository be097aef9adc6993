"""Settings of the paper, by data set: `recipe=`."""

from __future__ import annotations

from typing import Any

RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    # app:hpdetails; the paper's lr belongs to batches of 512
    "cifar": {
        "epochs": 500,
        "batch_size": 512,
        "model": {"encoder": "resnet18", "projector": "mlp2", "hidden": 2048, "out": 128},
        "optimizer": {
            "name": "sgd",
            "lr": 0.6,
            "momentum": 0.9,
            "weight_decay": 1e-6,
            "schedule": "linear",
            "warmup": 0.0,
        },
    },
    "svhn": {
        "epochs": 500,
        "batch_size": 512,
        "model": {"encoder": "resnet50", "projector": "mlp2", "hidden": 2048, "out": 128},
        "optimizer": {"name": "adam", "lr": 3e-4, "weight_decay": 0.0, "schedule": "constant", "warmup": 0.0},
    },
    "imagenet100": {
        "epochs": 200,
        "batch_size": 512,
        "model": {"encoder": "resnet50", "projector": "mlp2", "hidden": 2048, "out": 128},
        "optimizer": {"name": "adam", "lr": 3e-4, "weight_decay": 0.0, "schedule": "constant", "warmup": 0.0},
    },
    # appendix:dgsetting
    "pacs": {
        "epochs": 1500,
        "batch_size": 256,
        "model": {"encoder": "resnet18", "projector": "mlp3-bn", "hidden": 2048, "out": 2048},
        "optimizer": {
            "name": "adam",
            "lr": 3e-4,
            "weight_decay": 1.5e-6,
            "schedule": "cosine",
            "warmup": 0.0,
            "final": 0.0,
        },
    },
}
