"""The runs of the experiments that `docs/plan.md` plans. Light to import."""

from __future__ import annotations

from gcalign.lab.experiments.jobs import grid, make_job
from gcalign.lab.experiments.registry import Chosen, Job, Scale

COMPARED = ("ince", "rince", "gca-ince", "gca-uot", "iot")  # where pairs are mismatched
MISMATCH = ("knn", "10-labels", "100-labels", "mismatch")
RELAXATIONS = (0.05, 0.2, 0.5, 1, 2)
EXTREME = ("C1", "C2", "C3")  # large erase, strong crop, brightness
VIEWED = ("ince", "gca-ince", "rince", "gca-rince", "gca-uot")  # with extreme views


def mismatch(scale: Scale, chosen: Chosen) -> list[Job]:
    return [
        make_job(
            scale,
            chosen,
            method,
            seed,
            (scale.probe, *MISMATCH),
            labels={"noise": noise},
            words=(f"pairs.noise={noise:g}",) if noise else (),
        )
        for seed in scale.seeds
        for noise in scale.noise
        for method in COMPARED
    ]


def mismatch_lambda(scale: Scale, chosen: Chosen) -> list[Job]:
    noise = max(scale.noise)
    return [
        make_job(
            scale,
            chosen,
            "gca-uot",
            seed,
            (scale.probe, *MISMATCH),
            labels={"noise": noise, "relax": relax},
            words=(f"pairs.noise={noise:g}", f"method.relax=[{relax},{relax}]"),
        )
        for seed in scale.seeds[:4]
        for relax in RELAXATIONS
    ]


def extreme(scale: Scale, chosen: Chosen) -> list[Job]:
    return grid(scale, chosen, (scale.probe, "knn"), EXTREME, VIEWED)
