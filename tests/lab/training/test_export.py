"""An export gives what the encoder gives, and its card says what it is."""

from __future__ import annotations

import importlib.util
import re

import pytest
import torch
from safetensors.torch import load_file

import gcalign
from gcalign.cli import main
from gcalign.lab.models import encoder as new_encoder
from gcalign.lab.training import export as exports
from gcalign.lab.training.checkpoints import read
from gcalign.lab.training.export import export
from gcalign.lab.training.probe import probe
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import images_of

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|lightning).*")]


def pixels(n: int = 3) -> torch.Tensor:
    return torch.rand(n, 3, 24, 24, generator=torch.Generator().manual_seed(1))


def expected_of(run: Run) -> torch.Tensor:
    scenes = images_of(run.config().data, "train")
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (scenes.mean, scenes.std))
    with torch.no_grad():
        return gcalign.load(run.path)((pixels() - mean) / std)


def test_torch_export_gives_the_features_of_pixels(run, tmp_path):
    folder = export([f"run={run.path}", "format=torch-export"], str(tmp_path / "out"))
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "model.pt2"]
    model = torch.export.load(folder / "model.pt2").module()
    torch.testing.assert_close(model(pixels()).detach(), expected_of(run), rtol=1e-4, atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_safetensors_are_the_weights_with_their_preprocessing(run, tmp_path):
    folder = export([f"run={run.path}", "format=safetensors"], str(tmp_path / "out"))
    network = new_encoder("small", shape=(3, 24, 24), width=0.25).eval()
    network.load_state_dict(load_file(folder / "model.safetensors"))
    about = read(folder / "model.safetensors")[1]
    mean, std = (torch.tensor(about[name]).view(-1, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        assert torch.equal(network((pixels() - mean) / std), expected_of(run))


ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))


@pytest.mark.skipif(not ONNX, reason="needs onnx, onnxscript and onnxruntime")
def test_onnx_gives_the_features_of_pixels(run, tmp_path):
    import onnxruntime

    folder = export([f"run={run.path}", "format=onnx"], str(tmp_path / "out"))
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    (found,) = session.run(None, {"images": pixels().numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected_of(run), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(ONNX, reason="onnx is installed")
def test_onnx_says_what_to_install(run, tmp_path, capsys):
    assert main(["export", f"run={run.path}", "format=onnx", "-o", str(tmp_path / "out")]) == 2
    assert "pip install onnx" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_card_has_data_method_results_and_limits(run, tmp_path, capsys):
    probe([f"run={run.path}", "protocol=knn"])
    accuracy = run.results()[-1]["accuracy"]
    assert main(["export", f"run={run.path}", "format=safetensors", "-o", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"written: {tmp_path / 'out'}\n"
    card = (tmp_path / "out" / "README.md").read_text()
    assert [line for line in card.splitlines() if line.startswith("## ")] == [
        "## Use", "## Data", "## Method", "## Results", "## Limits",
    ]  # fmt: skip
    assert f"| knn | {100 * accuracy:.1f} % | test | 500 | 256 | 0 |" in card
    for fact in ("scenes, 256 training images", "ince (eps=0.1)", "1 epochs", run.config().hash, "0.58, 0.58, 0.58"):
        assert fact in card
    code = (
        re.search(r"```python\n(.*?)```", card, re.DOTALL)
        .group(1)
        .replace("model.safetensors", f"{tmp_path}/out/model.safetensors")
    )
    names = {"images": pixels()}
    exec(code, names)
    assert names["features"].shape == (3, 64)


def test_an_export_that_differs_is_not_written(run, tmp_path, monkeypatch):
    wrong = exports.Format("model.safetensors", lambda encoder, config, path: lambda x: torch.zeros(5, 64))
    monkeypatch.setitem(exports.FORMATS, "safetensors", wrong)
    with pytest.raises(ValueError, match="differs from the original"):
        export([f"run={run.path}", "format=safetensors"], str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["format=onnx"], "run= is missing"),
        (["run={}", "format=onx"], "did you mean 'onnx'"),
        (["run={}"], "format= is missing"),
        (["run=nowhere", "format=safetensors"], "must be a folder with a config.json"),
    ],
)
def test_a_wrong_export_is_refused(run, tmp_path, words, said, capsys):
    assert main(["export", *(word.format(run.path) for word in words), "-o", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_card_shows_what_a_file_says_as_plain_text():
    assert exports.cell("a|b\n`<script>`\x1b[31m") == "a\\|b \\`\\<script>\\`\\x1b\\[31m"
