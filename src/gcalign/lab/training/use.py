"""What is done with a finished run: probe it, embed data with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.progress import track
from torch import Tensor, nn

from gcalign.errors import count, did_you_mean, one_of
from gcalign.lab import files
from gcalign.lab.data import corruptions
from gcalign.lab.data.catalogue import find
from gcalign.lab.data.images import Images
from gcalign.lab.data.sources import labels_of
from gcalign.lab.evaluation import PROTOCOLS, Result, corruption_probe, domain_probe, extract, leave_one_domain_out
from gcalign.lab.evaluation import probe as evaluate_encoder
from gcalign.lab.evaluation.domains import least_squares
from gcalign.lab.evaluation.results import options_of
from gcalign.lab.training import baselines, pair_use
from gcalign.lab.training.config import Data
from gcalign.lab.training.owner import owned
from gcalign.lab.training.runs import Run, load_encoder, weights_of
from gcalign.lab.training.train import images_of
from gcalign.lab.training.typed import value_of
from gcalign.lab.words import explained, path_of, quoted

DATA = ("data", "data.root", "data.size", "data.limit", "data.on_error")
CORRUPTION = ("corruption", "severity")
R = TypeVar("R", Result, pair_use.Retrieved)


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
            raise ValueError(f"{key}= is missing; say which, e.g. {key}=runs/… (see `gcalign list`)")
    return found


def device_of(given: dict[str, str]) -> str:
    name = given.get("device", "cuda" if torch.cuda.is_available() else "cpu")
    with explained(f"device={name} cannot be used", "device=cpu always can", RuntimeError, AssertionError):
        torch.zeros(1, device=name).item()  # a device without memory, meta, gives nothing back
    return name


def data_of(run: Run | None, given: dict[str, str], *, named: Data | None = None, roots: Sequence[Path] = ()) -> Data:
    """The run's data or what is given instead, at the encoder's size, balanced; all of it unless limited.

    `named` is the run's data where this command names it; where only its files do, and another user made them, a path
    is followed if it is given or lies within `roots`.
    """
    own = named or (run.config().data if run else Data(name="scenes"))
    if run and not named:
        check_trusted(run, own, given, roots)
    data = own if given.get("data", own.name) == own.name else Data(name=given["data"], on_error=own.on_error)
    # scenes have one size, and are small enough for any encoder
    size = weights_of(run).shape[1] if run and data.name != "scenes" else None
    chosen = {key.removeprefix("data."): value for key, value in given.items() if key in DATA[1:]}
    changed: dict[str, Any] = {"size": size, "limit": None, "tail": 1.0}
    changed |= {key: value_of(f"data.{key}", value) if key in changed else value for key, value in chosen.items()}
    return dataclasses.replace(data, **changed)


def check_trusted(run: Run, own: Data, given: dict[str, str], roots: Sequence[Path] = ()) -> None:
    """That what is about to be read or fetched was named by the user: here, or in the command that made the run."""
    asked = []
    if given.get("data", own.name) == own.name:
        if "/" in own.name and "data" not in given:
            asked.append(f"data={own.name}")
        if own.root is not None and "data.root" not in given:
            place = path_of(own.root).resolve()
            if not any(place.is_relative_to(folder.resolve()) for folder in roots):
                asked.append(f"data.root={own.root}")
    if asked and not run.is_own():
        raise ValueError(
            f"run={run.path} was made by somebody else, or its config was changed, so the places it names are not "
            f"followed; if you know them, add {quoted(*asked)}"
        )


def probe(overrides: Sequence[str], *, progress: bool = False) -> Result | pair_use.Retrieved:
    """`run=… protocol=…` and any option of the protocol; the result is appended to the run's results.

    `run=pixels` and `run=untrained` are what a run is compared with: `like=runs/…` takes the model, seed and data of
    that run, `model.*`, `seed` and `data.*` say them in the words of `gcalign train`. On its own data a run is fitted
    on as many images as it was trained on, and tested on the whole test split; so is a baseline, whose `data.limit` is
    that of training. For a run, `data.limit` takes so many of each. A run on pairs has protocols of its own.
    """
    if _is_paired(overrides):
        given = words(overrides, (*pair_use.WORDS, "protocol", "top", "show"), ("run",))
        pairs = Run.at(given["run"])
        check_trusted(pairs, pairs.config().data, given)
        pairs.check_writable()
        return _recorded(pairs, pairs.config().data.name, pair_use.probe(pairs, given, device_of(given)))
    fits = [*(protocol.fit for protocol in PROTOCOLS.values()), least_squares]
    options = {name for fit in fits for name in options_of(fit)} - {"encoder", "device"}
    known = ("run", "encoder", "protocol", "seed", "device", *baselines.WORDS, *DATA, *sorted(options))
    given = words(overrides, known, ("run",))
    asked: dict[str, Any] = {key: value_of(key, value) for key, value in given.items() if key in options}
    baseline = baselines.named(given)
    # a baseline's seed is that of its weights; the protocol's stays 0, as for runs of any seed
    seed = "0" if baseline else given.get("seed", "0")
    asked["seed"] = count("seed", value_of("seed", seed), "any whole number from 0", least=0)
    device = device_of(given)
    run = None if baseline else Run.at(given["run"])
    model = baseline.like if baseline else run
    data = data_of(model, given)
    usual = "cifar10c" if data.name == "cifar10c" else "linear-fast"
    protocol = one_of("protocol", given.get("protocol", usual), (*PROTOCOLS, *SPECIAL))
    if data.name == "cifar10c" and protocol != "cifar10c":
        raise ValueError(f"protocol={protocol} needs a training split, and cifar10c has none; use protocol=cifar10c")
    if run:
        run.check_writable()
    subject = Subject(baseline or _loaded(Run.at(given["run"]), given.get("encoder")), data, device, progress)
    if protocol in SPECIAL:
        result = SPECIAL[protocol](subject, **asked)
    else:
        trained = model.config().data if model else data
        limit = data.limit or (trained.limit if trained.name == data.name else None)
        train = images_of(dataclasses.replace(data, limit=limit), "train")
        labels_of(train, f"protocol={protocol}")
        test = images_of(dataclasses.replace(data, limit=None) if baseline else data, "test")
        about: dict[str, Any] = {"protocol": protocol, "device": device, "progress": progress}
        result = evaluate_encoder(subject.network(train), train, test, **about, **asked)
    return _recorded(run, data.name, result) if run else dataclasses.replace(result, of=str(baseline))


def _is_paired(overrides: Sequence[str]) -> bool:
    """Whether `run=` among these words names a run on pairs."""
    name = next((word.partition("=")[2] for word in overrides if word.startswith("run=")), "")
    with suppress(ValueError):  # a baseline, or no run: the caller says what is wrong
        return bool(name) and Run.at(name).config().data.paired
    return False


def _recorded(run: Run, data: str, result: R) -> R:
    """The result, appended to the run's results."""
    with owned(run.path, wait=True):
        line = {"kind": "probe", "data": data, "config": run.config().hash, **result.as_dict()}
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
    images = images_of(of.data, _whole(of.data.name))
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


def _whole(name: str) -> str:
    """The split that is everything, where a data set comes undivided."""
    return "all" if "all" in find(name).splits else find(name).splits[0]


def embed(overrides: Sequence[str], output: str, *, progress: bool = False) -> Path:
    """`run=… data=…`: features of any data set or folder as a parquet file (index, image, label, domain, f0 … fD).

    `split=` is all of a data set that comes undivided, else train, unless given; `corruption=` and `severity=` choose
    from cifar10c. Of a run on pairs, `column=` is the side.
    """
    paired = _is_paired(overrides)
    known = (*pair_use.WORDS, "column") if paired else ("run", "encoder", "split", "device", *CORRUPTION, *DATA)
    given = words(overrides, known, ("run",))
    path = files.writable("-o", output, (".parquet",))
    device, run = device_of(given), Run.at(given["run"])
    if paired:
        check_trusted(run, run.config().data, given)
        columns, features = pair_use.embed(run, given, device)
    else:
        columns, features = _embedded(run, given, device, progress)
    columns |= {f"f{k}": features[:, k].numpy() for k in range(features.shape[1])}
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer)
    files.write(path, buffer.getvalue().to_pybytes())
    return path


def _embedded(run: Run, given: dict[str, str], device: str, progress: bool) -> tuple[dict[str, Any], Tensor]:
    data = data_of(run, given)
    more = {key: value_of(key, given[key]) for key in CORRUPTION if key in given}
    images = images_of(data, given.get("split", _whole(data.name)), **more)
    features = extract(load_encoder(run.path, encoder=given.get("encoder")), images, device=device, progress=progress)
    columns: dict[str, Any] = {"index": list(range(len(images)))}
    if images.places:
        # undecodable bytes of a name are spelt out: parquet holds UTF-8 alone
        columns["image"] = [place.encode("utf-8", "backslashreplace").decode() for place in images.places]
    for name, values in (("label", images.labels), ("domain", images.domains)):
        if values is not None:
            columns[name] = values.numpy()
    return columns, features
