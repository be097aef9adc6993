"""What SECURITY.md promises: what somebody gave is not run, resolved or followed, and not read without a limit."""

from __future__ import annotations

import gzip
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
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import gcalign
from gcalign.cli import main
from gcalign.lab import files, limits, provenance
from gcalign.lab.data import sources
from gcalign.lab.data.sources import load
from gcalign.lab.data.table_sides import load_columns, open_table
from gcalign.lab.experiments.engine import records
from gcalign.lab.models import outside
from gcalign.lab.training import checkpoints, runs
from gcalign.lab.training.config import configured
from gcalign.lab.training.embed import embed
from gcalign.lab.training.load import load_whole
from gcalign.lab.training.runs import Run
from gcalign.lab.training.train import train
from gcalign.lab.training.weights import weights_of_pairs
from small_runs import SCENES as TINY
from small_runs import command, config_for, pictures

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|lightning).*")]


PAYLOAD = "import pathlib\npathlib.Path({mark!r}).touch()\n"


ENCODER = """
from torch import nn

def make(shape):
    return nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of this user's."""
    return train(configured([*TINY, f"runs={tmp_path_factory.mktemp('runs')}"]), quiet=True)


@pytest.fixture
def given(made, tmp_path):
    """The same run as somebody else would hand it over: a copy, which a test may change."""
    copy = tmp_path / "given" / made.path.name
    shutil.copytree(made.path, copy)
    return Run(copy)


def rewrite(run, change):
    """Change the config in both places that hold one, as an attacker would."""
    content = json.loads(run.config_file.read_text())
    change(content)
    run.config_file.write_text(json.dumps(content))
    content, about = checkpoints.read(run.weights_file)
    change(about["config"])
    checkpoints.save(run.weights_file, content, about)


def folder_of_pictures(folder, n=40, side=24):
    folder.mkdir(parents=True)
    for k in range(n):
        Image.new("RGB", (side, side), (6 * k, 0, 250)).save(folder / f"{k}.png")
    return folder


def png(size=(16, 16), grey=0):
    buffer = io.BytesIO()
    Image.new("RGB", size, (grey, grey, grey)).save(buffer, "PNG")
    return buffer.getvalue()


def table(path, images, metadata=None, **columns):
    made = pa.table({"image": images, **columns})
    pq.write_table(made.replace_schema_metadata(metadata) if metadata else made, path, compression="zstd")
    return path


# --- no code ---------------------------------------------------------------------------------------------------


@pytest.fixture
def trap(given, tmp_path, monkeypatch):
    """A run whose files name a module that lies in the run and in the current folder; and the mark it would leave."""
    mark = tmp_path / "ran"
    for folder in (given.path, tmp_path):
        (folder / "payload.py").write_text(PAYLOAD.format(mark=str(mark)) + ENCODER)
    rewrite(given, lambda content: content["model"].update(encoder="payload:make"))
    monkeypatch.chdir(given.path)
    yield mark
    sys.modules.pop("payload", None)


@pytest.mark.parametrize(
    "argv",
    [
        ["probe", "run={run}", "protocol=knn"],
        ["probe", "run=untrained", "like={run}", "protocol=knn"],
        ["embed", "run={run}", "-o", "{out}/features.parquet"],
        ["report", "{runs}", "-o", "{out}/report.html"],
        ["list", "{runs}"],
    ],
    ids=lambda argv: " ".join(argv[:2]),
)
def test_no_command_imports_what_a_run_names(given, trap, tmp_path, argv, capsys):
    words = {"run": given.path, "runs": given.path.parent, "out": tmp_path}
    code = main([word.format(**words) for word in argv])
    assert not trap.exists()
    said = capsys.readouterr().err
    if argv[0] in ("probe", "embed"):
        assert code == 2
        assert "encoder=payload:make" in said
    else:
        assert code == 0
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
    assert main(["probe", f"run={path}", "protocol=knn", "encoder=own_net:make"]) == 0
    assert main(["probe", "run=untrained", f"like={path}", "protocol=knn", "encoder=own_net:make"]) == 0
    assert main(["embed", f"run={path}", "encoder=own_net:make", "data.limit=9", "-o", "out.parquet"]) == 0
    assert main(["report", "runs", "-o", "out.html", "--images", "8", "--encoder", "own_net:make"]) == 0
    assert "is not part of gcalign" not in Path("out.html").read_text()
    assert sys.path == before  # the current folder was looked at, last and for this name alone

    def make(shape):
        return nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    by_name, by_function = gcalign.load(path, encoder="own_net:make"), gcalign.load(path, encoder=make)
    assert all(torch.equal(x, y) for x, y in zip(by_name.parameters(), by_function.parameters(), strict=True))
    sys.modules.pop("own_net")


def test_an_encoder_that_is_not_the_runs_is_refused(made):
    with pytest.raises(ValueError, match=r"encoder='resnet18'.*'small'"):
        gcalign.load(made.path, encoder="resnet18")
    assert gcalign.load(made.path, encoder="small") is not None


@pytest.mark.parametrize("module", [None, "gcalign", "gcalign.cli"])
@pytest.mark.parametrize("argv", [["list", "nowhere"], ["verify", "--only", "svhn-backbone"]], ids=lambda a: a[0])
def test_a_module_in_the_current_folder_stands_in_for_nothing(tmp_path, argv, module):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("torch", "rich", "argparse", "hydra", "lightning", "omegaconf", "numpy", "struct", "hydra_plugins"):
        (here / f"{name}.py").write_text(PAYLOAD.format(mark=str(tmp_path / f"{name} ran")))
    done = command(tmp_path, *argv, module=module, cwd=here)
    assert [path.name for path in tmp_path.glob("* ran")] == []
    assert done.returncode == (2 if argv[0] == "list" else 0), done.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no safe path")
def test_workers_do_not_look_in_the_current_folder_either(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("torch", "pickle", "struct"):
        (here / f"{name}.py").write_text(PAYLOAD.format(mark=str(tmp_path / f"{name} ran")))
    done = command(tmp_path, "reproduce", "fig-plans", "dry=true", cwd=here)
    assert done.returncode == 0, done.stderr
    code = "import multiprocessing as mp, os, sys; from gcalign.cli import main; sys.argv[1:] = ['list', 'x']; main(); "
    code += "p = mp.get_context('spawn').Process(target=print); p.start(); p.join(); sys.exit(p.exitcode)"
    path = {"PYTHONPATH": str(Path(gcalign.__file__).parents[1])}
    spawned = subprocess.run([sys.executable, "-P", "-c", code], cwd=here, check=False,
                             capture_output=True, text=True, env={**os.environ, **path})  # fmt: skip
    assert spawned.returncode == 0, spawned.stderr
    assert [found.name for found in tmp_path.glob("* ran")] == []


def test_a_logger_that_a_run_names_is_not_imported(given, tmp_path, monkeypatch):
    mark = tmp_path / "ran"
    (given.path / "payload.py").write_text(PAYLOAD.format(mark=str(mark)))
    rewrite(given, lambda content: content.update(logger="payload:Logger"))
    monkeypatch.chdir(given.path)
    assert main(["list", str(given.path.parent)]) == 0
    assert main(["report", str(given.path.parent), "-o", str(tmp_path / "r.html"), "--images", "8"]) == 0
    assert not mark.exists()


def test_a_package_that_is_installed_does_not_import_from_the_current_folder(tmp_path, monkeypatch):
    for folder, text in ((tmp_path / "site" / "own_package", "def make(shape): ..."), (tmp_path / "here", "")):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
    (tmp_path / "site" / "own_package" / "__init__.py").write_text("import plugin_of_nobody\n")
    (tmp_path / "here" / "plugin_of_nobody.py").write_text(PAYLOAD.format(mark=str(tmp_path / "ran")))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ValueError, match="cannot be imported"):
        outside("own_package:make")
    assert not (tmp_path / "ran").exists()


def test_a_script_of_ones_own_finds_its_modules_in_processes_that_it_starts(tmp_path):
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    (tmp_path / "script.py").write_text(
        "import subprocess, sys, beside\n"
        "from gcalign.cli import main\n"
        "if len(sys.argv) == 1:\n"
        "    main(['list', 'nowhere'])\n"
        "    sys.exit(subprocess.run([sys.executable, __file__, 'again']).returncode)\n"  # as Lightning starts ranks
    )
    env = {**os.environ, "PYTHONPATH": str(Path(gcalign.__file__).parents[1])}
    env.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_commit_of_another_project_is_not_taken_for_ones_own(tmp_path, monkeypatch):
    installed = tmp_path / "project" / ".venv" / "lib" / "python3" / "site-packages" / "gcalign" / "lab"
    installed.mkdir(parents=True)
    mark = tmp_path / "ran"
    for words in (["init", "-q"], ["config", "core.fsmonitor", f"touch {mark}; false"]):
        subprocess.run(["git", *words], cwd=tmp_path / "project", check=True)
    shutil.copy(provenance.__file__, installed)
    code = f"import runpy; print(runpy.run_path({str(installed / 'provenance.py')!r})['commit']())"
    path = {"PYTHONPATH": str(Path(gcalign.__file__).parents[1])}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=installed, capture_output=True, text=True, check=True, env={**os.environ, **path})
    assert done.stdout.strip() == gcalign.__version__
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
    for key in ("on_error", "root", "name"):
        rewrite(given, lambda content, key=key: content["data"].update({key: odd}))
        assert getattr(given.config().data, key) == odd
        assert main(["list", str(given.path.parent)]) == 0
        assert main(["report", str(given.path.parent), "-o", str(tmp_path / "r.html"), "--images", "8"]) == 0
        out, err = capsys.readouterr()
        assert "s3cr3t" not in out + err + (tmp_path / "r.html").read_text()
    rewrite(given, lambda content: content.update(seed=odd))
    assert main(["list", str(given.path.parent)]) == 0
    out, err = capsys.readouterr()
    assert "s3cr3t" not in out + err
    assert "unreadable" in out
    assert "seed='${oc.env:SECRET_TOKEN}' must be a whole number" in err


def test_interpolations_in_a_command_are_text_too(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t")
    config = configured(["data.root=${oc.env:SECRET_TOKEN}", "logger_args.x=${oc.env:SECRET_TOKEN}", "runs=${name}"])
    assert config.data.root == config.logger_args["x"] == "${oc.env:SECRET_TOKEN}"
    assert "s3cr3t" not in json.dumps(config.as_dict())
    with pytest.raises(ValueError, match="seed"):
        configured(["seed=${oc.env:SECRET_TOKEN}"])


# --- no path that nobody named ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "..", "a\\b", "", "a\nb", "x" * 300])
def test_a_name_cannot_leave_the_folder_of_runs(tmp_path, name):
    with pytest.raises(ValueError, match=r"name=.* must be the name of a folder"):
        configured([f"runs={tmp_path}/runs", f"name={name}"])


def test_a_path_that_a_run_names_is_followed_only_for_a_run_of_ones_own_or_if_named(given, tmp_path, capsys):
    private = folder_of_pictures(tmp_path / "private")
    rewrite(given, lambda content: content["data"].update(name="folder", root=str(private), limit=None))
    assert main(["embed", f"run={given.path}", "-o", str(tmp_path / "f.parquet")]) == 2
    said = capsys.readouterr().err
    assert f"data.root={private}" in said
    assert main(["probe", f"run={given.path}", "protocol=knn"]) == 2
    assert "data.root=" in capsys.readouterr().err
    page = tmp_path / "r.html"
    assert main(["report", str(given.path.parent), "-o", str(page), "--images", "8"]) == 0
    assert "data:image/jpeg" not in page.read_text()
    assert f"--data-root {private}" in page.read_text()
    assert main(["embed", f"run={given.path}", f"data.root={private}", "-o", str(tmp_path / "f.parquet")]) == 0
    assert main(["report", str(given.path.parent), "-o", str(page), "--images", "8", "--data-root", str(tmp_path)]) == 0
    assert "data:image/jpeg" in page.read_text()


def test_a_repository_that_a_run_names_is_not_fetched(given, monkeypatch, capsys):
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("fetched"))
    rewrite(given, lambda content: content["data"].update(name="evil/data"))
    assert main(["probe", f"run={given.path}", "protocol=knn"]) == 2
    assert "data=evil/data" in capsys.readouterr().err


def test_a_run_of_ones_own_needs_no_path_again(tmp_path):
    root = folder_of_pictures(tmp_path / "images")
    words = ["data=folder", f"data.root={root}", "data.size=24", "batch_size=4", "views=plain"]
    run = train(configured([*(w for w in TINY if w[:4] != "data"), *words, f"runs={tmp_path}/runs"]), quiet=True)
    assert embed([f"run={run.path}"], str(tmp_path / "f.parquet")).exists()
    copy = tmp_path / "copied"
    shutil.copytree(run.path, copy)
    assert embed([f"run={copy}"], str(tmp_path / "f.parquet")).exists()
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
def test_a_link_to_a_folder_in_a_run_is_not_written_through(given, tmp_path, name, capsys):
    target = tmp_path / "precious"
    target.mkdir()
    (target / "metrics.csv").write_text("mine\n")
    (given.path / name).symlink_to(target)
    (given.path / "done").unlink()  # so that training goes on
    assert main(["train", *TINY, f"logger={name}", f"runs={given.path.parent}"]) == 2
    assert str(given.path / name) in capsys.readouterr().err
    assert [path.name for path in target.iterdir()] == ["metrics.csv"]
    assert (target / "metrics.csv").read_text() == "mine\n"


def test_a_class_folder_that_links_outside_is_refused(tmp_path):
    folder_of_pictures(tmp_path / "private")
    root = tmp_path / "images"
    folder_of_pictures(root / "cats")
    (root / "dogs").symlink_to(tmp_path / "private")
    with pytest.raises(ValueError, match=r"dogs .*private"):
        load("folder", "all", root=root)
    (root / "dogs").unlink()
    (root / "dogs").symlink_to(root / "cats")
    assert len(load("folder", "all", root=root)) == 80


def test_a_table_that_names_files_elsewhere_is_refused(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"image": [png()] * 3, "label": [0, 1, 0]}).save_to_disk(str(tmp_path / "set"))
    assert len(load("parquet", "all", root=tmp_path / "set")) == 3
    state = tmp_path / "set" / "state.json"
    content = json.loads(state.read_text())
    content["_data_files"][0]["filename"] = "../elsewhere.arrow"
    state.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"state\.json .*\.\./elsewhere\.arrow"):
        load("parquet", "all", root=tmp_path / "set")


# --- no command ------------------------------------------------------------------------------------------------


NASTY = ("$(touch ran)", "a; touch ran #", "`touch ran`", "x' y", 'q" z', "-o evil", "é ~ [1] = {2}", "\x1b]0;t\x07")


def code_blocks(page):
    return [unescape(text) for text in re.findall(r'<p class="command"><code>(.*?)</code>', page, re.DOTALL)]


@pytest.mark.parametrize("nasty", NASTY)
def test_commands_of_a_report_are_quoted_whatever_folders_and_results_are_called(made, tmp_path, monkeypatch, nasty):
    monkeypatch.chdir(tmp_path)
    folder, results = tmp_path / f"r {nasty}", tmp_path / f"results {nasty}"
    shutil.copytree(made.path, folder / nasty)
    record = records.Record(experiment=nasty, scale=f"x {nasty}", measure="knn", value=0.5, labels={"method": nasty})
    records.write(results / f"{nasty}.jsonl", [record])
    argv = ["report", str(folder), "-o", "out.html", "--results", str(results), "--images", "8"]
    assert main(argv) == 0
    commands = code_blocks(Path("out.html").read_text())
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
    escape, words = "\x1b]0;t\x07", [word for word in TINY if not word.startswith(("data", "batch_size"))]
    rows = []
    for k in range(40):
        folder = tmp_path / "images" / (f"{escape}cats" if k % 2 else "dogs")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (6 * k, 0, 250)).save(folder / f"{k}.png")
        rows.append({"image": str((folder / f"{k}.png").relative_to(tmp_path / "images")), "name": f"{escape}{k}"})
    (tmp_path / "images" / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    root = f"data.root={tmp_path / 'images'}"
    assert main(["train", *words, "batch_size=16", "views=plain", "data=folder", root, f"runs={tmp_path}/a"]) == 0
    pairs = ["data=pairs", "data.columns=image,name", root, f"runs={tmp_path}/b"]
    assert main(["train", *words, "batch_size=16", *pairs]) == 0
    (run,) = (tmp_path / "b").iterdir()
    assert main(["probe", f"run={run}", "protocol=zeroshot"]) == 0
    out, err = capsys.readouterr()
    assert not {"\x1b", "\x07"} & set(out + err)
    assert "\\x1b]0;t\\x07cats" in out
    assert "\\x1b]0;t\\x073" in out


# --- no memory without a limit: tables and images --------------------------------------------------------------


def repeated(path, value, times):
    """A table of one value, stored once, that stands for `times` rows."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int32)), pa.array([value]))
    pq.write_table(pa.table({"image": column}), path, compression="zstd", store_schema=False)
    return path


def test_a_kilobyte_that_unpacks_to_gigabytes_is_read_in_small_parts(tmp_path):
    path = repeated(tmp_path / "bomb.parquet", bytes(5_000_000), 1000)
    assert path.stat().st_size < 3000
    code = (
        "import sys, pyarrow as pa; from gcalign.lab.data.sources import load\n"
        "try: load('parquet', 'all', root=sys.argv[1])\n"
        "except ValueError as error: print(error)\n"
        "print(pa.default_memory_pool().max_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    said, peak = done.stdout.splitlines()
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
    with pytest.raises(ValueError, match=r"GCALIGN_TABLE_ROWS='many' must be a whole number"):
        load("parquet", "all", root=path)


def test_a_long_label_that_is_stored_once_is_held_once(tmp_path):
    n = 100_000
    label = pa.DictionaryArray.from_arrays(pa.array(np.arange(n, dtype=np.int32) % 2), pa.array(["a" * 10**6, "b"]))
    image = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), pa.array([png()]))
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"image": image, "label": label}), path, compression="zstd", store_schema=False)
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    found = load("parquet", "train", root=path, limit=10)
    assert found.labels.tolist().count(0) == 5
    assert pool.max_memory() < max(before, 2**29)


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
    path = table(tmp_path / "x.parquet", [giant(30_000, 30_000), png(), giant(9000, 9000), png()])
    with pytest.warns(UserWarning, match="row 0: .*67,108,864 .*GCALIGN_IMAGE_PIXELS"):
        assert len(load("parquet", "all", root=path)) == 2
    monkeypatch.setenv("GCALIGN_IMAGE_PIXELS", "100")
    with pytest.raises(ValueError, match="more than 100 pixels"):
        load("parquet", "all", root=path)


def test_an_archive_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GCALIGN_ARRAY_BYTES", "100000")
    for stem, part in (("train-images-idx3", 10**6), ("train-labels-idx1", 10)):
        (tmp_path / f"{stem}-ubyte.gz").write_bytes(gzip.compress(bytes(part)))
    with pytest.raises(ValueError, match=r"train-images.* at most 100,000 .*GCALIGN_ARRAY_BYTES"):
        load("fashion-mnist", "train", root=tmp_path)


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
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("gcalign: ")
    return said[-1]


@pytest.fixture
def sides(tmp_path, monkeypatch):
    """A folder with b.npy, the other side of an audit."""
    monkeypatch.chdir(tmp_path)
    np.save("b.npy", np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32))
    np.save("weights.npy", np.ones(40, np.float32))
    return tmp_path


def test_an_archive_is_measured_before_it_is_unpacked(sides, capsys, monkeypatch):
    monkeypatch.setenv("GCALIGN_ARRAY_BYTES", str(10**6))
    npz(sides / "a.npz", 4 * 10**6, (250_000, 4))
    assert "'x' of a.npz is 4,000,000, at most 1,000,000 " in audit(capsys, "a.npz", "b.npy")
    with pytest.raises(ValueError, match=r"at most 1,000,000 .*GCALIGN_ARRAY_BYTES"):
        load_columns("pairs", root=str(sides / "a.npz"), columns=["x", "x"])


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
    pq.write_table(pa.table({"v": [np.zeros(10_000, np.float32)] * 40}), "a.parquet", compression="zstd")
    assert Path("a.parquet").stat().st_size < 10**5
    assert "the number of bytes of 'v' of a.parquet is 1,6" in audit(capsys, "a.parquet", "b.npy")
    pq.write_table(pa.table({f"f{k}": np.zeros(10**5, np.float32) for k in range(4)}), "a.parquet", compression="zstd")
    assert "'f0', 'f1', 'f2' of a.parquet is 1,6" in audit(capsys, "a.parquet", "b.npy")
    Path("ids.txt").write_text("x\n" * 10**6)
    monkeypatch.setenv("GCALIGN_TEXT_BYTES", "1000")
    assert "GCALIGN_TEXT_BYTES" in audit(capsys, "b.npy", "b.npy", "--ids", "ids.txt")


# --- no memory without a limit: runs ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word",
    ["model.width=1e5", "model.width=1e300", "model.hidden=2000000000", "model.out=9999999999999999"],
)
@pytest.mark.parametrize("encoder", ["small", "resnet50"])
def test_a_network_that_no_machine_holds_is_refused(tmp_path, word, encoder):
    config = config_for(tmp_path / "runs", word, f"model.encoder={encoder}")
    with pytest.raises(ValueError, match=r"1,073,741,824 .*MODEL_PARAMETERS"):
        train(config, images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("width", [1e5, 1e300])
def test_a_network_that_a_run_asks_for_is_refused_too(tmp_path, width, capsys):
    config = config_for(tmp_path)
    Run.of(config).start(config)
    content = json.loads(Run.of(config).config_file.read_text())
    content["model"]["width"] = width
    Run.of(config).config_file.write_text(json.dumps(content))
    assert main(["probe", "run=untrained", f"like={Run.of(config).path}", "protocol=knn", "data.limit=40"]) == 2
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
    path = table(tmp_path / "x.parquet", [png(grey=k) for k in range(4)], {b"huggingface": said}, label=[3, 4, 3, 4])
    found = load("parquet", "all", root=path)
    assert found.labels.tolist() == [0, 1, 0, 1]
    assert found.classes == ("3", "4")


@pytest.mark.parametrize("label", [[[1], [2], [1]], [{"a": 1}] * 3, [{}] * 3], ids=str)
def test_labels_that_are_lists_are_refused(tmp_path, label):
    kind = pa.array(label) if label != [{}] * 3 else pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int64()))
    path = table(tmp_path / "x.parquet", [png()] * 3, label=kind)
    with pytest.raises(ValueError, match=r"'label' cannot be read .*;"):
        load("parquet", "all", root=path)


@pytest.mark.parametrize("row", ['"x,y', '"x"z,y', f"{'x' * 200_000},y", "x", "\0,1,2"], ids=lambda row: row[:5])
def test_a_table_that_is_no_csv_is_refused_with_its_row(tmp_path, row):
    (tmp_path / "pairs.csv").write_text(f"a,b\n{row}\n")
    with pytest.raises(ValueError, match=r"pairs\.csv row 0 .*correct the row"):
        open_table(tmp_path)


def test_odd_columns_of_a_table_are_refused_without_a_traceback(tmp_path):
    label = pa.array([2**62, 2], pa.timestamp("us"))
    pq.write_table(pa.table({"image": [b"x", b"y"], "label": label}), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"'label' .*;"):
        load("parquet", "train", root=tmp_path)
    pq.write_table(pa.table([pa.array([b"x"])] * 2, names=["image", "image"]), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"two columns .*'image'"):
        load("parquet", "train", root=tmp_path)


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A run that has a checkpoint of step 4."""
    config = config_for(tmp_path / "a", "logger=none")
    real = runs.files.write
    monkeypatch.setattr(runs.files, "write", lambda path, content: _until_weights(real, path, content))
    with pytest.raises(KeyError):
        train(config, images=pictures(), quiet=True)
    monkeypatch.undo()
    return config, Run.of(config)


def _until_weights(write, path, content):
    if path.name == "weights.safetensors":
        raise KeyError
    write(path, content)


@pytest.mark.parametrize(
    "words", [("model.out=16",), ("optimizer.lr=2e-3",), ("method=byol",), ("optimizer.name=sgd",)]
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, stopped, words):
    other = config_for(tmp_path / "b", "logger=none", *words)
    Run.of(other).path.mkdir(parents=True)
    Run.of(other).checkpoint_file.write_bytes(stopped[1].checkpoint_file.read_bytes())
    with pytest.raises(ValueError, match=r"checkpoint.*; delete it"):
        train(other, images=pictures(), quiet=True)


@pytest.mark.parametrize(
    "change", [{"step": -1}, {"step": "x"}, {"step": 99}, {"step": None}, {"scaler": 3}, {"scaler": {"scale": "x"}}]
)
def test_odd_metadata_of_a_checkpoint_is_an_error_with_a_remedy(stopped, change):
    config, run = stopped
    content, about = checkpoints.read(run.checkpoint_file)
    changed = {k: v for k, v in (about | change).items() if v is not None}
    checkpoints.save(run.checkpoint_file, content, changed)
    with pytest.raises(ValueError, match="delete it"):
        train(config, images=pictures(), quiet=True)


@pytest.mark.parametrize(
    "about",
    [None, "{", "3", "{}", '{"config": {}, "shape": [3, 8, 8]}', '{"config": {"method": {"name": "x"}}, "shape": [3]}',
     '{"config": {"method": {"name": "x"}, "model": {"hidden": 1000000000000, "out": 1000000}}, "shape": [3, 12, 12]}',
     '{"config": {"method": {"name": "x"}, "model": {"width": 1e15}}, "shape": [3, 12, 12]}',
     '{"config": {"method": {"name": "x"}, "model": {"encoder": "resnet50"}}, "shape": [3, 12, 12]}',
     '{"config": {"method": {"name": "x"}}, "shape": [3, -1, 12]}'],
)  # fmt: skip
def test_weights_that_do_not_say_what_they_are_are_an_error_with_a_remedy(tmp_path, about):
    run = train(config_for(tmp_path), images=pictures(), quiet=True)
    content, _ = checkpoints.read(run.weights_file)
    content = {key.removeprefix("towers.0."): value for key, value in content.items()}  # as version 0.1 wrote them
    save_file(content, run.weights_file, {} if about is None else {"gcalign": about})
    with pytest.raises(ValueError, match=r"run again|does not fit"):
        load_whole(run.path)


def test_weights_of_another_type_are_refused(tmp_path):
    run = train(config_for(tmp_path), images=pictures(), quiet=True)
    content, about = checkpoints.read(run.weights_file)
    checkpoints.save(run.weights_file, {k: v.double() for k, v in content.items()}, about)
    with pytest.raises(ValueError, match=r"is torch\.float64, not torch\.float32"):
        gcalign.load(run.path)


# --- what is no file, and where no file can be -----------------------------------------------------------------


def _socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


NOT_FILES = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nowhere.png"),
}


@pytest.mark.parametrize("loose", [True, False], ids=["loose", "in folders"])
@pytest.mark.parametrize("make", NOT_FILES.values(), ids=NOT_FILES)
def test_what_is_called_an_image_and_is_no_file_is_named_and_left_out(tmp_path, make, loose):
    folder = folder_of_pictures(tmp_path / "images" if loose else tmp_path / "images" / "cats", 4)
    make(folder / "x.png")
    with pytest.warns(UserWarning, match=r"1 unreadable image\(s\): .*x\.png.*; skipped"):
        assert len(load("folder", "all", root=tmp_path / "images")) == 4


def test_a_pipe_in_place_of_a_table_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"train\.parquet .*pipe"):
        load("parquet", "train", root=tmp_path)


def test_a_folder_in_place_of_embeddings_is_called_so(sides, capsys):
    (sides / "a.npy").mkdir()
    assert "a.npy is a folder, a pipe or a device; give a .npy" in audit(capsys, "a.npy", "b.npy")


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
    assert main(["verify", "--only", "thm:byol", "--cases", "2", "--json", str(tmp_path / "pipe.json")]) == 2


def test_a_file_that_has_nothing_to_read_yet_is_refused(tmp_path, monkeypatch):
    class Silent(io.FileIO):
        def read(self, size=-1):
            return None  # as /proc/kmsg gives

    (tmp_path / "x").touch()
    monkeypatch.setattr(files.os, "fdopen", lambda descriptor, mode: Silent(descriptor))
    with pytest.raises(ValueError, match="must be a file"):
        files.read(tmp_path / "x")


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
    assert main([*argv, path]) == 2
    said = capsys.readouterr().err
    assert f"{option} {path} cannot be written (" in said or f"{option}: {path} cannot be written (" in said
    assert "); choose a directory in which you can create files" in said
    assert "Errno" not in said
    assert ".part" not in said
    assert not list(tmp_path.iterdir())


def test_results_where_no_folder_can_be_made_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "fig-extreme", "scale=tiny", "out=/proc/x"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gcalign: /proc/x")
    assert "; check the name and the permissions, or choose another path" in said
    assert "Errno" not in said


ODD_PATHS = [
    "é à ü", "two words", "it's", 'say "so"', "a[b]{c}", "a=b", "~x", "a,b;(c)", "$HOME", "${name}", "back\\slash",
    "50%", "#1", "*", "😀", "-x", "a:b", "<b>",
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD_PATHS)
def test_paths_work_as_they_are_typed(tmp_path, odd, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    images = tmp_path / odd / "cats"
    images.mkdir(parents=True)
    for k in range(40):
        (images / f"{k}.png").write_bytes(png(grey=6 * k))
    words = [word for word in TINY if not word.startswith(("data", "batch_size", "logger"))]
    words += ["batch_size=16", "views=plain"]
    places = ["data=folder", f"data.root={odd}", f"runs={odd}/runs"]
    assert main(["train", *words, *places]) == 0
    (run,) = (tmp_path / odd / "runs").iterdir()
    name = f"{odd}/runs/{run.name}"
    assert main(["embed", f"run={name}", "-o", f"./{odd}/f.parquet"]) == 0
    assert (tmp_path / odd / "f.parquet").is_file()
    assert main(["list", f"./{odd}/runs"]) == 0
    assert main(["report", f"./{odd}/runs", "-o", f"./{odd}/r.html", "--images", "8"]) == 0
    page = (tmp_path / odd / "r.html").read_text()
    assert "data:image/jpeg" in page
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


@pytest.mark.parametrize("odd", ["é [1]", "a*b", "a=b"])
def test_large_tables_are_read_from_odd_paths_too(tmp_path, odd, monkeypatch):
    monkeypatch.setattr(sources, "MEMORY", 1)
    (tmp_path / odd).mkdir()
    for folder in ("é 1", "aXb"):  # what a pattern would match
        (tmp_path / folder).mkdir()
        table(tmp_path / folder / "x.parquet", [png(grey=200)] * 12)
    path = table(tmp_path / odd / "x.parquet", [png(grey=k) for k in range(12)])
    found = load("parquet", "all", root=path)
    assert [int(x) for x in found.get(torch.arange(12))[:, 0, 0, 0]] == list(range(12))


def test_names_that_are_not_utf8_are_spelt_out_in_a_table_and_no_export_goes_nowhere(tmp_path, capsys):
    folder = folder_of_pictures(tmp_path / "images", 4)
    os.rename(folder / "0.png", os.fsencode(folder) + b"/a\xff.png")
    words = ["data=folder", f"data.root={folder}", "epochs=1", "batch_size=2", "model.width=0.1", "model.hidden=8"]
    words += ["model.out=8", "accelerator=cpu", "logger=none", f"runs={tmp_path}/runs", "name=odd", "views=plain"]
    assert main(["train", *words]) == 0
    table = tmp_path / "f.parquet"
    assert main(["embed", f"run={tmp_path}/runs/odd", "split=all", "-o", str(table)]) == 0
    assert main(["export", f"run={tmp_path}/runs/odd", "format=safetensors", "-o", "/proc/x"]) == 2
    assert "-o /proc/x cannot be made (" in capsys.readouterr().err
    assert pq.read_table(table)["image"][3].as_py() == f"{folder}/a\\udcff.png"


def test_a_terminal_of_ascii_shows_what_it_can(tmp_path):
    config = config_for(tmp_path / "runs", "name=é–😀")
    Run.of(config).start(config)
    here = {"cwd": tmp_path}
    os.environ["PYTHONIOENCODING"] = "ascii"
    try:
        for argv in (["list", "runs"], ["verify", "--only", "thm:byol", "--cases", "2"]):
            done = command(tmp_path, *argv, **here)
            assert done.returncode == 0, done.stderr
            assert done.stdout.isascii()
    finally:
        del os.environ["PYTHONIOENCODING"]


@pytest.mark.parametrize("how", ["2>&1 | head -c 1 > /dev/null; exit ${PIPESTATUS[0]}", ">&- 2>&-"])
def test_a_reader_that_is_gone_does_not_fail_a_finished_job(tmp_path, how):
    source = Path(gcalign.__file__).parents[1]
    words = " ".join(f"'{word}'" for word in [*TINY, f"runs={tmp_path}/runs"])
    script = f"PYTHONPATH='{source}' '{sys.executable}' -m gcalign train {words} {how}"
    done = subprocess.run(["bash", "-c", script], check=False, timeout=300)
    assert done.returncode == 0
    assert list(tmp_path.glob("runs/*/done"))
