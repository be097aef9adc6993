"""One run has one owner, lines are whole, logs continue where the run does, and one bad run hides no other."""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from PIL import Image

from gcalign.cli import main
from gcalign.lab import files
from gcalign.lab.data.sources import load
from gcalign.lab.experiments.engine import records
from gcalign.lab.experiments.engine.experiment import SCALES, Job
from gcalign.lab.experiments.engine.jobs import do, run_of
from gcalign.lab.training import checkpoints, listing, owner
from gcalign.lab.training.config import configured
from gcalign.lab.training.owner import BusyError, owned
from gcalign.lab.training.probe import probe
from gcalign.lab.training.runs import Run
from gcalign.lab.training.train import train
from small_runs import TINY, StoppedError, assert_same, config_for, pictures, stopping, weights

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|sync_dist|lightning).*")]
SCENES = [*TINY, "data=scenes", "data.limit=32", "logger=none"]


# one owner


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


def test_a_second_process_can_wait(tmp_path, capsys):
    config = configured([*SCENES, f"runs={tmp_path}"])
    with holder(Run.of(config).path, 2) as other:
        assert main(["train", *SCENES, f"runs={tmp_path}", "wait=true"]) == 0
        assert f"waiting: {Run.of(config).path} is used by process {other.pid}" in capsys.readouterr().err
    assert Run.of(config).done


def test_a_process_that_waited_for_a_run_to_end_does_not_train_it_again(tmp_path, monkeypatch):
    config = config_for(tmp_path, "wait=true")
    real = owner._acquire

    def slow(lock, folder, wait):  # meanwhile, another process did all of it
        monkeypatch.setattr(owner, "_acquire", real)
        train(config_for(tmp_path), images=pictures(), quiet=True)
        stamps.append(Run.of(config).weights_file.stat().st_mtime_ns)
        real(lock, folder, wait)

    stamps = []
    monkeypatch.setattr(owner, "_acquire", slow)
    run = train(config, images=pictures(), quiet=True)
    assert run.weights_file.stat().st_mtime_ns == stamps[0]


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


# whole lines


def test_half_a_line_does_not_take_the_next_with_it(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n{"kind": "tra')
    files.append_json_lines(path, [{"kind": "train", "step": 2}])
    with pytest.warns(UserWarning, match=r"results\.jsonl, line 2 is left out"):
        assert [r["step"] for r in files.read_json_lines(path)] == [1, 2]


@pytest.mark.filterwarnings("always:.*left out")
@pytest.mark.parametrize("half", ['{"kind": "train", "st', '{"kind": "probe"}', "\x00", '{"kind": "train", "step": 3,'])
def test_half_a_last_line_is_named_and_written_again_by_the_run(tmp_path, half, capsys, recwarn):
    config = config_for(tmp_path)
    run = Run.of(config)
    run.start(config)
    files.append_json_lines(run.results_file, [{"kind": "train", "step": 2, "loss": 1.0}])
    with run.results_file.open("a") as file:
        file.write(half)
    page = str(tmp_path / "r.html")
    for argv in (["list", str(tmp_path)], ["list", str(tmp_path), "--mean"], ["report", str(tmp_path), "-o", page]):
        assert main(argv) == 0
        assert f"{run.results_file}, line 2 is left out (a kill or a full disk cut it short)" in capsys.readouterr().err
    recwarn.clear()
    run.keep_results_before(2)
    assert [r["step"] for r in run.results()] == [2]
    assert not recwarn.list


@pytest.mark.parametrize("room", [0, 1, 17])
def test_an_append_to_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch, room):
    path = tmp_path / "results.jsonl"
    files.append_json_lines(path, [{"step": 1}])
    before, real = path.read_bytes(), os.write

    def full(descriptor, data):
        if room:
            return real(descriptor, data[:room])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "write", full)
    with pytest.raises(OSError, match="No space left on device"):
        files.append_json_lines(path, [{"step": 2}, {"step": 3}])
    monkeypatch.undo()
    assert path.read_bytes() == before
    files.append_json_lines(path, [{"step": 2}])
    assert [r["step"] for r in files.read_json_lines(path)] == [1, 2]


BROKEN = ["{}", "[]", "null", '{"kind": 3}', '{"kind": "train"}', '{"kind": "train", "step": 2, "loss": "x"}', "\x00",
          '{"kind": "probe", "protocol": "knn"}', '{"kind": "measure", "key": "k", "findings": [3]}', "[" * 5000,
          '{"kind": "train", "step": 2, "loss": NaN}', '{"kind": "knn", "step": 1, "accuracy": "1"}', "c3a9",
          '{"kind": "measure", "key": "k", "findings": [{"measure": "x", "value": 1, "evil": 2}]}']  # fmt: skip


@pytest.mark.filterwarnings("always:.*left out")
@pytest.mark.parametrize("line", BROKEN)
def test_a_line_that_is_no_result_costs_itself_alone_and_is_named(tmp_path, line, capsys):
    for seed in (0, 1):
        config = config_for(tmp_path, f"seed={seed}")
        Run.of(config).start(config)
        good = {"kind": "probe", "protocol": "knn", "accuracy": 0.5}
        files.append_json_lines(Run.of(config).results_file, [{"kind": "train", "step": 2, "loss": 1.0}, good])
    bad = Run.of(config_for(tmp_path, "seed=0"))
    with bad.results_file.open("a") as file:
        file.write(f"{line}\n")
    files.append_json_lines(bad.results_file, [{"kind": "train", "step": 4, "loss": 1.0}])
    for argv in (["list", str(tmp_path)], ["list", str(tmp_path), "--mean"]):
        assert main(argv) == 0
        out, err = capsys.readouterr()
        assert f"{bad.results_file}, line 3 is left out" in err
        assert "50.0" in out
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html"), "--images", "8"]) == 0
    assert "line 3 is left out" in capsys.readouterr().err
    bad.keep_results_before(4)
    assert [r.get("step") for r in bad.results()] == [2, None, 4]


@pytest.mark.filterwarnings("always:.*cannot be read")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"seed": "x"}', '{"method": {}}', '{"method": {"name": "gca-uot"'
                                     ', "eps": -1}, "data": {"name": "scenes"}}', "\xff\xfe", "[" * 9999])  # fmt: skip
def test_a_run_that_cannot_be_read_hides_no_other(tmp_path, content, capsys):
    good, bad = (config_for(tmp_path, f"seed={seed}") for seed in (0, 1))
    for config in (good, bad):
        Run.of(config).start(config)
    Run.of(bad).config_file.write_bytes(content.encode("latin-1"))
    assert main(["list", str(tmp_path)]) == 0
    assert "gca-ince" in capsys.readouterr().out
    assert [row["run"] for row in listing.listing(str(tmp_path))] == sorted(str(Run.of(c).path) for c in (good, bad))
    assert main(["list", str(tmp_path), "--mean"]) == 0
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html"), "--images", "8"]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "Left out: " in page
    assert str(Run.of(good).path) in page


def test_a_pipe_in_a_folder_of_runs_does_not_stop_the_list(tmp_path, capsys):
    config = config_for(tmp_path)
    Run.of(config).start(config)
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.json")
    os.mkfifo(Run.of(config).results_file)
    with pytest.warns(UserWarning, match="is a pipe or a device"):
        assert len(listing.listing(str(tmp_path))) == 2


def test_results_that_cannot_be_read_are_named_in_the_report(tmp_path, capsys):
    config = config_for(tmp_path / "runs")
    Run.of(config).start(config)
    good = records.Record("table1", "tiny", "knn", 0.5, {"method": "ince"})
    records.write(tmp_path / "results" / "fig-noise.jsonl", [good])
    odd = [{"value": "x"}, {"labels": {"method": [1]}}, {"seed": "x"}, {"about": 3}]
    for k, change in enumerate(odd):
        line = json.dumps(asdict(good) | change)
        (tmp_path / "results" / f"fig-{k}.jsonl").write_text(f"{line}\n")
    (tmp_path / "results" / "fig-align-uniform.jsonl").write_text("{}\n")
    (tmp_path / "results" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    words = ["report", str(tmp_path / "runs"), "-o", str(tmp_path / "r.html"), "--results", str(tmp_path / "results")]
    assert main(words) == 0
    page = (tmp_path / "r.html").read_text()
    assert page.count("Left out: the results of ") == 6
    assert "fig-noise" in page


# logs


def stopped(config, at):
    """Train until step `at`, then stop as a killed process does: nothing is flushed or closed."""
    child = os.fork()
    if child == 0:
        try:
            with stopping(at, lambda: os._exit(9)):
                train(config, images=pictures(), quiet=True)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def table(run):
    with (run.path / "csv" / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "images/s"} for row in csv.DictReader(file)]


def test_a_csv_log_continues_where_the_run_does(tmp_path):
    words = ("logger=csv", "epochs=6", "log_every=1", "checkpoint_every=4", "knn_every=2")
    whole = train(config_for(tmp_path / "whole", *words), images=pictures(), quiet=True)
    config = config_for(tmp_path / "parts", *words)
    for at in (3, 6, 7, 11):
        stopped(config, at)
    parts = train(config, images=pictures(), quiet=True)
    assert_same(weights(parts), weights(whole))
    assert table(parts) == table(whole)
    assert [int(row["step"]) for row in table(whole) if row["loss"]] == list(range(1, 13))
    lines = [[{k: v for k, v in r.items() if k != "images/s"} for r in run.results()] for run in (parts, whole)]
    assert lines[0] == lines[1]


def test_a_tensorboard_log_continues_where_the_run_does(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    words = ("epochs=6", "log_every=1", "checkpoint_every=4")
    config = config_for(tmp_path, *words)
    for at in (3, 6, 7, 11):  # the first before there is a checkpoint
        stopped(config, at)
    run = train(config, images=pictures(), quiet=True)
    seen = accumulator.EventAccumulator(str(run.path / "tensorboard"))
    seen.Reload()
    losses = [r["loss"] for r in run.results() if r["kind"] == "train"]
    assert [event.step for event in seen.Scalars("loss")] == list(range(1, 13))
    assert [event.value for event in seen.Scalars("loss")] == pytest.approx(losses)


def test_what_is_logged_of_a_step_is_on_disk_before_its_checkpoint(tmp_path, monkeypatch):
    config = config_for(tmp_path, "logger=csv", "log_every=1", "checkpoint_every=1", "knn_every=1")
    run, seen, honest = Run.of(config), [], checkpoints.save

    def saved(path, tensors, about):
        if path == run.checkpoint_file:
            lines = [r["step"] for r in run.results()]
            seen.append((about["step"], max(lines), int(table(run)[-1]["step"])))
        honest(path, tensors, about)

    monkeypatch.setattr(checkpoints, "save", saved)
    train(config, images=pictures(), quiet=True)
    assert seen == [(step, step, step) for step in range(1, 6)]
    assert [r["step"] for r in run.results() if r["kind"] == "knn"] == [2, 4, 6]


# sizes of images


def folder_of(tmp_path, *sizes):
    folder = tmp_path / "images"
    folder.mkdir()
    for k, size in enumerate(sizes):
        Image.new("RGB", size, (k % 250, 3, 4)).save(folder / f"{k:03}.png")
    return folder


def test_the_first_image_does_not_decide_the_size_of_all(tmp_path):
    folder = folder_of(tmp_path, (9, 9), *[(64, 48)] * 20, (300, 400))
    with pytest.warns(UserWarning, match=r"9 to 300 pixels.*brought to 48; data\.size= chooses another"):
        images = load("folder", "all", root=folder)
    assert images.shape == (3, 48, 48)
    assert load("folder", "all", root=folder, size=32).shape == (3, 32, 32)


def test_images_of_one_size_keep_it_without_a_word(tmp_path):
    assert load("folder", "all", root=folder_of(tmp_path, *[(40, 40)] * 3)).shape == (3, 40, 40)


def test_an_absurd_image_is_named_and_left_out(tmp_path):
    folder = folder_of(tmp_path, (1, 1), *[(32, 32)] * 5, (4000, 3))
    with pytest.warns(UserWarning, match=r"000\.png: 1×1 pixels.*at least 4"):
        images = load("folder", "all", root=folder)
    assert len(images) == 5
    assert images.shape == (3, 32, 32)


def test_statistics_of_nothing_are_an_error(tmp_path):
    folder = folder_of(tmp_path, *[(1, 1)] * 4)
    with pytest.raises(ValueError, match="no readable image"):
        load("folder", "all", root=folder)
    with pytest.raises(ValueError, match="no readable image"):
        load("folder", "all", root=folder, size=16)
    from gcalign.lab.data.decode import statistics

    with pytest.raises(ValueError, match="statistics of no images"):
        statistics(torch.zeros(0, 3, 4, 4, dtype=torch.uint8))
