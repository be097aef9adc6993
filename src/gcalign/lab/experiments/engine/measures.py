"""What is measured of a finished run, by name; each measurement is kept beside the run and never made twice.

What one experiment alone measures is in its own module.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from gcalign.errors import one_of
from gcalign.lab import files
from gcalign.lab.data import corruptions
from gcalign.lab.data.sources import labels_of
from gcalign.lab.data.splits import stratified
from gcalign.lab.evaluation import Result, domain_probe, evaluate, extract, leave_one_domain_out
from gcalign.lab.evaluation.protocols import linear_fast
from gcalign.lab.experiments.engine.experiment import Scale, own_measures
from gcalign.lab.experiments.engine.records import Record
from gcalign.lab.experiments.engine.subject import ENCODERS, MeasuredRun, cells, corrupted
from gcalign.lab.outside import imported
from gcalign.lab.provenance import commit
from gcalign.lab.training import use
from gcalign.lab.training.config import Config
from gcalign.lab.training.pair_runs import load_encoders, pairs_of
from gcalign.lab.training.pair_use import EmbeddedPairs, Retrieved, retrieval
from gcalign.lab.training.runs import Run
from gcalign.metrics import alignment, uniformity

Measure = Callable[[MeasuredRun], list[Record]]  # records without the labels of their job
PAIRED = 2000  # images of which alignment and uniformity are measured
SPLITS = 5  # of the layer on corrupted images
SHARE = 0.1  # of the corrupted images a linear layer is fitted on: app:corruptset
PROTOCOLS: Mapping[str, dict[str, Any]] = {
    "10-labels": {"protocol": "few-shot", "labels": 10},
    "100-labels": {"protocol": "few-shot", "labels": 100},
}
# app:hpdetails
LINEAR: Mapping[str, dict[str, Any]] = {
    name: {"optimizer": "adam", "lr": 3e-4, "epochs": 100, "decay": 1.0} for name in ("svhn", "imagenet100")
}


def _about(result: Result) -> dict[str, Any]:
    return {
        "protocol": result.protocol,
        "tested on": result.split,
        "n_train": result.n_train,
        "n_test": result.n_test,
        "hyperparameters": result.hyperparameters,
        "validation": result.validation,
        **({"parts": result.parts, "std": result.std} if len(result.parts) > 1 else {}),
    }


def _protocol(of: MeasuredRun, name: str) -> list[Record]:
    train, test = of.images("train"), of.images("test")
    options = PROTOCOLS.get(name, {}) | (LINEAR.get(of.config.data.name, {}) if name == "linear" else {})
    options |= {"splits": of.scale.splits} if name == "linear-fast" else {}
    known, asked = of.features("train"), of.features("test")
    protocol = options.pop("protocol", name)
    result = evaluate(protocol, known, train.labels, asked, test.labels, names=train.classes, **options)
    # as `gcalign probe` leaves it, for `gcalign list`
    line = {"kind": "probe", "data": of.config.data.name, "config": of.config.hash, **result.as_dict()}
    files.append_json_lines(of.run.results_file, [line])
    return [Record(measure=name, value=result.accuracy, about=_about(result))]


def _validation(of: MeasuredRun) -> list[Record]:
    """Held out of the training images, whose labels the run never saw; the test split is not loaded."""
    if of.config.data.paired:
        return _validated_pairs(of)
    images, splits = of.images("train"), of.scale.splits
    _, labels = labels_of(images, "the search").unique(return_inverse=True)
    fitted = linear_fast(of.features("train"), labels, classes=int(labels.max()) + 1, seed=0, splits=splits)
    split = "a tenth of the training images" + (f", {splits} times" if splits > 1 else "")
    about = {"protocol": "linear-fast", "split": split, "n_train": len(images)}
    about["hyperparameters"] = fitted.hyperparameters
    return [Record(measure="validation", value=fitted.validation, about=about)]


def _cifar10c(of: MeasuredRun) -> list[Record]:
    if of.scale.corrupted is None:  # the published files, or all of it made here; a linear layer for each
        result = use.SPECIAL["cifar10c"](use.Subject(lambda images: of.encoder, of.data, of.device, False), seed=0)
        return [Record(measure="cifar10c", value=result.accuracy, about=_about(result))]
    pool = corrupted(of, of.scale.corrupted)
    x = extract(of.encoder, pool.images, device=of.device)
    _, y = labels_of(pool.images, "cifar10c").unique(return_inverse=True)
    rest, known = stratified(y, SHARE, seed=0)
    fitted = linear_fast(x[known], y[known], classes=int(y.max()) + 1, seed=0, splits=SPLITS)
    hit = (fitted.predictors["test"](x[rest]) == y[rest]).double()
    cell = pool.cell[rest]
    each = {key: hit[cell == k].mean().item() for k, key in enumerate(cells())}
    parts = {name: statistics.fmean(each[name, s] for s in range(1, 6)) for name in corruptions.names()}
    about = {
        "protocol": f"linear-fast on {SHARE:.0%} of the corrupted images, all corruptions together",
        "tested on": "corruptions of the other test images",
        "images": of.scale.corrupted,
        "n_train": len(known),
        "n_test": len(rest),
        "parts": parts,
        "severities": {str(s): statistics.fmean(v for (_, t), v in each.items() if t == s) for s in range(1, 6)},
        "hyperparameters": fitted.hyperparameters,
    }
    return [Record(measure="cifar10c", value=statistics.fmean(each.values()), about=about)]


def _align_uniform(of: MeasuredRun) -> list[Record]:
    test = of.images("test")
    n = min(PAIRED, len(test))
    pools = {"clean": test, "corrupted": corrupted(of, n // len(cells())).images}
    records = []
    for on, images in pools.items():
        z1, z2 = of.pairs(images, torch.arange(min(PAIRED, len(images))))
        about = {
            "of": "the projector's output for two views in the run's own setting",
            "images": len(z1),
            "split": "test",
        }
        for measure, value in (("alignment", alignment(z1, z2)), ("uniformity", uniformity(z1))):
            records.append(Record(measure=measure, value=value.item(), labels={"on": on}, about=about))
    return records


def _domain(of: MeasuredRun, which: str) -> list[Record]:
    """Tested on images whose domain nothing has shown the encoder."""
    whole = of.everything(which)
    about: dict[str, Any] = {"unseen": whole.unseen, "names": whole.domain_names}
    result = domain_probe(whole.features, whole.domains, **about, **of.scale.readout)
    batch = {"batch_size": of.config.batch_size, "domains": len(whole.domain_names)}
    return [Record(measure=_of("domain", which), value=result.accuracy, about=_about(result) | batch)]


def _across(of: MeasuredRun, which: str) -> list[Record]:
    whole = of.everything(which)
    about: dict[str, Any] = {"names": whole.classes, "domain_names": whole.domain_names}
    result = leave_one_domain_out(whole.features, whole.labels, whole.domains, **about, **of.scale.readout)
    return [Record(measure=_of("across-domains", which), value=result.accuracy, about=_about(result))]


def _of(name: str, which: str) -> str:
    return name if which == "trained" else f"{name}-{which}"


# --- of a run on pairs ---------------------------------------------------------------------------------------------


def embedded_pairs(of: MeasuredRun) -> EmbeddedPairs:
    """The encoders of a run on pairs, named by the command, and its pairs."""
    encoders = load_encoders(of.run, of.config.model.encoders or None)
    return EmbeddedPairs(encoders, pairs_of(of.config.data), of.device)


def about_pairs(result: Retrieved) -> dict[str, Any]:
    return {
        "protocol": result.protocol,
        "tested on": result.split,
        "n_test": result.n_test,
        "candidates": result.gallery,
    }


def _validated_pairs(of: MeasuredRun) -> list[Record]:
    """R@10, mean of both ways, on the validation pairs; test pairs are not embedded."""
    result = retrieval(embedded_pairs(of), "validation", (10,))
    about = about_pairs(result) | {"measure": "R@10, mean of both ways"}
    return [Record(measure="validation", value=result.accuracy, about=about)]


MEASURES: dict[str, Measure] = {
    **{name: partial(_protocol, name=name) for name in ("linear", "linear-fast", "knn", "10-labels", "100-labels")},
    "validation": _validation,
    "cifar10c": _cifar10c,
    "align-uniform": _align_uniform,
    **{_of("domain", which): partial(_domain, which=which) for which in ENCODERS},
    **{_of("across-domains", which): partial(_across, which=which) for which in ENCODERS},
}


# --- measuring -----------------------------------------------------------------------------------------------------


def measure_named(name: str) -> Measure:
    """A measure of the engine, of an experiment, or `module:function` of the user's own."""
    if ":" in name:
        return imported("measure", name, "it must be a function of a module that Python finds here")
    known = MEASURES | own_measures()
    return known[one_of("measure", name, known)]


def key(name: str, scale: Scale) -> str:
    """Under which a measurement is kept: its name and what of the scale it depends on."""
    reads: dict[str, Any] = {"cifar10c": scale.corrupted}
    if scale.splits > 1:
        reads |= dict.fromkeys(("linear-fast", "validation"), f"{scale.splits} splits")
    reads |= {_of(what, which): dict(scale.readout) for what in ("domain", "across-domains") for which in ENCODERS}
    return f"{name} {reads[name]}" if name in reads else name


def kept(run: Run) -> dict[str, list[Record]]:
    """What has been measured of a run already."""
    lines = {line["key"]: line["findings"] for line in run.results() if line["kind"] == "measure"}
    return {key: [Record(**content) for content in contents] for key, contents in lines.items()}


def measure(run: Run, names: tuple[str, ...], scale: Scale, config: Config) -> None:
    """Whatever of `names` is not kept yet, of a run that this process owns; `config` is what a command named."""
    have = kept(run)
    subject = MeasuredRun(run, scale, config)
    for name in names:
        if key(name, scale) not in have:
            made = [
                {"measure": r.measure, "value": r.value, "labels": r.labels, "about": {**r.about, "commit": commit()}}
                for r in measure_named(name)(subject)
            ]
            line = {"kind": "measure", "key": key(name, scale), "findings": made}
            files.append_json_lines(run.results_file, [line])
