"""What a newcomer types first: help, dry runs, both habits of options, lists of runs, progress, missing extras."""

import dataclasses
import json
import sys
import time

import pytest
import torch

import gcalign
from gcalign.cli import main
from gcalign.lab.commands import either
from gcalign.lab.data.images import InMemory, described
from gcalign.lab.training import callbacks, keys
from gcalign.lab.training.config import Config, configured
from gcalign.lab.training.listing import listing, summary
from gcalign.lab.training.module import collapse
from gcalign.lab.training.runs import Run
from gcalign.lab.training.typed import written
from gcalign.lab.words import missing
from gcalign.methods import names

QUICK = ("data=scenes", "data.limit=64", "epochs=2", "batch_size=32", "model.width=0.1", "model.hidden=8")
QUICK += ("model.out=8", "accelerator=cpu", "logger=none")


# --- keys -----------------------------------------------------------------------------------------------------


def test_help_has_every_key_with_its_default_and_a_description(capsys):
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    plain = dataclasses.asdict(Config())
    for name, value in [(k, v) for k, v in plain.items() if k not in ("method", "data", "logger_args")]:
        for part, inner in value.items() if isinstance(value, dict) else [("", value)]:
            key = f"{name}.{part}" if part else name
            (line,) = [line for line in shown if line.startswith(f"  {key}={written(inner)} ")]
            assert len(line.split()) >= 2


def test_help_has_the_options_of_every_method():
    assert tuple(keys.options()) == names()[: len(keys.options())]
    assert dict(keys.options()["gca-uot"])["relax"] == "[0.2,0.2]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data=folder"], "data=folder needs the one that holds the images"),
        (["data=folder", "data.root=nowhere"], "root='nowhere' does not exist"),
        (["data=folder", "data.root=empty"], "empty holds no images"),
        (["data=folder", "data.root=file.txt"], "root=file.txt is not a folder"),
        (["data=parquet"], "data=parquet found nothing as no root= was given"),
        (["data=parquet", "data.root=empty"], "data=parquet found nothing in root='empty'"),
        (["data=pairs"], "data=pairs needs data.root="),
        (["data=pairs", "data.root=nowhere"], "data.root=nowhere does not exist"),
        (["data=cifar10", "data.root=nowhere"], "root='nowhere' does not exist"),
        (["data=scenes", "method.eps=nan"], "eps=nan must be > 0"),
        (["data=scenes", "method.eps=1e-400"], "eps=0 must be > 0"),
        (["data=scenes", "method=gca-rince", "method.q=2"], "q=2 must be"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would_refuse(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("no image")
    for more in (["dry=true"], []):
        assert main(["train", *words, *more]) != 0
        assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_names_the_folder_that_the_run_would_have(capsys):
    assert main(["train", "runs=", "dry=true"]) == 0
    assert "folder: gca-ince-scenes-" in capsys.readouterr().out


def test_a_dry_run_shows_words_that_make_the_same_run(tmp_path, capsys):
    words = ["method=gca-uot", "epochs=3", "method.relax=[1.0,2.0]", f"runs={tmp_path}"]
    assert main(["train", *words, "dry=true"]) == 0
    shown = capsys.readouterr().out.splitlines()
    again = configured(
        [line for line in shown if "=" in line and not line.startswith("dry=") and line != "logger_args={}"]
    )
    assert again == configured(words)
    assert f"folder: {tmp_path}/{again.folder}" in shown
    assert not list(tmp_path.iterdir())


# --- both habits ----------------------------------------------------------------------------------------------


def test_flags_are_understood_where_keys_are_usual(tmp_path, capsys):
    assert main(["train", "--epochs", "3", "--batch-size=64", f"--runs={tmp_path}", "--dry"]) == 0
    out = capsys.readouterr().out
    assert "epochs=3" in out
    assert "batch_size=64" in out


def test_keys_are_understood_where_flags_are_usual(tmp_path, capsys):
    for words in ([str(tmp_path), "mean=true"], [f"folder={tmp_path}", "mean=true"]):
        assert main(["list", *words]) == 2
        assert f"gcalign: {tmp_path} has no runs" in capsys.readouterr().err


def test_values_of_flags_are_left_alone():
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-o", "--output")
    assert either(parser, ["run=x", "--output", "a=b", "--k", "5"]) == ["--output", "a=b", "run=x", "k=5"]


# --- lists ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    from gcalign.lab.training.train import train

    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        for noise in (0.0, 0.5):
            train(configured([*QUICK, f"pairs.noise={noise}", f"seed={seed}", f"runs={folder}/deep"]), quiet=True)
    train(configured([*QUICK, "name=mine", "method.eps=0.2", f"runs={folder}"]), quiet=True)
    return folder


def test_list_looks_into_folders_and_tells_clean_from_mismatched(runs):
    rows = listing(str(runs))
    assert len(rows) == 5
    assert sorted(row["pairs"] for row in rows) == ["50% mismatched"] * 2 + ["clean"] * 3


def test_means_are_over_seeds_and_nothing_else(runs):
    for row in listing(str(runs)):
        line = {"kind": "probe", "protocol": "knn", "accuracy": 0.5}
        with open(Run.at(row["run"]).results_file, "a") as file:
            file.write(json.dumps(line) + "\n")
    rows = summary(str(runs))
    assert [(row["pairs"], row["seeds"]) for row in rows].count(("clean", 2)) == 1
    assert len(rows) == 3
    assert {row["settings"] for row in rows if row["pairs"] == "clean"} == {"method.eps=0.1", "method.eps=0.2"}


def test_a_named_run_is_found_by_its_name(runs):
    assert Run.at(runs / "mine").config().name == "mine"
    with pytest.raises(ValueError, match="must be a folder with a config"):
        Run.at(runs / "min")


# --- progress -------------------------------------------------------------------------------------------------


def test_without_a_terminal_progress_is_lines(tmp_path, capsys, monkeypatch):
    from gcalign.lab.training.train import train

    monkeypatch.setattr(callbacks, "EVERY", 0.0)
    train(configured([*QUICK, f"runs={tmp_path}"]))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    assert lines[0].startswith("epoch 1/2, step 1 of 4, loss ")
    assert lines[-1].startswith("epoch 2/2, step 3 of 4")
    assert all(line.endswith(" s left") for line in lines)


def test_collapse_is_measured():
    torch.manual_seed(0)
    spread = collapse(torch.randn(512, 16))
    assert spread["spread"] > 0.95
    assert spread["rank"] > 14
    one = collapse(torch.ones(64, 16) + 1e-4 * torch.randn(64, 16))
    assert one["spread"] < callbacks.COLLAPSED
    line = collapse(torch.randn(64, 1) * torch.ones(1, 16))
    assert line["rank"] == pytest.approx(1, abs=1e-2)


def test_collapse_is_warned_about_once(tmp_path, monkeypatch):
    from gcalign.lab.training.train import train

    monkeypatch.setattr(callbacks, "COLLAPSED", 2.0)  # no spread is as large
    with pytest.warns(UserWarning, match="collapsed to one point") as caught:
        train(configured([*QUICK, "log_every=1", f"runs={tmp_path}"]), quiet=True)
    assert len([w for w in caught if "collapsed" in str(w.message)]) == 1


# --- extras ---------------------------------------------------------------------------------------------------


def test_a_missing_extra_is_named():
    assert "'.[train]'" in missing(ModuleNotFoundError("No module named 'hydra'", name="hydra.core"))
    assert "No module named 'other'" in missing(ModuleNotFoundError("No module named 'other'", name="other"))


def test_a_command_without_its_extra_says_so(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "lightning", None)
    for name in [name for name in sys.modules if name.startswith("gcalign.lab.training.train")]:
        monkeypatch.delitem(sys.modules, name)
    began = time.monotonic()
    assert main(["train", *QUICK]) == 2
    assert "lightning" in capsys.readouterr().err
    assert time.monotonic() - began < 60


# --- words beside numbers -------------------------------------------------------------------------------------


def test_a_plan_says_which_sums_need_not_hold():
    z1, z2 = torch.randn(2, 8, 4)
    assert "(relaxed)" in repr(gcalign.method("gca-uot").plan(z1, z2))
    assert "(free)" in repr(gcalign.method("ince").plan(z1, z2))
    assert "(" not in repr(gcalign.method("gca-ince").plan(z1, z2))[5:]


def test_data_describe_themselves():
    pixels = torch.zeros(6, 3, 8, 9, dtype=torch.uint8)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    some = InMemory(pixels, name="folder", split="train", labels=labels, classes=("a", "b", "c"))
    assert described(some) == "folder, train: 6 images of 3 × 8 × 9, 3 classes (a, b, c)"
    assert described(InMemory(pixels, name="folder", split="all")).endswith("no labels (training needs none)")
