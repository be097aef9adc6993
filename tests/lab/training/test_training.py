"""A run is a function of its config: interrupted anywhere, it ends in the same weights, bit for bit."""

from __future__ import annotations

import csv
import dataclasses
import os
import signal

import lightning.pytorch.loggers
import pytest
import torch
from torch import nn

import gcalign
from gcalign.lab.data.sides import views_of
from gcalign.lab.models import momentum_at
from gcalign.lab.training import checkpoints, loggers, runs
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


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(runs.Path, "mkdir", refused)
    with pytest.raises(ValueError, match=r"Permission denied.*runs="):
        train(config_for(tmp_path / "runs"), images=pictures(), quiet=True)
    assert not (tmp_path / "runs").exists()


def test_lost_weights_are_made_again(tmp_path):
    config = config_for(tmp_path)
    run = train(config, images=pictures(), quiet=True)
    before = run.weights_file.read_bytes()
    run.weights_file.write_bytes(before[:1000])
    with pytest.raises(ValueError, match=r"weights\.safetensors .*delete it"):
        gcalign.load(run.path)
    run.weights_file.unlink()
    assert train(config, images=pictures(), quiet=True).weights_file.read_bytes() == before
    run.config_file.write_text("{")
    with pytest.raises(ValueError, match=r"config\.json "):
        run.config()


def test_a_finished_run_is_not_run_again(tmp_path, capsys):
    config = config_for(tmp_path)
    run = train(config, images=pictures(), quiet=True)
    stamp = run.weights_file.stat().st_mtime_ns
    assert train(config, images=pictures()).path == run.path
    assert run.weights_file.stat().st_mtime_ns == stamp
    assert "finished already" in capsys.readouterr().out


@pytest.mark.parametrize("name", gcalign.methods.names())
def test_every_method_trains_on_the_embedded_data(tmp_path, name):
    words = ("data=scenes", "data.limit=32", f"method={name}", "epochs=1", "log_every=1")
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


def test_weights_carry_their_config_and_load_as_the_encoder(tmp_path):
    run = train(config_for(tmp_path), images=pictures(), quiet=True)
    saved, about = checkpoints.read(run.weights_file)
    assert about["config"]["method"]["name"] == "gca-ince"
    encoder = gcalign.load(run.path)
    assert isinstance(encoder, nn.Module)
    assert not encoder.training
    assert torch.equal(next(iter(encoder.state_dict().values())), next(v for k, v in saved.items() if "encoder." in k))


def test_a_logger_that_is_not_installed_or_has_no_such_argument_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "find_spec", lambda package: None)
    with pytest.raises(ValueError, match=r"logger=wandb .*pip install wandb"):
        config_for(tmp_path, "logger=wandb")
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"logger_args={'nme': 'x'}.*save_dir, name"):
        train(config_for(tmp_path, "logger=csv", "logger_args.nme=x"), images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_impossible_runs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="batch_size=64 must be at most the 40 images"):
        train(config_for(tmp_path, "batch_size=64"), images=pictures(), quiet=True)
    with pytest.raises(ValueError, match=r"labels.*tiny \(train\)"):
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
    with pytest.raises(ValueError, match=r"target.name=labels"):
        train(config_for(tmp_path, "method=ince", "target.noise=0.2"), images=images)
    assert not list(tmp_path.iterdir())


def test_options_that_came_later_leave_the_names_of_older_runs_alone():
    config = configured(["method=gca-uot", "method.eps=0.5", "data=cifar10", "seed=3"])
    assert config.hash == "76881cd35b"  # as it was before data.tail and target.noise
    assert not {"tail", "noise"} & {*config.identity["data"], *config.identity["target"]}
    for word in ("data.tail=10", "target.noise=0.4"):
        assert configured(["method=gca-uot", "data=cifar10", "seed=3", word]).hash != config.hash


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
