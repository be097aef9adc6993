"""The experiments: every table and figure of the paper, and two of ours, as jobs and a drawing. Light to import."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gcalign.lab.experiments import jobs
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
    jobs.mismatch,
    searched=jobs.COMPARED,
    search="search-mismatch",
    changes=_LARGER,
)
_add(
    "fig-mismatch-lambda",
    "the same for GCA-UOT against its relaxation λ (ours)",
    "",
    "figures.mismatch:fig_mismatch_lambda",
    jobs.mismatch_lambda,
    searched=("gca-uot",),
    search="search-mismatch",
    changes=_LARGER,
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
