"""What stays after training: an encoder that takes images as they are, exports of it, and a scikit-learn estimator."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import gcalign
from gcalign import GCAEncoder
from gcalign.cli import main
from gcalign.lab.data.images import Images
from gcalign.lab.models import encoder as new_encoder
from gcalign.lab.training import export as exports
from gcalign.lab.training.checkpoints import read, save
from gcalign.lab.training.config import Data, configured
from gcalign.lab.training.export import export
from gcalign.lab.training.probe import probe
from gcalign.lab.training.runs import Run
from gcalign.lab.training.samples import images_of
from gcalign.lab.training.train import train

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|lightning).*")]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    words = ["method=ince", "data=scenes", "data.limit=256", "epochs=1", "batch_size=64", "model.width=0.25",
             "model.hidden=32", "model.out=8", "accelerator=cpu", f"runs={folder}"]  # fmt: skip
    return train(configured(words), quiet=True)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Five images of several sizes and modes, as files."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    kinds = [("RGB", (40, 30)), ("L", (24, 24)), ("RGBA", (16, 50)), ("RGB", (24, 24)), ("P", (33, 47))]
    for k, (mode, (width, height)) in enumerate(kinds):
        Image.fromarray(rng.integers(0, 255, (height, width, 3), "uint8")).convert(mode).save(folder / f"{k}.png")
    return sorted(folder.iterdir())


def by_hand(network: torch.nn.Module, images: Images, like: Images) -> torch.Tensor:
    """Features of all images, normalised as those of another data set."""
    x = images.get(range(len(images))).float() / 255
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (like.mean, like.std))
    with torch.no_grad():
        return network((x - mean) / std)


# --- images as they are ---------------------------------------------------------------------------------------


def test_an_encoder_embeds_paths_images_and_arrays_with_the_preprocessing_of_training(run, pictures):
    encoder = gcalign.load(run.path)
    own = images_of(Data(name="folder", root=str(pictures[0].parent), size=24), "all")
    expected = by_hand(encoder.network, own, images_of(run.config().data, "train"))
    for given in (pictures, [str(path) for path in pictures], [Image.open(path) for path in pictures]):
        found = encoder.embed(given, batch_size=2)
        assert found.shape == (5, encoder.features)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    mixed = [np.asarray(Image.open(pictures[0])), np.asarray(Image.open(pictures[1])), pictures[2]]
    torch.testing.assert_close(encoder.embed(mixed), expected[:3], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoder.embed(pictures[3]), expected[3:4], rtol=1e-4, atol=1e-5)


def test_arrays_have_channels_last_and_tensors_first(run):
    encoder, scenes = gcalign.load(run.path), images_of(run.config().data, "test")
    pixels = scenes.get(range(4))
    expected = by_hand(encoder.network, scenes, scenes)[:4]
    one, every = pixels[0], pixels.movedim(1, 3).numpy()
    for given in (pixels, every, list(pixels), list(every)):
        torch.testing.assert_close(encoder.embed(given), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoder.embed(one), expected[:1], rtol=1e-4, atol=1e-5)


def test_an_encoder_leaves_its_mode_and_takes_normalised_images_as_before(run):
    encoder = gcalign.load(run.path)
    assert not encoder.training
    assert encoder(torch.zeros(2, 3, 24, 24)).shape == (2, encoder.features)
    before = {key: value.clone() for key, value in encoder.train().state_dict().items()}
    encoder.embed(np.zeros((2, 24, 24, 3), "uint8"))
    assert encoder.training
    assert all(value.equal(before[key]) for key, value in encoder.state_dict().items())
    assert torch.equal(pickle.loads(pickle.dumps(encoder)).embed(np.ones((1, 24, 24), "uint8")[0]),
                       encoder.embed(np.ones((24, 24), "uint8")))  # fmt: skip


@pytest.mark.parametrize(
    ("images", "error", "words"),
    [
        ([], ValueError, "at least one image"),
        (7, TypeError, "a list of images"),
        ([7], TypeError, "images[0] is a int"),
        (["nowhere.png"], ValueError, "images[0] cannot be read"),
        (np.zeros((2, 24, 24, 3)), ValueError, "of uint8"),
        (torch.zeros(2, 24, 24, 3, dtype=torch.uint8), ValueError, "[N, 3, H, W]"),
        ([np.zeros((24, 24, 4), "uint8")], ValueError, "[H, W, 3] of uint8"),
    ],
)
def test_what_is_no_image_is_refused(run, images, error, words):
    with pytest.raises(error, match=re.escape(words)):
        gcalign.load(run.path).embed(images)


def test_a_damaged_file_is_named_by_its_position(run, pictures, tmp_path):
    (tmp_path / "cut.png").write_bytes(pictures[0].read_bytes()[:60])
    (tmp_path / "text.png").write_text("no image")
    for name in ("cut.png", "text.png"):
        with pytest.raises(ValueError, match=r"images\[1\] cannot be read"):
            gcalign.load(run.path).embed([pictures[0], tmp_path / name])


def rewritten(run: Run, folder, **changes) -> Run:
    """A copy of a run whose weights say something else about their side; None leaves a word out."""
    (folder / "config.json").write_bytes(run.config_file.read_bytes())
    tensors, about = read(run.weights_file)
    side = {key: value for key, value in {**about["sides"][0], **changes}.items() if value is not None}
    save(folder / "weights.safetensors", tensors, {**about, "sides": [side]})
    return Run(folder)


def test_a_run_of_version_0_1_is_loaded(run, tmp_path):
    (tmp_path / "config.json").write_bytes(run.config_file.read_bytes())
    tensors, about = read(run.weights_file)
    older = {key.removeprefix("towers.0."): value for key, value in tensors.items()}
    side = {name: about["sides"][0][name] for name in ("shape", "mean", "std")}
    save(tmp_path / "weights.safetensors", older, {"config": about["config"], **side, "crc32": "00000000"})
    now, then = gcalign.load(run.path), gcalign.load(tmp_path)
    assert now.side == then.side
    assert all(value.equal(then.state_dict()[key]) for key, value in now.state_dict().items())


@pytest.mark.parametrize(
    "changes", [{"std": [0.0, 1, 1]}, {"mean": [1, 2]}, {"mean": "abc"}, {"mean": None}, {"std": [1, 1, "x"]}], ids=str
)
def test_a_file_with_an_impossible_normalisation_is_refused(run, tmp_path, changes):
    with pytest.raises(ValueError, match="does not say what it holds"):
        gcalign.load(rewritten(run, tmp_path, **changes).path)


# --- exports --------------------------------------------------------------------------------------------------


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
    monkeypatch.setitem(exports._KINDS, "safetensors", lambda encoder, config, path: lambda x: torch.zeros(5, 64))
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


def test_an_export_removes_what_a_killed_one_left(run, tmp_path):
    dead, alive = tmp_path / ".out.99999999.ab.part", tmp_path / f".out.{os.getpid()}.ab.part"
    for part in (dead, alive):
        part.mkdir()
        (part / "model.pt2").write_bytes(b"half")
    export([f"run={run.path}", "format=safetensors"], str(tmp_path / "out"))
    assert alive.exists()
    assert not dead.exists()


def test_an_export_does_not_write_over_anything(run, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="an export is a new folder"):
        export([f"run={run.path}", "format=safetensors"], str(tmp_path / "out"))


def test_a_card_shows_what_a_file_says_as_plain_text():
    assert exports._cell("a|b\n`<script>`\x1b[31m") == "a\\|b \\`\\<script>\\`\\x1b\\[31m"


# --- scikit-learn ---------------------------------------------------------------------------------------------

DIGITS, CLASSES = load_digits(return_X_y=True)
QUICK = {"epochs": 3, "hidden": 64, "dim": 16, "random_state": 0}


@pytest.mark.filterwarnings("ignore")
def test_the_estimator_passes_the_checks_of_scikit_learn():
    results = check_estimator(GCAEncoder(epochs=2, hidden=16), on_fail="raise")
    status = {result["check_name"]: result["status"] for result in results}
    assert status["check_fit_score_takes_y"] == "passed"
    assert list(status.values()).count("passed") >= 40


def test_a_table_as_y_is_refused_and_not_a_second_view():
    with pytest.raises(ValueError, match="a second view is X2="):
        GCAEncoder(**QUICK).fit(DIGITS[:50], DIGITS[:50])


def test_the_estimator_learns_and_says_so():
    model = GCAEncoder(**{**QUICK, "epochs": 10}).fit(DIGITS[:800])
    assert model.losses_[-1] < 0.9 * model.losses_[0]
    z = model.transform(DIGITS)
    assert z.shape == (len(DIGITS), 16)
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1)
    score = LogisticRegression(max_iter=1000).fit(z[:800], CLASSES[:800]).score(z[800:], CLASSES[800:])
    assert score > 0.7
    assert len(model.get_feature_names_out()) == 16


def test_the_second_argument_is_classes_if_it_has_one_dimension():
    one, two = GCAEncoder(**QUICK).fit(DIGITS, CLASSES), GCAEncoder(**QUICK).fit(DIGITS, y=CLASSES)
    np.testing.assert_array_equal(one.transform(DIGITS), two.transform(DIGITS))
    without = GCAEncoder(**QUICK).fit(DIGITS)
    assert not np.allclose(one.transform(DIGITS), without.transform(DIGITS))


def test_classes_help():
    scores = []
    for y in (None, CLASSES[:800]):
        encoder = GCAEncoder(**{**QUICK, "epochs": 10})
        z = encoder.fit_transform(DIGITS[:800], y=y), encoder.transform(DIGITS[800:])
        scores.append(LogisticRegression(max_iter=1000).fit(z[0], CLASSES[:800]).score(z[1], CLASSES[800:]))
    pipeline = make_pipeline(GCAEncoder(**{**QUICK, "epochs": 10}), LogisticRegression(max_iter=1000))
    assert pipeline.fit(DIGITS[:800], CLASSES[:800]).score(DIGITS[800:], CLASSES[800:]) == scores[1]
    assert scores[1] > scores[0] + 0.03


def test_partners_with_other_columns_get_a_network_of_their_own():
    left, right = DIGITS[:, :32], DIGITS[:, 24:]
    model = GCAEncoder(**{**QUICK, "epochs": 30, "eps": 0.1}).fit(left[:1500], X2=right[:1500])
    a, b = model.transform(left[1500:]), model.transform_second(right[1500:])
    found = (a @ b.T).argsort(1)[:, -10:]
    hits = (found == np.arange(len(a))[:, None]).any(1).mean()
    assert hits > 3 * 10 / len(a)  # three times chance
    with pytest.raises(ValueError, match="40 in fit"):
        model.transform_second(left)
    with pytest.raises(ValueError, match="use transform"):
        GCAEncoder(**QUICK).fit(left, X2=left[::-1].copy()).transform_second(left)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "gca-out"}, "did you mean 'gca-uot'"),
        ({"corruption": 1.5}, "between 0 and 1"),
        ({"dim": 0}, "dim=0 must be at least 1"),
        ({"batch_size": 1}, "batch_size=1 must be at least 2"),
        ({"eps": -1.0}, "eps=-1 must be > 0"),
    ],
)
def test_a_wrong_estimator_is_refused_when_it_is_fitted(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        GCAEncoder(**{**QUICK, **options}).fit(DIGITS[:50])


def test_partners_must_be_as_many():
    with pytest.raises(ValueError, match="X2 has 40 rows and X 50"):
        GCAEncoder(**QUICK).fit(DIGITS[:50], X2=DIGITS[:40])
    with pytest.raises(ValueError, match="one class for each of the 50 rows"):
        GCAEncoder(**QUICK).fit(DIGITS[:50], y=CLASSES[:40])
