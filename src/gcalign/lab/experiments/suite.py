"""The experiments: every table and figure of the paper, and ours, as jobs and a drawing. Light to import."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gcalign.lab.experiments import jobs, planned
from gcalign.lab.experiments.jobs import METHODS, PLANNED
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.registry import Experiment, Scale, named, names, register

__all__ = ["named", "names"]


def _lazily(place: str) -> Callable[..., Any]:
    """A function `module:name` of this room, imported when it is called: drawing needs matplotlib, listing does not."""

    def call(*args: Any) -> Any:
        module, _, name = place.partition(":")
        return getattr(importlib.import_module(f"gcalign.lab.experiments.{module}"), name)(*args)

    return call


def _nothing(scale: Scale) -> Iterable[Record]:
    """For what is drawn from the package itself."""
    return ()


def _add(name: str, does: str, label: str, draw: str, *what: Any, **more: Any) -> None:
    register(Experiment(name, does, label, _lazily(draw), *what, **more))


_add(
    "table1",
    "accuracy of nine methods in standard and noisy settings, with paired differences",
    "tab:new_combine",
    "tables:table1",
    jobs.table1,
    searched=METHODS,
)
_add(
    "tableA-cifar10",
    "CIFAR-10: standard, erase, crop and brightness",
    "tab:cifar10",
    "tables:table_a_cifar10",
    jobs.cifar10,
    searched=METHODS,
)
_add(
    "tableA-cifar100",
    "CIFAR-100: standard, erase, crop and brightness",
    "tab:cifar100",
    "tables:table_a_cifar100",
    jobs.cifar100,
    searched=METHODS,
)
_add(
    "tableA-cifar10c",
    "CIFAR-10-C: standard, erase, crop and brightness",
    "tab:cifar10c",
    "tables:table_a_cifar10c",
    jobs.cifar10c,
    searched=METHODS,
)
_add(
    "table-methods",
    "what each method is made of, read from the methods themselves",
    "tab:diff",
    "tables:table_methods",
    compute=_nothing,
)
_add(
    "fig-ptgt",
    "domain and class accuracy against α − β of the target plan",
    "fig:Ptgt",
    "figures.accuracy:fig_ptgt",
    jobs.ptgt,
)
_add(
    "fig-time",
    "run time of each method and of iterations, and accuracy against iterations",
    "fig:time_comp",
    "figures.accuracy:fig_time",
    jobs.time,
    _lazily("costs:times"),
    searched=("gca-ince",),
)
_add("flops", "floating-point operations of each loss", "app:time", "tables:flops", compute=_lazily("costs:flops"))
_add(
    "fig-align-uniform",
    "alignment and uniformity of each method, on clean and corrupted images",
    "app:representation",
    "figures.geometry:fig_align_uniform",
    jobs.align_uniform,
    searched=METHODS,
)
_add(
    "fig-plans",
    "−log P of four methods, sorted by class",
    "fig:diagnolline",
    "figures.plans:fig_plans",
    jobs.plans,
    searched=PLANNED,
)
_add(
    "fig-epsilon",
    "plans for ε from 0.01 to 1, INCE and GCA-UOT",
    "fig:epsilon_study",
    "figures.plans:fig_epsilon",
    jobs.epsilon,
    searched=("ince",),
)
_add(
    "fig-sensitivity",
    "compactness and accuracy against iterations and ε",
    "fig:sensitivity_study",
    "figures.accuracy:fig_sensitivity",
    jobs.sensitivity,
    searched=("gca-ince",),
)
_add(
    "fig-q-lambda",
    "accuracy of GCA-RINCE against q and λ",
    "fig:ablation_study",
    "figures.accuracy:fig_q_lambda",
    jobs.q_lambda,
    searched=("ince", "gca-rince"),
)
_add("fig-prox", "what a proximal operator does", "fig:proximal", "figures.geometry:fig_prox", compute=_nothing)
_add(
    "fig-noise",
    "accuracy against the share of mismatched pairs (ours)",
    "",
    "figures.accuracy:fig_noise",
    jobs.noise,
    searched=METHODS,
)
_LARGER: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"search": ("pairs.noise=0.3",)},
    "small": {
        "images": ("data=cifar10", "data.root=../shared/data", "data.limit=10000"),
        "train": ("model.width=0.5", "model.hidden=512", "batch_size=128", "epochs=15", "optimizer.lr=2e-3"),
        "seeds": tuple(range(10, 18)),  # fresh: no choice was made with them
        "noise": (0.0, 0.3, 0.6),
        "search": ("epochs=5", "pairs.noise=0.3"),
        "does": "10,000 training images, half of the small encoder, 15 epochs of batches of 128, 8 seeds",
    },
    "paper": {"noise": (0.0, 0.3, 0.6), "search": ("epochs=100", "pairs.noise=0.3")},
}
_add(
    "fig-mismatch",
    "does alignment protect against mismatched pairs? accuracy and detection, eight seeds (ours)",
    "",
    "figures.mismatch:fig_mismatch",
    planned.mismatch,
    searched=planned.COMPARED,
    search="search-mismatch",
    changes=_LARGER,
)
_add(
    "fig-mismatch-lambda",
    "the same for GCA-UOT against its relaxation λ (ours)",
    "",
    "figures.mismatch:fig_mismatch_lambda",
    planned.mismatch_lambda,
    searched=("gca-uot",),
    search="search-mismatch",
    changes=_LARGER,
)
_EXTREME: dict[str, dict[str, Any]] = {
    "small": {
        "seeds": tuple(range(20, 32)),  # fresh
        "search": ("epochs=3",),
        "does": "5000 training images, half of the small encoder, 6 epochs of batches of 128, 12 seeds",
    },
    "paper": {"search": ("epochs=100",)},
}
_add(
    "fig-extreme",
    "does GCA help with extreme views? C1, C2 and C3, paired differences, twelve seeds (ours)",
    "",
    "figures.extreme:fig_extreme",
    planned.extreme,
    searched=planned.VIEWED,
    search="search-extreme",
    changes=_EXTREME,
)
_PACS = ("data=pacs", "data.root=../shared/data")  # all 6992 training images
_WINDOWS: Mapping[str, tuple[str, ...]] = {  # each takes about as long
    "C0, 32 px": ("views=C0", "data.size=32", "epochs=18"),
    "DomainBed, 32 px": ("views=domainbed", "data.size=32", "epochs=18"),
    "DomainBed, 48 px": ("views=domainbed", "data.size=48", "epochs=8"),
    "DomainBed, 64 px, ResNet-18 of width 1/8": (
        "views=domainbed",
        "data.size=64",
        "epochs=9",
        "model.encoder=resnet18",
        "model.width=0.125",
        "model.stem=imagenet",
    ),
}
_VIEWS: Mapping[str, tuple[str, ...]] = {"C0": ("views=C0",), "DomainBed": ("views=domainbed",)}
_add(
    "fig-targets-window",
    "what a target plan can show on PACS: untrained, pairs alone and supervised, by setting, one seed (ours)",
    "",
    "figures.targets:fig_targets_window",
    planned.window,
    changes={  # a seed that is not used again
        "tiny": {"domain_seeds": (49,), "variants": _VIEWS},
        "small": {"domains": _PACS, "domain_seeds": (49,), "variants": _WINDOWS},
        "paper": {"domain_seeds": (49,), "variants": _VIEWS},
    },
)
_add(
    "fig-targets",
    "is there a target plan that buys domain accuracy and costs no class accuracy? PACS against α (ours)",
    "",
    "figures.targets:fig_targets",
    planned.targets,
    changes={
        "small": {"domains": (*_PACS, *_WINDOWS["DomainBed, 32 px"]), "domain_seeds": tuple(range(40, 45))},
        "paper": {"domains": ("data=pacs", "recipe=pacs", "data.size=224", "data.limit=1998", "views=domainbed")},
    },
)
_TAIL, _WRONG = ("data.tail=100",), ("target.name=labels", "target.noise=0.4")


def _scouted(few: tuple[str, ...], views: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """The settings of `scouts`: words for batches of 32, and for four views of half as many images for half as long."""
    few, views = ("batch_size=32", *few), ("pairs.views=4", *views)
    return {"long tail": _TAIL, "batches of 32": few, "four views": views, "noisy labels": _WRONG}


_add(
    "scouts",
    "where else alignment could win: long tail, small batches, four views, noisy labels; two seeds, exploratory (ours)",
    "",
    "tables:scouts",
    planned.scouts,
    searched=planned.SCOUTED,
    search="search-extreme",
    changes={
        "tiny": {"variants": _scouted((), ("batch_size=32",))},
        "small": _EXTREME["small"]
        | {
            "seeds": (60, 61),
            "does": "5000 training images, half of the small encoder, 2 seeds",
            "variants": _scouted(("optimizer.lr=1e-3",), ("batch_size=64", "epochs=3")),
        },
        "paper": _EXTREME["paper"]
        | {
            "seeds": (60, 61),
            "variants": _scouted(("optimizer.lr=0.0375",), ("batch_size=256", "optimizer.lr=0.3", "epochs=250")),
        },
    },
)
_add(
    "table-audit",
    "which score finds mismatched pairs best: plan, CSLS, softmax, cosine, neighbours (ours)",
    "",
    "audits:draw_audit",
    compute=_lazily("audits:table_audit"),
    changes={"small": {"seeds": (0, 1)}},
)
_add(
    "table-feedback",
    "train on mismatched pairs, audit, weight or drop them, train again (ours)",
    "",
    "feedback:draw_feedback",
    compute=_lazily("feedback:table_feedback"),
)
_add(
    "fig-same-eps",
    "what GCA adds where both have the same ε (ours)",
    "",
    "figures.paired:fig_same_eps",
    jobs.same_eps,
)
_LEARNT = ("method.learnable=true",)
_EMOJI = (
    "data=pairs",
    "data.root=../shared/data/emoji/pairs.parquet",
    "data.columns=[image,name_en]",
    "data.group=emoji:base",
)
_add(
    "emoji-pairs",
    "emoji and their names: INCE (CLIP), GCA-INCE and GCA-UOT, mismatched pairs, graded targets, five seeds (ours)",
    "",
    "paired_tables:emoji_pairs",
    planned.pairs,
    searched=planned.PAIRED,
    search="search-pairs",
    changes={
        "tiny": {"images": ("data=shapes", *_LEARNT), "noise": (0.0, 0.3), "search": ("pairs.noise=0.3",)},
        "small": {
            "images": (*_EMOJI, "data.size=24", *_LEARNT),
            "train": ("model.width=0.5", "model.hidden=256", "model.out=64", "batch_size=128", "epochs=12"),
            "seeds": (0, 1, 2, 3, 4),
            "noise": (0.0, 0.3),
            "search": ("epochs=6", "pairs.noise=0.3"),
            "search_seeds": (100,),
            "does": "2631 training pairs of emoji, 24 × 24 pixels, half of the small encoders, 12 epochs, 5 seeds",
        },
        "paper": {"images": (*_EMOJI, "data.size=48", *_LEARNT), "train": ("epochs=100",), "noise": (0.0, 0.3)},
    },
)
