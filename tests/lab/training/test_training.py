"""A run is a function of its config: interrupted anywhere, it ends in the same weights, bit for bit."""

from __future__ import annotations

import csv
import dataclasses
import os
import random
import signal
import subprocess
import sys
import time

import lightning.pytorch.loggers
import pytest
import torch
from torch import nn

import gcalign
from gcalign.lab.data.sides import views_of
from gcalign.lab.models import momentum_at
from gcalign.lab.training import checkpoints, loggers, runs
from gcalign.lab.training.checkpoints import checkpoint_step
from gcalign.lab.training.config import configured
from gcalign.lab.training.module import Training
from gcalign.lab.training.optimizers import lr_at
from gcalign.lab.training.samples import images_of
from gcalign.lab.training.stream import Stream
from gcalign.lab.training.supervised import supervised
from gcalign.lab.training.train import train
from small_runs import StoppedError, assert_same, config_for, pictures, stopping, weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|sync_dist|lightning).*"),
]


def first_encoder(config, images):
    """The encoder that a run starts from."""
    return Training(config, views_of(images), total=10).towers[0].encoder


@pytest.mark.parametrize(
    "words", [(), ("method=byol",), ("method=gca-uot", "pairs.noise=0.5"), ("accumulate=2",)], ids=str
)
@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_an_interrupted_run_ends_in_the_same_weights(tmp_path, stop_at, words):
    words = (*words, "log_every=1")  # so that lines were written after the last checkpoint
    whole = train(config_for(tmp_path / "whole", *words), images=pictures(), quiet=True)
    config = config_for(tmp_path / "parts", *words)
    with pytest.raises(StoppedError), stopping(stop_at):
        train(config, images=pictures(), quiet=True)
    torch.manual_seed(12345)  # what else happens in the process must not matter
    parts = train(config, images=pictures(), quiet=True)
    assert_same(weights(parts), weights(whole))
    steps = [[r["step"] for r in run.results() if r["kind"] == "train"] for run in (parts, whole)]
    assert steps[0] == steps[1]
    losses = [[r["loss"] for r in run.results() if r["kind"] == "train"] for run in (parts, whole)]
    assert losses[0] == losses[1]


def forgetful(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 16), nn.Dropout(0.5), nn.Linear(16, 8))


def test_what_an_encoder_draws_follows_from_the_step(tmp_path):
    words = ("model.width=1.0",)
    whole = train(config_for(tmp_path / "whole", *words), images=pictures(), encoder=forgetful, quiet=True)
    config = config_for(tmp_path / "parts", *words)
    with pytest.raises(StoppedError), stopping(3):
        train(config, images=pictures(), encoder=forgetful, quiet=True)
    torch.manual_seed(12345)
    assert_same(weights(train(config, images=pictures(), encoder=forgetful, quiet=True)), weights(whole))


def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path, monkeypatch):
    config = config_for(tmp_path)
    run = runs.Run.of(config)
    real = os.fsync
    calls = []

    def dies(descriptor):
        calls.append(descriptor)
        if len(calls) == 3:  # the config, then the first checkpoint; the second is on disk under its temporary name
            raise StoppedError
        real(descriptor)

    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(StoppedError):
        train(config, images=pictures(), quiet=True)
    monkeypatch.setattr(os, "fsync", real)
    assert checkpoint_step(run) == 2
    finished = train(config, images=pictures(), quiet=True)
    whole = train(config_for(tmp_path / "whole"), images=pictures(), quiet=True)
    assert_same(weights(finished), weights(whole))


def test_ctrl_c_says_that_the_same_command_goes_on_and_it_does(tmp_path, capsys, request):
    config = config_for(tmp_path)
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores Ctrl-C
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, inherited))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stopping(5, lambda: os.kill(os.getpid(), signal.SIGINT)):
        train(config, images=pictures())
    assert "interrupted at step 5 of 6; the same command continues at step 4" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is handler
    finished = train(config, images=pictures(), quiet=True)
    assert_same(weights(finished), weights(train(config_for(tmp_path / "whole"), images=pictures(), quiet=True)))


def test_a_disk_that_fills_up_leaves_the_checkpoint_before_and_a_run_that_goes_on(tmp_path, monkeypatch):
    config = config_for(tmp_path)
    run, real, calls = runs.Run.of(config), os.fsync, []

    def fills(descriptor):
        calls.append(descriptor)
        if len(calls) > 2:  # the config and the first checkpoint had room
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fills)
    with pytest.raises(
        ValueError, match=r"stopped at step 4 of 6: .*No space left on device.*; .* continues at step 2"
    ):
        train(config, images=pictures(), quiet=True)
    monkeypatch.setattr(os, "fsync", real)
    assert not [path for path in run.path.iterdir() if path.name.endswith(".part")]
    finished = train(config, images=pictures(), quiet=True)
    assert_same(weights(finished), weights(train(config_for(tmp_path / "whole"), images=pictures(), quiet=True)))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(runs.Path, "mkdir", refused)
    with pytest.raises(ValueError, match=r"Permission denied.*; choose a folder that can be written with runs="):
        train(config_for(tmp_path / "runs"), images=pictures(), quiet=True)
    assert not (tmp_path / "runs").exists()


def test_lost_weights_are_made_again(tmp_path):
    config = config_for(tmp_path)
    run = train(config, images=pictures(), quiet=True)
    before = run.weights_file.read_bytes()
    run.weights_file.write_bytes(before[:1000])
    with pytest.raises(ValueError, match=r"weights\.safetensors cannot be read .*delete it to start this run again"):
        gcalign.load(run.path)
    run.weights_file.unlink()
    assert train(config, images=pictures(), quiet=True).weights_file.read_bytes() == before
    run.config_file.write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read .*the command that started this run"):
        run.config()


def test_a_finished_run_is_not_run_again(tmp_path, capsys):
    config = config_for(tmp_path)
    run = train(config, images=pictures(), quiet=True)
    stamp = run.weights_file.stat().st_mtime_ns
    assert train(config, images=pictures()).path == run.path
    assert run.weights_file.stat().st_mtime_ns == stamp
    assert "finished already" in capsys.readouterr().out


def test_the_folder_is_named_by_what_decides_the_weights(tmp_path):
    base = config_for(tmp_path)
    assert config_for(tmp_path, "log_every=5", "workers=1").folder == base.folder
    assert config_for(tmp_path, "seed=1").folder != base.folder
    assert config_for(tmp_path, "method.eps=0.4").folder != base.folder


@pytest.mark.parametrize("layout", ["cross", "joint"])
@pytest.mark.parametrize("name", gcalign.methods.names())
def test_every_method_trains_in_both_layouts_on_the_embedded_data(tmp_path, name, layout):
    words = ("data=scenes", "data.limit=32", f"method={name}", f"method.layout={layout}", "epochs=1", "log_every=1")
    run = train(config_for(tmp_path, *words), quiet=True)
    losses = torch.tensor([r["loss"] for r in run.results()])
    assert losses.shape == (2,)
    assert losses.isfinite().all()
    before = first_encoder(run.config(), images_of(run.config().data, "train")).state_dict()
    assert any(not torch.equal(before[k], v) for k, v in gcalign.load(run.path).network.state_dict().items())


@pytest.mark.parametrize("name", ["ince", "gca-uot", "iot", "supcon"])
def test_more_than_two_views_train(tmp_path, name):
    run = train(config_for(tmp_path, f"method={name}", "pairs.views=3", "epochs=1"), images=pictures(), quiet=True)
    assert run.done


def test_the_twin_follows_the_optimiser_and_gets_no_gradient(tmp_path):
    words = ("method=byol", "optimizer.name=sgd", "optimizer.momentum=0", "optimizer.lr=1", "optimizer.weight_decay=0")
    module = Training(config_for(tmp_path, *words), views_of(pictures()), total=10)
    encoder = module.towers[0].encoder
    assert not any(p.requires_grad for p in module.twin.parameters())
    online = {id(p) for p in module.towers.parameters()}
    assert not any(id(p) in online for p in module.twin.parameters())
    seen, momenta, module.done = [], [], 4
    honest = module.twin.update

    def update(momentum):
        momenta.append(momentum)
        seen.append(next(encoder.parameters()).clone())
        honest(momentum)

    module.twin.update = update
    before = next(encoder.parameters()).clone()
    for p in encoder.parameters():
        p.grad = torch.full_like(p, -1)
    module.configure_optimizers().step()
    torch.testing.assert_close(seen[0], before + 1)
    assert momenta == [momentum_at(4, 10, module.config.model.momentum)]


def test_mismatched_pairs_are_the_share_that_was_asked_for():
    stream = Stream(views_of(pictures()), batch_size=20, epochs=1, seed=0, noise=0.3)
    indices = stream.indices(0)
    partners = stream.partners(indices, 0)
    assert (indices != partners).sum() == 6
    assert sorted(indices.tolist()) == sorted(partners.tolist())


def test_every_epoch_shows_every_image_once_in_another_order():
    stream = Stream(views_of(pictures()), batch_size=10, epochs=2, seed=0)
    epochs = [torch.cat([stream.indices(s) for s in range(4 * e, 4 * e + 4)]) for e in (0, 1)]
    assert sorted(epochs[0].tolist()) == list(range(40)) == sorted(epochs[1].tolist())
    assert not torch.equal(*epochs)


def test_schedules_start_warm_and_end_where_they_should():
    o = configured(["optimizer.lr=0.6", "optimizer.schedule=linear", "optimizer.warmup=0"]).optimizer
    assert lr_at(0, 100, o) == pytest.approx(0.6)
    assert lr_at(100, 100, o) == pytest.approx(0.6e-3)
    o = configured(["optimizer.lr=1", "optimizer.warmup=0.1"]).optimizer
    assert lr_at(0, 100, o) == pytest.approx(0.1)
    assert lr_at(9, 100, o) == pytest.approx(1)


def test_augmenting_in_workers_gives_the_same_weights(tmp_path):
    here = train(config_for(tmp_path / "here", "views=C0", "epochs=1"), images=pictures(), quiet=True)
    there = train(
        config_for(tmp_path / "there", "views=C0", "epochs=1", "augment_in=workers", "workers=1"),
        images=pictures(),
        quiet=True,
    )
    assert_same(weights(there), weights(here))


def test_online_knn_is_recorded_and_changes_nothing(tmp_path):
    watched = train(config_for(tmp_path / "watched", "knn_every=1", "logger=csv"), images=pictures(), quiet=True)
    alone = train(config_for(tmp_path / "alone"), images=pictures(), quiet=True)
    assert [r["epoch"] for r in watched.results() if r["kind"] == "knn"] == [1, 2, 3]
    assert (watched.path / "csv" / "metrics.csv").exists()
    assert_same(weights(watched), weights(alone))


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


def test_a_full_disk_is_an_error_and_leaves_no_half_file(tmp_path, monkeypatch):
    config = config_for(tmp_path)
    real = runs.files.os.fsync

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runs.files.os, "fsync", full)
    with pytest.raises(ValueError, match=r"No space left on device.*; choose a folder that can be written"):
        train(config, images=pictures(), quiet=True)
    monkeypatch.setattr(runs.files.os, "fsync", real)
    assert [path.name for path in runs.Run.of(config).path.iterdir()] == ["lock"]


def test_weights_carry_their_config_and_load_as_the_encoder(tmp_path):
    run = train(config_for(tmp_path), images=pictures(), quiet=True)
    saved, about = checkpoints.read(run.weights_file)
    assert about["config"]["method"]["name"] == "gca-ince"
    encoder = gcalign.load(run.path)
    assert isinstance(encoder, nn.Module)
    assert not encoder.training
    assert torch.equal(next(iter(encoder.state_dict().values())), next(v for k, v in saved.items() if "encoder." in k))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["epcohs=3"], "did you mean 'epochs'"),
        (["method.epss=1"], r"did you mean 'method\.eps'"),
        (["data=cifar11"], "did you mean 'cifar10'"),
        (["epochs=many"], "epochs|Integer"),
        (["epochs=0"], "epochs=0 must be at least 1"),
        (["views=C9"], "did you mean"),
        (["pairs.noise=1.5"], "pairs.noise=1.5 must be a share"),
        (["batch_size=10", "accumulate=3"], "must divide"),
        (["method=byol", "pairs.views=3"], "must be 2 for byol"),
        (["logger=csvv"], "did you mean 'csv'.*module:Class"),
        (["logger=no_such_package:Logger"], "cannot be imported .*pip install"),
        (["logger=json:loads"], "must be a class of Lightning loggers"),
    ],
)
def test_bad_configs_are_refused_before_anything_is_written(tmp_path, words, message):
    with pytest.raises(ValueError, match=message):
        configured([f"runs={tmp_path}/runs", *words])
    assert not (tmp_path / "runs").exists()


def test_a_logger_that_is_not_installed_or_has_no_such_argument_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "find_spec", lambda package: None)
    with pytest.raises(ValueError, match=r"logger=wandb needs the package wandb, .*pip install wandb"):
        config_for(tmp_path, "logger=wandb")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"logger_args={'nme': 'x'} cannot be made .*it takes save_dir, name"):
        train(config_for(tmp_path, "logger=csv", "logger_args.nme=x"), images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_impossible_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="batch_size=64 must be at most the 40 images"):
        train(config_for(tmp_path, "batch_size=64"), images=pictures(), quiet=True)
    with pytest.raises(ValueError, match=r"reads labels, and images of tiny \(train\) have none"):
        train(config_for(tmp_path, "method=supcon"), images=pictures(labels=False), quiet=True)
    with pytest.raises(ValueError, match=r"accelerator=gpu devices=1 .*accelerator=cpu"):
        train(config_for(tmp_path, "accelerator=gpu"), images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="must be a folder with a config"):
        gcalign.load(tmp_path / "nowhere")


def test_images_without_labels_are_trained_without_online_accuracies(tmp_path, capsys):
    with pytest.warns(UserWarning, match=r"knn_every=1 has no effect: images of tiny"):
        run = train(config_for(tmp_path, "knn_every=1"), images=pictures(labels=False))
    assert run.done
    assert not [line for line in run.results() if line["kind"] == "knn"]
    said = capsys.readouterr().out
    assert "no labels (training needs none)" in said
    assert "gcalign embed" in said
    assert "gcalign probe" not in said


def test_a_damaged_checkpoint_is_named_with_a_remedy(tmp_path):
    config = config_for(tmp_path)
    run = runs.Run.of(config)
    run.start(config)
    run.checkpoint_file.write_bytes(b"\x10\x00\x00")
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors cannot be read .*delete it"):
        train(config, images=pictures(), quiet=True)


@pytest.mark.slow
def test_a_run_killed_at_random_goes_on_to_the_same_weights(tmp_path):
    words = ["method=gca-uot", "data=scenes", "data.limit=256", "epochs=30", "batch_size=64", "checkpoint_every=3",
             "log_every=3", "model.width=0.25", "model.hidden=64", "model.out=16", "accelerator=cpu"]  # fmt: skip

    def start(folder, *more):
        return subprocess.Popen([sys.executable, "-m", "gcalign.cli", "train", *words, f"runs={folder}", *more])

    def steps():
        return [checkpoint_step(runs.Run(p.parent)) for p in (tmp_path / "parts").glob("*/config.json")]

    assert start(tmp_path / "whole").wait() == 0
    later = random.Random(0)
    for _ in range(4):
        before, process = steps() or [0], start(tmp_path / "parts", "checkpoint_every=1")
        while (steps() or [0]) == before:
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(later.uniform(0, 0.3))  # as likely as not while a checkpoint is written
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert start(tmp_path / "parts").wait() == 0
    (a,), (b,) = (list((tmp_path / part).glob("*/weights.safetensors")) for part in ("whole", "parts"))
    assert a.read_bytes() == b.read_bytes()


def test_supervision_starts_from_the_runs_weights_sees_its_batches_and_learns_the_labels(tmp_path):
    images = pictures(64)
    told = images.domains
    images.pixels[told == 1] //= 4  # one domain is darker
    config = config_for(tmp_path, "epochs=8", "optimizer.lr=0.01")
    start = first_encoder(config, images).state_dict()
    still = supervised(
        dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, lr=1e-30)), images, told
    )
    for name, value in still.named_parameters():
        torch.testing.assert_close(value, start[name], atol=1e-6, rtol=0)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    body, again = (supervised(config, images, told) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert_same(body.state_dict(), again.state_dict())
    assert not body.training
    x = images.pixels.float() / 255

    def separation(network):
        z = network((x - 0.5) / 0.25).detach()
        gap = z[told == 1].mean(0) - z[told == 0].mean(0)
        return float(gap.norm() / z.std(0).norm())

    other = supervised(config, images, told[torch.randperm(64, generator=torch.Generator().manual_seed(2))])
    assert separation(body) > 1.2 * separation(other)  # labels that say nothing teach nothing


def test_wrong_labels_reach_the_target_alone_and_are_the_same_in_every_epoch(tmp_path):
    images = pictures(40)
    about = {"batch_size": 20, "epochs": 2, "seed": 5}
    stream, true = Stream(views_of(images), **about, mislabelled=0.25), Stream(views_of(images), **about)
    told = torch.full((2, 40), -1)
    for step in range(stream.total):
        batch = stream[step]
        told[step // 2, batch.index] = batch.known["labels"][0]
    assert torch.equal(told[0], told[1])
    assert int((told[0] != images.labels).sum()) == 10
    assert torch.equal(images.labels, torch.arange(40) % 4)  # a probe sees the true ones
    assert all(torch.equal(labels, images.labels[true[0].index]) for labels in true[0].known["labels"])
    with pytest.raises(ValueError, match=r"needs a target that reads labels.*set target.name=labels"):
        train(config_for(tmp_path, "method=ince", "target.noise=0.2"), images=images)
    assert not list(tmp_path.iterdir())


def test_options_that_came_later_leave_the_names_of_older_runs_alone():
    config = configured(["method=gca-uot", "method.eps=0.5", "data=cifar10", "seed=3"])
    assert config.hash == "76881cd35b"  # as it was before data.tail and target.noise
    assert not {"tail", "noise"} & {*config.identity["data"], *config.identity["target"]}
    for word in ("data.tail=10", "target.noise=0.4"):
        assert configured(["method=gca-uot", "data=cifar10", "seed=3", word]).hash != config.hash


@pytest.mark.parametrize(("word", "rule"), [("data.tail=0.5", "at least 1"), ("target.noise=2", "between 0 and 1")])
def test_a_tail_or_a_share_out_of_range_is_refused(word, rule):
    with pytest.raises(ValueError, match=rule):
        configured([word])


def test_a_long_tail_is_that_of_training_images_alone():
    train_data = configured(["data=scenes", "data.tail=20", "data.limit=300"]).data
    sizes = torch.bincount(images_of(train_data, "train").labels)
    assert sizes.sum() <= 300
    assert sizes[0] / sizes[-1] == pytest.approx(20, rel=0.3)
    assert len(images_of(dataclasses.replace(train_data, limit=None), "test")) == 500
    whole, some = (
        images_of(dataclasses.replace(train_data, tail=1.0, limit=None), "train"),
        images_of(train_data, "train"),
    )
    assert torch.equal(some.draw([3, 5], seed=1), whole.draw(some.indices[[3, 5]], seed=1))


def test_a_loaded_encoder_has_the_names_of_its_network_also_inside_another_module(tmp_path):
    run = train(config_for(tmp_path, "epochs=1"), images=pictures(), quiet=True)
    first, second = gcalign.load(run.path), gcalign.load(run.path)
    assert first.state_dict().keys() == first.network.state_dict().keys()
    with torch.no_grad():
        for weight in second.parameters():
            weight.add_(1)
    nn.Sequential(second, nn.ReLU()).load_state_dict(nn.Sequential(first, nn.ReLU()).state_dict())
    assert_same(second.state_dict(), first.network.state_dict())
