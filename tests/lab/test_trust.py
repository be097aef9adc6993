"""Nothing from a folder that somebody was given is run, resolved or followed: code, interpolations, paths, commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import gcalign
from gcalign.cli import main
from gcalign.lab import provenance
from gcalign.lab.data.sources import load
from gcalign.lab.experiments.engine import records
from gcalign.lab.models import outside
from gcalign.lab.training import checkpoints
from gcalign.lab.training.config import configured
from gcalign.lab.training.embed import embed
from gcalign.lab.training.runs import Run
from gcalign.lab.training.train import train
from small_runs import SCENES as TINY
from small_runs import command

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


# code


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
    with pytest.raises(ValueError, match=r"payload:make.* is not part of gcalign.*encoder=payload:make"):
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
    with pytest.raises(ValueError, match=r"encoder='resnet18'.* made with 'small'; leave encoder out"):
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


# commands to copy


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


# a config is data


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


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "..", "a\\b", "", "a\nb", "x" * 300])
def test_a_name_cannot_leave_the_folder_of_runs(tmp_path, name):
    with pytest.raises(ValueError, match=r"name=.* must be the name of a folder"):
        configured([f"runs={tmp_path}/runs", f"name={name}"])


def pictures(folder):
    folder.mkdir(parents=True)
    for k in range(40):
        Image.new("RGB", (24, 24), (6 * k, 0, 250)).save(folder / f"{k}.png")
    return folder


def test_a_path_that_a_run_names_is_followed_only_for_a_run_of_ones_own_or_if_named(given, tmp_path, capsys):
    private = pictures(tmp_path / "private")
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
    root = pictures(tmp_path / "images")
    words = ["data=folder", f"data.root={root}", "data.size=24", "batch_size=4", "views=plain"]
    run = train(configured([*(w for w in TINY if w[:4] != "data"), *words, f"runs={tmp_path}/runs"]), quiet=True)
    assert embed([f"run={run.path}"], str(tmp_path / "f.parquet")).exists()
    copy = tmp_path / "copied"
    shutil.copytree(run.path, copy)
    assert embed([f"run={copy}"], str(tmp_path / "f.parquet")).exists()
    content = json.loads(run.config_file.read_text())
    content["data"]["root"] = str(tmp_path)
    run.config_file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"no command of yours has named.*data\.root="):
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


@pytest.mark.parametrize("name", ["audit", "csv", "tensorboard"])
def test_a_link_to_a_folder_in_a_run_is_not_written_through(given, tmp_path, name, capsys):
    target = tmp_path / "precious"
    target.mkdir()
    (target / "metrics.csv").write_text("mine\n")
    (given.path / name).symlink_to(target)
    commands = [["audit", f"run={given.path}", "folds=2", "-o", str(tmp_path / "a.csv")]]
    if name != "audit":
        (given.path / "done").unlink()  # so that training goes on
        commands = [["train", *TINY, f"logger={name}", f"runs={given.path.parent}"]]
    for argv in commands:
        assert main(argv) == 2
        assert f"{given.path / name} links outside the run" in capsys.readouterr().err
    assert [path.name for path in target.iterdir()] == ["metrics.csv"]
    assert (target / "metrics.csv").read_text() == "mine\n"


def test_a_class_folder_that_links_outside_is_refused(tmp_path):
    pictures(tmp_path / "private")
    root = tmp_path / "images"
    pictures(root / "cats")
    (root / "dogs").symlink_to(tmp_path / "private")
    with pytest.raises(ValueError, match=r"dogs links to .*private, which is outside"):
        load("folder", "all", root=root)
    (root / "dogs").unlink()
    (root / "dogs").symlink_to(root / "cats")
    assert len(load("folder", "all", root=root)) == 80


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
