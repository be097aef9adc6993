"""Options of a run: read by their types, checked by what they declare, hashed by what decides the weights."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import pytest
import torch

from gcalign import KL, Alignment, Cosine, Rows
from gcalign.lab.data import views
from gcalign.lab.training.config import Config, configured, criterion_of
from gcalign.lab.training.train import train
from gcalign.lab.training.typed import keys, option, typed, value_of
from small_runs import config_for, pictures


@dataclasses.dataclass
class Inner:
    share: float = option(0.5, "fraction", least=0, most=1, remedy="0.5 is usual")
    word: Literal["one", "two"] | None = option(None, "a word")


@dataclasses.dataclass
class Outer:
    inner: Inner = dataclasses.field(default_factory=Inner)
    number: int = option(3, "a number", least=1, limit="EPOCHS")
    size: float = option(1.0, "a size", above=0)


KEYS = {key.name: key for key in keys(Outer)}


def test_options_are_listed_with_type_choices_and_default():
    assert list(map(str, KEYS.values())) == ["inner.share=0.5", "inner.word=null", "number=3", "size=1.0"]
    assert KEYS["inner.word"].choices == ("one", "two")
    assert KEYS["inner.word"].kinds == (str, type(None))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("inner.share", 1.5, "inner.share=1.5 must be a share between 0 and 1; 0.5 is usual"),
        ("inner.word", "tow", "inner.word='tow' is unknown; did you mean 'two'"),
        ("number", 0, "number=0 must be at least 1; the default is 3"),
        ("number", 2**63, r"number=\d+ must be below 2\^63"),
        ("number", 10**7, "number is 10,000,000, at most 1,000,000"),
        ("size", 0.0, "size=0 must be > 0"),
        ("size", math.inf, "size=inf must be finite"),
    ],
)
def test_a_value_out_of_range_is_refused(key, value, says):
    with pytest.raises(ValueError, match=says):
        KEYS[key].check(value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"number": 1.5}, "number=1.5 must be a whole number"),
        ({"number": True}, "number=True must be a whole number"),
        ({"inner": {"share": "x"}}, "inner.share='x' must be a number"),
        ({"inner": {"word": 3}}, "inner.word=3 must be a text or null"),
        ({"size": math.nan}, "size=nan must be a number"),
        ({"inner": 3}, "inner must be a mapping"),
        ({"inner": {"shares": 1}}, "unknown key inner.shares; did you mean 'share'"),
    ],
)
def test_a_value_of_another_type_is_refused(content, says):
    with pytest.raises(ValueError, match=says):
        typed(Outer, content)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-1_000", -1000),
        ("1e-3", 1e-3),
        (".5", 0.5),
        ("inf", math.inf),
        ("True", True),
        ("null", None),
        ("sgd", "sgd"),
        ("${oc.env:HOME}", "${oc.env:HOME}"),  # nothing is resolved
        ("'3'", "3"),
        ("[0.1, x,true]", [0.1, "x", True]),
        ("[]", []),
    ],
)
def test_words_are_values(text, value):
    read = value_of("key", text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["[1,", "1]", "1,2", "{a: 1}", "(1)", "[[1,2],3]", "'a"])
def test_what_is_no_value_is_refused(text):
    with pytest.raises(ValueError, match="is not a value"):
        value_of("key", text)


def test_the_choices_of_an_option_are_what_the_code_knows():
    choices = {key.name: set(key.choices) for key in keys(Config)}
    assert choices["views"] == set(views.names())


def test_every_option_has_a_description_and_a_default_in_range():
    for key in keys(Config):
        assert key.about.text
        key.check(key.default)


@pytest.mark.parametrize(
    ("words", "folder"),  # of the first committed runs
    [
        ([], "gca-ince-scenes-"),
        (
            ["data.tail=1", "pairs.fixed=false", "compile=false", "center=false", "logger=csv", "workers=2"],
            "gca-ince-scenes-",
        ),
        (["name=mine"], "mine-"),
    ],
)
def test_the_folder_of_a_run_depends_on_what_decides_its_weights(words, folder):
    assert configured(words).folder == folder + "b3dd24e7a0"
    assert configured([*words, "seed=1"]).hash != "b3dd24e7a0"


def test_centring_and_a_fixed_mass_are_parts_of_the_criterion_of_any_method():
    criterion = criterion_of(configured(["method=gca-uot", "center=true", "total_mass=true"]))
    assert "center=True" in repr(criterion.kernel)
    assert repr(criterion.constraints).count("TotalMass()") == 1
    assert "at_least=True" in repr(criterion_of(configured(["method=gca-uot"])).constraints)
    assert "TotalMass" not in repr(criterion_of(configured(["method=gca-uot", "recipe=paper"])).constraints)
    assert criterion_of(configured(["method=clip", "center=true"])).alignment.kernel.center
    z1, z2 = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0)).unbind()
    centred = criterion_of(configured(["method=ince", "center=true"]))(z1, z2)
    by_hand = Alignment(Cosine(0.1, center=True), (Rows(),), KL())(z1, z2)
    assert centred == by_hand != criterion_of(configured(["method=ince"]))(z1, z2)
    with pytest.raises(ValueError, match="needs a cosine kernel, and byol has SquaredEuclidean"):
        criterion_of(configured(["method=byol", "center=true"]))


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
        (["method.relax=3"], "the method has no option .relax.; known: block"),
        (["epcohs=3"], "did you mean 'epochs'"),
        (["method.epss=1"], "did you mean .eps."),
        (["data=cifar11"], "did you mean 'cifar10'"),
        (["views=C9"], "did you mean"),
        (["pairs.noise=1.5"], "pairs.noise=1.5 must be a share"),
        (["data.tail=0.5"], "data.tail=0.5 must be at least 1"),
        (["batch_size=10", "accumulate=3"], "batch_size=10 must be divisible"),
        (["method=byol", "pairs.views=3"], "must be 2 for byol"),
        (["logger=csvv"], "did you mean 'csv'"),
        (["logger=no_such_package:Logger"], "no_such_package.*pip install"),
        (["logger=json:loads"], "logger=json:loads must be"),
        (["nodes=0"], "nodes=0 must be at least 1"),
        (["strategy=deepspeed"], "strategy='deepspeed' is unknown; known: auto, ddp"),
        (["strategy=ddp"], "strategy=ddp .*devices=1"),
        (["sync_batchnorm=true"], "sync_batchnorm=true .*devices=1"),
        (["compile=2"], "compile=2 must be true or false"),
        (["batch_size=8", "devices=2", "nodes=3"], "must be divisible by devices=2 × nodes=3 × accumulate=1"),
        (["batch_size=8", "devices=2", "nodes=4"], "must be at least 2 × devices=2 × nodes=4 × accumulate=1"),
        (["model=small"], "unknown key"),
    ],
)  # fmt: skip
def test_words_out_of_range_or_unknown_or_that_do_not_fit_are_refused(tmp_path, words, said):
    with pytest.raises(ValueError, match=said):
        configured([f"runs={tmp_path}/runs", *words])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", ["eps", "iterations", "tol", "layout", "gradient", "block", "q", "lam", "scale",
                                    "relax", "w_kl", "w_robust"])  # fmt: skip
@pytest.mark.parametrize("value", ["-1", "nan", "-inf", "x", "true", "[0.1,x]"])
def test_options_of_a_method_are_refused_before_anything_is_written(tmp_path, option, value):
    config = config_for(tmp_path / "runs", "method=gca-uot", f"method.{option}={value}")
    with pytest.raises((ValueError, TypeError), match=rf"({option}|penalty|weight)=.* must|{option}=.* is unknown"):
        train(config, images=pictures(), quiet=True)
    assert list(tmp_path.iterdir()) == []


PAPER = ["method=gca-uot", "method.eps=0.5", "method.relax=[0.2,0.2]", "data=cifar10", "seed=3"]


def test_the_same_processes_on_other_machines_are_the_same_run():
    one, two = (configured(["batch_size=64", *words]) for words in (["devices=8"], ["devices=4", "nodes=2"]))
    assert one.folder == two.folder != configured(["batch_size=64"]).folder
    assert configured([*PAPER, "strategy=auto", "nodes=1"]).hash == "76881cd35b"
    for word in ("compile=true", "channels_last=true", "sync_batchnorm=true"):
        assert configured(["batch_size=64", "devices=8", word]).hash != one.hash


def test_options_that_came_later_leave_the_names_of_older_runs_alone():
    config = configured(PAPER)
    assert config.hash == "76881cd35b"  # as it was before data.tail and target.noise
    assert not {"tail", "noise"} & {*config.identity["data"], *config.identity["target"]}
    for word in ("data.tail=10", "target.noise=0.4"):
        assert configured(["method=gca-uot", "data=cifar10", "seed=3", word]).hash != config.hash
