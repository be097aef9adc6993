"""An encoder for other programs: exported, compared with the original, and described in a model card."""

from __future__ import annotations

import copy
import importlib.util
import io
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gcalign
from gcalign.errors import one_of
from gcalign.kernels import normalize
from gcalign.lab import files
from gcalign.lab.training.checkpoints import read, save
from gcalign.lab.training.config import Config
from gcalign.lab.training.encoder import Encoder, Encoders
from gcalign.lab.training.load import load, weights_of
from gcalign.lab.training.probe import words
from gcalign.lab.training.runs import Run
from gcalign.lab.words import explained, path_of, printable

TOLERANCE = 1e-4  # of the largest feature: other programs round differently
_NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "torch-export": (), "safetensors": ("safetensors",)}
_FILES = {"onnx": "model.onnx", "torch-export": "model.pt2", "safetensors": "model.safetensors"}


class FromItems(nn.Module):
    """RGB images [B, C, H, W] in [0, 1], or arrays [B, D] → features: the normalisation is part of it."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, items: Tensor) -> Tensor:
        features = self.encoder(self.encoder.normalised(items))
        return normalize(features) if self.encoder.unit else features


def export(overrides: Sequence[str], output: str) -> Path:
    """`run=… format=onnx|torch-export|safetensors`: a new folder with the model and its card, README.md.

    Of a run on columns, `column=` is the side. The exported model is run on random items and compared with the
    original. If they differ, nothing is written.
    """
    given = words(overrides, ("run", "format", "encoder", "column"), ("run", "format"))
    kind = one_of("format", given["format"], _FILES)
    missing = [name for name in _NEEDS[kind] if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"format={kind} needs {' and '.join(missing)}; pip install {' '.join(missing)}")
    folder = path_of(output)
    if folder.exists():
        raise ValueError(f"-o {output} exists; an export is a new folder: choose another name, or remove it")
    run = Run.at(given["run"])
    encoder = _chosen(load(run.path, encoder=given.get("encoder")), given, kind)
    config = weights_of(run, tensors=False).config
    inputs = _random(encoder)
    expected = _features(encoder, inputs)
    part = files.part_of(folder)
    files.clean(folder.parent, folder.name)
    try:
        with explained(f"-o {output} cannot be made", "choose a directory in which you can create files", OSError):
            part.mkdir(parents=True)
        features = _KINDS[kind](encoder, config, part / _FILES[kind])(inputs)
        error = float((features - expected).abs().max())
        if features.shape != expected.shape or not error <= TOLERANCE * float(expected.abs().max()):
            raise ValueError(
                f"the exported model differs from the original by {error:.1e}, more than {TOLERANCE:g} of its largest "
                "feature; nothing was written: try another format"
            )
        files.write(part / "README.md", card(run, config, encoder, kind, error))
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _chosen(loaded: Encoder | Encoders, given: Mapping[str, str], kind: str) -> Encoder:
    """The encoder of a run on images, or that of one column."""
    if isinstance(loaded, Encoder):
        if "column" in given:
            raise ValueError(f"column={given['column']} is for a run on columns, and this one has images; leave it out")
        return loaded
    if "column" not in given:
        raise ValueError(f"column= is missing; this run has {', '.join(loaded.columns)}: export each on its own")
    encoder = loaded[given["column"]]
    if encoder.side.kind == "text" and kind != "safetensors":
        raise ValueError(f"format={kind} takes tensors, and {encoder.side.name} holds texts; use format=safetensors")
    return encoder


def _called(encoder: Encoder) -> str:
    return "images" if encoder.side.kind == "image" else "items"


def _random(encoder: Encoder) -> Any:
    if encoder.side.kind == "text":
        return ("red heart", "ß", "a longer text with several words", "赤いハート", "42")
    return torch.rand(5, *encoder.shape, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def _features(encoder: Encoder, inputs: Any) -> Tensor:
    if encoder.side.kind == "text":
        return encoder.embed_items(inputs)
    return FromItems(encoder)(inputs)


# --- formats: write a file, and return what it computes -------------------------------------------------------

_Again = Callable[[Any], Tensor]


def _onnx(encoder: Encoder, config: Config, path: Path) -> _Again:
    import onnxruntime  # type: ignore[import-not-found]  # of an extra

    model = FromItems(encoder).eval()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # what the exporter says of its own parts
        temporary = Path(folder) / "model.onnx"
        torch.onnx.export(
            model, (torch.zeros(2, *encoder.shape),), str(temporary), input_names=[_called(encoder)],
            output_names=["features"], dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True,
            external_data=False, verbose=False,
        )  # fmt: skip
        files.write(path, temporary.read_bytes())
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {_called(encoder): inputs.numpy()})[0])


def _torch_export(encoder: Encoder, config: Config, path: Path) -> _Again:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        batch = ({0: torch.export.Dim("batch")},)
        program = torch.export.export(
            FromItems(encoder).eval(), (torch.zeros(2, *encoder.shape),), dynamic_shapes=batch
        )
        torch.export.save(program, buffer)
        files.write(path, buffer.getvalue())
        again: _Again = torch.export.load(io.BytesIO(path.read_bytes())).module()
    return lambda inputs: again(inputs).detach()


def _safetensors(encoder: Encoder, config: Config, path: Path) -> _Again:
    save(path, encoder.network.state_dict(), {"config": config.identity, **asdict(encoder.side)})
    twin = copy.deepcopy(encoder)
    for value in twin.network.state_dict().values():
        value.zero_()
    twin.network.load_state_dict(read(path)[0])
    return lambda inputs: _features(twin, inputs)


_KINDS = {"onnx": _onnx, "torch-export": _torch_export, "safetensors": _safetensors}

# --- the card -------------------------------------------------------------------------------------------------

_USE = {
    "onnx": """import numpy, onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(features,) = session.run(None, {{"{called}": {called}}})  # numpy float32 [B, {sizes}]{range}""",
    "torch-export": """import torch

model = torch.export.load("model.pt2").module()
features = model({called})  # float32 [B, {sizes}]{range}""",
    "safetensors": """from gcalign.lab.models import encoder
from safetensors.torch import load_file

network = encoder({name!r}, shape={shape}, width={width}, stem={stem!r}).eval()
network.load_state_dict(load_file("model.safetensors"))
features = network(images)  # float32 [B, {sizes}]{range}, normalised as below""",
    "column": """import gcalign

encoder = gcalign.load("runs/…")[{column!r}]  # model.safetensors has the weights of encoder.network
features = encoder.embed(items)""",
}


def card(run: Run, config: Config, encoder: Encoder, kind: str, error: float) -> str:
    """What somebody who gets the file should know: data, method, results with their protocols, limits."""
    m, shape, images = config.model, encoder.shape, encoder.side.kind == "image"
    name, data, column = (_cell(x) for x in (config.method["name"], config.data.name, encoder.side.name))
    of_column = config.data.paired
    use = _USE["column" if of_column and kind == "safetensors" else kind].format(
        called=_called(encoder), sizes=", ".join(map(str, shape)), range=", RGB in [0, 1]" if images else "",
        name=m.encoder, shape=shape,
        width=m.width, stem=m.stem, column=encoder.side.name,
    )  # fmt: skip
    chosen = {key: value for key, value in sorted(config.method.items()) if key != "name" and value is not None}
    options = _cell(", ".join(f"{key}={value}" for key, value in chosen.items()))
    noise = f", {100 * config.pairs.noise:g} % of the pairs mismatched on purpose" if config.pairs.noise else ""
    optimizer = f"{_cell(config.optimizer.name)} with learning rate {config.optimizer.lr:g}"
    mean, std = (", ".join(f"{x:.4g}" for x in values[:8]) for values in (encoder.side.mean, encoder.side.std))
    samples = "pairs of its table" if of_column else "images of its training split"
    samples = f"all {samples}" if config.data.limit is None else f"{config.data.limit} training {samples.split()[0]}"
    what = f"The encoder of the column {column}" if of_column else "An encoder of images"
    views = "" if of_column else f", {config.pairs.views} views ({_cell(config.view_name)}) of each"
    prepared = f"Items are normalised by mean ({mean}) and standard deviation ({std})." if mean else ""
    if images:
        prepared = (
            f"Images are RGB: the shorter side is brought to {shape[1]}, and the square in the middle taken. Mean "
            f"({mean}), standard deviation ({std}) of the channels, in [0, 1]."
        )
    title = column if of_column else _cell(m.encoder)
    model = f"encoders {_cell(m.encoders or 'by kind')}" if of_column else f"encoder {_cell(m.encoder)}"
    return f"""# {title} trained with {name} on {data}

{what}: {"×".join(map(str, shape)) or "a text"} → {encoder.features} features. No label was used, unless the target
below reads them.

## Use

```python
{use}
```

The exported model was compared with the original on five random items: the largest difference is {error:.1e}.

## Data

{data}, {samples}{views}{noise}. {prepared}

## Method

{name} ({options or "default options"}), target {_cell(config.target.name)}; {model} of width {m.width:g}, projector
{_cell(m.projector)}; {config.epochs} epochs, batch {config.batch_size}, {optimizer}, seed {config.seed}.
Run {config.hash}, gcalign {gcalign.__version__}.

## Results

{_results(run)}

## Limits

* One run with one seed. The spread over seeds is not part of this card.
* Measured on {data} only. Other {"images, sizes and cameras" if images else "items"} can give other features.
* Features reflect what {"the sides of a pair" if of_column else "views of one image"} have in common, and whatever
  bias the data has. Test them on your task.
"""


def _results(run: Run) -> str:
    probes = [line for line in run.results() if line["kind"] == "probe"]
    if not probes:
        return f"None were recorded. `gcalign probe run={_cell(run.path.name)}` measures them."
    rows = ["| protocol | accuracy | tested on | samples | labels | seed |", "|---|---|---|---|---|---|"]
    for line in probes:
        more = " | ".join(_cell(line.get(key, "–")) for key in ("split", "n_test", "labels_used", "seed"))
        rows.append(f"| {_cell(line['protocol'])} | {100 * line['accuracy']:.1f} % | {more} |")
    return "\n".join(rows)


def _cell(value: object) -> str:
    """A value from a file, as text of one line without Markdown."""
    return printable(" ".join(str(value).split())).translate({ord(c): f"\\{c}" for c in "|`<[*"})
