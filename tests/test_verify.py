"""The paper's claims: each gets its verdict, a case is the same whenever it runs, and a broken loss is caught."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict

import pytest
import torch

from gcalign import methods
from gcalign.constraints import Columns
from gcalign.lab import verify
from gcalign.lab.verify.claims import Case, Claim, Draw
from gcalign.lab.verify.costs import Flops
from gcalign.lab.verify.theorems import _wasserstein

EXPECTED = {
    "thm:cl_eq_ot": "holds",
    "thm:rince": "holds",
    "co:rince": "holds as a bound",
    "thm:byol": "holds",
    "thm:lowest": "holds",
    "thm:gcarince": "fails",
    "thm:uniformity": "holds",
    "backward": "fails",
    "flops": "fails",
    "tab:new_combine cifar10(Ex)": "holds",
    "tab:new_combine cifar100(Ex)": "fails",
    "tab:new_combine cifar10c(Ex)": "fails",
    "svhn-backbone": "fails",
    "pacs-classes": "fails",
}


@pytest.fixture(scope="module")
def verdicts():
    return {v.label: v for v in verify.run(cases=25)}


def test_every_claim_is_checked_in_the_papers_order():
    assert verify.labels() == tuple(EXPECTED)


@pytest.mark.parametrize("label", EXPECTED)
def test_each_claim_gets_its_verdict(verdicts, label):
    v = verdicts[label]
    assert v.verdict == EXPECTED[label], v.evidence
    assert (v.violations > 0) == (v.verdict == "fails")
    assert v.worst.violated == (v.verdict == "fails")


def test_exact_theorems_are_exact_to_rounding(verdicts):
    for label in ("thm:cl_eq_ot", "thm:rince", "thm:byol"):
        assert verdicts[label].worst.excess < 1e-13


def test_a_failing_claim_carries_a_command_whose_numbers_violate_it(verdicts):
    v = verdicts["thm:gcarince"]
    assert v.replay == f"gcalign verify --only thm:gcarince --seed 0 --case {v.worst.case}"
    assert v.replay in v.evidence
    again = verify.replay("thm:gcarince", seed=0, case=v.worst.case)
    assert again == v.worst
    assert again.left > again.right


def test_a_label_with_spaces_is_quoted_in_its_command(verdicts):
    assert "--only 'tab:new_combine cifar100(Ex)'" in verdicts["tab:new_combine cifar100(Ex)"].replay


@pytest.mark.parametrize("label", ["thm:cl_eq_ot", "co:rince", "thm:gcarince", "backward"])
def test_a_case_is_the_same_alone_and_among_others(label):
    among = []
    verify.run([label], seed=3, cases=5, advance=lambda _: among.append(verify.replay(label, seed=3, case=len(among))))
    alone = [verify.replay(label, seed=3, case=k) for k in reversed(range(5))]
    assert among == alone[::-1]
    assert verify.replay(label, seed=4, case=2) != among[2]


def test_detaching_the_scalings_loses_the_repulsion_and_the_envelope_loses_nothing(verdicts):
    worst = verdicts["backward"].worst.numbers
    assert worst["detached"] > 0.1
    assert worst["envelope"] < 1e-9


def test_the_extreme_columns_match_as_often_as_counted_by_hand(verdicts):
    assert verdicts["tab:new_combine cifar10(Ex)"].violations == 0
    assert verdicts["tab:new_combine cifar100(Ex)"].violations == 9
    assert "8 of 9 (all but BYOL) are the large-erase row" in verdicts["tab:new_combine cifar100(Ex)"].evidence
    assert verdicts["tab:new_combine cifar10c(Ex)"].violations == 8  # BYOL is the mean
    assert not verify.replay("tab:new_combine cifar10c(Ex)", seed=0, case=5).violated


@pytest.mark.parametrize(("name", "label"), [("ince", "thm:cl_eq_ot"), ("rince", "thm:rince"), ("byol", "thm:byol")])
def test_a_broken_loss_is_caught(monkeypatch, name, label):
    factory = methods._REGISTRY[name]

    @functools.wraps(factory)
    def broken(**options):
        criterion = factory(**options)
        return lambda z1, z2: criterion(z1, z2) * (1 + 1e-9)

    assert verify.run([label], cases=3)[0].verdict == "holds"
    monkeypatch.setitem(methods._REGISTRY, name, broken)
    assert verify.run([label], cases=3)[0].verdict == "fails"


@pytest.mark.parametrize("label", ["thm:lowest", "thm:uniformity"])
def test_a_projection_that_overshoots_is_caught(monkeypatch, label):
    exact = Columns.multiplier
    monkeypatch.setattr(Columns, "multiplier", lambda *args: exact(*args) + 1e-3)
    assert verify.run([label], cases=3)[0].verdict == "fails"


def test_a_nan_is_a_violation(monkeypatch):
    claim = Claim("x", "x", "l", "≤", "r", "", lambda draw: Case(float("nan"), 0.0, {}), "cases", 1, False, 1e-12)
    monkeypatch.setitem(verify.claims._CLAIMS, "x", claim)
    assert verify.run(["x"])[0].verdict == "fails"


def test_verdicts_survive_json(verdicts):
    for v in verdicts.values():
        assert json.loads(json.dumps(asdict(v), allow_nan=False)) == asdict(v)


def test_an_unknown_label_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'thm:gcarince'"):
        verify.run(["thm:gcarinse"])


def test_a_case_that_a_claim_does_not_have_is_refused():
    with pytest.raises(ValueError, match="must be below 9"):
        verify.replay("tab:new_combine cifar10(Ex)", seed=0, case=9)


def test_the_number_of_threads_is_left_as_it_was():
    before = torch.get_num_threads()
    verify.run(["pacs-classes"])
    assert torch.get_num_threads() == before


def test_the_bracket_contains_the_linear_programs_w1():
    ot = pytest.importorskip("ot")
    for case in range(5):
        draw = Draw(0, case)
        x, y = draw.normal(4, 3), draw.normal(9, 3)
        mu, nu = torch.full((4,), 1 / 4).double(), torch.full((9,), 1 / 9).double()
        cost = torch.cdist(x, y)
        exact = ot.emd2(mu.numpy(), nu.numpy(), cost.numpy())
        bracket = _wasserstein(cost, mu, nu)
        assert bracket.dual <= exact + 1e-12
        assert exact <= bracket.primal + 1e-12
        assert bracket.primal - bracket.dual < 0.05 * exact


def test_flops_are_counted_by_hand_in_a_small_graph():
    a, b = torch.ones(3, 4, requires_grad=True), torch.ones(4, 5)
    with Flops() as counter:
        (a @ b).exp().sum()  # 2·3·4·5, 15 outputs, 15 inputs
    assert counter.total == 120 + 15 + 15
    with Flops() as counter:
        (a @ b).sum().backward()  # 120 + 15 forwards; the sum's is a view; 120 backwards, in a alone
    assert counter.total == 120 + 15 + 120
