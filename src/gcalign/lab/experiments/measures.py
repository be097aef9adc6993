"""What is measured of a finished run, by name; each measurement is kept beside the run and never made twice."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gcalign.auditing.calibration import separation
from gcalign.errors import one_of
from gcalign.lab import files
from gcalign.lab.data import corruptions
from gcalign.lab.data.images import Images
from gcalign.lab.data.sources import labels_of
from gcalign.lab.data.splits import stratified, subset
from gcalign.lab.evaluation import Result, domain_probe, evaluate, extract, leave_one_domain_out
from gcalign.lab.evaluation.protocols import linear_fast
from gcalign.lab.evaluation.retrieval import EmbeddedColumns, Retrieved, retrieval, zeroshot
from gcalign.lab.experiments.registry import Scale
from gcalign.lab.experiments.subject import ENCODERS, Finding, MeasuredRun, cells, corrupted
from gcalign.lab.provenance import commit
from gcalign.lab.training import probe
from gcalign.lab.training.config import Config, criterion_of
from gcalign.lab.training.encoder import Encoders
from gcalign.lab.training.load import load
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import columns_of
from gcalign.metrics import alignment, compactness, uniformity

PAIRED = 2000  # images of which alignment and uniformity are measured
PER_CLASS = 10  # images of each class in a plan
FORWARD = 5  # iterations of the plans that are drawn, as in fig:diagnolline and fig:epsilon_study
EPSILONS = (0.01, 0.03, 0.1, 0.3, 1.0)
SHARE = 0.1  # of the corrupted images a linear layer is fitted on: app:corruptset
SPLITS = 5  # by which a linear layer's penalty is chosen: one is a draw of luck, worth up to three points
MISMATCHED = 0.3  # of the pairs in which mismatched ones are to be told
PROTOCOLS: Mapping[str, dict[str, Any]] = {
    "linear-fast": {"splits": SPLITS},
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


def _protocol(of: MeasuredRun, name: str) -> list[Finding]:
    train, test = of.images("train"), of.images("test")
    options = PROTOCOLS.get(name, {}) | (LINEAR.get(of.config.data.name, {}) if name == "linear" else {})
    known, asked = of.features("train"), of.features("test")
    protocol = options.pop("protocol", name)
    result = evaluate(protocol, known, train.labels, asked, test.labels, names=train.classes, **options)
    # as `gcalign probe` leaves it, for `gcalign list`
    line = {"kind": "probe", "data": of.config.data.name, "config": of.config.hash, **result.as_dict()}
    files.append_json_lines(of.run.results_file, [line])
    return [Finding(name, result.accuracy, about=_about(result))]


def _validation(of: MeasuredRun) -> list[Finding]:
    """Held out of the training images, whose labels the run never saw; the test split is not loaded."""
    if of.config.data.paired:
        return _validated_pairs(of)
    images = of.images("train")
    _, labels = labels_of(images, "the search").unique(return_inverse=True)
    fitted = linear_fast(of.features("train"), labels, classes=int(labels.max()) + 1, seed=0, splits=SPLITS)
    split = f"a tenth of the training images, {SPLITS} times"
    about = {"protocol": "linear-fast", "split": split, "n_train": len(images)}
    return [Finding("validation", fitted.validation, about={**about, "hyperparameters": fitted.hyperparameters})]


def _cifar10c(of: MeasuredRun) -> list[Finding]:
    if of.scale.corrupted is None:  # the published files, or all of it made here; a linear layer for each
        result = probe.SPECIAL["cifar10c"](probe.Subject(lambda images: of.encoder, of.data, of.device, False), seed=0)
        return [Finding("cifar10c", result.accuracy, about=_about(result))]
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
    return [Finding("cifar10c", statistics.fmean(each.values()), about=about)]


def _align_uniform(of: MeasuredRun) -> list[Finding]:
    test = of.images("test")
    n = min(PAIRED, len(test))
    pools = {"clean": test, "corrupted": corrupted(of, n // len(cells())).images}
    found = []
    for on, images in pools.items():
        z1, z2 = of.pairs(images, torch.arange(min(PAIRED, len(images))))
        about = {
            "of": "the projector's output for two views in the run's own setting",
            "images": len(z1),
            "split": "test",
        }
        found.append(Finding("alignment", alignment(z1, z2).item(), {"on": on}, about))
        found.append(Finding("uniformity", uniformity(z1).item(), {"on": on}, about))
    return found


def _compactness(of: MeasuredRun) -> list[Finding]:
    images = of.images("test")
    value = compactness(of.features("test"), labels_of(images, "compactness")).item()
    return [Finding("compactness", value, about={"of": "the encoder's output", "split": "test", "images": len(images)})]


def _mismatch(of: MeasuredRun) -> list[Finding]:
    """How well a plan tells true from mismatched pairs among test images, and what its gradient does with either.

    The gradient of a KL loss in −log K is T − P: a pair is pulled together by 1 − P_ii, and pushed from the others by
    the rest of its row.
    """
    test, batch = of.images("test"), of.config.batch_size
    n = min(PAIRED, len(test)) // batch * batch
    index = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:n]
    first, second = of.pairs(test, index)
    criterion = criterion_of(of.config)
    wrong = round(MISMATCHED * batch)  # of each batch, among themselves
    plan, cosine, pull, push = [], [], [], []
    for z1, z2 in zip(first.split(batch), second.split(batch), strict=True):
        z2 = torch.cat([z2[:wrong].roll(1, 0), z2[wrong:]])
        rows = criterion.plan(z1, z2).log[:batch]
        own = rows.diagonal(rows.shape[1] - batch)  # second views are the last columns, in the joint layout too
        plan.append(own)
        cosine.append(torch.cosine_similarity(z1, z2))
        pull.append(1 - own.exp())
        push.append(rows.exp().sum(1) - own.exp())
    bad = (torch.arange(n) % batch) < wrong
    about = {"of": f"batches of {batch} test pairs, {MISMATCHED:.0%} mismatched", "images": n}
    found = [
        Finding("mismatch-auroc", separation(score[~bad], score[bad]), {"score": name}, about)
        for name, score in (("plan", torch.cat(plan)), ("cosine", torch.cat(cosine)))
    ]
    for name, parts in (("pull", pull), ("push", push)):
        values = torch.cat(parts)
        found += [
            Finding(name, values[which].mean().item(), {"pairs": pairs}, about)
            for pairs, which in (("true", ~bad), ("mismatched", bad))
        ]
    return found


def _by_class(test: Images) -> Tensor:
    """As many images of each class, class by class."""
    labels = labels_of(test, "a plan")
    index = subset(labels, PER_CLASS * len(labels.unique()), seed=0)
    return index[labels[index].argsort(stable=True)]


def _planned(of: MeasuredRun, **options: Any) -> Finding:
    """The plan of the run's method, or another's with the run's weights, after the paper's five iterations."""
    test = of.images("test")
    index = _by_class(test)
    z1, z2 = of.pairs(test, index)
    method = {**(options or of.config.method), "iterations": FORWARD}
    criterion = criterion_of(dataclasses.replace(of.config, method=method))
    plan = criterion.plan(z1, z2)
    log = plan.log
    share = (log.diagonal() - log.logsumexp(1)).exp().mean().item()
    about = {
        "log_plan": [[round(value, 3) for value in row] for row in log.tolist()],
        "classes": [test.classes[label] for label in labels_of(test, "a plan")[index].tolist()],
        "eps": float(plan.eps),
        "iterations": plan.iterations,
        "objective": repr(criterion),
        "split": "test",
        "diagonal": share,
        "entropy": plan.entropy.item(),
    }
    return Finding("plan", None, about=about)


def _plans_epsilon(of: MeasuredRun) -> list[Finding]:
    found = []
    for method in ("ince", "gca-uot"):
        for eps in EPSILONS:
            plan = _planned(of, name=method, eps=eps)
            labels = {"method": method, "eps": eps}
            found.append(dataclasses.replace(plan, labels=labels))
            found += [Finding(name, plan.about[name], labels) for name in ("diagonal", "entropy")]
    return found


def _domain(of: MeasuredRun, which: str) -> list[Finding]:
    """Tested on images whose domain nothing has shown the encoder."""
    whole = of.everything(which)
    about: dict[str, Any] = {"unseen": whole.unseen, "names": whole.domain_names}
    result = domain_probe(whole.features, whole.domains, **about, **of.scale.readout)
    batch = {"batch_size": of.config.batch_size, "domains": len(whole.domain_names)}
    return [Finding(_of("domain", which), result.accuracy, about=_about(result) | batch)]


def _across(of: MeasuredRun, which: str) -> list[Finding]:
    whole = of.everything(which)
    about: dict[str, Any] = {"names": whole.classes, "domain_names": whole.domain_names}
    result = leave_one_domain_out(whole.features, whole.labels, whole.domains, **about, **of.scale.readout)
    return [Finding(_of("across-domains", which), result.accuracy, about=_about(result))]


def _of(name: str, which: str) -> str:
    return name if which == "trained" else f"{name}-{which}"


# --- of a run on pairs: retrieval among pairs that training never saw ------------------------------------------------


def _embedded(of: MeasuredRun) -> EmbeddedColumns:
    encoders = load(of.run.path, encoder=of.config.model.encoders or None)  # named by the command
    assert isinstance(encoders, Encoders)
    return EmbeddedColumns(encoders.to(of.device), columns_of(of.config.data))


def _about_pairs(found: Retrieved) -> dict[str, Any]:
    return {"protocol": found.protocol, "tested on": found.split, "n_test": found.n_test, "candidates": found.gallery}


def _retrieval(of: MeasuredRun) -> list[Finding]:
    """R@1, 5 and 10 both ways on the test pairs, their means, and R@k among all names of the table."""
    embedded = _embedded(of)
    found, names = retrieval(embedded, "test"), zeroshot(embedded, "test", show=0)
    about, out = _about_pairs(found) | {"eps": embedded.encoders.eps}, []
    for k in ("1", "5", "10"):
        ways = [by[k] for by in found.recall.values()]
        by_way = {"ways": {way: by[k] for way, by in found.recall.items()}}
        out.append(Finding(f"R@{k}", sum(ways) / len(ways), about=about | by_way))
    for by in names.recall.values():
        out += [Finding(f"zeroshot R@{k}", by[k], about=_about_pairs(names)) for k in ("1", "10")]
    return out


def _validated_pairs(of: MeasuredRun) -> list[Finding]:
    """R@10, mean of both ways, on the validation pairs; test pairs are not embedded."""
    found = retrieval(_embedded(of), "validation", (10,))
    about = _about_pairs(found) | {"measure": "R@10, mean of both ways"}
    return [Finding("validation", found.accuracy, about=about)]


MEASURES: dict[str, Callable[[MeasuredRun], list[Finding]]] = {
    **{name: partial(_protocol, name=name) for name in ("linear", "linear-fast", "knn", "10-labels", "100-labels")},
    "validation": _validation,
    "cifar10c": _cifar10c,
    "align-uniform": _align_uniform,
    "compactness": _compactness,
    "mismatch": _mismatch,
    "retrieval": _retrieval,
    "plan": lambda of: [_planned(of)],
    "plans-epsilon": _plans_epsilon,
    **{_of("domain", which): partial(_domain, which=which) for which in ENCODERS},
    **{_of("across-domains", which): partial(_across, which=which) for which in ENCODERS},
}


def key(name: str, scale: Scale) -> str:
    """Under which a measurement is kept: its name and what of the scale it depends on."""
    five, readout = f"{SPLITS} splits", dict(scale.readout)
    reads: dict[str, Any] = {"linear-fast": five, "validation": five, "cifar10c": scale.corrupted}
    reads |= {_of(what, which): readout for what in ("domain", "across-domains") for which in ENCODERS}
    return f"{name} {reads[name]}" if name in reads else name


def kept(run: Run) -> dict[str, list[Finding]]:
    """What has been measured of a run already."""
    lines = {line["key"]: line["findings"] for line in run.results() if line["kind"] == "measure"}
    return {key: [Finding(**content) for content in findings] for key, findings in lines.items()}


def measure(run: Run, names: tuple[str, ...], scale: Scale, config: Config) -> None:
    """Whatever of `names` is not kept yet, of a run that this process owns; `config` is what a command named."""
    have = kept(run)
    subject = MeasuredRun(run, scale, config)
    for name in names:
        if key(name, scale) in have:
            continue
        findings = MEASURES[one_of("measure", name, MEASURES)](subject)
        dated = [dataclasses.asdict(f) | {"about": {**f.about, "commit": commit()}} for f in findings]
        line = {"kind": "measure", "key": key(name, scale), "findings": dated}
        files.append_json_lines(run.results_file, [line])
