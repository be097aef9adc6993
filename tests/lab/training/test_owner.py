"""A run has one owner, who is named to others, and a process that ends owns nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gcalign.cli import main
from gcalign.lab import files
from gcalign.lab.experiments.engine.experiment import SCALES, Job
from gcalign.lab.experiments.engine.jobs import do, run_of
from gcalign.lab.training import owner
from gcalign.lab.training.config import configured
from gcalign.lab.training.owner import BusyError, owned
from gcalign.lab.training.probe import probe
from gcalign.lab.training.runs import Run
from gcalign.lab.training.train import train
from small_runs import TINY as WORDS
from small_runs import StoppedError

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|lightning).*")]


SCENES = [*WORDS, "data=scenes", "data.limit=32", "logger=none"]


def holder(folder, seconds=60):
    """Another process that owns a run."""
    code = (
        "import sys, time; from pathlib import Path; from gcalign.lab.training.owner import owned\n"
        "with owned(Path(sys.argv[1])): print('mine', flush=True); time.sleep(float(sys.argv[2]))"
    )
    folder.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-c", code, str(folder), str(seconds)]
    other = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "mine\n"
    return other


def test_a_second_process_is_refused_and_told_by_whom(tmp_path, capsys):
    config = configured([*SCENES, f"runs={tmp_path}"])
    with holder(Run.of(config).path) as other:
        begun = time.monotonic()
        assert main(["train", *SCENES, f"runs={tmp_path}"]) == 2
        assert time.monotonic() - begun < owner.PATIENCE  # an owner that is alive is not waited for
        said = capsys.readouterr().err
        assert f"process {other.pid} on {socket.gethostname()} since 2" in said
        assert "wait=true" in said
        assert not Run.of(config).config_file.exists()
        other.kill()
    assert main(["train", *SCENES, f"runs={tmp_path}"]) == 0  # a killed process owns nothing


@pytest.mark.parametrize("content", ['{"host": "node17", "pid": 4, "since": "2030-01-01 10:00:00"}', "[]", "\x00", ""])
def test_a_file_that_names_an_owner_does_not_make_one(tmp_path, content):
    (tmp_path / "owner.json").write_text(content)
    later = time.time() + 1e6
    os.utime(tmp_path / "owner.json", (later, later))
    with owned(tmp_path):
        assert owner.owner_of(tmp_path).pid == os.getpid()
    assert not (tmp_path / "owner.json").exists()


def test_workers_that_hold_the_lock_of_a_killed_process_are_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(owner, "PATIENCE", 0.5)
    with holder(tmp_path, 60) as other:
        owner_file = tmp_path / "owner.json"
        content = json.loads(owner_file.read_text())
        owner_file.write_text(json.dumps(content | {"pid": 2**22 + 1}))  # no process has this id
        begun = time.monotonic()
        with pytest.raises(BusyError), owned(tmp_path):
            pass
        assert time.monotonic() - begun >= 0.5
        other.kill()


def test_an_owner_may_own_again_and_lets_go_at_the_end(tmp_path):
    with owned(tmp_path):
        with owned(tmp_path):
            pass
        with holder(tmp_path / "other") as other:
            other.kill()
        assert owner.owner_of(tmp_path).pid == os.getpid()
    with holder(tmp_path, 0):
        pass
    with pytest.raises(StoppedError), owned(tmp_path):
        raise StoppedError
    with holder(tmp_path, 0):
        pass


def test_probes_and_sweeps_own_the_run_they_write_to(tmp_path, monkeypatch):
    run = train(configured([*SCENES, f"runs={tmp_path}"]), quiet=True)
    seen = []
    honest = files.append

    def append(path, data):
        seen.append((Path(path).name, owner.owner_of(run.path)))
        honest(path, data)

    monkeypatch.setattr(files, "append", append)
    probe([f"run={run.path}", "protocol=knn", "data.limit=40"])
    written = [who for name, who in seen if name == "results.jsonl"]
    assert written[-1].pid == os.getpid()
    job = Job({}, tuple(word for word in SCENES if not word.startswith("logger")), ("knn",), 3)
    with holder(run_of(job, str(tmp_path)).path) as other:
        assert not do(job, SCALES["tiny"], str(tmp_path))
        other.kill()
