"""`gcalign probe`: what a run's encoders are worth, measured by a protocol that fits its sides, and recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.progress import track
from torch import Tensor, nn

from gcalign.errors import count, did_you_mean, one_of
from gcalign.lab import files
from gcalign.lab.data import corruptions
from gcalign.lab.data.catalogue import find
from gcalign.lab.data.images import Images
from gcalign.lab.data.sides import SPLITS
from gcalign.lab.data.sources import labels_of
from gcalign.lab.evaluation import PROTOCOLS, Result, corruption_probe, domain_probe, extract, leave_one_domain_out
from gcalign.lab.evaluation import probe as evaluate_encoder
from gcalign.lab.evaluation.domains import least_squares
from gcalign.lab.evaluation.results import options_of
from gcalign.lab.evaluation.retrieval import EmbeddedColumns, Retrieved, retrieval, zeroshot
from gcalign.lab.training import baselines
from gcalign.lab.training.config import Data
from gcalign.lab.training.encoder import Encoders
from gcalign.lab.training.load import load, load_encoder, weights_of
from gcalign.lab.training.owner import owned
from gcalign.lab.training.places import check_known
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import columns_of, images_of
from gcalign.lab.training.typed import value_of
from gcalign.lab.words import explained

DATA = ("data", "data.root", "data.size", "data.limit", "data.on_error")
COLUMNS = ("run", "encoder", "split", "device", "data.root", "data.on_error")  # words that go with columns
OF_COLUMNS: Mapping[str, Callable[..., Retrieved]] = {"retrieval": retrieval, "zeroshot": zeroshot}
R = TypeVar("R", Result, Retrieved)


def words(overrides: Sequence[str], known: Sequence[str], required: Sequence[str] = ()) -> dict[str, str]:
    """`key=value` words as a dictionary, if every key is known."""
    found = {}
    for word in overrides:
        key, equals, value = word.partition("=")
        if not equals or key not in known:
            raise ValueError(f"{word!r} must be key=value; {did_you_mean(key, known)}")
        found[key] = value
    for key in required:
        if key not in found:
            example = f", e.g. {key}=runs/… (see `gcalign list`)" if key == "run" else f": {key}=…"
            raise ValueError(f"{key}= is missing; add it{example}")
    return found


def device_of(given: Mapping[str, str]) -> str:
    name = given.get("device", "cuda" if torch.cuda.is_available() else "cpu")
    with explained(f"device={name} cannot be used", "device=cpu always can", RuntimeError, AssertionError):
        torch.zeros(1, device=name).item()  # a device without memory, meta, gives nothing back
    return name


def data_of(run: Run, given: Mapping[str, str], *, named: Data | None = None, roots: Sequence[Path] = ()) -> Data:
    """The run's data or what is given instead, at the encoder's size, balanced; all of it unless limited.

    `named` is the run's data where this command names it; where only its files do, a path is followed if it is given,
    lies within `roots`, or an earlier command named it.
    """
    own = named or run.config().data
    if not named:
        check_known(own, given, f"run={run.path}", roots)
    data = own if given.get("data", own.name) == own.name else Data(name=given["data"], on_error=own.on_error)
    # scenes have one size, and are small enough for any encoder
    size = weights_of(run, tensors=False).sides[0].shape[1] if data.name != "scenes" else None
    chosen = {key.removeprefix("data."): value for key, value in given.items() if key in DATA[1:]}
    changed: dict[str, Any] = {"size": size, "limit": None, "tail": 1.0}
    changed |= {key: value_of(f"data.{key}", value) if key in changed else value for key, value in chosen.items()}
    return dataclasses.replace(data, **changed)


def probe(overrides: Sequence[str], *, progress: bool = False) -> Result | Retrieved:
    """`run=… protocol=…` and any option of the protocol; the result is appended to the run's results.

    Of a run on images, accuracies; of a run on columns, retrieval and names. `run=pixels` and `run=untrained` are what
    a run is compared with: `like=runs/…` names that run, and decides model, seed and data. On its own data a run is
    fitted on as many images as it was trained on, and tested on the whole test split; so is a baseline, whose
    `data.limit` is that of training. For a run, `data.limit` takes so many of each.
    """
    run = run_on_columns(overrides)
    return _of_images(overrides, progress) if run is None else _of_columns(run, overrides)


def run_on_columns(overrides: Sequence[str]) -> Run | None:
    """The run that `run=` among these words names, if it has columns; None of one on images, and of a baseline."""
    name = next((word.partition("=")[2] for word in overrides if word.startswith("run=")), "")
    if not name or name in baselines.NAMES:
        return None
    run = Run.at(name)
    return run if run.config().data.paired else None


def _of_columns(run: Run, overrides: Sequence[str]) -> Retrieved:
    given = words(overrides, (*COLUMNS, "protocol", "top", "show"), ("run",))
    protocol = one_of("protocol", given.get("protocol", "retrieval"), OF_COLUMNS)
    split = one_of("split", given.get("split", "test"), SPLITS)
    asked = {key: value_of(key, given[key]) for key in ("top", "show") if key in given}
    if asked and protocol != "zeroshot":
        raise ValueError(f"{next(iter(asked))}= is for protocol=zeroshot; leave it out")
    run.check_writable()
    result = OF_COLUMNS[protocol](columns_with(run, given), split, **asked)
    return _recorded(run, run.config().data.name, result)


def columns_with(run: Run, given: Mapping[str, str]) -> EmbeddedColumns:
    """The columns of a run's table, or of the one that this command names, to be embedded by the run's encoders."""
    own = run.config().data
    check_known(own, given, f"run={run.path}")
    changed: dict[str, Any] = {key: given[f"data.{key}"] for key in ("root", "on_error") if f"data.{key}" in given}
    encoders = load(run.path, encoder=given.get("encoder"))
    assert isinstance(encoders, Encoders)
    known = {column: encoders[column].side for column in encoders}
    size = next((side.shape[1] for side in known.values() if side.kind == "image"), None)
    changed |= {} if size is None else {"size": size}
    samples = columns_of(dataclasses.replace(own, **changed))
    for side in samples.sides:
        was = known[side.name]
        if (was.kind, was.shape) != (side.kind, side.shape):
            raise ValueError(
                f"{side.name} of {samples.name} holds {side.kind} of shape {side.shape}, and the run was trained on "
                f"{was.kind} of shape {was.shape}; name the data of the run with data.root="
            )
    return EmbeddedColumns(encoders.to(device_of(given)), samples)


def _of_images(overrides: Sequence[str], progress: bool) -> Result:
    fits = [*(protocol.fit for protocol in PROTOCOLS.values()), least_squares]
    options = {name for fit in fits for name in options_of(fit)} - {"encoder", "device"}
    known = ("run", "like", "encoder", "protocol", "seed", "device", *DATA, *sorted(options))
    given = words(overrides, known, ("run",))
    is_baseline = given["run"] in baselines.NAMES
    if is_baseline != ("like" in given):
        raise ValueError(f"run={given['run']}: like= goes with {' and '.join(baselines.NAMES)}, and names their run")
    asked: dict[str, Any] = {key: value_of(key, value) for key, value in given.items() if key in options}
    asked["seed"] = count("seed", value_of("seed", given.get("seed", "0")), "any whole number from 0", least=0)
    device = device_of(given)
    run = Run.at(given["like" if is_baseline else "run"])
    baseline = baselines.baseline_of(given["run"], run, given) if is_baseline else None
    data = data_of(run, given)
    usual = "cifar10c" if data.name == "cifar10c" else "linear-fast"
    protocol = one_of("protocol", given.get("protocol", usual), (*PROTOCOLS, *SPECIAL))
    if data.name == "cifar10c" and protocol != "cifar10c":
        raise ValueError(f"protocol={protocol} needs a training split, and cifar10c has none; use protocol=cifar10c")
    run.check_writable()
    subject = Subject(baseline or _loaded(run, given.get("encoder")), data, device, progress)
    if protocol in SPECIAL:
        result = SPECIAL[protocol](subject, **asked)
    else:
        trained = run.config().data
        limit = data.limit or (trained.limit if trained.name == data.name else None)
        train = images_of(dataclasses.replace(data, limit=limit), "train")
        labels_of(train, f"protocol={protocol}")
        test = images_of(dataclasses.replace(data, limit=None) if baseline else data, "test")
        about: dict[str, Any] = {"protocol": protocol, "device": device, "progress": progress}
        result = evaluate_encoder(subject.network(train), train, test, **about, **asked)
    if baseline:
        result = dataclasses.replace(result, of=str(baseline))
    return _recorded(run, data.name, result, "baseline" if baseline else "probe")


def _recorded(run: Run, data: str, result: R, kind: str = "probe") -> R:
    """The result, appended to the results of its run, or of the run that it is a baseline of."""
    with owned(run.path, wait=True):
        line = {"kind": kind, "data": data, "config": run.config().hash, **result.as_dict()}
        files.append_json_lines(run.results_file, [line])
    return result


def _loaded(run: Run, encoder: str | None) -> Callable[[Images], nn.Module]:
    """The run's encoder, whatever the images."""
    network = load_encoder(run.path, encoder=encoder)
    return lambda images: network


@dataclasses.dataclass(frozen=True)
class Subject:
    """An encoder about to be measured, and on what."""

    network: Callable[[Images], nn.Module]
    data: Data
    device: str
    progress: bool

    def features(self, images: Images) -> Tensor:
        return extract(self.network(images), images, device=self.device, progress=self.progress)


def _domain(of: Subject, **asked: Any) -> Result:
    train, test = (images_of(of.data, split) for split in ("train", "test"))
    domains = None if train.domains is None or test.domains is None else torch.cat([train.domains, test.domains])
    features = torch.cat([of.features(train), of.features(test)])
    # a target plan may have shown the encoder the domains of its training images
    unseen = torch.arange(len(features)) >= len(train)
    return domain_probe(features, domains, unseen=unseen, names=train.domain_names, **asked)


def _across(of: Subject, **asked: Any) -> Result:
    images = images_of(of.data, whole_split(of.data.name))
    asked |= {"names": images.classes, "domain_names": images.domain_names}
    return leave_one_domain_out(of.features(images), images.labels, images.domains, **asked)


def _corrupted(of: Subject, **asked: Any) -> Result:
    data, quiet = dataclasses.replace(of.data, name="cifar10c"), dataclasses.replace(of, progress=False)
    features, labels = {}, {}
    cells = [(name, severity) for name in corruptions.names() for severity in range(1, 6)]
    for name, severity in track(cells, description="CIFAR-10-C", disable=not of.progress):
        made = images_of(data, "test", corruption=name, severity=severity)
        features[f"{name} {severity}"] = quiet.features(made)
        labels[f"{name} {severity}"] = labels_of(made, "the CIFAR-10-C protocol")
    return corruption_probe(features, labels, names=find("cifar10c").classes, **asked)


# appendix:dgsetting for domains and classes, app:corruptset for CIFAR-10-C
SPECIAL: dict[str, Callable[..., Result]] = {"domain": _domain, "across-domains": _across, "cifar10c": _corrupted}


def whole_split(name: str) -> str:
    """The split that is everything, where a data set comes undivided."""
    return "all" if "all" in find(name).splits else find(name).splits[0]
