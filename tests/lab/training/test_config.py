"""Options of a run: read by their types, checked by what they declare, hashed by what decides the weights."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import pytest
import torch

from gcalign import KL, Alignment, Cosine, Rows
from gcalign.lab.data import sources, views
from gcalign.lab.models.encoders import STEMS
from gcalign.lab.models.heads import PROJECTORS
from gcalign.lab.training import optimizers
from gcalign.lab.training.config import Config, configured, criterion_of
from gcalign.lab.training.typed import keys, option, typed, value_of


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
    assert choices["model.stem"] == set(STEMS)
    assert choices["model.projector"] == set(PROJECTORS)
    assert choices["optimizer.name"] == set(optimizers.NAMES)


def test_every_option_has_a_description_and_a_default_in_range():
    for key in keys(Config):
        assert key.about.text
        key.check(key.default)


def test_a_data_set_that_is_registered_later_is_known():
    sources.register("mine")(lambda split, **_: None)
    try:
        assert configured(["data=mine"]).data.name == "mine"
    finally:
        del sources.MAKERS["mine"], sources.DATA_SETS["mine"]


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
    assert "TotalMass" in repr(criterion.constraints)
    assert criterion_of(configured(["method=clip", "center=true"])).alignment.kernel.center
    z1, z2 = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0)).unbind()
    centred = criterion_of(configured(["method=ince", "center=true"]))(z1, z2)
    by_hand = Alignment(Cosine(0.1, center=True), (Rows(),), KL())(z1, z2)
    assert centred == by_hand != criterion_of(configured(["method=ince"]))(z1, z2)
    with pytest.raises(ValueError, match="needs a cosine kernel, and byol has SquaredEuclidean"):
        criterion_of(configured(["method=byol", "center=true"]))
