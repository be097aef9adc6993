"""E6, E8 and E9: the tiny scale needs no downloads, what is wrong is what was asked for, and judges go either way."""

from __future__ import annotations

import builtins
import dataclasses
import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from gcalign.lab.experiments import pretrained
from gcalign.lab.experiments.engine import records
from gcalign.lab.experiments.engine.claims import Results, planned_seeds
from gcalign.lab.experiments.engine.clusters import Counts
from gcalign.lab.experiments.engine.experiment import Computing, every_claim, named
from gcalign.lab.experiments.engine.records import Record
from gcalign.lab.experiments.studies import pacs, real_mistakes, wrong_pairs


def made(name, tmp_path, known=()):
    """What an experiment computes at the tiny scale, as it comes."""
    own = named(name)
    return own.compute(Computing(own.at("tiny"), str(tmp_path), list(known)))


def verdict(label, experiment, values):
    (claim,) = [c for c in every_claim() if c.label == label]
    return claim.judged(Results("small", {experiment: records.frame(values)}))


# --- optional encoders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", pretrained.INSTALL)
def test_a_missing_encoder_is_named_with_the_command_that_installs_it(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"{module} cannot be imported .*; install it with: pip install .*scale=tiny"):
        pretrained.optional(module)


def test_features_are_made_once(tmp_path):
    calls = []
    for _ in range(2):
        x = pretrained.cached(tmp_path / "new" / "x.npy", lambda: calls.append(1) or torch.arange(3.0))
        assert x.tolist() == [0, 1, 2]
    assert len(calls) == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.npy"]


# --- the tiny scale ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["table-wrong-pairs", "table-real-mistakes", "fig-targets-pretrained"])
def test_the_tiny_scale_needs_no_data_and_no_encoder_and_goes_on_where_it_stopped(name, tmp_path, monkeypatch):
    imported = builtins.__import__

    def without(module, *args, **kwargs):
        assert module.partition(".")[0] not in pretrained.INSTALL
        return imported(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    if name == "table-wrong-pairs":
        monkeypatch.setattr(wrong_pairs, "CASES", wrong_pairs.CASES[:1])
        few = {name: (make, tried[:1]) for name, (make, tried) in wrong_pairs.LOSSES.items()}
        monkeypatch.setattr(wrong_pairs, "LOSSES", few)
    if name == "table-real-mistakes":
        few = {name: (make, tried[:1]) for name, (make, tried) in real_mistakes.LOSSES.items()}
        monkeypatch.setattr(real_mistakes, "LOSSES", few)
    every = [record for some in made(name, tmp_path) for record in some]
    assert all(0 <= record.value <= 1 and record.about["commit"] for record in every)
    assert not [*made(name, tmp_path, every)]
    some = [record for record in every if record.seed != 1]
    again = [record for part in made(name, tmp_path, some) for record in part]
    assert again == [record for record in every if record.seed == 1]
    paths = named(name).draw(records.frame(every), tmp_path / "drawn")
    assert all(path.stat().st_size for path in paths)


# --- E6 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["missing", "exchanged"])
def test_wrong_pairs_are_those_that_were_asked_for_and_groups_are_not_divided(kind):
    pairs = wrong_pairs._made_up()
    drawn = wrong_pairs._drawn(pairs, 0.4, kind, 3)
    both = torch.cat((drawn.train, drawn.validation))
    wrong = both[:, 0] != both[:, 1]
    assert float(wrong.float().mean()) == pytest.approx(0.4, abs=0.01)
    partners = set(both[wrong][:, 1].tolist())
    assert partners.isdisjoint(both[:, 0].tolist()) == (kind == "missing")
    assert partners.issubset(both[wrong][:, 0].tolist()) == (kind == "exchanged")
    groups = [set(pairs.group[rows].tolist()) for rows in (drawn.train[:, 0], drawn.validation[:, 0], drawn.test)]
    assert not groups[0] & groups[1]
    assert not groups[2] & (groups[0] | groups[1])
    assert not set(pairs.group[both[:, 1]].tolist()) & groups[2]


def test_the_test_pairs_are_the_same_for_all_seeds_and_the_others_are_not():
    one, two = (wrong_pairs._drawn(wrong_pairs._made_up(), 0.4, "missing", seed) for seed in (0, 1))
    assert torch.equal(one.test, two.test)
    assert not torch.equal(one.train, two.train)


def test_every_loss_has_six_settings_and_is_a_loss():
    z = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    for name, (make, tried) in wrong_pairs.LOSSES.items():
        assert len(tried) == 6, name
        for setting in tried:
            x = z.clone().requires_grad_()
            make(**{key: value for key, value in setting.items() if key != "drop"})(x, z.flip(0)).backward()
            assert x.grad.isfinite().all(), name


def test_forward_correction_by_nothing_is_infonce_both_ways():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 8, 4, generator=g)
    assert wrong_pairs.forward_corrected(0.2, 0.0)(x, y) == pytest.approx(float(wrong_pairs.clip(0.2)(x, y)), rel=1e-5)
    hard = wrong_pairs.forward_corrected(0.2, 0.5)(x, -x)
    assert float(hard) < math.log(2 * 8)  # a pair costs no more than a partner by chance


def clustered(name, rows, level, gain, noise=0.01, wanted=range(5), **labels):
    """Hits in clusters that differ alike for all rows, and a little on their own."""
    draw, shared = np.random.default_rng(0), np.random.default_rng(1).normal(0, 0.1, 30)
    return [
        Record(
            name, "small", measure, 0.5, labels | {"method": row}, seed,
            {"clusters": {
                str(c): [20 * (level + shared[c] + (gain if row == rows[0] else 0) + draw.normal(0, noise)), 20]
                for c in range(30)
            }},
        )
        for row in rows
        for seed in wanted
        for measure in ("R@1", "R@10")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gain", "noise", "word"),
    [(0.03, 0.01, "held"), (-0.03, 0.01, "failed"), (0.0, 0.01, "not shown"), (0.03, 0.4, "not shown")],
)
@pytest.mark.parametrize(("other", "title"), [("clip centred", "CLIP, centred"), ("siglip", "SigLIP")])
def test_e6_is_judged_over_groups(gain, noise, word, other, title):
    at = {"data": "emoji", "wrong": 0.4, "kind": "missing"}
    values = clustered("table-wrong-pairs", ("gca-uot", other), 0.4, gain, noise, **at)
    found = verdict(f"E6 emoji, {title}", "table-wrong-pairs", values)
    assert (found.word, found.n, found.of) == (word, 30, "clusters of groups")
    assert verdict(f"E6 messages, {title}", "table-wrong-pairs", values).word == "not measured"
    few = [value for value in values if value.seed < 4]
    assert verdict(f"E6 emoji, {title}", "table-wrong-pairs", few).word == "not measured"


def test_the_bootstrap_has_the_error_of_independent_clusters():
    draw = np.random.default_rng(2)
    gaps = draw.normal(0.1, 0.05, 40)
    values = [
        Record(
            labels={"method": m}, seed=0, about={"clusters": {str(c): [g * (m == "a"), 1] for c, g in enumerate(gaps)}}
        )
        for m in ("a", "b")
    ]
    e = Counts.of(records.frame(values), ["a", "b"], "method", None, [0]).contrast([1.0, -1.0])
    assert e.mean == pytest.approx(gaps.mean())
    assert e.error == pytest.approx(gaps.std() / math.sqrt(40), rel=0.1)
    assert e.df == 39


def test_seeds_that_disagree_widen_the_interval():
    def error(jump):
        values = [
            Record(
                labels={"method": m}, seed=s, about={"clusters": {str(c): [jump * s * (m == "a"), 1] for c in "abcd"}}
            )
            for m in ("a", "b")
            for s in range(5)
        ]
        return Counts.of(records.frame(values), ["a", "b"], "method", None, range(5)).contrast([1.0, -1.0]).error

    assert error(0.0) == 0
    assert error(0.1) == pytest.approx(0.1 * math.sqrt(2 / 5), rel=0.1)


# --- E8 ------------------------------------------------------------------------------------------------------------


def test_held_out_packages_share_nothing_with_training():
    messages = real_mistakes.Messages.made_up()
    train, test = messages.divided(2, 0, "tiny")
    assert len(train)
    assert len(test)
    for column in ("package", "english", "translation"):
        assert not set(train[column]) & set(test[column])
    assert set(test["kind"]) == {"right"}
    assert train["fuzzy"].any()


def test_ngrams_that_training_has_not_seen_do_not_count():
    towers = real_mistakes.Towers(
        ["aaaa bbbb", "bbbb aaaa", "aaaa"], ["cc", "dd", "ee"], wrong_pairs.clip(0.1), seed=0, epochs=1
    )
    assert towers.unit(0, ["zzzz"]).abs().max() == 0
    assert towers.unit(0, ["aaaa"]).norm() == pytest.approx(1)
    rows = pd.DataFrame({"english": ["aaaa bbbb", "zzzz"], "translation": ["cc", "yyyy"]})
    assert towers.ranks(rows)[:, 1].tolist() == [0.5, 0.5]  # of equally near ones, half


@pytest.mark.parametrize(("a", "b"), real_mistakes.COMPARED)
@pytest.mark.parametrize(("gain", "word"), [(0.03, "held"), (-0.03, "failed"), (0.0, "not shown")])
def test_e8_is_judged_over_packages_by_the_mean_of_languages(a, b, gain, word):
    values = [
        value
        for language in real_mistakes.LANGUAGES
        for value in clustered("table-real-mistakes", (a, b), 0.5, gain * (language != "hu"), language=language)
    ]
    found = verdict(f"E8 {a}, {b}", "table-real-mistakes", values)
    assert (found.word, found.of) == (word, "packages")
    if gain:
        assert found.estimate.mean == pytest.approx(gain * 5 / 6, abs=0.005)


# --- E9 ------------------------------------------------------------------------------------------------------------


def pacs_records(class_gain=0.0, domain_gain=0.0, frozen=0.9):
    window = [
        Record("fig-targets-pretrained", "small", f"domain{which}", value, {"setting": "window"}, 149)
        for which, value in (("-frozen", frozen), ("", 0.9), ("-supervised", 0.96))
    ]
    return window + [
        Record(
            *("fig-targets-pretrained", "small", measure, 0.6 + (gain + 0.004 * (seed % 3 - 1)) * (alpha > 0)),
            {"setting": "targets", "alpha": alpha},
            seed,
        )
        for measure, gain in (("across-domains", class_gain), ("domain", domain_gain))
        for alpha in pacs.ALPHAS
        for seed in range(150, 167)
    ]


@pytest.mark.parametrize(("gain", "word"), [(0.0, "held"), (-0.03, "failed"), (-0.01, "not shown")])
def test_class_accuracy_may_lose_less_than_a_point(gain, word):
    values = pacs_records(class_gain=gain)
    assert verdict("E9 class accuracy, α = 0.1", "fig-targets-pretrained", values).word == word
    assert verdict("E9 domain accuracy, α = 0.1", "fig-targets-pretrained", values).word == "not shown"
    values = pacs_records(class_gain=gain, frozen=0.951)
    found = verdict("E9 class accuracy, α = 0.1", "fig-targets-pretrained", values)
    assert (found.word, found.p) == ("not judgeable", None)
    assert "95.1 % of the images" in found.result


def test_seeds_of_what_is_computed_are_those_of_its_scale():
    assert planned_seeds("fig-targets-pretrained", "small") == list(range(150, 167))
    assert planned_seeds("table-real-mistakes", "small") == list(range(5))


def test_heads_of_one_seed_start_alike_and_a_target_changes_them():
    features = pacs._made_up()
    features = dataclasses.replace(features, views=features.views[:, :64])
    one, again, other = (pacs._trained(features, alpha, 0, "tiny") for alpha in (0.0, 0.0, 0.1))
    weights = [next(head.parameters()) for head in (one, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
