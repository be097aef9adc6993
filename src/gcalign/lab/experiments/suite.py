"""The experiments: every table and figure of the paper, and ours, as jobs and a drawing. Light to import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gcalign.lab.experiments import jobs, paired_tables, tables
from gcalign.lab.experiments.figures import accuracy, geometry, paired, plans, targets
from gcalign.lab.experiments.records import Record
from gcalign.lab.experiments.registry import Draw, Experiment, Scale, named, names, register
from gcalign.lab.paper import METHODS

__all__ = ["named", "names"]


def _add(name: str, label: str, draw: Draw, runs: Callable[..., Any] | None = None, **more: Any) -> None:
    """Register an experiment; what it does is what is said of the function that makes its runs or its numbers."""
    does = " ".join(((runs or more["compute"]).__doc__ or "").split()).rstrip(".")
    does = does if does[1:2].isupper() else does[:1].lower() + does[1:]  # CIFAR-10 stays as it is
    register(Experiment(name, does, label, draw, runs, **more))


# what needs torch is imported when it is called


def _composition(scale: Scale) -> Iterable[Record]:
    """What each method is made of, read from the methods themselves."""
    return ()


def _proximal(scale: Scale) -> Iterable[Record]:
    """What a proximal operator does."""
    return ()


def _times(scale: Scale) -> Iterable[Record]:
    from gcalign.lab.experiments.costs import times

    return times(scale)


def _flops(scale: Scale) -> Iterable[Record]:
    """Floating-point operations of each loss."""
    from gcalign.lab.experiments.costs import flops

    return flops(scale)


def _audit(scale: Scale) -> Iterable[Record]:
    """Which score finds mismatched pairs best: plan, CSLS, softmax, cosine, neighbours (ours)."""
    from gcalign.lab.experiments.audits import table_audit

    return table_audit(scale)


def _draw_audit(records: Sequence[Record], folder: Path) -> list[Path]:
    from gcalign.lab.experiments.audits import draw_audit

    return draw_audit(records, folder)


def _feedback(scale: Scale) -> Iterable[Record]:
    """Train on mismatched pairs, audit, weight or drop them, train again (ours)."""
    from gcalign.lab.experiments.feedback import table_feedback

    return table_feedback(scale)


def _draw_feedback(records: Sequence[Record], folder: Path) -> list[Path]:
    from gcalign.lab.experiments.feedback import draw_feedback

    return draw_feedback(records, folder)


_add("table1", "tab:new_combine", tables.table1, jobs.table1, searched=METHODS)
_add("tableA-cifar10", "tab:cifar10", tables.table_a_cifar10, jobs.cifar10, searched=METHODS)
_add("tableA-cifar100", "tab:cifar100", tables.table_a_cifar100, jobs.cifar100, searched=METHODS)
_add("tableA-cifar10c", "tab:cifar10c", tables.table_a_cifar10c, jobs.cifar10c, searched=METHODS)
_add("table-methods", "tab:diff", tables.table_methods, compute=_composition)
_add("fig-ptgt", "fig:Ptgt", accuracy.fig_ptgt, jobs.ptgt)
_add("fig-time", "fig:time_comp", accuracy.fig_time, jobs.time, compute=_times, searched=("gca-ince",))
_add("flops", "app:time", tables.flops, compute=_flops)
_add("fig-align-uniform", "app:representation", geometry.fig_align_uniform, jobs.align_uniform, searched=METHODS)
_add("fig-plans", "fig:diagnolline", plans.fig_plans, jobs.plans, searched=jobs.SHOWN)
_add("fig-epsilon", "fig:epsilon_study", plans.fig_epsilon, jobs.epsilon, searched=("ince",))
_add("fig-sensitivity", "fig:sensitivity_study", accuracy.fig_sensitivity, jobs.sensitivity, searched=("gca-ince",))
_add("fig-q-lambda", "fig:ablation_study", accuracy.fig_q_lambda, jobs.q_lambda, searched=("ince", "gca-rince"))
_add("fig-prox", "fig:proximal", geometry.fig_prox, compute=_proximal)
_add("fig-noise", "", accuracy.fig_noise, jobs.noise, searched=METHODS)
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
_mismatched: dict[str, Any] = {"search": "search-mismatch", "changes": _LARGER}
_add("fig-mismatch", "", paired.fig_mismatch, jobs.mismatch, searched=jobs.COMPARED, **_mismatched)
_add(
    *("fig-mismatch-lambda", "", paired.fig_mismatch_lambda, jobs.mismatch_lambda),
    **(_mismatched | {"searched": ("gca-uot",)}),
)
_EXTREME: dict[str, dict[str, Any]] = {
    "small": {
        "seeds": tuple(range(20, 32)),  # fresh
        "search": ("epochs=3",),
        "does": "5000 training images, half of the small encoder, 6 epochs of batches of 128, 12 seeds",
    },
    "paper": {"search": ("epochs=100",)},
}
_viewed: dict[str, Any] = {"search": "search-extreme", "changes": _EXTREME}
_add("fig-extreme", "", paired.fig_extreme, jobs.extreme, searched=jobs.VIEWED, **_viewed)
_PACS = ("data=pacs", "data.root=../shared/data")  # all 6992 training images
_WIDE = ("model.encoder=resnet18", "model.width=0.125", "model.stem=imagenet")
_WINDOWS: Mapping[str, tuple[str, ...]] = {  # each takes about as long
    "C0, 32 px": ("views=C0", "data.size=32", "epochs=18"),
    "DomainBed, 32 px": ("views=domainbed", "data.size=32", "epochs=18"),
    "DomainBed, 48 px": ("views=domainbed", "data.size=48", "epochs=8"),
    "DomainBed, 64 px, ResNet-18 of width 1/8": ("views=domainbed", "data.size=64", "epochs=9", *_WIDE),
}
_WIDEST = _WINDOWS["DomainBed, 64 px, ResNet-18 of width 1/8"]  # by fig-targets-window
_VIEWS: Mapping[str, tuple[str, ...]] = {"C0": ("views=C0",), "DomainBed": ("views=domainbed",)}
_add(
    *("fig-targets-window", "", targets.fig_targets_window, jobs.window),
    changes={  # a seed that is not used again
        "tiny": {"domain_seeds": (49,), "variants": _VIEWS},
        "small": {"domains": _PACS, "domain_seeds": (49,), "variants": _WINDOWS},
        "paper": {"domain_seeds": (49,), "variants": _VIEWS},
    },
)
_add(
    *("fig-targets", "", targets.fig_targets, jobs.targets),
    changes={
        "small": {"domains": (*_PACS, *_WIDEST, "channels_last=true"), "domain_seeds": tuple(range(40, 45))},
        "paper": {"domains": ("data=pacs", "recipe=pacs", "data.size=224", "data.limit=1998", "views=domainbed")},
    },
)
_TAIL, _WRONG = ("data.tail=100",), ("target.name=labels", "target.noise=0.4")


def _scouted(few: tuple[str, ...], views: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """The settings of `scouts`: words for batches of 32, and for four views of half as many images for half as long."""
    few, views = ("batch_size=32", *few), ("pairs.views=4", *views)
    return {"long tail": _TAIL, "batches of 32": few, "four views": views, "noisy labels": _WRONG}


_add(
    *("scouts", "", tables.scouts, jobs.scouts),
    searched=jobs.SCOUTED,
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
    *("table-labels", "", tables.table_labels, jobs.noisy_labels),
    searched=jobs.LABELLED,
    search="search-extreme",
    changes={
        "tiny": {"variants": {"noisy labels": _WRONG}},
        "small": _EXTREME["small"]
        | {
            "seeds": tuple(range(70, 78)),  # fresh
            "does": "5000 training images, half of the small encoder, 6 epochs of batches of 128, 8 seeds",
            "variants": {"noisy labels": _WRONG},
        },
        "paper": _EXTREME["paper"] | {"variants": {"noisy labels": _WRONG}},
    },
)
_add("table-audit", "", _draw_audit, compute=_audit, changes={"small": {"seeds": (0, 1)}})
_add("table-feedback", "", _draw_feedback, compute=_feedback)
_add("fig-same-eps", "", paired.fig_same_eps, jobs.same_eps)
_LEARNT = ("method.learnable=true",)
_PARQUET = "data.root=../shared/data/emoji/pairs.parquet"
_EMOJI = ("data=pairs", _PARQUET, "data.columns=[image,name_en]", "data.group=emoji:base")
_add(
    *("emoji-pairs", "", paired_tables.emoji_pairs, jobs.pairs),
    searched=jobs.PAIRED,
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
