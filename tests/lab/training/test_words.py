"""Words of commands: what is out of range, unknown or does not fit is refused before anything is written."""

from __future__ import annotations

import pytest

from gcalign.cli import main
from gcalign.lab.training.config import configured
from gcalign.lab.training.train import train
from small_runs import config_for, pictures


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.size=100000"], r"data.size is 100,000, at most 2,048 are allowed; .*GCALIGN_IMAGE_SIDE"),
        (["precision=16-true"], "precision='16-true' is unknown; did you mean '32-true'"),
        (["optimizer.warmup=-1"], "optimizer.warmup=-1 must be a share between 0 and 1"),
        (["target.name=blocks", "target.alpha=-1"], "target.alpha=-1 must be at least 0"),
        (["target.alpha=0.5"], "has no effect without target.name=blocks"),
        (["optimizer.lr=nan"], "optimizer.lr=nan must be a number"),
        (["model.width=0"], "model.width=0 must be > 0"),
        (["model.projector=mlp"], "did you mean 'mlp2'"),
        (["seed=99999999999999999999999"], r"must be below 2\^63"),
        (["epochs=[1,"], r"epochs=\[1, is not a value"),
        (["epochs=1.5"], "epochs=1.5 must be a whole number"),
        (["epochs=99999999999"], r"epochs is 99,9.*at most 1,000,000 .*GCALIGN_EPOCHS"),
        (["optimizer.lr=1e300"], r"optimizer.lr=1e\+300 must be at most 1e\+06"),
        (["batch_size=1"], "batch_size=1 must be at least 2 × devices=1 × accumulate=1"),
        (["wait=maybe"], "wait='maybe' must be true or false"),
        (["+epoch=50"], "unknown key '.epoch'.*did you mean 'epochs'"),
        (["~epochs"], "must be key=value"),
        (["method.name=byol"], "must be written method=byol"),
        (["data.name=cifar10"], "must be written data=cifar10"),
        (["hydra.run.dir=x"], "unknown key"),
        (["method.relax=3"], "unknown key"),
        (["epcohs=3"], "did you mean 'epochs'"),
        (["method.epss=1"], r"did you mean 'method\.eps'"),
        (["data=cifar11"], "did you mean 'cifar10'"),
        (["views=C9"], "did you mean"),
        (["pairs.noise=1.5"], "pairs.noise=1.5 must be a share"),
        (["data.tail=0.5"], "data.tail=0.5 must be at least 1"),
        (["batch_size=10", "accumulate=3"], "batch_size=10 must divide"),
        (["method=byol", "pairs.views=3"], "must be 2 for byol"),
        (["logger=csvv"], "did you mean 'csv'"),
        (["logger=no_such_package:Logger"], "no_such_package.*pip install"),
        (["logger=json:loads"], "logger=json:loads must be"),
        (["nodes=0"], "nodes=0 must be at least 1"),
        (["strategy=deepspeed"], "strategy='deepspeed' is unknown; known: auto, ddp, fsdp"),
        (["strategy=ddp"], "strategy=ddp .*devices=1"),
        (["sync_batchnorm=true"], "sync_batchnorm=true .*devices=1"),
        (["compile=2"], "compile=2 must be true or false"),
        (["batch_size=8", "devices=2", "nodes=3"], "batch_size=8 must divide among devices=2 × nodes=3 × accumulate=1"),
        (["batch_size=8", "devices=2", "nodes=4"], "must be at least 2 × devices=2 × nodes=4 × accumulate=1"),
        (["devices=2", "strategy=fsdp", "accumulate=2"], "accumulate=2 .*strategy=fsdp.*strategy=ddp"),
        (["devices=2", "strategy=fsdp", "method=byol"], "method=byol .*strategy=fsdp"),
        (["devices=2", "strategy=fsdp", "optimizer.name=lars"], "optimizer.name=lars .*strategy=fsdp"),
        (["devices=2", "strategy=fsdp", "compile=true"], "compile=true .*strategy=fsdp"),
        (["model=small"], "unknown key"),
    ],
)  # fmt: skip
def test_words_out_of_range_or_unknown_or_that_do_not_fit_are_refused(tmp_path, words, said):
    with pytest.raises(ValueError, match=said):
        configured([f"runs={tmp_path}/runs", *words])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run=pixels", "protocol=knn", "k=[1,"], "k=[1, is not a value"),
        (["run=pixels", "protocol=knn", "k={"], "k={ is not a value"),
        (["run=pixels", "protocol=knn", "data.size=100000", "data=folder", "data.root=."], "at most 2,048"),
        (["run=pixels", "protocol=knn", "device=meta"], "device=meta cannot be used"),
        (["run=pixels", "protocol=knn", "k=99999999999999999999"], "must be below 2^63"),
        (["run=pixels", "model.width=2"], "has no effect on run=pixels"),
        (["run=pixels", "+k=3"], "did you mean 'k'"),
        (["run=pixels", "encoder=a:b"], "has no effect on run=pixels"),
    ],
)
def test_a_probe_refuses_words_without_a_traceback(words, said, capsys):
    assert main(["probe", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("option", ["eps", "iterations", "tol", "layout", "gradient", "block", "q", "lam", "scale",
                                    "relax", "w_kl", "w_robust"])  # fmt: skip
@pytest.mark.parametrize("value", ["-1", "nan", "-inf", "x", "true", "[0.1,x]"])
def test_options_of_a_method_are_refused_before_anything_is_written(tmp_path, option, value):
    config = config_for(tmp_path / "runs", "method=gca-uot", f"method.{option}={value}")
    with pytest.raises((ValueError, TypeError), match=rf"({option}|penalty|weight)=.* must|{option}=.* is unknown"):
        train(config, images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []
