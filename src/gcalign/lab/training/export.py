"""An encoder for other programs: exported, compared with the original, and described in a model card."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import gcalign
from gcalign.errors import one_of
from gcalign.lab import files
from gcalign.lab.training.config import Config
from gcalign.lab.training.container import read, save
from gcalign.lab.training.ready import Encoder
from gcalign.lab.training.runs import Run, load_encoder, weights_of
from gcalign.lab.training.use import words
from gcalign.lab.words import explained, path_of, printable

TOLERANCE = 1e-4  # of the largest feature: other programs round differently
_NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "torch-export": (), "safetensors": ("safetensors",)}
_FILES = {"onnx": "model.onnx", "torch-export": "model.pt2", "safetensors": "model.safetensors"}


class FromPixels(nn.Module):
    """RGB images [B, C, H, W] in [0, 1] → features [B, D]: the normalisation is part of it."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        return self.encoder(self.encoder.normalised(images))


def export(overrides: Sequence[str], output: str) -> Path:
    """`run=… format=onnx|torch-export|safetensors`: a new folder with the model and its card, README.md.

    The exported model is run on random images and compared with the original. If they differ, nothing is written.
    """
    given = words(overrides, ("run", "format", "encoder"), ("run", "format"))
    kind = one_of("format", given["format"], _FILES)
    missing = [name for name in _NEEDS[kind] if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"format={kind} needs {' and '.join(missing)}; pip install {' '.join(missing)}")
    folder = path_of(output)
    if folder.exists():
        raise ValueError(f"-o {output} exists; an export is a new folder: choose another name, or remove it")
    run = Run.at(given["run"])
    encoder = load_encoder(run.path, encoder=given.get("encoder"))
    config = weights_of(run).config
    if encoder.normalisation is None:
        raise ValueError(f"run={run.path} does not say how its images were normalised; train it again")
    images = torch.rand(5, *encoder.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = FromPixels(encoder)(images)
    part = files.part_of(folder)
    files.clean(folder.parent, folder.name)
    try:
        with explained(f"-o {output} cannot be made", "choose a directory in which you can create files", OSError):
            part.mkdir(parents=True)
        again = _KINDS[kind](encoder, config, part / _FILES[kind])
        found = again(images)
        error = float((found - expected).abs().max())
        if found.shape != expected.shape or not error <= TOLERANCE * float(expected.abs().max()):
            raise ValueError(
                f"the exported model differs from the original by {error:.1e}, more than {TOLERANCE:g} of its largest "
                "feature; nothing was written: try another format"
            )
        files.write(part / "README.md", card(run, config, encoder, kind, error))
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


# --- formats: write a file, and return what it computes -------------------------------------------------------

_Again = Callable[[Tensor], Tensor]


def _onnx(encoder: Encoder, config: Config, path: Path) -> _Again:
    import onnxruntime  # type: ignore[import-not-found]  # of an extra

    model = FromPixels(encoder).eval()
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # what the exporter says of its own parts
        temporary = Path(folder) / "model.onnx"
        torch.onnx.export(
            model, (torch.zeros(2, *encoder.shape),), str(temporary), input_names=["images"],
            output_names=["features"], dynamic_shapes={"images": {0: torch.export.Dim("batch")}}, dynamo=True,
            external_data=False, verbose=False,
        )  # fmt: skip
        files.write(path, temporary.read_bytes())
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def _torch_export(encoder: Encoder, config: Config, path: Path) -> _Again:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        batch = {"images": {0: torch.export.Dim("batch")}}
        program = torch.export.export(
            FromPixels(encoder).eval(), (torch.zeros(2, *encoder.shape),), dynamic_shapes=batch
        )
        torch.export.save(program, buffer)
        files.write(path, buffer.getvalue())
        again: _Again = torch.export.load(io.BytesIO(path.read_bytes())).module()
    return lambda images: again(images).detach()


def _safetensors(encoder: Encoder, config: Config, path: Path) -> _Again:
    assert encoder.normalisation is not None
    mean, std = encoder.normalisation
    about = {"config": config.identity, "shape": encoder.shape, "mean": mean, "std": std}
    save(path, encoder.network.state_dict(), {"gcalign": json.dumps(about, sort_keys=True)})
    twin = copy.deepcopy(encoder)
    for value in twin.network.state_dict().values():
        value.zero_()
    twin.network.load_state_dict(read(path)[0])
    return torch.no_grad()(FromPixels(twin))


_KINDS = {"onnx": _onnx, "torch-export": _torch_export, "safetensors": _safetensors}

# --- the card -------------------------------------------------------------------------------------------------

_USE = {
    "onnx": """import numpy, onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
(features,) = session.run(None, {{"images": images}})  # numpy float32 [B, {c}, {h}, {w}], RGB in [0, 1]""",
    "torch-export": """import torch

model = torch.export.load("model.pt2").module()
features = model(images)  # float32 [B, {c}, {h}, {w}], RGB in [0, 1]""",
    "safetensors": """from gcalign.lab.models import encoder
from safetensors.torch import load_file

network = encoder({name!r}, shape=({c}, {h}, {w}), width={width}, stem={stem!r}).eval()
network.load_state_dict(load_file("model.safetensors"))
features = network(images)  # float32 [B, {c}, {h}, {w}], RGB in [0, 1], normalised as below""",
}


def card(run: Run, config: Config, encoder: Encoder, kind: str, error: float) -> str:
    """What somebody who gets the file should know: data, method, results with their protocols, limits."""
    (c, h, w), m = encoder.shape, config.model
    name, data = _cell(config.method["name"]), _cell(config.data.name)
    use = _USE[kind].format(c=c, h=h, w=w, name=m.encoder, width=m.width, stem=m.stem)
    chosen = {key: value for key, value in sorted(config.method.items()) if key != "name" and value is not None}
    options = _cell(", ".join(f"{key}={value}" for key, value in chosen.items()))
    probes = [line for line in run.results() if line["kind"] == "probe"]
    rows = ["| protocol | accuracy | tested on | images | labels | seed |", "|---|---|---|---|---|---|"]
    for line in probes:
        more = " | ".join(_cell(line.get(key, "–")) for key in ("split", "n_test", "labels_used", "seed"))
        rows.append(f"| {_cell(line['protocol'])} | {100 * line['accuracy']:.1f} % | {more} |")
    none = f"None were recorded. `gcalign probe run={_cell(run.path.name)}` measures them."
    noise = f", {100 * config.pairs.noise:g} % of the pairs mismatched on purpose" if config.pairs.noise else ""
    limit = "all images of its training split" if config.data.limit is None else f"{config.data.limit} training images"
    mean, std = (", ".join(f"{x:.4g}" for x in values) for values in encoder.normalisation or ((), ()))
    optimizer = f"{_cell(config.optimizer.name)} with learning rate {config.optimizer.lr:g}"
    return f"""# {_cell(m.encoder)} trained with {name} on {data}

An encoder of images: {c}×{h}×{w} → {encoder.features} features. No label was used, unless the target below reads them.

## Use

```python
{use}
```

The exported model was compared with the original on five random images: the largest difference is {error:.1e}.

## Data

{data}, {limit}, {config.pairs.views} views ({_cell(config.view_name)}) of each{noise}. Images are RGB: the shorter side
is brought to {h}, and the square in the middle taken. Mean ({mean}), standard deviation ({std}) of the channels, in
[0, 1].

## Method

{name} ({options or "default options"}), target {_cell(config.target.name)}; encoder {_cell(m.encoder)} of width
{m.width:g}, projector {_cell(m.projector)}; {config.epochs} epochs, batch {config.batch_size}, {optimizer}, seed
{config.seed}. Run {config.hash}, gcalign {gcalign.__version__}.

## Results

{chr(10).join(rows) if probes else none}

## Limits

* One run with one seed. The spread over seeds is not part of this card.
* Measured on {data} only. Other images, sizes and cameras can give other features.
* Features reflect what views of one image have in common, and whatever bias the data has. Test them on your task.
"""


def _cell(value: object) -> str:
    """A value from a file, as text of one line without Markdown."""
    return printable(" ".join(str(value).split())).translate({ord(c): f"\\{c}" for c in "|`<[*"})
