"""Every logger sees the same scalars, and changes nothing."""

from __future__ import annotations

import csv

import lightning.pytorch.loggers
import pytest

from gcalign.lab.training import loggers
from gcalign.lab.training.train import train
from small_runs import config_for, pictures

pytestmark = [pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|sync_dist|lightning).*")]


def scalars(path):
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return [{name: value for name, value in row.items() if name != "images/s"} for row in rows]


def test_any_lightning_logger_sees_the_same_scalars_and_changes_nothing(tmp_path):
    by_class = ("logger=lightning.pytorch.loggers:CSVLogger", "logger_args.name=mine", "logger_args.version=a")
    words = {"csv": ("logger=csv",), "class": by_class, "none": ("logger=none",), "tensorboard": ()}
    configs = {name: config_for(tmp_path / name, *given) for name, given in words.items()}
    assert len({config.folder for config in configs.values()}) == 1
    made = {name: train(config, images=pictures(), quiet=True) for name, config in configs.items()}
    seen = scalars(made["csv"].path / "csv" / "metrics.csv")
    assert {"loss", "alignment", "uniformity", "lr", "plan/mass"} <= seen[0].keys()
    assert scalars(made["class"].path / "mine" / "a" / "metrics.csv") == seen
    assert sorted(p.name for p in made["none"].path.iterdir()) == [
        "config.json", "done", "lock", "results.jsonl", "weights.safetensors"
    ]  # fmt: skip
    assert list((made["tensorboard"].path / "tensorboard").glob("events*"))
    assert len({run.weights_file.read_bytes() for run in made.values()}) == 1


@pytest.mark.parametrize(
    ("logger", "arguments", "named"),
    [("wandb", "WandbLogger", {"name", "version", "project"}), ("mlflow", "MLFlowLogger", {"run_name"})],
)
def test_loggers_of_other_packages_are_given_the_run(tmp_path, monkeypatch, logger, arguments, named):
    given = {}

    class Recorder(lightning.pytorch.loggers.CSVLogger):
        def __init__(self, **arguments):
            given.update(arguments)

    monkeypatch.setattr(loggers, "find_spec", lambda package: package)
    monkeypatch.setattr(lightning.pytorch.loggers, arguments, Recorder)
    loggers.logger_of(logger, {"offline": True}, tmp_path / "run")
    assert named | {"save_dir", "offline"} <= given.keys()
    assert "run" in given.values()


def test_a_logger_that_is_not_installed_or_has_no_such_argument_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "find_spec", lambda package: None)
    with pytest.raises(ValueError, match=r"logger=wandb .*pip install wandb"):
        config_for(tmp_path, "logger=wandb")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"logger_args={'nme': 'x'}.*save_dir, name"):
        train(config_for(tmp_path, "logger=csv", "logger_args.nme=x"), images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []
