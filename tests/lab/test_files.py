"""Files and lines are whole or not there, and what is no file is neither read nor replaced."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from gcalign.lab import files


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


def test_half_a_line_does_not_take_the_next_with_it(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n{"kind": "tra')
    files.append_json_lines(path, [{"kind": "train", "step": 2}])
    with pytest.warns(UserWarning, match=r"results\.jsonl, line 2 is left out"):
        assert [r["step"] for r in files.read_json_lines(path)] == [1, 2]


def test_a_write_removes_what_a_killed_process_left_of_the_same_file(tmp_path):
    dead, alive, others = (tmp_path / f".r.html.{tail}.part" for tail in ("4194400.a", f"{os.getpid()}.b", "x"))
    elsewhere = tmp_path / ".q.html.4194400.a.part"
    for path in (dead, alive, others, elsewhere):
        path.touch()
    files.write(tmp_path / "r.html", "x")
    assert {path.name for path in tmp_path.iterdir()} == {"r.html", alive.name, others.name, elsewhere.name}


def test_a_new_folder_removes_what_a_killed_process_left_and_replaces_nothing(tmp_path):
    dead, alive = tmp_path / ".out.99999999.ab.part", tmp_path / f".out.{os.getpid()}.ab.part"
    for part in (dead, alive):
        part.mkdir()
        (part / "half").touch()
    with files.new_folder("-o", tmp_path / "out") as part:
        (part / "whole").touch()
    assert {path.name for path in tmp_path.iterdir()} == {"out", alive.name}
    with pytest.raises(ValueError, match="must be a new folder"), files.new_folder("-o", tmp_path / "out"):
        pass


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", lambda path, other: pytest.fail(f"{other} was replaced"))
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    before = sorted(tmp_path.iterdir())
    for path in (*before, Path("/dev/full"), Path("/dev/null"), Path("/dev/stdout")):
        with pytest.raises(ValueError, match="name a file"):
            files.write(path, "x")
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "pipe.json").is_fifo()


def test_a_file_that_has_nothing_to_read_yet_is_refused(tmp_path, monkeypatch):
    class Silent(io.FileIO):
        def read(self, size=-1):
            return None  # as /proc/kmsg gives

    (tmp_path / "x").touch()
    monkeypatch.setattr(files.os, "fdopen", lambda descriptor, mode: Silent(descriptor))
    with pytest.raises(ValueError, match="must be a file"):
        files.read(tmp_path / "x")
