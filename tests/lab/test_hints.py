"""Every command that `gcalign train` prints at its end succeeds for this very run."""

import re
import shlex
import sys

import numpy as np
import pytest
from PIL import Image

from gcalign.cli import main

SMALL = ("epochs=1", "batch_size=32", "model.width=0.1", "model.hidden=8", "model.out=8", "accelerator=cpu")
OWN = """
from torch import nn

def flat(width=1.0):
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A place with an encoder of one's own, and images without labels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_encoder", raising=False)
    (tmp_path / "own_encoder.py").write_text(OWN)
    (tmp_path / "pictures").mkdir()
    rng = np.random.default_rng(0)
    for k in range(60):
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(tmp_path / "pictures" / f"{k}.png")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("data=scenes", "data.limit=64"),
        ("data=scenes", "data.limit=64", "model.encoder=own_encoder:flat"),
        ("data=folder", "data.root=pictures", "data.size=16"),
        ("data=folder", "data.root=pictures", "data.size=16", "model.encoder=own_encoder:flat"),
        ("data=shapes",),
        ("data=shapes", "model.encoders=[own_encoder:flat,ngrams]"),
    ],
    ids=" ".join,
)
def test_every_command_that_is_printed_succeeds(words, folder, capsys):
    assert main(["train", "method=ince", *words, *SMALL, "logger=none"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"only \d+ steps; lower batch_size or raise epochs", shown)
    commands = re.findall(r"with: gcalign (.+)", shown)
    assert commands
    for command in commands:
        assert main(shlex.split(command)) == 0, command


def test_enough_steps_are_not_mentioned(folder, capsys):
    words = ("data=scenes", "data.limit=64", "method=ince", *SMALL, "epochs=60")
    assert main(["train", *words, "logger=none"]) == 0
    assert "steps; lower" not in capsys.readouterr().out


def test_embeddings_are_written_as_an_array(folder):
    assert main(["train", "method=ince", "data=scenes", "data.limit=64", *SMALL, "logger=none", "name=one"]) == 0
    for name in ("features.npy", "features.parquet"):
        assert main(["embed", "run=runs/one", "data=folder", "data.root=pictures", "-o", name]) == 0
    features = np.load("features.npy")
    assert features.shape[0] == 60
    assert features.dtype == np.float32
