"""What is done with a finished run: probe it, embed data with it, list it with the others."""

from __future__ import annotations

import dataclasses
import datetime
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

from gcalign import files
from gcalign.data import corruptions
from gcalign.data.images import Images
from gcalign.data.sources import labels_of
from gcalign.data.sources import load as load_data
from gcalign.errors import did_you_mean
from gcalign.evaluation import PROTOCOLS, Result, corruption_probe, domain_probe, extract, leave_one_domain_out
from gcalign.evaluation import probe as evaluate_encoder
from gcalign.models import encoder
from gcalign.training.config import Config, Data, configured
from gcalign.training.runs import Run, load
from gcalign.training.train import images_of

BASELINES: dict[str, Callable[[Images], nn.Module]] = {
    "pixels": lambda images: nn.Flatten(),
    "untrained": lambda images: encoder("small", shape=images.shape, width=0.5, seed=0),
}


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


def _value(text: str) -> int | float | str:
    number = float(text) if text.lstrip("-").replace(".", "", 1).replace("e-", "", 1).isdigit() else None
    if number is None:
        return text
    return int(number) if number.is_integer() and "." not in text else number


def data_of(run_config: Config, given: dict[str, str]) -> Config:
    """The run's data, or the data set named instead."""
    if not any(key.startswith("data") for key in given):
        return run_config
    same = given.get("data", run_config.data.name) == run_config.data.name
    base = run_config.data if same else Data(name=given["data"])
    return dataclasses.replace(run_config, data=dataclasses.replace(base, root=given.get("data.root", base.root)))


def probe(overrides: Sequence[str], *, progress: bool = False) -> Result:
    """`run=… protocol=…` and any option of the protocol; the result is appended to the run's results.

    `run=pixels` and `run=untrained` are what a run is compared with.
    """
    own = ("run", "protocol", "seed", "data", "data.root", "data.limit", "device")
    options = ("epochs", "lr", "optimizer", "decay", "batch_size", "k", "temperature", "shots", "labels", "draws", "l2")
    given = words(overrides, (*own, *options), ("run",))
    baseline = BASELINES.get(given["run"])
    run = None if baseline else Run.at(given["run"])
    config = run.config() if run else configured([f"{k}={v}" for k, v in given.items() if k.startswith("data")])
    source = data_of(config, given)
    protocol = given.get("protocol", "linear-fast")
    if protocol not in (*PROTOCOLS, *SPECIAL):
        raise ValueError(f"protocol={protocol!r} is unknown; {did_you_mean(protocol, (*PROTOCOLS, *SPECIAL))}")
    asked: dict[str, Any] = {key: _value(value) for key, value in given.items() if key in options}
    asked["seed"] = int(given.get("seed", 0))
    device = given.get("device", "cuda" if torch.cuda.is_available() else "cpu")
    train = images_of(source, "all" if protocol in SPECIAL and source.data.name == "pacs" else "train")
    network = load(run.path) if run else BASELINES[given["run"]](train)
    if protocol in SPECIAL:
        result = SPECIAL[protocol](Subject(network, source, train, device, progress), **asked)
    else:
        _labelled(train)
        test = images_of(source, "test")
        result = evaluate_encoder(network, train, test, protocol=protocol, device=device, progress=progress, **asked)
    if run:
        record = {"kind": "probe", "data": source.data.name, "config": config.hash, **result.as_dict()}
        files.append_json_lines(run.results_file, [record])
    return result


@dataclasses.dataclass(frozen=True)
class Subject:
    """An encoder about to be measured, and on what."""

    network: nn.Module
    config: Config
    images: Images
    device: str
    progress: bool

    def features(self) -> Tensor:
        return extract(self.network, self.images, device=self.device, progress=self.progress)


def _domain(of: Subject, **asked: Any) -> Result:
    return domain_probe(of.features(), of.images.domains, names=of.images.domain_names, **asked)


def _across(of: Subject, **asked: Any) -> Result:
    images = of.images
    asked |= {"names": images.classes, "domain_names": images.domain_names}
    return leave_one_domain_out(of.features(), images.labels, images.domains, **asked)


def _corrupted(of: Subject, **asked: Any) -> Result:
    features, labels = {}, {}
    cells = [(name, severity) for name in corruptions.names() for severity in range(1, 6)]
    for name, severity in track(cells, description="CIFAR-10-C", disable=not of.progress):
        made = load_data("cifar10c", "test", root=of.config.data.root, corruption=name, severity=severity)
        features[f"{name} {severity}"] = extract(of.network, made, device=of.device)
        labels[f"{name} {severity}"] = labels_of(made, "the CIFAR-10-C protocol")
    return corruption_probe(features, labels, names=of.images.classes, **asked)


# appendix:dgsetting for domains and classes, app:corruptset for CIFAR-10-C
SPECIAL: dict[str, Callable[..., Result]] = {"domain": _domain, "across-domains": _across, "cifar10c": _corrupted}


def _labelled(images: Images) -> None:
    if images.labels is None:
        raise ValueError(
            f"{images.name} has no labels, and a probe needs them; name a labelled data set with data=, "
            "or use `gcalign embed`"
        )


def embed(overrides: Sequence[str], output: str, *, progress: bool = False) -> Path:
    """`run=… data=…`: the features of any data set or folder as a parquet file (index, label, domain, f0 … fD)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    given = words(overrides, ("run", "data", "data.root", "split", "device"), ("run",))
    path = Path(output)
    if path.suffix != ".parquet" or not path.resolve().parent.is_dir():
        raise ValueError(f"-o {output} must be a .parquet file in a folder that exists")
    run = Run.at(given["run"])
    images = images_of(data_of(run.config(), given), given.get("split", "train"))
    features = extract(load(run.path), images, device=given.get("device", "cpu"), progress=progress)
    columns: dict[str, Any] = {"index": list(range(len(images)))}
    for name, values in (("label", images.labels), ("domain", images.domains)):
        if values is not None:
            columns[name] = values.numpy()
    columns |= {f"f{k}": features[:, k].numpy() for k in range(features.shape[1])}
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer)
    files.write(path, buffer.getvalue().to_pybytes())
    return path


def listing(folder: str) -> list[dict[str, Any]]:
    """One record for each run below a folder: what it is, how far it is, its best-known accuracies."""
    rows = []
    for path in sorted(Path(folder).glob("*/config.json")):
        run = Run(path.parent)
        config, results = run.config(), run.results()
        steps = [r["step"] for r in results if r["kind"] == "train"]
        probes = {r["protocol"]: r["accuracy"] for r in results if r["kind"] == "probe"}
        changed = datetime.datetime.fromtimestamp(path.stat().st_mtime).strftime("%Y-%m-%d %H:%M")
        rows.append(
            {
                "run": str(run.path),
                "method": config.method["name"],
                "data": config.data.name,
                "seed": config.seed,
                "state": "done" if run.done else f"step {steps[-1] if steps else 0}",
                "accuracy": ", ".join(f"{k} {100 * v:.1f} %" for k, v in probes.items()) or "–",
                "started": changed,
            }
        )
    return rows


def summary(folder: str) -> list[dict[str, Any]]:
    """Mean and spread over seeds for each method and data set of a folder; paired by nothing but their settings."""
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for path in sorted(Path(folder).glob("*/config.json")):
        run = Run(path.parent)
        config = run.config()
        group = groups.setdefault((config.method["name"], config.data.name), {})
        last = {r["protocol"]: 100 * r["accuracy"] for r in run.results() if r["kind"] == "probe"}
        for protocol, accuracy in last.items():
            group.setdefault(protocol, []).append(accuracy)
    rows = []
    for (name, data), found in groups.items():
        spread = {p: f" ± {statistics.stdev(v):.2f}" if len(v) > 1 else "" for p, v in found.items()}
        shown = {p: f"{statistics.fmean(v):.2f}{spread[p]}" for p, v in found.items()}
        rows.append({"method": name, "data": data, "seeds": max(map(len, found.values()), default=0), **shown})
    return rows
