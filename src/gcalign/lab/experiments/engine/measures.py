"""What is measured of a finished run, by name; each measurement is kept beside the run and never made twice.

What one experiment alone measures is in its own module.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gcalign.errors import one_of
from gcalign.lab import files
from gcalign.lab.data import corruptions
from gcalign.lab.data.images import Images, InMemory
from gcalign.lab.data.sources import labels_of
from gcalign.lab.data.splits import stratified
from gcalign.lab.data.views import make_views
from gcalign.lab.evaluation import Result, domain_probe, evaluate, extract, leave_one_domain_out
from gcalign.lab.evaluation.protocols import linear_fast
from gcalign.lab.evaluation.retrieval import EmbeddedColumns, Retrieved, retrieval
from gcalign.lab.experiments.engine.experiment import DOMAINS, Scale, own_measures
from gcalign.lab.experiments.engine.records import Record
from gcalign.lab.models import outside
from gcalign.lab.models.state import evaluating
from gcalign.lab.outside import imported
from gcalign.lab.training import probe
from gcalign.lab.training.baselines import Baseline
from gcalign.lab.training.config import Config, Data
from gcalign.lab.training.encoder import Encoders
from gcalign.lab.training.load import load, load_encoder, load_whole
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import columns_of, images_of
from gcalign.lab.training.supervised import supervised
from gcalign.metrics import alignment, uniformity

# --- a finished run and its images, each made once ------------------------------------------------------------------


class MeasuredRun:
    """A finished run about to be measured. What several measurements need is made once."""

    def __init__(self, run: Run, scale: Scale, config: Config) -> None:
        # the config of the command, not of the run's files: its paths and its encoder are named by the user
        self.run, self.scale, self.config = run, scale, config
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    @functools.cached_property
    def encoder(self) -> nn.Module:
        return load_encoder(self.run.path, encoder=self.config.model.encoder)

    @functools.cached_property
    def network(self) -> nn.Module:
        """Encoder and projector: what the loss saw."""
        return load_whole(self.run.path, encoder=self.config.model.encoder)

    @functools.cached_property
    def data(self) -> Data:
        """All of the run's data set, at the size of its encoder."""
        return probe.data_of(self.run, {}, named=self.config.data)

    def images(self, split: str) -> Images:
        """As many training images as the run had, without its long tail; all of every other split."""
        own = dataclasses.replace(self.config.data, tail=1.0)
        data = own if split == "train" else self.data
        return loaded(data, split)

    @functools.cache  # noqa: B019  # a subject lives as long as its measurements
    def features(self, split: str) -> Tensor:
        return extract(self.encoder, self.images(split), device=self.device)

    @functools.cache  # noqa: B019  # as above
    def everything(self, which: str = "trained") -> Everything:
        """The whole data set, however much of it the run was trained on, as one of its ENCODERS sees it."""
        splits = [loaded(self.data, split) for split in ("train", "test")]
        encoder = ENCODERS[which](self)
        features = [extract(encoder, images, device=self.device) for images in splits]
        return Everything(
            torch.cat(features),
            labels=torch.cat([labels_of(images, "a probe across domains") for images in splits]),
            domains=torch.cat([images.domains for images in splits if images.domains is not None]),
            unseen=torch.arange(sum(map(len, splits))) >= len(splits[0]),
            classes=splits[0].classes,
            domain_names=splits[0].domain_names,
        )

    def pairs(self, images: Images, index: Tensor) -> tuple[Tensor, Tensor]:
        """Both views' projections, in the run's own setting; the same views for every run of a setting."""
        augment = make_views(self.config.view_name, images.shape, images.mean, images.std)
        z: tuple[list[Tensor], list[Tensor]] = ([], [])
        network = self.network.to(self.device)
        with evaluating(network), torch.inference_mode():
            for k, some in enumerate(index.split(500)):
                for view in (0, 1):
                    seed = 2 * k + view
                    x = augment(images.draw(some, seed).to(self.device), seed)
                    z[view].append(network(x).float().cpu())
        return torch.cat(z[0]), torch.cat(z[1])


def _supervised(of: MeasuredRun) -> nn.Module:
    images = of.images("train")
    if images.domains is None:
        raise ValueError(f"{images.name} has no domains to supervise with; use data that has them, such as pacs")
    return supervised(of.config, images, images.domains, of.device)


# of a run: its own, the one it started from, and that one trained on the domains of the same images
ENCODERS: Mapping[str, Callable[[MeasuredRun], nn.Module]] = {
    "trained": lambda of: of.encoder,
    "untrained": lambda of: Baseline("untrained", of.config, outside(of.config.model.encoder))(
        of.images("train")
    ).eval(),
    "supervised": _supervised,
}


def loaded(data: Data, split: str) -> Images:
    """A split, read once by a process however many runs it measures."""
    return _loaded(tuple(dataclasses.asdict(data).items()), split)


@functools.lru_cache(maxsize=8)
def _loaded(data: tuple[tuple[str, Any], ...], split: str) -> Images:
    return images_of(Data(**dict(data)), split)


@dataclass(frozen=True)
class Everything:
    """Features of every image, and which of them were held out of training."""

    features: Tensor  # [N, D]
    labels: Tensor  # [N]
    domains: Tensor  # [N]
    unseen: Tensor  # [N] bool
    classes: tuple[str, ...]
    domain_names: tuple[str, ...]


@dataclass(frozen=True)
class Pool:
    """Corrupted test images, as many of each corruption and severity; no image is in it twice."""

    images: InMemory
    cell: Tensor  # [N] which corruption and severity, in the order of `cells`


def cells() -> list[tuple[str, int]]:
    return [(name, severity) for name in corruptions.names() for severity in range(1, 6)]


@functools.lru_cache(maxsize=4)
def _pool(data: tuple[tuple[str, Any], ...], each: int) -> Pool:
    test = _loaded(data, "test")
    if each * len(cells()) > len(test):
        raise ValueError(
            f"{each} images of each of {len(cells())} corruptions are more than the {len(test)} of {test.name}; "
            f"take at most {len(test) // len(cells())}"
        )
    parts = torch.arange(each * len(cells())).split(each)
    pixels = [
        corruptions.corrupt(test.get(part), name, severity, seed=k)
        for k, (part, (name, severity)) in enumerate(zip(parts, cells(), strict=True))
    ]
    images = InMemory(
        torch.cat(pixels),
        name=f"{test.name} corrupted",
        split="test",
        labels=labels_of(test, "a corrupted set")[: each * len(cells())],
        classes=test.classes,
        mean=test.mean,
        std=test.std,
    )
    return Pool(images, torch.arange(len(cells())).repeat_interleave(each))


def corrupted(data: Data, each: int) -> Pool:
    """The same images for every run, made once by a process."""
    return _pool(tuple(dataclasses.asdict(data).items()), each)


# --- what is measured ------------------------------------------------------------------------------------------------

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
        result = probe.SPECIAL["cifar10c"](probe.Subject(lambda images: of.encoder, of.data, of.device, False), seed=0)
        return [Record(measure="cifar10c", value=result.accuracy, about=_about(result))]
    pool = corrupted(of.data, of.scale.corrupted)
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
    pools = {"clean": test, "corrupted": corrupted(of.data, n // len(cells())).images}
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


def embedded_pairs(of: MeasuredRun) -> EmbeddedColumns:
    """The encoders of a run on pairs, named by the command, and its pairs."""
    encoders = load(of.run.path, encoder=of.config.model.encoders or None)
    assert isinstance(encoders, Encoders)
    return EmbeddedColumns(encoders.to(of.device), columns_of(of.config.data))


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
    **{_of(DOMAINS[0], which): partial(_domain, which=which) for which in ENCODERS},
    **{_of(DOMAINS[1], which): partial(_across, which=which) for which in ENCODERS},
}


def measure_named(name: str) -> Measure:
    """A measure of the engine, of an experiment, or `module:function` of the user's own."""
    if ":" in name:
        return imported("measure", name, "it must be a function of a module that Python finds here")
    known = MEASURES | own_measures()
    return known[one_of("measure", name, known)]
