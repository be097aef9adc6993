"""An encoder for other programs: exported, compared with the original, and described in a model card."""

from __future__ import annotations

import copy
import importlib.util
import io
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import gcalign
from gcalign.errors import one_of
from gcalign.kernels import normalize
from gcalign.lab import files
from gcalign.lab.training.checkpoints import read, save
from gcalign.lab.training.config import Config
from gcalign.lab.training.encoder import Encoder, Encoders
from gcalign.lab.training.load import load_run, weights_of
from gcalign.lab.training.probe import words
from gcalign.lab.training.runs import Run
from gcalign.lab.words import path_of, printable

TOLERANCE = 1e-4  # of the largest feature: other programs round differently


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
    kind = one_of("format", given["format"], FORMATS)
    form = FORMATS[kind]
    missing = [name for name in form.needs if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"format={kind} needs {' and '.join(missing)}; pip install {' '.join(missing)}")
    run, folder = Run.at(given["run"]), path_of(output)
    with files.new_folder("-o", folder) as part:
        encoder = _chosen(load_run(run.path, encoder=given.get("encoder")), given, kind)
        config = weights_of(run, tensors=False).config
        inputs = _random(encoder)
        expected = _features(encoder, inputs)
        features = form.write(encoder, config, part / form.file)(inputs)
        error = float((features - expected).abs().max())
        if features.shape != expected.shape or not error <= TOLERANCE * float(expected.abs().max()):
            raise ValueError(
                f"the exported model differs from the original by {error:.1e}, more than {TOLERANCE:g} of its largest "
                "feature; nothing was written: try another format"
            )
        files.write(part / "README.md", card(run, config, encoder, kind, error))
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


class Format(NamedTuple):
    """What an export is: its file, what writes it and gives back what it computes, and the packages that this needs."""

    file: str
    write: Callable[[Encoder, Config, Path], _Again]
    needs: tuple[str, ...] = ()


FORMATS = {
    "onnx": Format("model.onnx", _onnx, ("onnx", "onnxscript", "onnxruntime")),
    "torch-export": Format("model.pt2", _torch_export),
    "safetensors": Format("model.safetensors", _safetensors),
}

# --- the card -------------------------------------------------------------------------------------------------


def card(run: Run, config: Config, encoder: Encoder, kind: str, error: float) -> str:
    """What somebody who gets the file should know: data, method, results with their protocols, limits."""
    import jinja2

    side, chosen = encoder.side, {k: v for k, v in sorted(config.method.items()) if k != "name" and v is not None}
    known = {
        "columns": config.data.paired,
        "called": _called(encoder),
        "sizes": ", ".join(map(str, side.shape)),
        "options": ", ".join(f"{key}={value}" for key, value in chosen.items()),
        "probes": [line for line in run.results() if line["kind"] == "probe"],
        "run": run.path.name,
        "version": gcalign.__version__,
    }
    known |= {name: ", ".join(f"{x:.4g}" for x in getattr(side, name)[:8]) for name in ("mean", "std")}
    # whatever a file says is a text of one line
    here = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, finalize=cell)
    here.filters["repr"] = repr
    template = here.from_string(Path(__file__).with_name("card.md.jinja").read_text(encoding="utf-8"))
    return template.render(config=config, encoder=encoder, side=side, kind=kind, error=error, **known)


def cell(value: object) -> str:
    """A value from a file, as text of one line without Markdown."""
    return printable(" ".join(str(value).split())).translate({ord(c): f"\\{c}" for c in "|`<[*"})
