"""A run is a function of its config: interrupted anywhere, it ends in the same weights, bit for bit."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from torch import nn

import gcalign
from gcalign.lab.data.sides import views_of
from gcalign.lab.models import momentum_at
from gcalign.lab.training import runs
from gcalign.lab.training.module import Training
from gcalign.lab.training.samples import images_of
from gcalign.lab.training.train import train
from small_runs import StoppedError, assert_same, config_for, pictures, stopping, weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(LeafSpec|litlogger|sync_dist|lightning).*"),
]


def first_encoder(config, images):
    """The encoder that a run starts from."""
    return Training(config, views_of(images), total=10).towers[0].encoder


@pytest.mark.parametrize(
    ("words", "stops"),
    [
        ((), (1, 3, 5)),
        (("method=gca-uot", "pairs.noise=0.5"), (3, 5)),
        (("method=byol", "accumulate=4", "optimizer.name=lars"), (1, 5)),
        (("precision=bf16-mixed", "optimizer.name=adamw"), (5,)),
        (("channels_last=true", "model.encoder=resnet18", "optimizer.name=lars"), (5,)),
        pytest.param(("compile=true", "optimizer.name=sgd"), (5,), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_an_interrupted_run_ends_in_the_same_bytes(tmp_path, words, stops):
    words = (*words, "log_every=1")  # so that lines were written after the last checkpoint
    whole = train(config_for(tmp_path / "whole", *words), images=pictures(), quiet=True)
    for stop_at in stops:
        config = config_for(tmp_path / str(stop_at), *words)
        with pytest.raises(StoppedError), stopping(stop_at):
            train(config, images=pictures(), quiet=True)
        torch.manual_seed(12345)  # what else happens in the process must not matter
        parts = train(config, images=pictures(), quiet=True)
        assert parts.weights_file.read_bytes() == whole.weights_file.read_bytes()
        lines = [[(r["step"], r["loss"]) for r in run.results() if r["kind"] == "train"] for run in (parts, whole)]
        assert lines[0] == lines[1]
        assert torch.tensor(lines[0]).isfinite().all()


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


def test_a_finished_run_is_not_run_again_and_lost_weights_are(tmp_path, capsys):
    config = config_for(tmp_path)
    run = train(config, images=pictures(), quiet=True)
    before, stamp = run.weights_file.read_bytes(), run.weights_file.stat().st_mtime_ns
    assert train(config, images=pictures()).path == run.path
    assert run.weights_file.stat().st_mtime_ns == stamp
    assert "finished already" in capsys.readouterr().out
    run.weights_file.write_bytes(before[:1000])
    with pytest.raises(ValueError, match=r"weights\.safetensors .*delete it"):
        gcalign.load(run.path)
    run.weights_file.unlink()
    assert train(config, images=pictures(), quiet=True).weights_file.read_bytes() == before


@pytest.mark.parametrize("words", [("augment_in=workers", "workers=1"), ("knn_every=1", "logger=csv")], ids=str)
def test_where_views_are_made_and_what_is_watched_changes_nothing(tmp_path, words):
    plain = train(config_for(tmp_path / "plain", "views=C0"), images=pictures(), quiet=True)
    other = train(config_for(tmp_path / "other", "views=C0", *words), images=pictures(), quiet=True)
    assert_same(weights(other), weights(plain))
    epochs = [line["epoch"] for line in other.results() if line["kind"] == "knn"]
    assert epochs == ([1, 2, 3] if "knn_every=1" in words else [])
