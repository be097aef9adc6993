"""An encoder takes images as they are, with the preprocessing of training."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest
import torch
from PIL import Image

import gcalign
from gcalign.lab.data.images import Images
from gcalign.lab.training import checkpoints
from gcalign.lab.training.config import Data
from gcalign.lab.training.samples import images_of
from small_runs import assert_same

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|lightning).*")]


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


def test_a_loaded_encoder_has_the_weights_of_the_run(run):
    saved, about = checkpoints.read(run.weights_file)
    assert about["config"]["method"]["name"] == "ince"
    prefix = "towers.0.encoder."
    own = {k.removeprefix(prefix): v for k, v in saved.items() if k.startswith(prefix)}
    assert_same(gcalign.load(run.path).network.state_dict(), own)
