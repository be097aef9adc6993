"""The runs of the experiments that `docs/plan.md` plans. Light to import."""

from __future__ import annotations

from gcalign.lab.experiments.jobs import DOMAINS, blocks, grid, make_job
from gcalign.lab.experiments.registry import Chosen, Job, Scale

COMPARED = ("ince", "rince", "gca-ince", "gca-uot", "iot")  # where pairs are mismatched
MISMATCH = ("knn", "10-labels", "100-labels", "mismatch")
RELAXATIONS = (0.05, 0.2, 0.5, 1, 2)
EXTREME = ("C1", "C2", "C3")  # large erase, strong crop, brightness
VIEWED = ("ince", "gca-ince", "rince", "gca-rince", "gca-uot")  # with extreme views
ALPHAS = (0.0, 0.003, 0.01, 0.03, 0.1, 1.0)  # of a batch of B, α gives a domain the mass α·B/4 against 1 for the pair
LINES = tuple(f"{measure}-{which}" for which in ("untrained", "supervised") for measure in DOMAINS)
SCOUTED = ("ince", "gca-ince", "gca-uot")
PAIRED = ("clip", "gca-ince", "gca-uot")  # between two modalities, where INCE both ways is CLIP
GRADED = 0.1  # of the mass of a pair, for each near-duplicate of its name in the batch


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


def targets(scale: Scale, chosen: Chosen) -> list[Job]:
    return [
        blocks(scale, seed, alpha, 0.0, DOMAINS if alpha else (*DOMAINS, *LINES))
        for seed in scale.domain_seeds
        for alpha in ALPHAS
    ]


def window(scale: Scale, chosen: Chosen) -> list[Job]:
    return [
        blocks(scale, seed, 0.0, 0.0, (*DOMAINS, *LINES), labels={"setting": name}, words=words)
        for seed in scale.domain_seeds
        for name, words in scale.variants.items()
    ]


def scouts(scale: Scale, chosen: Chosen) -> list[Job]:
    return [
        make_job(scale, chosen, method, seed, (scale.probe, "knn"), labels={"setting": name}, words=words)
        for seed in scale.seeds
        for name, words in scale.variants.items()
        for method in SCOUTED
    ]


def pairs(scale: Scale, chosen: Chosen) -> list[Job]:
    targets = {"identity": (), "graded": ("target.name=blocks", f"target.alpha={GRADED}")}
    return [
        make_job(
            scale,
            chosen,
            method,
            seed,
            ("retrieval",),
            labels={"noise": noise, "target": target},
            words=(*((f"pairs.noise={noise:g}",) if noise else ()), *words),
        )
        for target, words in targets.items()
        for seed in scale.seeds
        for noise in scale.noise
        for method in PAIRED
    ]
