"""Runs that take a second: a config, images to train on, and what tests do with them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
from PIL import Image

import gcalign
from gcalign.lab.data.images import InMemory
from gcalign.lab.training import checkpoints
from gcalign.lab.training.callbacks import RunRecorder
from gcalign.lab.training.config import configured

TINY = ["epochs=3", "batch_size=16", "log_every=2", "checkpoint_every=2", "model.hidden=32", "model.out=8",
        "model.width=0.25", "accelerator=cpu", "views=plain"]  # fmt: skip
SCENES = ["data=scenes", "data.limit=64", "epochs=1", "batch_size=32", "model.width=0.25", "model.hidden=16",
          "model.out=8", "accelerator=cpu", "logger=none", "log_every=1"]  # fmt: skip
SHAPES = ["data=shapes", "epochs=1", "batch_size=32", "model.width=0.25", "model.hidden=16", "model.out=8",
          "logger=none"]  # fmt: skip


class StoppedError(Exception):
    """What `stopping` raises."""


def pictures(n=40, labels=True):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, 3, 12, 12), generator=generator, dtype=torch.uint8)
    known = {"labels": torch.arange(n) % 4, "domains": torch.arange(n) % 2} if labels else {}
    return InMemory(pixels, name="tiny", split="train", **known)


def png(grey=0, size=(8, 8), kind="PNG"):
    """The bytes of an image of one grey level, which tells it apart after decoding; or of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", size, grey if isinstance(grey, tuple) else (grey, grey, grey)).save(buffer, kind)
    return buffer.getvalue()


def folder_of(folder, n=40, size=(24, 24)):
    """A folder of n images, each of another grey level."""
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(n):
        (folder / f"{k:03}.png").write_bytes(png(k, size))
    return folder


def config_for(folder, *words):
    return configured([*TINY, f"runs={folder}", *words])


def weights(run):
    return checkpoints.read(run.weights_file)[0]


def assert_same(a, b):
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


@contextmanager
def stopping(step, stop=None):
    """Within, every training of this process stops after this step, by default with a StoppedError."""
    honest = RunRecorder.on_train_batch_end

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        honest(self, trainer, module, outputs, batch, batch_idx)
        if batch.step + 1 == step:
            if stop is None:
                raise StoppedError
            stop()

    RunRecorder.on_train_batch_end = on_train_batch_end
    try:
        yield
    finally:
        RunRecorder.on_train_batch_end = honest


def command(folder, *argv, module=None, **more):
    """`gcalign …` as a process of its own."""
    program = folder / "bin" / "gcalign"
    program.parent.mkdir(exist_ok=True)
    program.write_text("import sys\nfrom gcalign.cli import main\nsys.exit(main())\n")
    start = ["-m", module] if module else [str(program)]
    env = {**os.environ, "PYTHONPATH": str(Path(gcalign.__file__).parents[1])}
    return subprocess.run([sys.executable, *start, *argv], capture_output=True, text=True, check=False, env=env, **more)
