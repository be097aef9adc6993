"""Training under faults: a run continues, has one owner, and loses no more than what broke.

Each test of random faults prints its figures: `make slow` runs them in full, CI a few of each.
`GCALIGN_FAULTS=20 pytest tests/lab/training/test_faults.py -s` runs so many of each.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import faults
import gcalign
from gcalign.cli import main
from gcalign.lab import files
from gcalign.lab.data.sources import load
from gcalign.lab.experiments.engine import records
from gcalign.lab.experiments.engine.experiment import TINY
from gcalign.lab.experiments.engine.jobs import Archive, do
from gcalign.lab.training import checkpoints, listing
from gcalign.lab.training.callbacks import RunRecorder
from gcalign.lab.training.checkpoints import checkpoint_step
from gcalign.lab.training.runs import Run
from gcalign.lab.training.train import train
from quick import quick
from small_runs import config_for, pictures

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|sync_dist|lightning|fork).*")]


def numbers(few: int, many: int):
    """Few in CI, many in the slow suite, or as many as the environment says."""
    given = os.environ.get("GCALIGN_FAULTS")
    slow = pytest.param(int(given or many), marks=pytest.mark.slow, id="slow")
    return pytest.mark.parametrize("n", [pytest.param(few, id="few"), slow])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing interrupted."""
    config = faults.config_of(tmp_path_factory.mktemp("whole"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(config, images=faults.images(), quiet=True)


# --- kills -----------------------------------------------------------------------------------------------------


@numbers(6, 200)
def test_a_run_that_is_killed_anywhere_ends_as_if_it_had_not_been(tmp_path, whole, n):
    """At a random touch of a file (half of a line written, a file not yet renamed) or at a random moment."""
    choice, kills, finished, where = random.Random(n), 0, 0, Counter()
    while kills < n:
        folder = tmp_path / str(finished)
        words = ["logger=tensorboard"] if finished % 4 == 3 else []
        run = Run.of(faults.config_of(folder, *words))
        while not run.done:
            touch = kills < n and choice.random() < 0.7
            delay = None if touch or kills >= n else choice.uniform(0, 1.0)
            at = choice.randint(1, 150) if touch else None
            process = faults.forked(str(folder), words, at, delay)
            faults.ended(process)
            if process.exitcode == -signal.SIGKILL:
                kills += 1
                where["at any time"] += not touch
            else:
                assert process.exitcode == 0
        process = faults.forked(str(folder), words, None, None)  # what is done is left alone, but for leavings
        faults.ended(process)
        assert process.exitcode == 0
        faults.same_as(run, whole)
        finished += 1
    where += faults.touched(tmp_path / "touched")
    if n >= 200:
        assert {"checkpoint.safetensors", "results.jsonl", "metrics.csv", "config.json", "owner.json"} <= where.keys()
    faults.report("kills", kills=kills, runs=finished, **where)


@pytest.mark.slow
def test_a_run_that_is_killed_at_each_touch_of_a_file_ends_as_if_it_had_not_been(tmp_path, whole):
    """From the first file that is made to the last that is removed; every touch once."""
    k, there = 0, True
    while there:
        k += 1
        folder = tmp_path / str(k)
        for at in (k, None, None):
            process = faults.forked(str(folder), [], at, None)
            faults.ended(process)
            assert process.exitcode in ((0, -signal.SIGKILL) if at else (0,))
            there = process.exitcode != 0 if at else there
        faults.same_as(Run.of(faults.config_of(folder)), whole)
    where = faults.touched(tmp_path / "touched")
    assert sum(where.values()) == k - 1
    assert {"weights.safetensors", "done", "checkpoint.safetensors", "results.jsonl", "metrics.csv"} <= where.keys()
    faults.report("a kill at each touch of a file", kills=k - 1, **where)


def test_what_is_logged_of_a_step_is_on_disk_before_its_checkpoint(tmp_path, monkeypatch):
    config = config_for(tmp_path, "logger=csv", "log_every=1", "checkpoint_every=1", "knn_every=1")
    run, seen, honest = Run.of(config), [], checkpoints.save

    def saved(path, tensors, about):
        if path == run.checkpoint_file:
            lines = [r["step"] for r in run.results()]
            seen.append((about["step"], max(lines), int(faults.table_of(run)[-1]["step"])))
        honest(path, tensors, about)

    monkeypatch.setattr(checkpoints, "save", saved)
    train(config, images=pictures(), quiet=True)
    assert seen == [(step, step, step) for step in range(1, 6)]
    assert [r["step"] for r in run.results() if r["kind"] == "knn"] == [2, 4, 6]


def test_left_over_parts_are_removed(tmp_path):
    config = config_for(tmp_path, "logger=none")
    run = Run.of(config)
    run.path.mkdir(parents=True)
    left = [f".weights.safetensors.{os.getpid()}.abcd.part", ".config.json.999999.ef01.part", ".done.1.77.part"]
    for name in left:
        (run.path / name).touch()
    train(config, images=pictures(), quiet=True)
    assert sorted(p.name for p in run.path.iterdir()) == [
        "config.json", "done", "lock", "results.jsonl", "weights.safetensors"
    ]  # fmt: skip


# --- a full disk -----------------------------------------------------------------------------------------------


def places(total: int, n: int) -> list[int]:
    return list(range(1, total + 1)) if n >= total else sorted(random.Random(0).sample(range(1, total + 1), n))


@numbers(4, 1000)
def test_a_disk_that_is_full_at_any_write_costs_nothing_but_time(tmp_path, whole, n):
    with pytest.MonkeyPatch.context() as patch:
        disk = faults.Full(patch, tmp_path)
        train(faults.config_of(tmp_path / "count"), images=faults.images(), quiet=True)
    for k in places(disk.writes, n):
        config = faults.config_of(tmp_path / str(k))
        run = Run.of(config)
        with pytest.MonkeyPatch.context() as patch:
            faults.Full(patch, tmp_path, k)
            with pytest.raises(ValueError, match="No space left on device"):
                train(config, images=faults.images(), quiet=True)
        if run.results_file.exists():
            assert run.results_file.read_bytes()[-1:] in (b"\n", b"")  # no half of a line
            run.results()  # and no warning of one
        assert not list(tmp_path.rglob("*.part"))
        train(config, images=faults.images(), quiet=True)
        faults.same_as(run, whole)
    faults.report("full disk, train", writes=disk.writes, tried=len(places(disk.writes, n)))


@numbers(3, 1000)
def test_a_disk_that_is_full_while_a_page_is_written_leaves_the_last_page(tmp_path, whole, n, capsys):
    words = ["report", str(whole.path.parent), "-o", str(tmp_path / "r.html"), "--images", "8"]
    with pytest.MonkeyPatch.context() as patch:
        disk = faults.Full(patch, tmp_path)
        assert main(words) == 0
    (tmp_path / "r.html").write_text("the last page")
    for k in places(disk.writes, n):
        with pytest.MonkeyPatch.context() as patch:
            faults.Full(patch, tmp_path, k)
            assert main(words) == 2
        said = capsys.readouterr().err
        assert "r.html" in said
        assert "make room" in said
        assert (tmp_path / "r.html").read_text() == "the last page"
        assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    with capsys.disabled():
        faults.report("full disk, report", writes=disk.writes, tried=len(places(disk.writes, n)))


def reproduced(folder: Path) -> dict[str, bytes]:
    """What a sweep of two jobs leaves: trained, measured, filed and drawn, in this process."""
    archive = Archive("fig-noise", folder / "results" / "fig-noise.jsonl", TINY, str(folder / "runs"))
    jobs = [quick("ince", measures=("knn",)), quick("gca-ince", measures=("knn", "align-uniform"))]
    for job in archive.missing(jobs):
        assert do(job, TINY, archive.runs)
        archive.save(jobs)
    archive.save(jobs)
    paths = [*(folder / "results").iterdir(), *(folder / "runs").glob("*/weights.safetensors")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@numbers(3, 1000)
def test_a_disk_that_is_full_during_a_sweep_loses_no_result(tmp_path, n):
    with pytest.MonkeyPatch.context() as patch:
        disk = faults.Full(patch, tmp_path)
        expected = reproduced(tmp_path / "count")
    assert expected["results/fig-noise.jsonl"].count(b"\n") >= 3
    for k in places(disk.writes, n):
        folder = tmp_path / str(k)
        with pytest.MonkeyPatch.context() as patch:
            faults.Full(patch, tmp_path, k)
            with pytest.raises((ValueError, OSError), match="No space left on device"):
                reproduced(folder)
        for path in folder.rglob("*.jsonl"):
            assert path.read_bytes()[-1:] in (b"\n", b"")
        assert reproduced(folder) == expected
        assert not list(folder.rglob("*.part"))
    faults.report("full disk, reproduce", writes=disk.writes, tried=len(places(disk.writes, n)))


# --- a worker and a rank that die ------------------------------------------------------------------------------


def test_a_loaders_worker_that_dies_is_named_and_the_run_continues(tmp_path, monkeypatch):
    words = ("workers=1", "logger=none", "knn_every=0")
    expected = train(faults.config_of(tmp_path / "a", *words), images=faults.images(), quiet=True)
    config = faults.config_of(tmp_path / "b", *words)
    honest = RunRecorder.on_train_batch_end

    def killed(self, trainer, module, outputs, batch, batch_idx):
        honest(self, trainer, module, outputs, batch, batch_idx)
        if batch.step + 1 == 5:
            for pid in children(os.getpid()):
                if command_of(pid) == command_of(os.getpid()):  # a fork: neither the server of forks nor its tracker
                    os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(RunRecorder, "on_train_batch_end", killed)
    with pytest.raises(ValueError, match=r"step \d+ of 16.*workers=0.*step \d+"):
        train(config, images=faults.images(), quiet=True)
    monkeypatch.setattr(RunRecorder, "on_train_batch_end", honest)
    run = train(config, images=faults.images(), quiet=True)
    assert run.weights_file.read_bytes() == expected.weights_file.read_bytes()


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


RANKS = ["data=scenes", "data.limit=64", "epochs=20", "batch_size=32", "checkpoint_every=2", "log_every=2", "devices=2",
         "model.width=0.25", "model.hidden=16", "model.out=8", "accelerator=cpu", "logger=none"]  # fmt: skip


@contextmanager
def ranks(folder: Path):
    """`gcalign train` with two ranks, and the file that has what it says."""
    source = str(Path(gcalign.__file__).parents[1])
    words = [sys.executable, "-m", "gcalign", "train", *RANKS, f"runs={folder}"]
    env = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    said = folder.with_name(f"{folder.name}.txt")
    with said.open("w") as file:
        process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=file)
    try:
        yield process, said
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("which", ["the other", "the first"])
def test_a_rank_that_dies_ends_the_run_which_the_same_command_continues(tmp_path, which):
    with ranks(tmp_path / "whole") as (process, said):
        assert process.wait(300) == 0, said.read_text()
    with ranks(tmp_path / "parts") as (process, said):
        deadline = time.monotonic() + 200
        while not list((tmp_path / "parts").glob("*/checkpoint.safetensors")):
            assert time.monotonic() < deadline
            assert process.poll() is None, said.read_text()
            time.sleep(0.05)
        (other,) = [pid for pid in children(process.pid) if b"gcalign" in command_of(pid)]
        begun = time.monotonic()
        os.kill(other if which == "the other" else process.pid, signal.SIGKILL)
        assert process.wait(120) != 0
        while command_of(other) and time.monotonic() < begun + 120:
            time.sleep(0.1)
        assert not command_of(other)  # no rank is left behind
        ended = time.monotonic() - begun
        if which == "the other":
            assert re.search(r"a rank .*has ended.*the same command continues at step \d+", said.read_text())
    with ranks(tmp_path / "parts") as (process, said):
        assert process.wait(300) == 0, said.read_text()
    a, b = (next((tmp_path / part).glob("*/weights.safetensors")).read_bytes() for part in ("whole", "parts"))
    assert a == b
    faults.report("a rank dies", which=which, seconds_to_end=round(ended, 1))


# --- one owner -------------------------------------------------------------------------------------------------


@numbers(3, 100)
def test_two_processes_that_start_one_run_at_once_make_it_once(tmp_path, whole, n):
    ends = Counter()
    for k in range(n):
        start, said = faults.CONTEXT.Event(), faults.CONTEXT.Queue()
        both = [faults.forked(str(tmp_path / str(k)), [], None, None, start=start, said=said) for _ in range(2)]
        start.set()
        found = dict(said.get(timeout=120) for _ in both)
        for process in both:
            faults.ended(process)
            assert process.exitcode == 0
        refused = [text for text in found.values() if text != "done"]
        assert len(refused) < 2
        for text in refused:
            (other,) = [pid for pid, end in found.items() if end == "done"]
            assert f"is used by process {other} on " in text
        ends["refused" if refused else "after the other"] += 1
        faults.same_as(Run.of(faults.config_of(tmp_path / str(k))), whole)
    faults.report("two starts of one run", pairs=n, **ends)


@numbers(1, 10)
def test_of_two_processes_the_one_that_may_wait_does(tmp_path, whole, n):
    for k in range(n):
        start, said = faults.CONTEXT.Event(), faults.CONTEXT.Queue()
        both = [faults.forked(str(tmp_path / str(k)), ["wait=true"], None, None, start=start, said=said) for _ in "ab"]
        start.set()
        assert {said.get(timeout=120)[1] for _ in both} == {"done"}
        for process in both:
            faults.ended(process)
        faults.same_as(Run.of(faults.config_of(tmp_path / str(k))), whole)


# --- a broken line costs itself, a broken run hides no other ---------------------------------------------------


BROKEN = ["{}", "[]", "null", '{"kind": 3}', '{"kind": "train"}', '{"kind": "train", "step": 2, "loss": "x"}', "\x00",
          '{"kind": "probe", "protocol": "knn"}', '{"kind": "measure", "key": "k", "findings": [3]}', "[" * 5000,
          '{"kind": "train", "step": 2, "loss": NaN}', '{"kind": "knn", "step": 1, "accuracy": "1"}', "c3a9",
          '{"kind": "train", "step": 2, "loss": 1e400}',
          '{"kind": "measure", "key": "k", "findings": [{"measure": "x", "value": 1, "evil": 2}]}']  # fmt: skip


@pytest.mark.filterwarnings("always:.*left out")
def test_a_line_that_is_no_result_costs_itself_alone_and_is_named(tmp_path, capsys):
    config = config_for(tmp_path)
    run, good = Run.of(config), {"kind": "probe", "protocol": "knn", "accuracy": 0.5}
    run.start(config)
    files.append_json_lines(run.results_file, [{"kind": "train", "step": 2, "loss": 1.0}, good])
    with run.results_file.open("a") as file:
        file.write("\n".join([*BROKEN, ""]))
    files.append_json_lines(run.results_file, [{"kind": "train", "step": 4, "loss": 1.0}])
    page = str(tmp_path / "r.html")
    for argv in (["list", str(tmp_path)], ["report", str(tmp_path), "-o", page]):
        assert main(argv) == 0
        out, err = capsys.readouterr()
        for k in range(len(BROKEN)):
            assert f"{run.results_file}, line {k + 3} is left out" in err
        assert "50.0" in out + Path(page).read_text() if argv[0] == "report" else out
    run.keep_results_before(4)
    assert [r.get("step") for r in run.results()] == [2, None, 4]


@pytest.mark.filterwarnings("always:.*left out")
@pytest.mark.parametrize("half", ['{"kind": "train", "st', '{"kind": "probe"}', "\x00", '{"kind": "train", "step": 3,'])
def test_half_a_last_line_is_named_and_written_again_by_the_run(tmp_path, half, capsys, recwarn):
    config = config_for(tmp_path)
    run = Run.of(config)
    run.start(config)
    files.append_json_lines(run.results_file, [{"kind": "train", "step": 2, "loss": 1.0}])
    with run.results_file.open("a") as file:
        file.write(half)
    assert main(["list", str(tmp_path)]) == 0
    assert f"{run.results_file}, line 2 is left out ({files.CUT_SHORT})" in capsys.readouterr().err
    recwarn.clear()
    run.keep_results_before(2)
    assert [r["step"] for r in run.results()] == [2]
    assert not recwarn.list


@pytest.mark.filterwarnings("always:.*(cannot be read|pipe or a device)")
def test_runs_that_cannot_be_read_hide_no_other(tmp_path, capsys):
    odd = ["", "{", "[]", '{"seed": "x"}', '{"method": {}}', "\xff\xfe", "[" * 9999]
    made = [Run.of(config) for config in (config_for(tmp_path, f"seed={seed}") for seed in range(len(odd) + 3))]
    for seed, run in enumerate(made):
        run.start(config_for(tmp_path, f"seed={seed}"))
    good, no_eps, pipe, *bad = made
    no_eps.config_file.write_text('{"method": {"name": "gca-uot", "eps": -1}, "data": {"name": "scenes"}}')
    pipe.config_file.unlink()
    os.mkfifo(pipe.config_file)
    for run, content in zip(bad, odd, strict=True):
        run.config_file.write_bytes(content.encode("latin-1"))
    assert main(["list", str(tmp_path)]) == 0
    assert "gca-ince" in capsys.readouterr().out
    rows = {row["run"]: row["state"] for row in listing.listing(str(tmp_path))}
    assert rows.keys() == {str(run.path) for run in made}
    assert {run for run, state in rows.items() if state == "unreadable"} == {str(run.path) for run in (pipe, *bad)}
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html"), "--images", "8"]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "Left out: " in page
    assert str(good.path) in page


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


# --- flipped bits ----------------------------------------------------------------------------------------------


def encoded(kind: str, k: int) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(k).integers(0, 255, (12, 12, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def outcome(use) -> str:
    """Whether something worked, or was refused in a sentence. Anything else is a failure of the test."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            use()
        except (ValueError, TypeError, OSError) as error:
            return "refused" if str(error) else "refused without a word"
    return "worked, with a warning" if said else "worked"


@numbers(10, 1000)
def test_flipped_bits_in_data_are_refused_or_left_out(tmp_path, n):
    choice, ends = random.Random(n), Counter()
    table = pa.table({"image": [encoded("PNG", k) for k in range(8)], "label": ["a", "b"] * 4})
    stored = {}
    for name, options in (("plain", {"use_dictionary": False}), ("zstd", {"compression": "zstd"}), ("snappy", {})):
        pq.write_table(table, tmp_path / f"{name}.parquet", **options)
        stored[f"{name}.parquet"] = (tmp_path / f"{name}.parquet").read_bytes()
    kinds = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
    for k in range(n):
        name = choice.choice([*stored, *kinds])
        folder = tmp_path / f"{k}"
        folder.mkdir()
        if name in stored:
            (folder / name).write_bytes(faults.flipped(stored[name], choice))
            end = outcome(lambda folder=folder, name=name: load("parquet", "all", root=folder / name))
        else:
            for j in range(3):
                data = encoded(name, j)
                (folder / f"{j}.{name.lower()}").write_bytes(faults.flipped(data, choice) if j else data)
            end = outcome(lambda folder=folder: load("folder", "all", root=folder))
        assert end != "refused without a word"
        ends[f"{'tables' if name in stored else 'images'} {end}"] += 1
    faults.report("flipped bits in data", tried=n, **ends)


@numbers(12, 1000)
def test_flipped_bits_in_a_run_are_refused_or_read_as_numbers(tmp_path, whole, n, capsys):
    """Of a stopped run, which is resumed, and of a finished one, which is listed, loaded and probed."""
    choice, ends = random.Random(n), Counter()
    config = faults.config_of(tmp_path / "runs")
    run, state = Run.of(config), gcalign.load(whole.path).state_dict()
    expected = {key: value.shape for key, value in state.items()}
    faults.ended(faults.forked(str(tmp_path / "runs"), [], 90, None))  # until it has a checkpoint
    assert checkpoint_step(run) > 0
    names = {"stopped": ("config.json", "results.jsonl", "checkpoint.safetensors"),
             "finished": ("config.json", "results.jsonl", "weights.safetensors", "done")}  # fmt: skip
    stored = {state: {name: (of.path / name).read_bytes() for name in names[state]}
              for state, of in (("stopped", run), ("finished", whole))}  # fmt: skip

    def resumed() -> None:
        train(config, images=faults.images(), quiet=True)
        assert run.done

    def loaded() -> None:
        state = gcalign.load(run.path).state_dict()
        assert {key: value.shape for key, value in state.items()} == expected

    def commanded(*words: str) -> None:
        code = main([*words])
        said = capsys.readouterr().err
        assert code in (0, 2)
        if code == 2:
            assert said.startswith("gcalign: ")
            raise ValueError(said)

    def listed():
        return commanded("list", str(tmp_path / "runs"))

    def probed():
        return commanded("probe", f"run={run.path}", "protocol=knn", "data.limit=40")

    uses = {
        "stopped": {"resumed": resumed, "listed": listed},
        "finished": {"loaded": loaded, "listed": listed, "probed": probed},
    }
    for _ in range(n):
        state = choice.choice(list(stored))
        shutil.rmtree(run.path)
        run.path.mkdir()
        for name, data in stored[state].items():
            (run.path / name).write_bytes(data)
        name = choice.choice([name for name in names[state] if name != "done"])
        (run.path / name).write_bytes(faults.flipped(stored[state][name], choice))
        use = choice.choice(list(uses[state]))
        end = outcome(uses[state][use])
        assert end != "refused without a word"
        ends[f"{name} {use}: {end}"] += 1
    capsys.readouterr()
    with capsys.disabled():
        faults.report("flipped bits in a run", tried=n, **dict(sorted(ends.items())))


@numbers(20, 1000)
def test_flipped_bits_in_result_files_are_named_with_their_line(tmp_path, n, capsys):
    choice, ends = random.Random(n), Counter()
    made = [records.Record("fig-noise", "tiny", "knn", k / 9, {"method": "ince", "noise": 0.0}, k) for k in range(8)]
    path = tmp_path / "tiny" / "fig-noise.jsonl"
    records.write(path, made)
    data = path.read_bytes()
    for _ in range(n):
        path.write_bytes(faults.flipped(data, choice))
        try:
            end = "read" if len(records.read(path)) == len(made) else "lines missing"
        except ValueError as error:
            end = "refused" if f"{path}, line " in str(error) else "refused without its line"
        ends[end] += 1
    assert ends.keys() <= {"read", "refused"}
    faults.report("flipped bits in result files", tried=n, **ends)
