"""What SECURITY.md promises: what somebody gave is not run, resolved or followed, and not read without a limit."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import zipfile
import zlib
from html import unescape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import gcalign
from gcalign.cli import main
from gcalign.lab import limits, provenance
from gcalign.lab.data import sources
from gcalign.lab.data.sources import load
from gcalign.lab.data.table_sides import load_columns, open_table
from gcalign.lab.experiments.engine import records
from gcalign.lab.models import outside
from gcalign.lab.training import checkpoints
from gcalign.lab.training.config import configured
from gcalign.lab.training.embed import embed
from gcalign.lab.training.load import load_whole
from gcalign.lab.training.runs import Run
from gcalign.lab.training.train import train
from gcalign.lab.training.weights import weights_of_pairs
from small_runs import SCENES as TINY
from small_runs import StoppedError, command, config_for, folder_of, pictures, png, stopping

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|lightning).*")]

PAYLOAD = "import pathlib\npathlib.Path({mark!r}).touch()\n"
ENCODER = """
from torch import nn

def make(shape):
    return nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""
SOURCE = str(Path(gcalign.__file__).parents[1])
NOT_DATA = [word for word in TINY if not word.startswith(("data", "batch_size"))]


def rewrite(run, change):
    """Change the config in both places that hold one, as an attacker would."""
    content = json.loads(run.config_file.read_text())
    change(content)
    run.config_file.write_text(json.dumps(content))
    content, about = checkpoints.read(run.weights_file)
    change(about["config"])
    checkpoints.save(run.weights_file, content, about)


def table(path, images, metadata=None, **columns):
    made = pa.table({"image": images, **columns})
    pq.write_table(made.replace_schema_metadata(metadata) if metadata else made, path, compression="zstd")
    return path


def python(*words, cwd, **env):
    env = {**os.environ, "PYTHONPATH": SOURCE, **env}
    return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, check=False, env=env)


# --- no code ---------------------------------------------------------------------------------------------------


@pytest.fixture
def trap(given, tmp_path, monkeypatch):
    """A run whose files name a module that lies in the run and in the current folder; and the mark it would leave."""
    mark = tmp_path / "ran"
    for folder in (given.path, tmp_path):
        (folder / "payload.py").write_text(PAYLOAD.format(mark=str(mark)) + ENCODER)
    rewrite(given, lambda content: content["model"].update(encoder="payload:make"))
    rewrite(given, lambda content: content.update(logger="payload:Logger"))
    monkeypatch.chdir(given.path)
    yield mark
    sys.modules.pop("payload", None)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["probe", "run={run}", "protocol=knn"], 2),
        (["probe", "run=untrained", "like={run}", "protocol=knn"], 2),
        (["embed", "run={run}", "-o", "{out}/features.parquet"], 2),
        (["report", "{runs}", "-o", "{out}/report.html"], 0),
        (["list", "{runs}"], 0),
    ],
    ids=lambda argv: " ".join(argv[:2]) if isinstance(argv, list) else "",
)
def test_no_command_imports_what_a_run_names(given, trap, tmp_path, argv, code, capsys):
    words = {"run": given.path, "runs": given.path.parent, "out": tmp_path}
    assert main([word.format(**words) for word in argv]) == code
    assert not trap.exists()
    assert ("encoder=payload:make" in capsys.readouterr().err) == (code == 2)
    if argv[0] == "report":
        assert "--encoder payload:make" in (tmp_path / "report.html").read_text()


def test_load_imports_nothing_that_a_run_names(given, trap):
    with pytest.raises(ValueError, match="encoder=payload:make"):
        gcalign.load(given.path)
    assert not trap.exists()


def test_an_encoder_of_ones_own_is_imported_where_the_command_names_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_net.py").write_text(ENCODER)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    words = [word for word in TINY if word != "model.width=0.25"]
    assert main(["train", *words, "model.encoder=own_net:make", "runs=runs"]) == 0
    (path,) = (tmp_path / "runs").iterdir()
    assert main(["probe", f"run={path}", "protocol=knn"]) == 2
    assert "add encoder=own_net:make" in capsys.readouterr().err
    for argv in (
        ["probe", f"run={path}", "protocol=knn", "encoder=own_net:make"],
        ["probe", "run=untrained", f"like={path}", "protocol=knn", "encoder=own_net:make"],
        ["embed", f"run={path}", "encoder=own_net:make", "data.limit=9", "-o", "out.parquet"],
        ["report", "runs", "-o", "out.html", "--images", "8", "--encoder", "own_net:make"],
    ):
        assert main(argv) == 0
    assert "is not part of gcalign" not in Path("out.html").read_text()
    assert sys.path == before  # the current folder was looked at, last and for this name alone

    def make(shape):
        return nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    by_name, by_function = gcalign.load(path, encoder="own_net:make"), gcalign.load(path, encoder=make)
    assert all(torch.equal(x, y) for x, y in zip(by_name.parameters(), by_function.parameters(), strict=True))
    sys.modules.pop("own_net")


def test_an_encoder_that_is_not_the_runs_is_refused(run):
    with pytest.raises(ValueError, match=r"encoder='resnet18'.*'small'"):
        gcalign.load(run.path, encoder="resnet18")
    assert gcalign.load(run.path, encoder="small") is not None


@pytest.mark.parametrize("module", [None, "gcalign", "gcalign.cli"])
def test_a_module_in_the_current_folder_stands_in_for_nothing(tmp_path, module):
    (here := tmp_path / "here").mkdir()
    for name in ("torch", "rich", "argparse", "hydra", "lightning", "omegaconf", "numpy", "struct", "hydra_plugins"):
        (here / f"{name}.py").write_text(PAYLOAD.format(mark=str(tmp_path / f"{name} ran")))
    done = command(tmp_path, "verify", "--only", "svhn-backbone", module=module, cwd=here)
    assert [path.name for path in tmp_path.glob("* ran")] == []
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no safe path")
def test_workers_do_not_look_in_the_current_folder_either(tmp_path):
    (here := tmp_path / "here").mkdir()
    for name in ("torch", "pickle", "struct"):
        (here / f"{name}.py").write_text(PAYLOAD.format(mark=str(tmp_path / f"{name} ran")))
    code = "import multiprocessing as mp, os, sys; from gcalign.cli import main; sys.argv[1:] = ['list', 'x']; main(); "
    code += "p = mp.get_context('spawn').Process(target=print); p.start(); p.join(); sys.exit(p.exitcode)"
    spawned = python("-P", "-c", code, cwd=here)
    assert spawned.returncode == 0, spawned.stderr
    assert [path.name for path in tmp_path.glob("* ran")] == []


def test_a_package_that_is_installed_does_not_import_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "site" / "own_package").mkdir(parents=True)
    (tmp_path / "site" / "own_package" / "__init__.py").write_text("import plugin_of_nobody\n")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "plugin_of_nobody.py").write_text(PAYLOAD.format(mark=str(tmp_path / "ran")))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ValueError, match="cannot be imported"):
        outside("own_package:make")
    assert not (tmp_path / "ran").exists()


def test_a_script_of_ones_own_finds_its_modules_in_processes_that_it_starts(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    (tmp_path / "script.py").write_text(
        "import subprocess, sys, beside\n"
        "from gcalign.cli import main\n"
        "if len(sys.argv) == 1:\n"
        "    main(['list', 'nowhere'])\n"
        "    sys.exit(subprocess.run([sys.executable, __file__, 'again']).returncode)\n"  # as Lightning starts ranks
    )
    done = python(str(tmp_path / "script.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_commit_of_another_project_is_not_taken_for_ones_own(tmp_path):
    installed = tmp_path / "project" / ".venv" / "lib" / "python3" / "site-packages" / "gcalign" / "lab"
    installed.mkdir(parents=True)
    mark = tmp_path / "ran"
    for words in (["init", "-q"], ["config", "core.fsmonitor", f"touch {mark}; false"]):
        subprocess.run(["git", *words], cwd=tmp_path / "project", check=True)
    shutil.copy(provenance.__file__, installed)
    code = f"import runpy; print(runpy.run_path({str(installed / 'provenance.py')!r})['commit']())"
    assert python("-c", code, cwd=installed).stdout.strip() == gcalign.__version__
    assert not mark.exists()


def test_only_formats_of_pictures_are_opened(tmp_path):
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 16 16\n%%EndComments\nshowpage\n%%EOF\n"
    path = table(tmp_path / "x.parquet", [eps, png()])
    with pytest.warns(UserWarning, match="row 0: "):
        assert len(load("parquet", "all", root=path)) == 1


# --- no interpolation ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("always:.*cannot be read")
def test_interpolations_in_a_run_are_text(given, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t")
    odd = "${oc.env:SECRET_TOKEN}"
    rewrite(given, lambda content: content["data"].update(dict.fromkeys(("on_error", "root", "name"), odd)))
    data = given.config().data
    assert data.on_error == data.root == data.name == odd
    assert main(["report", str(given.path.parent), "-o", str(tmp_path / "r.html"), "--images", "8"]) == 0
    assert main(["list", str(given.path.parent)]) == 0
    rewrite(given, lambda content: content.update(seed=odd))
    assert main(["list", str(given.path.parent)]) == 0
    out, err = capsys.readouterr()
    assert "s3cr3t" not in out + err + (tmp_path / "r.html").read_text()
    assert "unreadable" in out
    assert f"seed='{odd}'" in err


def test_interpolations_in_a_command_are_text_too(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t")
    config = configured(["data.root=${oc.env:SECRET_TOKEN}", "logger_args.x=${oc.env:SECRET_TOKEN}", "runs=${name}"])
    assert config.data.root == config.logger_args["x"] == "${oc.env:SECRET_TOKEN}"
    assert "s3cr3t" not in json.dumps(config.as_dict())
    with pytest.raises(ValueError, match="seed"):
        configured(["seed=${oc.env:SECRET_TOKEN}"])


# --- no path that nobody named ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "..", "a\\b", "", "a\nb", "x" * 300])
def test_a_name_cannot_leave_the_folder_of_runs(tmp_path, name):
    with pytest.raises(ValueError, match="name="):
        configured([f"runs={tmp_path}/runs", f"name={name}"])


def test_a_path_that_a_run_names_is_followed_only_for_a_run_of_ones_own_or_if_named(given, tmp_path, capsys):
    private = folder_of(tmp_path / "private")
    rewrite(given, lambda content: content["data"].update(name="folder", root=str(private), limit=None))
    features, page = tmp_path / "f.parquet", tmp_path / "r.html"
    for argv in (["embed", f"run={given.path}", "-o", str(features)], ["probe", f"run={given.path}", "protocol=knn"]):
        assert main(argv) == 2
        assert f"data.root={private}" in capsys.readouterr().err
    report = ["report", str(given.path.parent), "-o", str(page), "--images", "8"]
    assert main(report) == 0
    assert "data:image/jpeg" not in page.read_text()
    assert f"--data-root {private}" in page.read_text()
    assert main(["embed", f"run={given.path}", f"data.root={private}", "-o", str(features)]) == 0
    assert main([*report, "--data-root", str(tmp_path)]) == 0
    assert "data:image/jpeg" in page.read_text()


def test_a_repository_that_a_run_names_is_not_fetched(given, monkeypatch, capsys):
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("fetched"))
    rewrite(given, lambda content: content["data"].update(name="evil/data"))
    assert main(["probe", f"run={given.path}", "protocol=knn"]) == 2
    assert "data=evil/data" in capsys.readouterr().err


def test_a_run_of_ones_own_needs_no_path_again(tmp_path):
    root = folder_of(tmp_path / "images")
    words = ["data=folder", f"data.root={root}", "batch_size=4", "views=plain", f"runs={tmp_path}/runs"]
    run = train(configured([*NOT_DATA, *words]), quiet=True)
    copy = shutil.copytree(run.path, tmp_path / "copied")
    for path in (run.path, copy):
        assert embed([f"run={path}"], str(tmp_path / "f.parquet")).exists()
    content = json.loads(run.config_file.read_text())
    content["data"]["root"] = str(tmp_path)
    run.config_file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"data\.root="):
        embed([f"run={run.path}"], str(tmp_path / "f.parquet"))


@pytest.mark.parametrize("name", ["results.jsonl", "lock", "owner.json"])
def test_a_link_in_a_run_is_not_written_through(given, tmp_path, name, capsys):
    target = tmp_path / "precious"
    target.write_text("mine\n")
    (given.path / name).unlink(missing_ok=True)
    (given.path / name).symlink_to(target)
    assert main(["probe", f"run={given.path}", "protocol=knn"]) == 2
    assert name in capsys.readouterr().err
    assert target.read_text() == "mine\n"


def test_a_link_within_a_run_does_no_harm(given):
    (given.path / "wandb" / "run-1").mkdir(parents=True)
    (given.path / "wandb" / "latest-run").symlink_to("run-1")  # as W&B leaves it
    assert main(["probe", f"run={given.path}", "protocol=knn"]) == 0


@pytest.mark.parametrize("name", ["csv", "tensorboard"])  # the folder of an audit has a test of its own
def test_a_link_to_a_folder_in_a_run_is_not_written_through(tmp_path, name, capsys):
    run = Run.of(configured([*TINY, f"runs={tmp_path}/runs"]))
    run.path.mkdir(parents=True)
    target = tmp_path / "precious"
    target.mkdir()
    (target / "metrics.csv").write_text("mine\n")
    (run.path / name).symlink_to(target)
    assert main(["train", *TINY, f"logger={name}", f"runs={tmp_path}/runs"]) == 2
    assert str(run.path / name) in capsys.readouterr().err
    assert {path.name: path.read_text() for path in target.iterdir()} == {"metrics.csv": "mine\n"}


def test_a_class_folder_that_links_outside_is_refused(tmp_path):
    folder_of(tmp_path / "private")
    root = tmp_path / "images"
    folder_of(root / "cats")
    (root / "dogs").symlink_to(tmp_path / "private")
    with pytest.raises(ValueError, match=r"dogs .*private"):
        load("folder", "all", root=root)
    (root / "dogs").unlink()
    (root / "dogs").symlink_to(root / "cats")
    assert len(load("folder", "all", root=root)) == 80


# --- no command ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nasty", ["$(touch ran) `touch ran`; touch ran #", "-o x' q\" é ~ [1] = {2}", "\x1b]0;t\x07"])
def test_commands_of_a_report_are_quoted_whatever_folders_and_results_are_called(run, tmp_path, monkeypatch, nasty):
    monkeypatch.chdir(tmp_path)
    folder, results = tmp_path / f"r {nasty}", tmp_path / f"results {nasty}"
    shutil.copytree(run.path, folder / nasty)
    record = records.Record(experiment=nasty, scale=f"x {nasty}", measure="knn", value=0.5, labels={"method": nasty})
    records.write(results / f"{nasty}.jsonl", [record])
    assert main(["report", str(folder), "-o", "out.html", "--results", str(results), "--images", "8"]) == 0
    blocks = re.findall(r'<p class="command"><code>(.*?)</code>', Path("out.html").read_text(), re.DOTALL)
    commands = [unescape(text) for text in blocks]
    assert len(commands) >= 4
    assert not any(c in "".join(commands) for c in "\x1b\x07")
    for text in commands:
        # what a shell makes of it: the words alone, one command, nothing expanded
        said = subprocess.run(["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, text=True, check=True)
        words = said.stdout.split("\0")[:-1]
        assert words[0] == "gcalign"
        if words[1] == "probe":
            assert words[2] == f"run={folder / nasty}"
        if words[1] == "reproduce":
            assert words[2:] == [nasty, f"scale=x {nasty}"]
    assert not (tmp_path / "ran").exists()


def test_commands_that_are_printed_can_be_typed_again(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    odd = "o d [d] $HOME;"
    assert main(["train", *TINY, f"runs={odd}"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "gcalign probe" in line]
    words = shlex.split(line.partition("gcalign probe ")[2])
    (path,) = (tmp_path / odd).iterdir()
    assert words == [f"run={odd}/{path.name}"]
    assert main(["probe", *words, "protocol=knn"]) == 0


def test_names_from_files_cannot_command_the_terminal(given, capsys, monkeypatch):
    given.path.rename(given.path.with_name("\x1b[2J[bold]x"))
    monkeypatch.chdir(given.path.parent)
    assert main(["list", "."]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[bold]x" in shown


def test_names_from_data_cannot_command_the_terminal_either(tmp_path, capsys):
    escape, rows, root = "\x1b]0;t\x07", [], tmp_path / "images"
    for name in (f"{escape}cats", "dogs"):
        folder_of(root / name, 20, (16, 16))
        rows += [{"image": f"{name}/{k:03}.png", "name": f"{escape}{name[-4:]} {k}"} for k in range(20)]
    (root / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = [*NOT_DATA, "batch_size=16", f"data.root={root}"]
    assert main(["train", *words, "views=plain", "data=folder", f"runs={tmp_path}/a"]) == 0
    assert main(["train", *words, "data=pairs", "data.columns=image,name", f"runs={tmp_path}/b"]) == 0
    (run,) = (tmp_path / "b").iterdir()
    assert main(["probe", f"run={run}", "protocol=zeroshot"]) == 0
    out, err = capsys.readouterr()
    assert not {"\x1b", "\x07"} & set(out + err)
    assert "\\x1b]0;t\\x07cats" in out
    assert "\\x1b]0;t\\x07dogs" in out


# --- no memory without a limit: tables and images --------------------------------------------------------------


def test_a_kilobyte_that_unpacks_to_gigabytes_is_read_in_small_parts(tmp_path):
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(300, np.int32)), pa.array([bytes(5_000_000)]))
    path = tmp_path / "bomb.parquet"  # one value, stored once, that stands for three hundred rows
    pq.write_table(pa.table({"image": column}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 3000
    code = (
        "import sys, pyarrow as pa; from gcalign.lab.data.sources import load\n"
        "try: load('parquet', 'all', root=sys.argv[1])\n"
        "except ValueError as error: print(error)\n"
        "print(pa.default_memory_pool().max_memory())"
    )
    said, peak = python("-c", code, str(path), cwd=tmp_path).stdout.splitlines()
    assert "no readable image" in said
    assert int(peak) < 3 * limits.LIMITS["TABLE_BYTES"]  # a builder doubles what it holds


def test_a_column_that_unpacks_a_thousandfold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GCALIGN_TABLE_BYTES", str(2**22))
    path = table(tmp_path / "x.parquet", [bytes(2**21)] * 4)
    pq.write_table(pq.read_table(path), path, compression="zstd", use_dictionary=False)
    with pytest.raises(ValueError, match=r"8,\d+,\d+.* 4,194,304 .*GCALIGN_TABLE_BYTES"):
        load("parquet", "all", root=path)


def test_too_many_rows_are_refused_before_they_are_read(tmp_path, monkeypatch):
    path = table(tmp_path / "x.parquet", [png()] * 30)
    monkeypatch.setenv("GCALIGN_TABLE_ROWS", "20")
    with pytest.raises(ValueError, match=r"30.* 20 .*GCALIGN_TABLE_ROWS"):
        load("parquet", "all", root=path)
    monkeypatch.setenv("GCALIGN_TABLE_ROWS", "many")
    with pytest.raises(ValueError, match="GCALIGN_TABLE_ROWS='many'"):
        load("parquet", "all", root=path)


@pytest.mark.parametrize("nested", [False, True])
def test_a_text_that_is_stored_once_for_many_rows_is_one_object(tmp_path, nested):
    n, words = 50_000, ["a" * 10**6, "b"]
    column = pa.DictionaryArray.from_arrays(pa.array(np.arange(n, dtype=np.int32) % 2), pa.array(words))
    if nested:
        column = pa.ListArray.from_arrays(pa.array(np.arange(n + 1, dtype=np.int32)), column)
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet", compression="zstd", store_schema=False)
    found = open_table(tmp_path / "x.parquet").values("text")
    assert len({id(value[0] if nested else value) for value in found}) < 100
    assert found[:2] == ([[word] for word in words] if nested else words)


def giant(width, height):
    """A PNG whose header promises more than a machine has."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def test_an_image_with_too_many_pixels_is_named_and_left_out(tmp_path, monkeypatch):
    path = table(tmp_path / "x.parquet", [giant(60_000, 60_000), png(), giant(9000, 9000), png()])
    with pytest.warns(UserWarning, match="row 0: .*67,108,864 .*GCALIGN_IMAGE_PIXELS"):
        assert len(load("parquet", "all", root=path)) == 2
    monkeypatch.setenv("GCALIGN_IMAGE_PIXELS", "50")
    with pytest.raises(ValueError, match="more than 50 pixels"):
        load("parquet", "all", root=path)


# --- no memory without a limit: arrays -------------------------------------------------------------------------


def npz(path, stored, shape, kind="<f4"):
    """An npz file of one array `x`: a header with this shape, and so many bytes of zeros."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": kind, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("x.npy", head.getvalue() + bytes(stored))
    return path


def audit(capsys, *words):
    assert main(["audit", *words, "-o", "out.csv"]) == 2
    assert not Path("out.csv").exists()
    return capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def sides(tmp_path, monkeypatch):
    """A folder with b.npy, the other side of an audit."""
    monkeypatch.chdir(tmp_path)
    np.save("b.npy", np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32))
    return tmp_path


def test_an_archive_is_measured_before_it_is_unpacked(sides, capsys, monkeypatch):
    monkeypatch.setenv("GCALIGN_ARRAY_BYTES", str(10**6))
    npz(sides / "a.npz", 4 * 10**6, (250_000, 4))
    message = audit(capsys, "a.npz", "b.npy")
    assert "'x' of a.npz is 4,000,000, at most 1,000,000 " in message
    assert "GCALIGN_ARRAY_BYTES" in message


@pytest.mark.parametrize(("shape", "said"), [((10**6, 4), "promises 16,000,000 bytes"), ((10**13, 64), "at most 2,1")])
def test_a_header_that_promises_more_than_there_is_is_refused(sides, capsys, shape, said):
    npz(sides / "a.npz", 64, shape)
    assert said in audit(capsys, "a.npz", "b.npy")
    with zipfile.ZipFile("a.npz") as packed:
        Path("a.npy").write_bytes(packed.read("x.npy"))
    Path("pairs.csv").write_text("left,right\n" + "a.npy,a.npy\n" * 20)
    with pytest.raises(ValueError, match=said):
        load_columns("pairs", root="pairs.csv", columns=["left", "right"])
    config = configured(["data=pairs", "data.root=pairs.csv", "data.columns=left,right", "pairs.weights=a.npy"])
    with pytest.raises(ValueError, match=said):
        weights_of_pairs(config.pairs, 20)


def test_embeddings_that_unpack_a_thousandfold_are_refused(sides, capsys, monkeypatch):
    monkeypatch.setenv("GCALIGN_ARRAY_BYTES", str(10**6))
    for columns in ({"v": [np.zeros(10_000, np.float32)] * 40},
                    {f"f{k}": np.zeros(10**5, np.float32) for k in range(4)}):  # fmt: skip
        pq.write_table(pa.table(columns), "a.parquet", compression="zstd")
        assert re.search(r"'(v|f0)'.* of a.parquet is 1,6", audit(capsys, "a.parquet", "b.npy"))
    Path("ids.txt").write_text("x\n" * 10**6)
    monkeypatch.setenv("GCALIGN_TEXT_BYTES", "1000")
    assert "GCALIGN_TEXT_BYTES" in audit(capsys, "b.npy", "b.npy", "--ids", "ids.txt")


# --- no memory without a limit: runs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("model.width=1e5",),
        ("model.width=1e300", "model.encoder=resnet50"),
        ("model.hidden=2000000000",),
        ("model.out=9999999999999999",),
    ],
)
def test_a_network_that_no_machine_holds_is_refused(tmp_path, words):
    with pytest.raises(ValueError, match=r"1,073,741,824 .*MODEL_PARAMETERS"):
        train(config_for(tmp_path / "runs", *words), images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_a_run_asks_for_is_refused_too(given, capsys):
    rewrite(given, lambda content: content["model"].update(width=1e300))
    assert main(["probe", "run=untrained", f"like={given.path}", "protocol=knn", "data.limit=40"]) == 2
    assert "MODEL_PARAMETERS" in capsys.readouterr().err


def test_a_batch_that_no_machine_holds_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GCALIGN_BATCH_BYTES", "1000")
    with pytest.raises(ValueError, match=r"batch_size=16 .*1,000 .*GCALIGN_BATCH_BYTES"):
        train(config_for(tmp_path), images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []


# --- odd content -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [b"{", b"[]", b'{"info": 3}', b'{"info": {"features": []}}', b'{"info": {"features": {"label": 3}}}', b"\xff\xfe",
     b'{"info": {"features": {"label": {"_type": "ClassLabel"}}}}', b"[" * 99999,
     b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": [1, {}]}}}}',
     b'{"info": {"features": {"label": {"_type": "ClassLabel", "names": "cat"}}}}'],
)  # fmt: skip
def test_odd_metadata_of_a_table_is_passed_over(tmp_path, said):
    path = table(tmp_path / "x.parquet", [png(k) for k in range(4)], {b"huggingface": said}, label=[3, 4, 3, 4])
    images = load("parquet", "all", root=path)
    assert images.labels.tolist() == [0, 1, 0, 1]
    assert images.classes == ("3", "4")


@pytest.mark.parametrize(
    "label",
    [[[1], [2], [1]], [{"a": 1}] * 3, pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
     pa.array([2**62, 2, 3], pa.timestamp("us"))],
    ids=["list", "struct", "map", "a time that Python does not have"],
)  # fmt: skip
def test_labels_that_are_no_numbers_or_texts_are_refused(tmp_path, label):
    with pytest.raises(ValueError, match=r"'label' cannot be read .*;"):
        load("parquet", "all", root=table(tmp_path / "x.parquet", [png()] * 3, label=pa.array(label)))


@pytest.mark.parametrize("row", ['"x,y', '"x"z,y', f"{'x' * 200_000},y", "x", "\0,1,2"], ids=lambda row: row[:5])
def test_a_table_that_is_no_csv_is_refused_with_its_row(tmp_path, row):
    (tmp_path / "pairs.csv").write_text(f"a,b\n{row}\n")
    with pytest.raises(ValueError, match=r"pairs\.csv row 0 "):
        open_table(tmp_path)


def test_two_columns_of_one_name_are_refused(tmp_path):
    pq.write_table(pa.table([pa.array([b"x"])] * 2, names=["image", "image"]), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"two columns .*'image'"):
        load("parquet", "train", root=tmp_path)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run that has a checkpoint of step 4."""
    config = config_for(tmp_path_factory.mktemp("half"), "logger=none")
    with pytest.raises(StoppedError), stopping(5):
        train(config, images=pictures(), quiet=True)
    return Run.of(config)


@pytest.mark.parametrize("words", [("model.out=16",), ("optimizer.lr=2e-3",), ("method=byol",)])
def test_a_checkpoint_of_another_run_is_refused(tmp_path, half, words):
    other = config_for(tmp_path, "logger=none", *words)
    Run.of(other).path.mkdir(parents=True)
    shutil.copy(half.checkpoint_file, Run.of(other).checkpoint_file)
    with pytest.raises(ValueError, match=r"checkpoint.*; delete it"):
        train(other, images=pictures(), quiet=True)


@pytest.mark.parametrize(
    "change", [{"step": -1}, {"step": "x"}, {"step": 99}, {"step": None}, {"scaler": 3}, {"scaler": {"scale": "x"}}]
)
def test_odd_metadata_of_a_checkpoint_is_an_error_with_a_remedy(tmp_path, half, change):
    config = config_for(tmp_path, "logger=none")
    run = Run.of(config)
    shutil.copytree(half.path, run.path)
    content, about = checkpoints.read(run.checkpoint_file)
    checkpoints.save(run.checkpoint_file, content, {k: v for k, v in (about | change).items() if v is not None})
    with pytest.raises(ValueError, match="delete it"):
        train(config, images=pictures(), quiet=True)


SIDE = {"name": "image", "kind": "image", "shape": [3, 12, 12], "mean": [0.5] * 3, "std": [0.2] * 3}


@pytest.mark.parametrize(
    "about",
    [None, "{", "3", "{}", {"config": {}}, {"shape": [3]}, {"shape": [3, -1, 12]}, {"std": [0.0, 1, 1]},
     {"mean": [1, 2]}, {"mean": "abc"}, {"mean": None}, {"std": [1, 1, "x"]},
     {"model": {"hidden": 10**12, "out": 10**6}}, {"model": {"width": 1e15}}, {"model": {"encoder": "resnet50"}}],
    ids=str,
)  # fmt: skip
def test_weights_that_do_not_say_what_they_are_are_an_error_with_a_remedy(given, about):
    if isinstance(about, dict):
        config = about.get("config", {"method": {"name": "x"}, "model": about.get("model", {})})
        side = {key: value for key, value in (SIDE | about).items() if value is not None and key in SIDE}
        about = json.dumps({"config": config, "sides": [side]})
    content, _ = checkpoints.read(given.weights_file)
    save_file(content, given.weights_file, {} if about is None else {"gcalign": about})
    with pytest.raises(ValueError, match=r"run again|does not fit"):
        load_whole(given.path)


def test_weights_of_another_type_are_refused(given):
    content, about = checkpoints.read(given.weights_file)
    checkpoints.save(given.weights_file, {k: v.double() for k, v in content.items()}, about)
    with pytest.raises(ValueError, match=r"torch\.float64, not torch\.float32"):
        gcalign.load(given.path)


# --- what is no file, and where no file can be -----------------------------------------------------------------


@pytest.mark.parametrize("inside", ["", "cats"], ids=["loose", "in folders"])
def test_what_is_called_an_image_and_is_no_file_is_named_and_left_out(tmp_path, inside, monkeypatch):
    folder = folder_of(tmp_path / "images" / inside, 4)
    monkeypatch.chdir(folder)  # the path of a socket is short
    os.mkfifo("a pipe.png")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("a socket.png")
    for name, target in {"a device": "/dev/zero", "itself": "itself.png", "nothing": "nowhere.png"}.items():
        Path(f"{name}.png").symlink_to(target)
    with pytest.warns(UserWarning, match=r"5 unreadable image\(s\): .*a pipe\.png"):
        assert len(load("folder", "all", root=tmp_path / "images")) == 4


def test_a_pipe_or_a_folder_in_place_of_a_file_is_not_waited_for(sides, capsys):
    os.mkfifo(sides / "train.parquet")
    with pytest.raises(ValueError, match=r"train\.parquet .*pipe"):
        load("parquet", "train", root=sides)
    (sides / "a.npy").mkdir()
    assert "a.npy is a folder, a pipe or a device" in audit(capsys, "a.npy", "b.npy")


@pytest.mark.parametrize(
    "argv",
    [
        ["verify", "--json", "/proc/x.json"],
        ["claims", "--write", "/proc/x.html"],
        ["claims", "--json", "/proc/x.json"],
        ["demo", "-o", "/proc/x.html"],
        ["demo", "--json", "/proc/x.json"],
        ["probe", "run=pixels", "--json", "/proc/x.json"],
        ["embed", "run=nowhere", "-o", "/proc/x.parquet"],
        ["list", "--json", "/proc/x.json"],
        ["audit", "a.npy", "b.npy", "-o", "/proc/x.csv"],
        ["audit", "a.npy", "b.npy", "-o", "r.csv", "--html", "/proc/x.html"],
        ["audit", "a.npy", "b.npy", "-o", "r.csv", "--feedback", "/proc/x.npy"],
        ["bench", "losses", "--json", "/proc/x.json"],
        ["report", "-o", "/proc/x.html"],
        ["reproduce", "fig-extreme", "scale=tiny", "out=/proc/x"],
    ],
)
def test_a_folder_that_takes_no_files_is_refused_before_the_work(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2  # /proc is a folder in which nobody can make a file, not even root
    said = capsys.readouterr().err
    assert "/proc/x" in said
    assert said.count("\n") == 1
    assert not {"Errno", ".part"} & set(re.split(r"[ \[\]]", said))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("odd", ["~x é à [b]{c} it's", '-x $HOME ${n} a=b,;(c) "so"', "* #1 50% b\\s 😀 a:b <b>"])
def test_paths_work_as_they_are_typed(tmp_path, odd, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / odd / "cats")
    words = ["batch_size=16", "views=plain", "data=folder", f"data.root={odd}", f"runs={odd}/runs"]
    assert main(["train", *NOT_DATA, *words]) == 0
    (run,) = (tmp_path / odd / "runs").iterdir()
    name = f"{odd}/runs/{run.name}"
    assert main(["embed", f"run={name}", "-o", f"./{odd}/f.parquet"]) == 0
    assert (tmp_path / odd / "f.parquet").is_file()
    assert main(["list", f"./{odd}/runs"]) == 0
    assert main(["report", f"./{odd}/runs", "-o", f"./{odd}/r.html", "--images", "8"]) == 0
    assert "data:image/jpeg" in (tmp_path / odd / "r.html").read_text()
    assert Run(run).config().data.root == odd
    assert not [path for path in tmp_path.iterdir() if path.name != odd]
    assert main(["probe", f"run={name}", "protocol=knn"]) == 2  # one folder: no labels
    assert "has no labels" in capsys.readouterr().err


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["train", *TINY, "runs=~/runs"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert main(["probe", f"run=~/runs/{run.name}", "protocol=knn", "data.limit=40"]) == 0
    assert main(["list", "~/runs"]) == 0
    assert main(["embed", f"run=~/runs/{run.name}", "data.limit=9", "-o", "~/f.parquet"]) == 0
    assert (tmp_path / "f.parquet").is_file()
    assert not (tmp_path / "~").exists()


def test_large_tables_are_read_from_odd_paths_too(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(sources, "MEMORY", 1)
    for folder, shift in (("é [1] a*b=c", 0), ("é 1 aXb=c", 200)):  # what a pattern would match
        (tmp_path / folder).mkdir()
        table(tmp_path / folder / "x.parquet", [png(k + shift) for k in range(12)])
    images = load("parquet", "all", root=tmp_path / "é [1] a*b=c" / "x.parquet")
    assert [int(x) for x in images.get(torch.arange(12))[:, 0, 0, 0]] == list(range(12))


def test_names_that_are_not_utf8_are_spelt_out_in_a_table_and_no_export_goes_nowhere(tmp_path, capsys):
    folder = folder_of(tmp_path / "images", 4)
    os.rename(folder / "000.png", os.fsencode(folder) + b"/a\xff.png")
    words = ["data=folder", f"data.root={folder}", "batch_size=2", f"runs={tmp_path}/runs", "name=odd", "views=plain"]
    assert main(["train", *NOT_DATA, *words]) == 0
    features = tmp_path / "f.parquet"
    assert main(["embed", f"run={tmp_path}/runs/odd", "split=all", "-o", str(features)]) == 0
    assert main(["export", f"run={tmp_path}/runs/odd", "format=safetensors", "-o", "/proc/x"]) == 2
    assert "-o /proc/x cannot be made" in capsys.readouterr().err
    assert pq.read_table(features)["image"][3].as_py() == f"{folder}/a\\udcff.png"


def test_a_terminal_of_ascii_shows_what_it_can(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    config = config_for(tmp_path / "runs", "name=é–😀")
    Run.of(config).start(config)
    for argv in (["list", "runs"], ["verify", "--only", "thm:byol", "--cases", "2"]):
        done = command(tmp_path, *argv, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()


@pytest.mark.parametrize(
    ("words", "how", "made"),
    [
        (["train", *TINY, "runs=runs"], "2>&1 | head -c 1 > /dev/null; exit ${PIPESTATUS[0]}", "runs/*/done"),
        (["verify", "--only", "thm:byol", "--cases", "2", "--json", "x.json"], ">&- 2>&-", "x.json"),
    ],
    ids=["gone", "closed"],
)
def test_a_reader_that_is_gone_does_not_fail_a_finished_job(tmp_path, words, how, made):
    script = f"PYTHONPATH='{SOURCE}' '{sys.executable}' -m gcalign {shlex.join(words)} {how}"
    done = subprocess.run(["bash", "-c", script], check=False, timeout=900, cwd=tmp_path)
    assert done.returncode == 0
    assert list(tmp_path.glob(made))
