"""What a clumsy user or an attacker does with files: where output cannot go, and what lies in a folder of images."""

import io
import os
import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from gcalign import cli
from gcalign.lab import files
from gcalign.lab.data.images import InMemory, described
from gcalign.lab.data.sources import load

# output


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["verify", "--json"], "--json"),
        (["claims", "--write"], "--write"),
        (["claims", "--json"], "--json"),
        (["demo", "-o"], "-o"),
        (["demo", "--json"], "--json"),
        (["probe", "run=pixels", "--json"], "--json"),
        (["embed", "run=nowhere", "-o"], "-o"),
        (["list", "--json"], "--json"),
        (["audit", "a.npy", "b.npy", "-o"], "-o"),
        (["audit", "a.npy", "b.npy", "-o", "r.csv", "--html"], "--html"),
        (["audit", "a.npy", "b.npy", "-o", "r.csv", "--feedback"], "--feedback"),
        (["bench", "losses", "--json"], "--json"),
        (["report", "-o"], "-o"),
    ],
)
def test_a_folder_that_takes_no_files_is_refused_before_the_work(argv, option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ending = {"embed": ".parquet", "audit": ".csv"}.get(argv[0], ".html")
    ending = {"--json": ".json", "--html": ".html", "--feedback": ".npy"}.get(option, ending)
    path = f"/proc/x{ending}"  # a folder in which nobody can make a file, not even root
    assert cli.main([*argv, path]) == 2
    said = capsys.readouterr().err
    assert f"{option} {path} cannot be written (" in said or f"{option}: {path} cannot be written (" in said
    assert "); choose a directory in which you can create files" in said
    assert "Errno" not in said
    assert ".part" not in said
    assert not list(tmp_path.iterdir())


def test_results_where_no_folder_can_be_made_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["reproduce", "fig-extreme", "scale=tiny", "out=/proc/x"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gcalign: /proc/x")
    assert "; check the name and the permissions, or choose another path" in said
    assert "Errno" not in said


# folders of images


def plain_folder(folder, n=4, side=16):
    folder.mkdir(parents=True)
    for k in range(n):
        Image.new("RGB", (side, side), (50 * k, 3, 4)).save(folder / f"{k}.png")
    return folder


def _socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


ODD = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere.png"),
}


@pytest.mark.parametrize("loose", [True, False], ids=["loose", "in folders"])
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_what_is_called_an_image_and_is_no_file_is_named_and_left_out(tmp_path, make, loose):
    folder = plain_folder(tmp_path / "images" if loose else tmp_path / "images" / "cats")
    make(folder / "x.png")
    with pytest.warns(UserWarning, match=r"1 unreadable image\(s\): .*x\.png.*; skipped"):
        assert len(load("folder", "all", root=tmp_path / "images")) == 4


def test_a_folder_called_an_image_is_passed_over(tmp_path):
    (plain_folder(tmp_path / "images") / "x.png").mkdir()
    assert len(load("folder", "all", root=tmp_path / "images")) == 4


def test_a_file_that_has_nothing_to_read_yet_is_refused(tmp_path, monkeypatch):
    class Silent(io.FileIO):
        def read(self, size=-1):
            return None  # as /proc/kmsg gives

    (tmp_path / "x").touch()
    monkeypatch.setattr(files.os, "fdopen", lambda descriptor, mode: Silent(descriptor))
    with pytest.raises(ValueError, match="has nothing to read yet; it must be a file"):
        files.read(tmp_path / "x")


@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
def test_a_photo_that_says_how_to_turn_it_is_turned(tmp_path, ending):
    upright = np.zeros((16, 16, 3), np.uint8)
    upright[:8] = 250  # light above, dark below
    stored = Image.fromarray(upright).transpose(Image.Transpose.ROTATE_90)
    turn = Image.Exif()
    turn[0x0112] = 6  # a quarter clockwise
    for k in range(2):
        stored.save(tmp_path / f"{k}.{ending}", exif=turn)
    pixels = load("folder", "all", root=tmp_path).get([0])[0].float()
    assert pixels[:, :6].mean() > 230
    assert pixels[:, 10:].mean() < 20


def test_names_that_are_not_utf8_are_spelt_out_in_a_table_and_no_export_goes_nowhere(tmp_path, capsys):
    folder = plain_folder(tmp_path / "images")
    os.rename(folder / "0.png", os.fsencode(folder) + b"/a\xff.png")
    words = ["data=folder", f"data.root={folder}", "epochs=1", "batch_size=2", "model.width=0.1", "model.hidden=8"]
    words += ["model.out=8", "accelerator=cpu", "logger=none", f"runs={tmp_path}/runs", "name=odd", "views=plain"]
    assert cli.main(["train", *words]) == 0
    table = tmp_path / "f.parquet"
    assert cli.main(["embed", f"run={tmp_path}/runs/odd", "split=all", "-o", str(table)]) == 0
    assert cli.main(["export", f"run={tmp_path}/runs/odd", "format=safetensors", "-o", "/proc/x"]) == 2
    assert "-o /proc/x cannot be made (" in capsys.readouterr().err
    assert pq.read_table(table)["image"][3].as_py() == f"{folder}/a\\udcff.png"


# tables and result lines


def test_labels_that_are_no_number_are_empty(tmp_path):
    picture = io.BytesIO()
    Image.new("RGB", (16, 16)).save(picture, "PNG")
    table = pa.table({"image": [picture.getvalue()] * 4, "label": [float("nan"), 1.0] * 2})
    pq.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(ValueError, match="2 of 4 values of 'label' are empty; fill them"):
        load("parquet", "train", root=tmp_path)


def test_odd_columns_of_a_table_are_refused_without_a_traceback(tmp_path):
    label = pa.array([2**62, 2], pa.timestamp("us"))
    pq.write_table(pa.table({"image": [b"x", b"y"], "label": label}), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"'label' cannot be read .*; store numbers or texts"):
        load("parquet", "train", root=tmp_path)
    pq.write_table(pa.table([pa.array([b"x"])] * 2, names=["image", "image"]), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"has two columns called 'image'; .*rename one"):
        load("parquet", "train", root=tmp_path)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "Infinity", "NaN"])
def test_a_result_that_is_not_finite_is_left_out_and_named(tmp_path, number):
    path = tmp_path / "results.jsonl"
    path.write_text(f'{{"value": 1.5e3}}\n{{"value": {number}}}\n')
    with pytest.warns(UserWarning, match=f"line 2 is left out \\({number} is not a number\\)"):
        assert files.read_json_lines(path) == [{"value": 1500.0}]


def test_a_class_name_is_said_in_a_line():
    pixels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    about = {"name": "x", "split": "train", "labels": torch.arange(2), "classes": ("two\nlines", "a" * 10**6)}
    assert described(InMemory(pixels, **about)).endswith(f"2 classes (two lines, {'a' * 39}…)")
